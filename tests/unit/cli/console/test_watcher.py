"""The watcher goes on looking, whatever it meets."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace

from liftpy.cli.console.watcher import Watcher


class FakeCluster:
    """A cluster without streams, whose groups are slow to answer."""

    def __init__(self):
        self.broken = None
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.cpu_s = {}

    async def _nothing(self):
        if self.broken:
            raise self.broken
        nodes = [SimpleNamespace(node_id=name, cpu_s=used) for name, used in self.cpu_s.items()]
        return SimpleNamespace(nodes=nodes)

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


async def test_cpu_is_what_was_used_between_two_looks():
    cluster = FakeCluster()
    cluster.answers.set()
    seconds = count(0, 10)
    async with Watcher(cluster, lambda: next(seconds)) as watcher:
        for used in ({"a": 100.0, "b": None}, {"a": 105.0, "b": 7.0}, {"a": 1.0, "b": 9.0}):
            cluster.cpu_s = used
            await watcher.refresh()
        assert (watcher.cpu_of("a").last, watcher.cpu_of("b").last) == (None, 0.2)  # a was started again


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
