"""Fixtures of the server's tests."""

from __future__ import annotations

import pytest

from support.server_kit import Kit


@pytest.fixture
def make_kit(tmp_path):
    """Makes streams with real logs; see `Kit`."""
    kits = []

    def make(**arguments):
        kits.append(Kit(tmp_path / str(len(kits)), **arguments))
        return kits[-1]

    yield make
    for kit in kits:
        kit.close()


@pytest.fixture
def kit(make_kit):
    """A stream with one partition and the settings that users get."""
    return make_kit()
