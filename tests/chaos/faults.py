"""What may befall a cluster: each fault comes, lasts for a while, and is over when its function returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from support.cluster_kit import leader_of, metadata_leader

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable

    import liftpy
    from support.cluster_kit import ClusterKit
    from support.history import History
    from support.small_disk import SmallDisk

KIB = 1024
DELAY_S = 0.1
DISK_FULL_S = 4.0
BURSTS = 20


class Faults:
    """See the module.

    Args:
        kit: the cluster; nodes reach each other through its proxy.
        lift: asked who leads.
        history: told of every fault.
        chance: chooses victims and durations.
        stream: whose leaders are hunted.
        disk: a small one, of the last node; None where none could be mounted.
    """

    def __init__(
        self,
        kit: ClusterKit,
        lift: liftpy.Lift,
        history: History,
        chance: random.Random,
        stream: str,
        disk: SmallDisk | None,
    ) -> None:
        assert kit.links is not None
        self._kit = kit
        self._links = kit.links
        self._lift = lift
        self._history = history
        self._chance = chance
        self._stream = stream
        self._disk = disk

    def plan(self, rounds: int) -> list[Callable[[], Awaitable[None]]]:
        """So many faults, each kind about as often as it deserves, in random order."""
        weights = {
            self.kill_a_node: 4,
            self.kill_a_leader: 5,
            self.kill_the_metadata_leader: 4,
            self.kill_two: 2,
            self.kill_all: 2,
            self.stand_still: 4,
            self.cut_off_both_ways: 3,
            self.cut_off_one_way: 4,
            self.cut_one_link: 2,
            self.restart_nats: 2,
            self.stutter: 1,
            self.slow_links: 1,
            self.drop_connections: 1,
        }
        if self._disk is not None:
            weights[self.fill_the_disk] = 2
        kinds = [kind for kind, weight in weights.items() for _ in range(weight)]
        self._chance.shuffle(kinds)
        first = list(weights)  # each at least once where there are rounds enough
        self._chance.shuffle(first)
        for kind in first:
            kinds.remove(kind)
        return [(first + kinds)[number % (len(first) + len(kinds))] for number in range(rounds)]

    def _say(self, what: str) -> None:
        self._history.happened(what)

    def _node(self) -> str:
        return self._chance.choice(sorted(self._kit.nodes))

    async def _last(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(low_s, high_s))

    async def _kill(self, *names: str) -> None:
        self._say(f"SIGKILL {', '.join(names)}")
        await asyncio.to_thread(self._kit.kill, *names)
        await self._last(0.0, 3.0)
        await self.start_all()

    async def start_all(self) -> None:
        """Start whatever does not run."""
        missing = sorted(set(self._kit.nodes) - set(self._kit.running))
        if missing:
            self._say(f"start {', '.join(missing)}")
            await asyncio.to_thread(self._kit.start_nodes)
            self._say("all nodes run")

    def _mend(self) -> None:
        self._links.mend()
        self._say("the links are mended")

    async def kill_a_node(self) -> None:
        """SIGKILL, whatever it does."""
        await self._kill(self._node())

    async def kill_a_leader(self) -> None:
        """SIGKILL of the node that leads the stream."""
        await self._kill(await leader_of(self._lift, self._stream))

    async def kill_the_metadata_leader(self) -> None:
        """SIGKILL of the node that leads the metadata."""
        await self._kill(await metadata_leader(self._lift))

    async def kill_two(self) -> None:
        """SIGKILL of a majority: nothing is taken until one is back."""
        await self._kill(*self._chance.sample(sorted(self._kit.nodes), 2))

    async def kill_all(self) -> None:
        """SIGKILL of every node."""
        await self._kill(*sorted(self._kit.nodes))

    async def stand_still(self) -> None:
        """SIGSTOP for longer and for shorter than the time-outs, of a node or of two."""
        names = self._chance.sample(sorted(self._kit.nodes), self._chance.choice((1, 1, 2)))
        if self._chance.random() < 0.5:
            names = [await leader_of(self._lift, self._stream)]
        seconds = self._chance.uniform(0.5, 5.0)
        self._say(f"SIGSTOP {', '.join(names)} for {seconds:.1f} s")
        await self._kit.pause(names, seconds)
        self._say(f"SIGCONT {', '.join(names)}")

    async def stutter(self) -> None:
        """A node that does a bit and stands still a bit, as on a disk that hangs."""
        name = self._node()
        self._say(f"{name} stutters")
        for _ in range(BURSTS):
            await self._kit.pause([name], self._chance.uniform(0.05, 0.3))
            await self._last(0.02, 0.1)
        self._say(f"{name} stutters no more")

    async def cut_off_both_ways(self) -> None:
        """A node, most often a leader, reaches no other and is reached by none; consumers and NATS still reach it."""
        name = await self._leader_or_any()
        self._say(f"{name} is cut off")
        self._kit.cut_off(name)
        await self._last(1.0, 6.0)
        self._mend()

    async def cut_off_one_way(self) -> None:
        """A node hears the others and is not heard, or the other way round."""
        name = await self._leader_or_any()
        hears = self._chance.random() < 0.5
        self._say(f"{name} {'hears and is not heard' if hears else 'is heard and hears nothing'}")
        self._kit.cut_off(name, hears=hears, is_heard=not hears)
        await self._last(1.0, 6.0)
        self._mend()

    async def cut_one_link(self) -> None:
        """Two nodes lose each other, and the third sees both."""
        one, other = self._chance.sample(sorted(self._kit.nodes), 2)
        self._say(f"{one} and {other} lose each other")
        self._links.cut(one, other)
        self._links.cut(other, one)
        await self._last(1.0, 6.0)
        self._mend()

    async def _leader_or_any(self) -> str:
        kind = self._chance.choice(("leader", "metadata leader", "any"))
        if kind == "leader":
            return await leader_of(self._lift, self._stream)
        return await metadata_leader(self._lift) if kind == "metadata leader" else self._node()

    async def slow_links(self) -> None:
        """Everything between the nodes takes longer."""
        self._say(f"links take {DELAY_S:g} s")
        for one, other in self._pairs():
            self._links.delay(one, other, DELAY_S)
        await self._last(2.0, 4.0)
        self._mend()

    async def drop_connections(self) -> None:
        """Every connection between nodes ends, several times."""
        for _ in range(3):
            dropped = sum(self._links.drop(one, other) for one, other in self._pairs())
            self._say(f"{dropped} connections are dropped")
            await self._last(0.2, 0.8)

    def _pairs(self) -> Iterable[tuple[str, str]]:
        return [(one, other) for one in self._kit.nodes for other in self._kit.nodes if one != other]

    async def restart_nats(self) -> None:
        """The nats-server goes, and comes back."""
        self._say("nats-server is stopped")
        for server in self._kit.nats:
            await asyncio.to_thread(server.kill)
        await self._last(0.0, 1.5)
        for server in self._kit.nats:
            await asyncio.to_thread(server.start)
        self._say("nats-server is back")

    async def fill_the_disk(self) -> None:
        """The last node's disk fills up, to the last byte or not quite."""
        assert self._disk is not None
        leave_bytes = self._chance.choice((0, 64 * KIB, 1024 * KIB))
        self._say(f"the disk of the last node is filled but for {leave_bytes} bytes")
        self._disk.fill(leave_bytes)
        await asyncio.sleep(DISK_FULL_S)
        self._disk.free()
        self._say("there is room again")
        await self.start_all()
