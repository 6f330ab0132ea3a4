"""A node follows its metadata for as long as it runs, whatever happened at one change of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from liftpy_server.node import Node


async def test_an_error_at_one_change_does_not_end_it():
    followed = []

    async def watch():
        for revision in (1, 2):
            yield SimpleNamespace(revision=revision)

    async def follow(state):
        if state.revision == 1:
            raise OSError("told to fail")
        followed.append(state.revision)

    async def nothing(_state):
        return None

    node = SimpleNamespace(
        metadata=SimpleNamespace(watch=watch),
        cluster=SimpleNamespace(follow=nothing),
        streams=SimpleNamespace(follow=follow),
        maintenance=SimpleNamespace(check_disk=lambda: None),
        _followed=asyncio.Condition(),
        _followed_revision=0,
    )
    await Node._follow(node)
    assert followed == [2]
