"""The watcher goes on looking, whatever it meets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from liftpy.cli.console.watcher import Watcher


class FakeCluster:
    """A cluster without streams, whose groups are slow to answer."""

    def __init__(self):
        self.broken = None
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def _nothing(self):
        if self.broken:
            raise self.broken
        return SimpleNamespace()

    cluster_info = quarantine = tier_status = _nothing

    async def nodes(self):
        return []

    async def streams(self, *, internal):
        assert internal
        return
        yield

    async def groups(self):
        self.asked.set()
        await self.answers.wait()
        return []


async def test_a_look_after_a_change_does_not_meet_the_one_that_goes_on():
    cluster = FakeCluster()
    async with Watcher(cluster) as watcher:
        await asyncio.wait_for(cluster.asked.wait(), 5)
        refreshed = [asyncio.create_task(watcher.refresh()) for _ in range(2)]
        await asyncio.sleep(0)
        cluster.answers.set()
        await asyncio.wait_for(asyncio.gather(*refreshed), 5)
        assert watcher.error is None
        assert not watcher._task.done()


async def test_an_unexpected_error_ends_no_looking_and_is_told():
    cluster = FakeCluster()
    cluster.answers.set()
    async with Watcher(cluster) as watcher:
        await watcher.snapshot()
        cluster.broken = KeyError("leader")
        await watcher.refresh()
        assert "KeyError" in watcher.error
        cluster.broken = None
        await watcher.refresh()
        assert watcher.error is None
        assert not watcher._task.done()
