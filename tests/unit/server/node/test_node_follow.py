"""A node follows its metadata for as long as it runs, whatever happened at one change of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from liftpy_server.node.metadata_follower import MetadataFollower


async def test_an_error_at_one_change_does_not_end_it():
    followed = []

    async def watch():
        for revision in (1, 2):
            yield SimpleNamespace(revision=revision)

    async def follow(state):
        if state.revision == 1:
            raise OSError("told to fail")
        followed.append(state.revision)

    metadata = SimpleNamespace(watch=watch, state=SimpleNamespace(revision=2))
    follower = MetadataFollower(metadata, follow)
    await follower.run()
    assert followed == [2]
    await asyncio.wait_for(follower.wait(), 5)
