"""Fixtures of the tests of replication's host."""

from __future__ import annotations

import pytest

from support.replica_kit import ReplicaKit


@pytest.fixture
def three(tmp_path):
    """A partition on three nodes, of which `a` leads."""
    kit = ReplicaKit(tmp_path)
    kit.lead("a", 1)
    kit.run()
    yield kit
    kit.close()
