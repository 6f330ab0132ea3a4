"""Segments have their descriptors before connections do."""

from __future__ import annotations

import resource
from unittest.mock import patch

import pytest

from liftpy_server.listeners.open_files import connections_allowed, raise_open_files_limit, segments_allowed
from liftpy_server.settings.config import NodeConfig, PullConfig, StorageConfig


@pytest.mark.parametrize(
    ("open_files", "wanted", "allowed"),
    [
        (100_000, 10_000, 10_000),
        (1_640, 10_000, 401),
        (1_640, 20, 20),
        (1_024, 10_000, 112),
        (640, 10, 10),
        (256, 10, 1),
    ],
)
def test_connections_leave_enough_for_segments(open_files, wanted, allowed):
    config = NodeConfig(pull=PullConfig(connections_max=wanted), storage=StorageConfig(open_files_max=512))
    assert allowed == connections_allowed(config, open_files)


@pytest.mark.parametrize(("open_files", "allowed"), [(100_000, 4_096), (1_024, 512), (1, 1)])
def test_segments_have_at_most_half_of_the_descriptors(open_files, allowed):
    assert allowed == segments_allowed(NodeConfig(), open_files)


@pytest.mark.parametrize(("hard", "limit"), [(4_096, 4_096), (resource.RLIM_INFINITY, 2**31)])
def test_as_many_files_as_the_system_grants(hard, limit):
    with (
        patch.object(resource, "getrlimit", return_value=(1_024, hard)),
        patch.object(resource, "setrlimit") as set_limit,
    ):
        assert limit == raise_open_files_limit()
    set_limit.assert_called_once_with(resource.RLIMIT_NOFILE, (hard, hard))
