"""What may befall a group of processes and its cluster: each fault is over when its function returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from support.cluster_kit import leader_of
from support.group_crew import STREAM, freeze

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from support.group_crew import Crew
    from support.group_worker import WorkerProcess

MEMBERS_MIN = 5
MEMBERS_MAX = 10


class GroupFaults:
    """See the module.

    Args:
        crew: that is disturbed.
        chance: chooses victims and durations.
    """

    def __init__(self, crew: Crew, chance: random.Random) -> None:
        self._crew = crew
        self._chance = chance
        self._busy: set[str] = set()
        self._bag: list[tuple[bool, Callable[[], Awaitable[None]]]] = []

    def _next(self) -> tuple[bool, Callable[[], Awaitable[None]]]:
        """Whether it is about nodes, and the fault; each kind about as often as it deserves, in random order."""
        if not self._bag:
            members = {
                self.kill_a_member: 4,
                self.freeze_a_member: 4,
                self.freeze_a_member_shortly: 1,
                self.replace_a_member: 3,
                self.add_a_member: 2,
                self.dismiss_a_member: 2,
                self.restart_a_static_member: 3,
            }
            nodes = {
                self.kill_the_coordinator: 4,
                self.kill_a_leader: 3,
                self.freeze_the_coordinator: 3,
                self.kill_all_nodes: 1,
            }
            self._bag = [(False, fault) for fault, weight in members.items() for _ in range(weight)]
            self._bag += [(True, fault) for fault, weight in nodes.items() for _ in range(weight)]
            self._chance.shuffle(self._bag)
        return self._bag.pop()

    async def one_or_two(self) -> str:
        """A fault, or two at once; what it was."""
        faults = [self._next()]
        if self._chance.random() < 0.35:
            faults.append(self._next())
            if faults[0][0] and faults[1][0]:  # of the nodes one at a time, so that most of the time a majority runs
                self._bag.append(faults.pop())
        await asyncio.gather(*(fault() for _, fault in faults))
        return " and ".join(fault.__name__ for _, fault in faults)

    def _member(self, *, is_static: bool = False) -> WorkerProcess:
        there = [each for each in self._crew.serving() if bool(each.instance_id) == is_static]
        return self._chance.choice([each for each in there if each.name not in self._busy])

    async def _pause(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._chance.uniform(low_s, high_s))

    # -- members

    async def kill_a_member(self) -> None:
        """SIGKILL; another one comes some time later."""
        worker = self._member()
        self._crew.disturbed("SIGKILL of a member", worker.name)
        await self._crew.kill(worker)
        await self._pause(0.0, 2 * self._crew.session_s)
        self._crew.disturbed("a member joins", self._crew.add().name)

    async def freeze_a_member(self) -> None:
        """SIGSTOP for longer than its session."""
        await self._freeze(1.2, 2.5, "SIGSTOP of a member")

    async def freeze_a_member_shortly(self) -> None:
        """SIGSTOP for about as long as a session, or shorter."""
        await self._freeze(0.3, 1.1, "short SIGSTOP of a member")

    async def _freeze(self, low: float, high: float, kind: str) -> None:
        worker = self._member()
        self._busy.add(worker.name)
        seconds = self._crew.session_s * self._chance.uniform(low, high)
        self._crew.disturbed(kind, f"{worker.name} for {seconds:.1f} s")
        await freeze(worker, seconds)
        self._crew.disturbed("SIGCONT of a member", worker.name)
        self._busy.discard(worker.name)

    async def replace_a_member(self) -> None:
        """One leaves, and another one comes at the same time."""
        worker = self._member()
        self._crew.disturbed("one leaves, one joins", worker.name)
        self._crew.add()
        await self._crew.dismiss(worker)

    async def add_a_member(self) -> None:
        """One more, unless there are many."""
        if len(self._crew.serving()) < MEMBERS_MAX:
            self._crew.disturbed("a member joins", self._crew.add().name)

    async def dismiss_a_member(self) -> None:
        """One less, unless there are few."""
        if len(self._crew.serving()) > MEMBERS_MIN:
            worker = self._member()
            self._crew.disturbed("a member leaves", worker.name)
            await self._crew.dismiss(worker)

    async def restart_a_static_member(self) -> None:
        """Killed or stopped, and started again within its session."""
        worker = self._member(is_static=True)
        self._busy.add(worker.name)
        self._crew.disturbed("a static member restarts", worker.name)
        await (self._crew.kill if self._chance.random() < 0.5 else self._crew.dismiss)(worker)
        await self._pause(0.0, self._crew.session_s / 2)
        self._crew.add(worker.instance_id)

    # -- nodes

    async def _kill(self, kind: str, *names: str) -> None:
        kit = self._crew.kit
        self._crew.disturbed(kind, ", ".join(names))
        await asyncio.to_thread(kit.kill, *names)
        await self._pause(0.0, 4.0)
        self._crew.happened(f"start {', '.join(names)}")
        await asyncio.to_thread(kit.start_nodes)

    async def kill_the_coordinator(self) -> None:
        """SIGKILL of the node that coordinates the group."""
        await self._kill("SIGKILL of the coordinator", await self._crew.coordinator())

    async def kill_a_leader(self) -> None:
        """SIGKILL of a node that leads partitions of the stream."""
        await self._kill("SIGKILL of a leader", await leader_of(self._crew.lift, STREAM))

    async def kill_all_nodes(self) -> None:
        """SIGKILL of all."""
        await self._kill("SIGKILL of all nodes", *sorted(self._crew.kit.nodes))

    async def freeze_the_coordinator(self) -> None:
        """SIGSTOP for longer or shorter than it takes to be replaced."""
        name = await self._crew.coordinator()
        seconds = self._chance.uniform(0.5, 6.0)
        self._crew.disturbed("SIGSTOP of the coordinator", f"{name} for {seconds:.1f} s")
        await self._crew.kit.pause([name], seconds)
        self._crew.happened(f"SIGCONT {name}")
