"""`liftpy spark restore`: mistakes end in words, before anything is asked for or begun."""

from __future__ import annotations

import pytest

from support.cli import Cli

OPTIONS = ("spark", "restore", "--bucket", "s3://new/place")


@pytest.fixture
def cli(tmp_path):
    return Cli(None, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "backup"), "--from: 'backup' is not of the form s3://bucket/prefix"),
        (("--from", "s3://old/place", "--from-endpoint", "here"), "--from-endpoint: 'here' is not of the form"),
        (("--stream", "orders"), "--stream: say --from; a restore brings back all that the bucket has"),
    ],
)
def test_mistakes(cli, arguments, said):
    assert said in cli.error(*OPTIONS, *arguments, code=2)
