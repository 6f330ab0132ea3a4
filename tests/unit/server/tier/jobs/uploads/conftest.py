"""Fixtures of the tests of uploads."""

from __future__ import annotations

import pytest

from liftpy_bucket.store.memory import MemoryStore
from support.tier_slices import LogFile


@pytest.fixture
def store():
    """An empty store in memory."""
    return MemoryStore()


@pytest.fixture
def log(tmp_path):
    """A log file with 1,000 records."""
    file = LogFile(tmp_path / "0.log")
    file.append(1_000)
    return file
