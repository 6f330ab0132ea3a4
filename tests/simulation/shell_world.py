"""A run of real shells: nodes on simulated disks, metadata commands, clients, faults, peace; and what must have held.

`python -m simulation.shell_world SEED` runs one seed and prints what it came to; its options are recipes of faults.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_client.errors import DisconnectedError
from liftpy_envelope.errors import AckErrorCode
from liftpy_log.errors import WalCorruptError
from liftpy_server.consensus import batches, store
from liftpy_server.replication.host import proposals, sessions
from liftpy_server.replication.wire import link
from liftpy_server.streams import opening, streams
from simulation.model import ViolationError
from simulation.network import Network
from simulation.scheduler import MS, S, Scheduler
from simulation.shell_clients import OrderedShellPublisher, ShellConsumer, ShellPublisher
from simulation.shell_faults import FAULTS, InjectedError, ShellFaults, raising
from simulation.shell_link import FollowConnection
from simulation.shell_metadata import ShellMetadata
from simulation.shell_model import ShellModel
from simulation.shell_node import ShellNode
from simulation.shell_staged import STAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.entries import LogConfig
    from liftpy_server.metadata.state import PartitionInfo
    from support.nats_frames import Frame

__all__ = ["ShellResult", "ShellWorld", "run_shell"]

TROUBLE_US = 5 * S
PEACE_US = 40 * S
STEADY_US = 1 * S
DEDUPE_WINDOW_S = 3  # of a stream with key compaction, which leaves what is younger


@dataclass(frozen=True)
class ShellResult:
    """What a run came to.

    Attributes:
        digest: of everything that happened.
        committed: records.
        acked: messages.
        duplicates: acks that say so.
        elections: changes of the leader epoch.
        served: records that consumers got.
        settled_us: how long after the last fault everything was well again.
        seen: how often what happened.
    """

    digest: str
    committed: int
    acked: int
    duplicates: int
    elections: int
    served: int
    settled_us: int
    seen: Counter[str]


class _Watch(logging.Handler):
    """Errors that the shell only logs are no less a surprise."""

    def __init__(self, world: ShellWorld) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._world.surprised(record.exc_info[1], record.getMessage())


class ShellWorld:
    """See the module.

    Args:
        seed: of everything.
        trouble_us: how long things go wrong.
        copies_to_lose: how many copies may be lost or damaged; by default as many as the promise allows.
        partitions: how many the stream has, instead of what chance gives.
        ids_max: how many message ids are remembered, instead of all.
        ordered: how many ordered producers there are.
        only: names of the faults that happen, instead of what chance chooses; those of `ShellFaults`.
        without: names of faults that do not happen.
    """

    def __init__(
        self,
        seed: int,
        *,
        trouble_us: int = TROUBLE_US,
        copies_to_lose: int | None = None,
        partitions: int | None = None,
        ids_max: int | None = None,
        ordered: int = 0,
        only: frozenset[str] = frozenset(),
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.only, self.without = only, without
        self.rng = rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.min_isr = 2
        self.copies_to_lose = self.min_isr - 1 if copies_to_lose is None else copies_to_lose
        self.publish_every_us = rng.choice((40, 100, 250)) * MS
        self.consume_every_us = rng.choice((150, 400)) * MS
        self.segment_bytes = rng.choice((1_500, 4_000, 20_000))
        self.wal_bytes = rng.choice((2_000, 20_000))
        self.window = rng.choice((8, 40))
        self.direct_max = rng.choice((0, 3))
        self.value_bytes = rng.choice((10, 100, 700))
        self.subjects = "s"  # where they begin
        self.is_idle = self.is_healed = False
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, rng)
        self._trouble_us = trouble_us
        self._has_so_many_partitions = partitions is not None
        self._ids_max = ids_max
        self._ordered = ordered
        self._trace: list[Any] = []
        self.partitions = rng.choice((1, 1, 2, 3)) if partitions is None else partitions
        self.observers, self.spare = rng.choice(((0, 0), (0, 0), (0, 1), (1, 0)))
        self.has_keys = rng.random() < 0.5
        self.nodes = {name: self._make_node(name) for name in "abcd"[: 3 + self.observers + self.spare]}
        self.node_list = list(self.nodes.values())
        self.models = [ShellModel(number, self.min_isr, self.nodes) for number in range(self.partitions)]
        self.metadata = ShellMetadata(self.scheduler, self.network, rng, self.models, self._trace, self.seen)
        self.metadata.nodes = self.nodes
        for model in self.models:
            model.trace = self._trace
            model.may_lose = self.copies_to_lose >= self.min_isr
            model.may_forget_ids = ids_max is not None or self.has_keys
        self._owners: dict[int, Any] = {}
        self._violation: ViolationError | None = None

    def _make_node(self, name: str) -> ShellNode:
        return ShellNode(self, name)

    # -- what the others ask for

    @property
    def infos(self) -> tuple[PartitionInfo, ...]:
        """The partitions, as the metadata has them."""
        return self.metadata.state.streams["s"].partitions

    def note(self, what: str) -> None:
        """Something happened."""
        self.seen[what] += 1
        self._trace.append((self.scheduler.now_us, what))

    def new_number(self, owner: Any, *, has_id: bool) -> int:
        """Of another message."""
        number = len(self._owners) + 1
        self._owners[number] = owner
        if has_id:
            for model in self.models:
                model.with_id.add(number)
        return number

    def frame(self, number: int, sid: int) -> Frame:
        """A message, as the NATS server sends it."""
        return self._owners[number].frame(number, sid)

    def value_of(self, number: int) -> bytes:
        """Of a message."""
        return b"%d|" % number + bytes(number * 7 % self.value_bytes)

    def acked(self, number: int, answer: dict[str, Any]) -> None:
        """An ack, or a refusal, arrives at its publisher."""
        self._owners[number].acked(number, answer)

    def refused(self, node: ShellNode, number: int, code: int) -> None:
        """A node tells a publisher why a message is not stored, or that it does not know."""
        if code != AckErrorCode.OUTCOME_UNKNOWN:
            self.seen["refused"] += 1
            self.models[self._owners[number].partition(number)].refused(node)

    def surprised(self, error: BaseException | None, what: str) -> None:
        """An error that nobody caught, or that was only logged."""
        if isinstance(error, ViolationError):
            self._violation = self._violation or error
        elif not isinstance(error, InjectedError):
            self.surprises.append(f"{what}: {error!r}")

    def node_ended(self, node: ShellNode, error: Exception) -> None:
        """A process ended by itself; somebody starts it again."""
        self.note(f"{node.node_id} ended: {type(error).__name__}")
        self.scheduler.after(0, node.end)
        if isinstance(error, WalCorruptError) and node.is_doubtful:
            self.scheduler.after(100 * MS, self._move_away, node, Path(str(error).partition(" is damaged ")[0]))
        self.scheduler.after(500 * MS, lambda: node.is_up or node.start())

    def _move_away(self, node: ShellNode, path: Path) -> None:
        """An operator does about a damaged file that a node does not start with what the error says."""
        if not node.is_up:
            self.note("moved away")
            node.disk.delete(path)

    # -- the run

    def run(self) -> ShellResult:
        """Run to the end.

        Raises:
            ViolationError: a promise is broken.
        """
        with ExitStack() as stack:
            self._patch(stack)
            try:
                return self._run()
            finally:
                for node in self.node_list:
                    for loop in node.loops:
                        loop.close()

    def _patch(self, stack: ExitStack) -> None:
        world = self

        class Connections:
            @staticmethod
            async def open(host: str, _port: int, *, client: str, **_: Any) -> FollowConnection:
                return await world.connect(client.partition("/")[0], host)

        def log_config(config: StreamConfig) -> LogConfig:
            return replace(usual(config), segment_bytes=world.segment_bytes)

        stack.enter_context(raising(self))
        usual = opening.log_config
        numbers = iter(range(1 << 30))
        stack.enter_context(patch.object(link, "PullConnection", Connections))
        for module in (opening, streams):
            stack.enter_context(patch.object(module, "log_config", log_config))
        for module in (opening, streams):
            stack.enter_context(patch.object(module, "remove_directory", self._remove_directory))
        for module in (batches, store, proposals, sessions):
            if hasattr(module, "uuid4"):
                fake = lambda: type("Uuid", (), {"hex": f"{next(numbers):032x}"})
                stack.enter_context(patch.object(module, "uuid4", fake))
        loggers = [logging.getLogger(name) for name in ("liftpy_server", "liftpy_log", "asyncio")]
        watch = _Watch(self)
        for logger in loggers:
            levels = logger.level, logger.propagate
            logger.addHandler(watch)
            logger.setLevel(logging.WARNING)
            logger.propagate = False
            stack.callback(lambda logger=logger, levels=levels: self._unpatch(logger, watch, *levels))

    def _remove_directory(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        next(node for node in self.node_list if node.loop is loop).disk.delete_directory(directory)

    @staticmethod
    def _unpatch(logger: logging.Logger, watch: _Watch, level: int, propagate: bool) -> None:
        logger.removeHandler(watch)
        logger.setLevel(level)
        logger.propagate = propagate

    async def connect(self, follower: str, leader: str) -> FollowConnection:
        """A follower connects."""
        here, there = self.nodes[follower], self.nodes[leader]
        await asyncio.sleep(0.002 + self.rng.random() * 0.002)
        is_cut = bool({(follower, leader), (leader, follower)} & self.network.cut)
        if is_cut or there.is_paused:
            await asyncio.sleep(1.0)
            raise TimeoutError("no answer")
        if not there.is_up or there.streams is None:
            raise DisconnectedError("connection refused")
        return FollowConnection(here, there)

    def _run(self) -> ShellResult:
        for node in self.node_list:
            node.start()
        self.metadata.watch()
        self._until(lambda: len(self.metadata.state.nodes) == len(self.nodes), "nodes register")
        self._create_stream()
        self.metadata.broadcast()
        self.publishers = self._make_publishers()
        self.consumers = [ShellConsumer(self, number) for number in (*range(self.partitions), 0)]
        self._advance(1_700 * MS)  # every node has written its first checkpoint
        faults = self._make_faults()
        faults.begin()
        self._advance(self._trouble_us)
        self.is_healed = True
        self.publish_every_us = 400 * MS
        faults.heal()
        healed_us = self.scheduler.now_us
        settled_us = self._settle()
        self.is_idle = True
        self._until(lambda: not any(publisher.waiting for publisher in self.publishers), "everything is acked")
        self._until(self._is_well, "everything is well")
        for model in self.models:
            model.finished()
            self.seen["compacted away"] += model.gone
            self.seen["stored twice"] += model.stored_twice
            self._trace.append(model.committed)
        self._find_dead_tasks()
        return ShellResult(
            digest=hashlib.sha256(repr(self._trace).encode()).hexdigest(),
            committed=sum(len(model.committed) for model in self.models),
            acked=sum(len(model.acked) for model in self.models),
            duplicates=sum(model.duplicates for model in self.models),
            elections=self.metadata.elections,
            served=sum(model.served for model in self.models),
            settled_us=settled_us - healed_us,
            seen=self.seen,
        )

    def _create_stream(self, **config: Any) -> None:
        config |= {
            "name": "s",
            "subject": f"{self.subjects}.*",
            "partitions": self.partitions,
            "compact": self.has_keys,
        }
        config |= {"replicas": 3, "observers": self.observers, "min_isr": self.min_isr}
        if self.has_keys:
            config["dedupe_window_s"] = DEDUPE_WINDOW_S
        if self._ids_max is not None:
            config["dedupe_ids_max"] = self._ids_max
        first = "abcabc"
        nodes = [[*first[at : at + 3], *"d" * self.observers] for at in range(self.partitions)]
        self.metadata.create(config, nodes, self.node_list[0].wall_ns())

    def _make_publishers(self) -> list[ShellPublisher]:
        return [
            ShellPublisher(self, has_ids=True, window=1),
            ShellPublisher(self, has_ids=True, window=self.window),
            ShellPublisher(self, has_ids=False, window=4, has_keys=self.has_keys),
            *(OrderedShellPublisher(self, producer) for producer in range(self._ordered)),
        ]

    def _make_faults(self) -> ShellFaults:
        return ShellFaults(self)

    def _advance(self, us: int) -> None:
        end_us = self.scheduler.now_us + us
        while self.scheduler.now_us < end_us:
            self.scheduler.run_until(min(end_us, self.scheduler.now_us + 50 * MS))
            if self._violation is not None:
                raise self._violation
            if self.surprises:
                raise ViolationError(f"nobody expected {self.surprises[:3]}")

    def _find_dead_tasks(self) -> None:
        """An error that ends a task nobody waits for is seen when the task is collected; here that is never."""
        for node in self.node_list:
            for loop in node.loops:
                for task in loop.dead_tasks():
                    raise ViolationError(f"{node.node_id}: {task!r} has ended, and nobody looked")

    def _until(self, is_so: Any, what: str) -> None:
        end_us = self.scheduler.now_us + PEACE_US
        while not is_so():
            if self.scheduler.now_us > end_us:
                raise ViolationError(f"after {PEACE_US // S} s of peace it is not so that {what}")
            self._advance(50 * MS)

    def _settle(self) -> int:
        """Run until everything has been well for a while. Returns since when."""
        versions, since_us = [-1], self.scheduler.now_us
        end_us = since_us + PEACE_US
        while self.scheduler.now_us < since_us + STEADY_US:
            if self.scheduler.now_us > end_us:
                raise ViolationError(f"not well after {PEACE_US // S} s of peace")
            self._advance(100 * MS)
            now = [info.version for info in self.infos]
            if now != versions or not self._is_well():
                versions, since_us = now, self.scheduler.now_us
        return since_us

    def _is_well(self) -> bool:
        """Everybody is in sync and has everything, and the preferred replica leads."""
        for info in self.infos:
            if set(info.isr) != set(info.voters) or info.leader != info.voters[0] or info.target is not None:
                return False
        for number, info in enumerate(self.infos):
            for node in self.node_list:
                partition = node.partition(number)
                if (partition is not None) is not (node.node_id in info.replicas):
                    return False
                if partition is not None and partition.log.failure is not None:
                    return False
        return all(model.is_everywhere() for model in self.models)

    def options(self) -> str:
        """Those of the command that runs this again, but for the seed."""
        given = {"--only": ",".join(sorted(self.only)), "--without": ",".join(sorted(self.without))}
        if self._trouble_us != TROUBLE_US:
            given["--trouble-us"] = str(self._trouble_us)
        if self.copies_to_lose != self.min_isr - 1:
            given["--copies-to-lose"] = str(self.copies_to_lose)
        if self._has_so_many_partitions:
            given["--partitions"] = str(self.partitions)
        if self._ids_max is not None:
            given["--ids-max"] = str(self._ids_max)
        if self._ordered:
            given["--ordered"] = str(self._ordered)
        return "".join(f" {name} {value}" for name, value in given.items() if value)

    def describe(self) -> str:
        """For a run that failed."""
        found = []
        stream = self.metadata.state.streams.get("s")
        for number, info in enumerate(() if stream is None else stream.partitions):
            plain = {name: value for name, value in info.to_plain().items() if value}
            found.append(f"{number}: {plain}, committed {len(self.models[number].committed)}")
            for node in self.node_list:
                copy, partition = self.models[number].copy_of(node.node_id), node.partition(number)
                state: Any = "no log"
                if partition is not None:
                    state = partition.log.failure or ("leads" if partition.is_leading else "ok")
                found.append(f"{node.node_id} {copy.start}..{copy.durable_end}..{copy.end} up={node.is_up} {state}")
        return f"{'; '.join(found)}; ends {[node.ends for node in self.node_list]}; surprises {self.surprises[:2]}"


def run_shell(seed: int, **how: Any) -> ShellResult:
    """One run; a failure says how to have it again."""
    return run_world(ShellWorld(seed, **how), seed, "shell_world")


def run_world(world: ShellWorld, seed: int, module: str) -> ShellResult:
    """One run of a world that `python -m simulation.MODULE` makes."""
    again = f"to see it again: PYTHONPATH=tests python -m simulation.{module} {seed}{world.options()}"
    try:
        return world.run()
    except AssertionError as error:
        raise ViolationError(f"seed {seed}: {error} [{world.describe()}]\n{again}") from error
    except BaseException as error:  # the test took too long, or the simulation itself has a fault
        error.add_note(again)
        raise


def command(run: Callable[..., Any], faults: Sequence[str]) -> None:
    """Run the seeds that the command line names, with the faults that it chooses."""

    def names_in(text: str) -> frozenset[str]:
        names = frozenset(text.split(","))
        if wrong := names.difference(faults):
            raise argparse.ArgumentTypeError(
                f"there is no {', '.join(sorted(wrong))}; faults are {', '.join(sorted(faults))}"
            )
        return names

    parser = argparse.ArgumentParser(description="Run seeds of the simulation of the shell.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="run the seeds up to this one")
    parser.add_argument("--only", type=names_in, default=frozenset(), help="faults that happen, with commas")
    parser.add_argument("--without", type=names_in, default=frozenset(), help="faults that do not")
    parser.add_argument("--trouble-us", type=int, default=TROUBLE_US, help="how long things go wrong")
    parser.add_argument("--copies-to-lose", type=int, help="how many copies may be lost or damaged")
    parser.add_argument("--partitions", type=int, help="how many the stream has")
    parser.add_argument("--ids-max", type=int, help="how many message ids are remembered")
    parser.add_argument("--ordered", type=int, default=0, help="how many ordered producers there are")
    given = vars(parser.parse_args())
    first, last = given.pop("seed"), given.pop("until")
    for seed in range(first, (first if last is None else last) + 1):
        print(seed, run(seed, **given), flush=True)


if __name__ == "__main__":
    command(run_shell, (*FAULTS, *STAGED))
