"""What goes wrong with whole nodes, their disks, clocks and links, and inside of the shell: drawn from the seed."""

from __future__ import annotations

import errno
import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_log.partition_log import PartitionLog
from liftpy_server.partition.partition import Partition
from simulation.scheduler import MS, S
from simulation.shell_staged import STAGED, StagedFaults
from support.damage import flipped, swapped, zeroed
from support.simdisk import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from simulation.shell_node import ShellNode
    from simulation.shell_world import ShellWorld

__all__ = ["FAULTS", "InjectedError", "ShellFaults", "raising"]


class InjectedError(Exception):
    """An error that nobody expected, as a mistake in the shell would raise it."""


FAULTS = (
    "kill",
    "kill_leader",
    "power_loss",
    "power_loss_of_all",
    "pause",
    "cut_one_way",
    "isolate",
    "metadata_failover",
    "fill_disk",
    "no_room_for_files",
    "full_failover",
    "fail_disk",
    "lying_syncs",
    "slow_disk",
    "clock_jump",
    "move_leader",
    "error_in_shell",
    "lose_directory",
    "damage",
    "damage_tail",
    "damage_ids",
    "reassign",
    "cancel_reassignment",
    "stop_cleanly",
    "compact",
    "late_proposals",
    "lose_joiner",
    "late_joiner",
)

RAISING = {
    "append_batches": PartitionLog,
    "truncate": PartitionLog,
    "replicated": Partition,
    "was_cut": Partition,
    "commit": Partition,
}


@contextmanager
def raising(world: ShellWorld) -> Iterator[None]:
    """While this is open, calls raise whose node is told so by `error_in`."""

    def wrapped(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            result = usual(self, *args, **named)
            disk = self._disk if isinstance(self, PartitionLog) else self.log._disk
            for node in world.node_list:
                if node.disk is disk and node.error_in == name:
                    node.error_in = None
                    world.seen["error in the shell"] += 1
                    raise InjectedError(name)
            return result

        return call

    with ExitStack() as stack:
        for name, owner in RAISING.items():
            stack.enter_context(patch.object(owner, name, wrapped(name, getattr(owner, name))))
        yield


def _grows(node: ShellNode, path: Path) -> bool:
    """Whether a process writes to a file now, and may know better than what it reads there."""
    active = {partition.log.active.path for partition in node.partitions if partition.log.segments}
    return not active or path in active or "wal" in path.parts


def _has_failed(node: ShellNode) -> bool:
    return any(partition.log.failure is not None for partition in node.partitions)


def _reach(partition: Partition) -> tuple[int, int, int]:
    """What is told of a log: its last epoch, its end, and what is known to be committed of it."""
    log = partition.log
    if log.failure is not None:
        return -1, 0, partition.high_watermark
    return log.epochs.latest, log.log_end, partition.high_watermark


class ShellFaults(StagedFaults):
    """Until `heal`; see `Trouble`."""

    def __init__(self, world: ShellWorld) -> None:
        super().__init__(world)
        rng = world.rng
        self._every_us = rng.choice((200, 400, 800)) * MS
        # Most runs see a few kinds only, so that rare combinations are not drowned.
        chosen = rng.sample(FAULTS, rng.choice((3, 5, len(FAULTS))))
        named = world.only or chosen
        self._kinds = [name for name in (*FAULTS, *STAGED) if name in named and name not in world.without]

    def _happen(self) -> None:
        if self._kinds:
            self._bring(self._world.rng.choice(self._kinds))

    def _bring(self, kind: str) -> None:
        self._world.note(kind)
        getattr(self, f"_{kind}")()

    def heal(self) -> None:
        """From now on everything works, and somebody starts what is down, or has failed, again."""
        self._is_over = True
        world = self._world
        world.network.cut.clear()
        world.network.is_calm = True
        world.metadata.is_down = False
        world.metadata.deliver_late()
        for node in world.node_list:
            node.disk.heal()
            node.disk.is_lying = False  # and the power does not go any more
            node.error_in = None
            node.sync_us = 1 * MS
            if node.is_paused:
                node.resume()
            if node.is_up and (node.streams is None or _has_failed(node)):
                node.kill()
            if not node.is_up:
                node.start()
        if world.copies_to_lose >= world.min_isr:
            self._operate()

    def _operate(self) -> None:
        """An operator looks now and then, and decides where a leader is missing, or lacks what was committed."""
        world = self._world
        world.scheduler.after(2 * S, self._operate)
        nodes = world.metadata.state.nodes
        for number, info in enumerate(world.infos):
            logs: list[list[Any]] = []
            for node_id in info.replicas:
                node, known = world.nodes[node_id], nodes[node_id]
                partition = node.partition(number)
                is_there = partition is not None and not known.expired and node.cluster is not None
                if is_there and node.cluster.incarnation == known.incarnation:
                    logs.append([node_id, known.incarnation, *_reach(partition)])
            if info.leader is None and len(logs) == len(info.replicas):
                self._command(
                    "recover_partition",
                    partition=number,
                    version=info.version,
                    logs=logs,
                    given_up=[],
                    accept_data_loss=True,
                )

    # -- processes

    def _kill(self) -> None:
        self._down([self._any()], power=False)

    def _kill_leader(self) -> None:
        leader = self._world.infos[self._any_number()].leader
        node = self._any() if leader is None else self._world.nodes[leader]
        self._down([node], power=self._world.rng.random() < 0.5)

    def _power_loss(self) -> None:
        self._down([self._any()], power=True)

    def _power_loss_of_all(self) -> None:
        self._down(self._world.node_list, power=self._world.rng.random() < 0.7)

    def _down(self, nodes: list[ShellNode], *, power: bool) -> None:
        for node in nodes:
            if node.is_up or power:  # what a killed process wrote is in the cache still
                node.kill(power=power)
            self._later(self._world.rng.choice((200 * MS, 3 * S)), lambda node=node: self._up(node))

    def _error_in_shell(self) -> None:
        """Something that a step of the shell calls raises, when it is through, what nobody expected."""
        self._any().error_in = self._world.rng.choice(tuple(RAISING))

    # -- metadata

    def _move_leader(self) -> None:
        number = self._any_number()
        info = self._world.infos[number]
        if info.isr:
            term = {"leader_epoch": info.leader_epoch, "version": info.version}
            self._command("move_leader", partition=number, leader=self._world.rng.choice(info.isr), **term)

    def _reassign(self) -> None:
        """Other nodes, or the same in another order, shall keep the replicas, or observe."""
        world = self._world
        nodes = world.rng.sample(list(world.nodes), min(len(world.nodes), 3 + world.rng.choice((0, 0, 1))))
        self._command("reassign_partitions", moves=[[self._any_number(), nodes, nodes[3:]]])

    def _cancel_reassignment(self) -> None:
        self._command("cancel_reassignment", partition=self._any_number())

    # -- disks

    def _fill_disk(self) -> None:
        """There is room for a little more; then there is again."""
        disk = self._any().disk
        disk.capacity = sum(map(len, disk.files().values())) + self._world.rng.choice((0, 100, 1_000, 5_000))

        def free() -> None:
            disk.capacity = None

        self._later(3 * S, free)

    def _no_room_for_files(self) -> None:
        """Some operations find no room, in the middle of whatever it is that they are part of."""
        rng = self._world.rng
        kinds = rng.choice((("create",), ("write",), ("create", "write"), ("write", "rename", "create")))
        self._any().disk.fail(*kinds, code=errno.ENOSPC, skip=rng.randrange(4), times=rng.choice((1, 1, 2, 5)))

    def _fail_disk(self) -> None:
        """A write, a sync or a read fails: the log takes nothing more, until its node is started again."""
        rng, node = self._world.rng, self._any()
        kinds = rng.choice((("sync",), ("write",), ("sync_directory",), ("create",), ("truncate",), ("read",)))
        room = rng.choice(("streams", "streams", "wal"))
        node.disk.fail(*kinds, code=errno.EIO, skip=rng.randrange(3), where=lambda path: room in path.parts)
        self._later(4 * S, lambda: self._restart_failed(node))

    @staticmethod
    def _restart_failed(node: ShellNode) -> None:
        if node.is_up and _has_failed(node):
            node.kill()
            node.start()

    def _lying_syncs(self) -> None:
        """The disk of one node says of syncs that they are through when they are not; then the power goes."""
        node = self._any()
        if not self._copies_to_lose:
            return
        self._copies_to_lose -= 1
        node.disk.is_lying = node.is_doubtful = True
        nodes = [node] if self._world.rng.random() < 0.5 else self._world.node_list
        self._later(3 * S, lambda: self._down(nodes, power=True))

    def _slow_disk(self) -> None:
        node = self._any()
        node.sync_us = self._world.rng.choice((50, 400, 1_500)) * MS

        def fast() -> None:
            node.sync_us = 1 * MS

        self._later(4 * S, fast)

    def _lose_directory(self) -> None:
        """A volume is not mounted, or a disk replaced, while the node is down; as often as the promise allows."""
        if not self._copies_to_lose:
            return
        self._copies_to_lose -= 1
        node = self._any()
        if node.is_up:
            node.kill()
        node.is_damaged = node.may_be_torn = False
        node.disk.delete_directory(ROOT / "streams" if self._world.rng.random() < 0.5 else ROOT)
        node.is_doubtful = True
        for model in self._world.models:
            model.loses(node)
        self._later(1 * S, lambda: self._up(node))

    def _damage(self) -> None:
        """Bits turn, or sectors are zeroed or take each other's place, in a file of one copy, and of no other."""
        if not self._copies_to_lose:
            return
        world, rng = self._world, self._world.rng
        node = self._any()
        is_up = node.is_up and rng.random() < 0.3
        if node.is_up and not is_up:
            node.kill(power=rng.random() < 0.5)
        files = {path: data for path, data in node.disk.files().items() if data and not (is_up and _grows(node, path))}
        if files:
            self._copies_to_lose -= 1
            kinds = sorted({path.suffix or path.name for path in files})
            kind = rng.choice(kinds)  # there are many more segments than small files
            path = rng.choice([path for path in files if (path.suffix or path.name) == kind])
            how = rng.choice((flipped, flipped, zeroed, swapped))
            node.disk.overwrite(path, how(files[path], rng))
            node.is_damaged = node.is_doubtful = True
            world.note(f"{how.__name__} {kind}")
        self._later(1 * S, lambda: self._up(node))

    def _damage_tail(self) -> None:
        """All are killed at once, and a bit turns in the newest batch of one of them."""
        rng = self._world.rng
        node = self._any()
        is_power = rng.random() < 0.3
        for each in self._world.node_list:
            if each.is_up:
                each.kill(power=is_power)
            self._later(100 * MS, lambda node=each: self._up(node))
        logs = [path for path, data in node.disk.files(".log").items() if data and "streams" in path.parts]
        if self._copies_to_lose and logs:
            self._copies_to_lose -= 1
            content = node.disk.content(logs[-1])
            at = len(content) - 1 - rng.randrange(min(60, len(content)))
            node.disk.overwrite(logs[-1], content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :])
            node.is_damaged = node.is_doubtful = True
            self._world.note(f"damaged the tail of {node.node_id}")

    def _damage_ids(self) -> None:
        """A bit turns in what was stored a while ago, in an id or a value: one message looks like another."""
        rng, node = self._world.rng, self._any()
        if node.is_up:
            node.kill()
        logs = [path for path in node.disk.files(".log") if "streams" in path.parts][:-1]
        if self._copies_to_lose and logs:
            content = node.disk.content(logs[rng.randrange(len(logs))])
            path = next(path for path in logs if node.disk.content(path) == content)
            digits = [match.start() for match in re.finditer(rb"(?<=[0-9m])[0-9]", content)]
            if digits:
                self._copies_to_lose -= 1
                at = rng.choice(digits)
                node.disk.overwrite(path, content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :])
                node.is_damaged = node.is_doubtful = True
        self._later(200 * MS, lambda: self._up(node))

    def _late_proposals(self) -> None:
        """Proposals about the ISR are on their way for longer than their proposers wait."""
        metadata, rng = self._world.metadata, self._world.rng
        if metadata.late is None:
            metadata.late = "-"
            self._world.scheduler.after(2 * S + int(rng.random() * S), metadata.deliver_late)

    def _compact(self) -> None:
        """Of keys that are committed the last records stay; what stays is in segments and batches of another shape."""
        node = self._any()
        keep_ns = self._world.rng.choice((0, 0, 10**9, 86_400 * 10**9))
        for number in range(self._world.partitions):
            for _ in range(2):  # tombstones are noted by one pass, and go with a later one
                node.enter(node.run, self._compact_at, node, number, keep_ns)

    def _stop_cleanly(self) -> None:
        """Somebody stops a node as one should, and starts it again."""
        node = self._any()
        if node.is_up and not node.is_paused and node.streams is not None:
            node.stop()
            self._later(self._world.rng.choice((1 * S, 4 * S)), lambda: self._up(node))

    # -- clocks

    def _clock_jump(self) -> None:
        self._any().clock_offset_ns += self._world.rng.choice((-3_600, -600, -2, 2, 600, 3_600)) * 1_000_000_000
