"""When the S3 server of `liftpy dev --s3` counts as started."""

from __future__ import annotations

import pytest

from liftpy.cli.dev.seaweed import SeaweedServer

READY = {"s3": 403, "bucket": 200, "PUT": 201, "GET": 200, "DELETE": 204}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, True),
        ({"s3": 0}, False),
        ({"s3": 503}, False),
        ({"bucket": 404}, False),
        ({"PUT": 500}, False),  # no volume to write to
        ({"GET": 500}, False),  # the volume can not be found
        ({"DELETE": 500}, False),
    ],
)
def test_it_is_ready_when_what_it_keeps_can_be_read(tmp_path, monkeypatch, answers, expected):
    server = SeaweedServer(tmp_path, tmp_path / "log")
    told = READY | answers
    probes = set()

    def status(url, method="GET", _body=None):
        if url == server.endpoint:
            return told["s3"]
        if url.endswith(f"/{server.url.removeprefix('s3://')}/"):
            return told["bucket"]
        probes.add(url)
        return told[method]

    monkeypatch.setattr("liftpy.cli.dev.seaweed._status", status)
    assert server._is_ready() is expected
    assert len(probes) == (told["s3"] == 403 and told["bucket"] == 200)
