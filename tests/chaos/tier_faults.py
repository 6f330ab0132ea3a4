"""What may befall a cluster and its bucket: each fault comes, lasts for a while, and is over when its function returns.

While the store takes nothing, messages are taken all the same, and people are told.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import psutil

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import open_version
from support.cluster import eventually
from support.cluster_kit import leader_of
from support.store_gate import Weather

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable

    from support.tier_crew import TierCrew

__all__ = ["TierFaults"]

TOLD_WITHIN_S = 60.0
WELL_WITHIN_S = 90.0
WOKEN_WITHIN_S = 60.0
STREAM = "one"  # whose leaders are hunted
AWAY = (Weather.CUT, Weather.HANGS, Weather.LOSES, Weather.BUSY)
FULL = (Weather.FULL, Weather.QUOTA)


class TierFaults:
    """See the module.

    Args:
        crew: the cluster, its bucket, and the load on it.
        chance: chooses victims and durations.
        away_s: how long the store is away, at least.
    """

    def __init__(self, crew: TierCrew, chance: random.Random, *, away_s: float = 20.0) -> None:
        self._crew = crew
        self._kit = crew.kit
        self._chance = chance
        self._away_s = away_s

    def plan(self, rounds: int) -> list[Callable[[], Awaitable[None]]]:
        """So many faults in random order, each kind at least once where there are rounds enough."""
        kinds = [
            self.store_away,
            self.store_slow,
            self.store_full,
            self.store_restarts,
            self.kill_the_worker,
            self.kill_the_leader,
            self.leader_wakes_late,
            self.leader_and_worker_wake_late,
        ]
        found: list[Callable[[], Awaitable[None]]] = []
        while len(found) < rounds:
            self._chance.shuffle(kinds)
            found += kinds
        return found[:rounds]

    def _say(self, what: str) -> None:
        self._crew.history.happened(what)

    async def _last(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(low_s, high_s))

    async def is_well(self) -> None:
        """Wait until the store is told to be well again."""
        await self._crew.is_told({"ok", "slow"}, WELL_WITHIN_S)

    async def _weather(self, weather: Weather, states: set[str]) -> None:
        """The store takes nothing: people are told what and for how long, and messages are taken all the same."""
        self._say(f"the store {weather.value}")
        with self._crew.gate.being(weather):
            ends_s = asyncio.get_running_loop().time() + self._away_s
            await self._crew.takes_messages()
            await self._crew.is_told(states, TOLD_WITHIN_S, with_room=True)
            await self._crew.takes_messages()
            await asyncio.sleep(ends_s - asyncio.get_running_loop().time())
        self._say("the store is there again")
        await self.is_well()

    async def store_away(self) -> None:
        """For longer than requests are repeated; some of the ways leave it open what was done."""
        weather = self._chance.choice(AWAY)
        await self._weather(weather, {"busy" if weather is Weather.BUSY else "away"})

    async def store_full(self) -> None:
        """It has no room, or a quota is used up; it can still be read."""
        await self._weather(self._chance.choice(FULL), {"full"})

    async def store_slow(self) -> None:
        """Every request takes a second."""
        self._say("the store is slow")
        with self._crew.gate.being(Weather.SLOW):
            await self._last(5.0, 10.0)
            await self._crew.takes_messages()
        self._say("the store is quick again")

    async def store_restarts(self) -> None:
        """It is killed, and started again."""
        self._say("the store is killed")
        await asyncio.to_thread(self._crew.s3.kill)
        try:
            await self._last(0.0, 3.0)
        finally:
            await asyncio.to_thread(self._crew.s3.start)
        self._say("the store runs again")
        await self.is_well()

    async def kill_the_worker(self) -> None:
        """SIGKILL of what a leader moves to the bucket with, in the midst of it, and sometimes of what reads there."""
        for _ in range(self._chance.choice((1, 2, 3))):
            name = await leader_of(self._crew.lift, STREAM)
            victims = self._workers(name, self._chance.choice(({"upload"}, {"upload", "read"})))
            self._say(f"SIGKILL {len(victims)} workers of {name}")
            for victim in victims:
                _signal(victim, signal.SIGKILL)
            await self._last(0.2, 3.0)

    async def kill_the_leader(self) -> None:
        """SIGKILL of a leader, with all its processes; its disk stays."""
        name = await leader_of(self._crew.lift, STREAM)
        self._say(f"SIGKILL {name}")
        await asyncio.to_thread(self._kit.kill, name)
        await self._is_led_by_another(name)
        await self._last(0.0, 2.0)
        self._say(f"start {name}")
        await asyncio.to_thread(self._kit.start_nodes)

    async def leader_wakes_late(self) -> None:
        """SIGSTOP of a leader, whose worker runs on, until the next one has written to the bucket."""
        await self._sleeps(with_workers=False)

    async def leader_and_worker_wake_late(self) -> None:
        """SIGSTOP of a leader and of its worker, in the midst of what that does."""
        await self._sleeps(with_workers=True)

    async def _sleeps(self, *, with_workers: bool) -> None:
        name = await leader_of(self._crew.lift, STREAM)
        workers = self._workers(name, {"upload"}) if with_workers else []
        for worker in workers:
            _signal(worker, signal.SIGSTOP)
        self._kit.nodes[name].signal(signal.SIGSTOP)
        self._say(f"SIGSTOP {name}" + (" and its worker" if workers else ""))
        try:
            await self._is_led_by_another(name)
            self._say(f"another node than {name} has written to the bucket")
        finally:
            for worker in workers:
                _signal(worker, signal.SIGCONT)
            self._kit.nodes[name].signal(signal.SIGCONT)
            self._say(f"SIGCONT {name}")

    async def _is_led_by_another(self, name: str) -> None:
        """Wait until another node has claimed the partition and has moved something of it."""
        path = PartitionPath(self._crew.uuids[STREAM], 0)

        def look() -> bool:
            version = open_version(self._crew.store, path)
            if version is None:
                return False
            claim = version.root.claims[-1]
            return claim.node != name and version.end > claim.start

        text = f"{name} is gone, and no other leader writes to the bucket"
        await eventually(lambda: asyncio.to_thread(look), WOKEN_WITHIN_S, text)

    def _workers(self, name: str, kinds: Iterable[str]) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self._kit.nodes[name].process.pid).children():
            try:
                command = child.cmdline()
            except psutil.NoSuchProcess:
                continue
            if command and command[-1] in kinds and "liftpy_server.tier.worker.main" in command:
                found.append(child)
        return found


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
