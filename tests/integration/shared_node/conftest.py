"""Tests here share a node per module, and leave no stream behind."""

from __future__ import annotations

import pytest

from support.reading import delete_streams


@pytest.fixture
def nats_server(shared_nats):
    return shared_nats


@pytest.fixture
def node(shared_node):
    return shared_node


@pytest.fixture
async def lift(shared_lift):
    yield shared_lift
    await delete_streams(shared_lift)
