"""A node of any version of the package can be offered as a service; nats-py takes semantic versions only."""

from __future__ import annotations

import pytest
from nats.micro.service import ServiceConfig

from liftpy_server.admin.service import semantic


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.4.0", "0.4.0"),
        ("0.4.0rc1", "0.4.0-rc1"),
        ("0.4.0.dev0", "0.4.0-dev0"),
        ("0.4.0.post2", "0.4.0-post2"),
        ("0.4.0.dev3+g1a2b3c", "0.4.0-dev3+g1a2b3c"),
        ("0.4.0+local", "0.4.0+local"),
    ],
)
def test_versions_that_are_not_final_are_told_as_nats_wants_them(version, told):
    assert semantic(version) == told
    assert ServiceConfig(name="liftpy", version=told).version == told
