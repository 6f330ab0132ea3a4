"""A run: replicas on three to eight nodes, a metadata service, clients, faults, peace; and what must have held.

At the end nothing is published any more, and nobody may have anything to propose.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftpy_server.replication.core.view import ReplicationTimes
from simulation.bugs import BUGS, planted
from simulation.clients import Consumer, Publisher
from simulation.disk import SimDisk
from simulation.faults import Faults
from simulation.metadata import SimMetadata
from simulation.model import Hopeless, Model, ViolationError
from simulation.network import Network
from simulation.node import SimNode
from simulation.scheduler import MS, S, Scheduler

if TYPE_CHECKING:
    from liftpy_server.metadata.state import PartitionInfo

TIMES = ReplicationTimes(
    replica_lag_max_s=2.0, leader_timeout_s=1.0, request_timeout_s=0.75, retry_s=0.5, preferred_return_s=2.0
)
TROUBLE_US = 6 * S
PEACE_US = 90 * S  # for exponential hold-offs to run out
STEADY_US = 2 * S
REST_US = 4 * S


Script = Sequence[tuple[int, Callable[["World"], None]]]


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        digest: of everything that happened.
        committed: records.
        acked: records.
        elections: changes of the leader epoch.
        settled_us: how long after the last fault everything was well again.
        events: steps of the simulation.
        seen: how often the replicas wanted what, and the metadata applied what.
    """

    digest: str
    committed: int
    acked: int
    elections: int
    settled_us: int
    events: int
    seen: Counter[str]


class World:
    """See the module.

    Args:
        seed: of everything.
        bugs: names of bugs of the shell that are planted; bugs of the core are planted by the caller.
        trouble_us: how long things go wrong.
        disks_to_lose: where it is given, so many disks may lose what they promised to keep, and that no promise is
            broken is not checked: only that everything is well again in the end.
        shape: (replicas, `min_isr`, observers, spare nodes), instead of what chance gives.
        is_lazy: whether the stream has `sync = interval`, likewise.
    """

    def __init__(
        self,
        seed: int,
        bugs: frozenset[str] = frozenset(),
        *,
        trouble_us: int = TROUBLE_US,
        disks_to_lose: int | None = None,
        shape: tuple[int, int, int, int] | None = None,
        is_lazy: bool | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.trace: list[Any] = []
        self.seen: Counter[str] = Counter()
        self.first_ack_us: dict[int, int] = {}  # by leader epoch
        self.times = TIMES
        self._given = {"trouble_us": trouble_us, "disks_to_lose": disks_to_lose, "shape": shape, "is_lazy": is_lazy}
        self.replicas, self.min_isr = self.rng.choices([(3, 2), (3, 1), (5, 3)], weights=[8, 1, 1])[0]
        self.observers = self.rng.choices((0, 1), weights=[3, 1])[0]
        spare = self.observers + self.rng.choices((0, 1, 2), weights=[2, 1, 1])[0]
        self.is_lazy = self.rng.random() < 0.15
        if shape is not None:
            self.replicas, self.min_isr, self.observers, spare = (*shape[:3], shape[2] + shape[3])
        if is_lazy is not None:
            self.is_lazy = is_lazy
        self.is_idle = False
        self.rest_us = REST_US
        self.publish_every_us = self.rng.choice((60, 150, 400)) * MS
        self.consume_every_us = self.rng.choice((150, 400)) * MS
        self.retention_chance = self.rng.choice((0.0, 0.0, 0.1))
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, self.rng)
        self._bugs = bugs
        self._trouble_us = trouble_us
        names = "abcdefgh"[: self.replicas + spare]
        disks = {name: SimDisk(is_lazy=self.is_lazy) for name in names}
        self.disks_to_lose = disks_to_lose
        self.model = Model(self.min_isr, disks) if disks_to_lose is None else Hopeless(self.min_isr, disks)
        self.metadata = SimMetadata(self.scheduler, self.network, self.rng, [self.model], self.trace, self.seen)
        self.nodes = {name: SimNode(self, name, disks[name]) for name in names}
        self.node_list = list(self.nodes.values())
        self.metadata.nodes = self.nodes
        self.metadata.elected = self._check_elected
        self.consumers: list[Consumer] = []

    def has_bug(self, name: str) -> bool:
        return name in self._bugs

    def run(self, script: Script | None = None) -> Result:
        """Run to the end.

        Args:
            script: (when in microseconds, what), in place of random faults.

        Raises:
            ViolationError: a promise is broken; one of them is that everything is well some time after the last fault.
        """
        self.metadata.start(list(self.nodes), self.replicas, self.observers, self.min_isr)
        for node in self.node_list:
            node.start()
        self._publisher = Publisher(self)
        self.consumers = [Consumer(self, "c1"), Consumer(self, "c2")]
        faults = Faults(self)
        if script is None:
            faults.begin()
        else:
            self.network.is_calm = True
            for when_us, act in script:
                self.scheduler.after(when_us, act, self)
        self.scheduler.run_until(self._trouble_us)
        faults.heal()
        settled_us = self._settle()
        self.model.finished()
        self._rest()
        self.trace.append(self.model.committed)
        return Result(
            digest=hashlib.sha256(repr(self.trace).encode()).hexdigest(),
            committed=len(self.model.committed),
            acked=len(self.model.acked),
            elections=self.metadata.elections,
            settled_us=settled_us - self._trouble_us,
            events=self.scheduler.count,
            seen=self.seen,
        )

    def publish_again(self) -> None:
        """After it was idle."""
        self.is_idle = False
        self._publisher.publish()

    def _settle(self) -> int:
        """Run until everything has been well for a while. Returns since when."""
        acked, version, since_us = len(self.model.acked), -1, self.scheduler.now_us
        while self.scheduler.now_us < since_us + STEADY_US:
            if self.scheduler.now_us > self._trouble_us + PEACE_US:
                raise ViolationError(f"not well after {PEACE_US // S} s of peace: {self.describe()}")
            self.scheduler.run_until(self.scheduler.now_us + 250 * MS)
            if self.info.version != version or not self._is_well(acked):
                version, since_us = self.info.version, self.scheduler.now_us
        return since_us

    def _rest(self) -> None:
        """The publisher stops; once everybody has heard of the last records, nobody has anything to say."""
        self.is_idle = True
        self.scheduler.run_until(self.scheduler.now_us + (10 if isinstance(self.model, Hopeless) else 1) * S)
        before = self.metadata.proposals
        self.scheduler.run_until(self.scheduler.now_us + self.rest_us)
        if self.metadata.proposals > before:
            raise ViolationError("P5: something is proposed although nothing happens")

    def _check_elected(self, before: PartitionInfo, info: PartitionInfo, op: str) -> None:
        """The best surviving copy wins: no other that could be asked reaches further.

        One that was in sync to the last and has its log, and one that has as much as the log elected before, has every
        committed record. What reaches further outside of that set need not be waited for. It must not lead where it is
        of a later epoch, and has no record of the last leader who could commit.
        """
        assert info.leader is not None
        best = self.nodes[info.leader].disk
        if not best.can_be_trusted:  # lost since it reported; its node will say so when it is back
            return
        if before.elected_reach is not None and best.reach >= before.elected_reach:
            return
        asked = {*before.unproven, *(report.node_id for report in before.reports)}
        for node_id in asked if before.unproven else info.replicas:
            node = self.nodes[node_id]
            is_asked = node.is_up and not self.metadata.state.nodes[node_id].expired and not node.disk.is_broken
            may_lead = node_id in info.voters or op == "recover_partition"
            if best.reach[0] < node.disk.reach[0] < before.committing_epoch:
                continue
            if is_asked and may_lead and node.disk.can_be_trusted and node.disk.reach > best.reach:
                raise ViolationError(f"P1: {info.leader} leads with {best.reach}; {node_id} has {node.disk.reach}")
        if not best.records and any(self.nodes[node_id].disk.records for node_id in info.voters):
            raise ViolationError(f"P1: {info.leader} leads with an empty log while others have records")

    @property
    def info(self) -> PartitionInfo:
        """The partition, as the metadata has it."""
        return self.metadata.state.streams["s"].partitions[0]

    def _is_well(self, acked: int) -> bool:
        """Everybody is in sync, has everything, the preferred replica leads, and messages are acked again."""
        info = self.info
        if set(info.isr) != set(info.voters) or info.leader != info.voters[0] or info.target is not None:
            return False
        if any(node.disk.is_broken for node in self.node_list):
            return False
        if isinstance(self.model, Hopeless):
            return self.model.agree()
        is_whole = all(self.nodes[node].disk.synced_end >= len(self.model.committed) for node in info.replicas)
        return is_whole and len(self.model.acked) > acked

    def describe(self) -> str:
        """For a run that failed."""
        info = self.metadata.state.streams["s"].partitions[0]
        logs = {
            name: (
                node.disk.start,
                node.disk.synced_end,
                node.disk.end,
                node.replica and node.replica.log.high_watermark,
            )
            for name, node in self.nodes.items()
        }
        return f"{info} {logs} committed={len(self.model.committed)}"

    def again(self, seed: int) -> str:
        """The command that runs this again."""
        given = {name: value for name, value in self._given.items() if value is not None}
        if given["trouble_us"] == TROUBLE_US:
            del given["trouble_us"]
        told = [f" --bug {bug}" for bug in sorted(self._bugs)]
        for name, value in given.items():
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            told.append(f" --{name.replace('_', '-')} {text}")
        return f"PYTHONPATH=tests python -m simulation.world {seed}{''.join(told)}"


def run(seed: int, bugs: frozenset[str] = frozenset(), **how: Any) -> Result:
    """One run; a failure says how to have it again."""
    world = World(seed, bugs, **how)
    again = f"to see it again: {world.again(seed)}"
    try:
        return world.run()
    except AssertionError as error:
        raise ViolationError(f"seed {seed}: {error} [{world.describe()}]\n{again}") from error
    except BaseException as error:
        error.add_note(again)
        raise


def command() -> None:
    """Run the seeds that the command line names."""

    def shape_in(text: str) -> tuple[int, ...]:
        numbers = tuple(map(int, text.split(",")))
        if len(numbers) != 4:
            raise ValueError(text)
        return numbers

    parser = argparse.ArgumentParser(description="Run seeds of the simulation of replication.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="run the seeds up to this one")
    parser.add_argument("--bug", choices=BUGS, action="append", default=[], help="plant this mistake")
    parser.add_argument("--trouble-us", type=int, default=TROUBLE_US, help="how long things go wrong")
    parser.add_argument("--disks-to-lose", type=int, help="how many disks may lose what they promised to keep")
    parser.add_argument("--shape", type=shape_in, help="replicas,min_isr,observers,spare nodes")
    parser.add_argument("--is-lazy", type={"True": True, "False": False}.__getitem__, help="sync = interval")
    given = vars(parser.parse_args())
    first, last, bugs = given.pop("seed"), given.pop("until"), given.pop("bug")
    with ExitStack() as stack:
        names = frozenset().union(*(stack.enter_context(planted(bug)) for bug in bugs))
        for seed in range(first, (first if last is None else last) + 1):
            print(seed, run(seed, names, **given), flush=True)


if __name__ == "__main__":
    command()
