"""What goes wrong in several steps, one after the other, where chance alone would seldom have them meet."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy_envelope.batch import HEADER_SIZE, read_header
from liftpy_envelope.columns import Column
from liftpy_log.compaction.compact import compact, plan_compaction
from liftpy_log.errors import PartitionOfflineError, SegmentCorruptError, StorageFullError
from liftpy_log.opening import check_batches
from liftpy_server.compaction.compactor import compaction_config
from simulation.metadata import UUID
from simulation.model import ViolationError
from simulation.scheduler import MS, S
from simulation.trouble import Trouble
from support.simdisk import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from liftpy_server.partition.partition import Partition
    from simulation.shell_node import ShellNode
    from simulation.shell_world import ShellWorld

__all__ = ["STAGED", "StagedFaults"]

STAGED = (
    "fail_follower",
    "forget_failure",
    "lead_with_damaged_ids",
    "behind_a_leap",
    "miss_tombstone",
    "lose_all_early",
)
"""Those of them that happen only where a recipe names them."""

_STALL_US = 1 * S  # half of `replica_lag_max_s`, and much more than it takes to tell everybody


class StagedFaults(Trouble):
    """See the module; also what all faults need.

    Args:
        world: where.
    """

    _world: ShellWorld

    def __init__(self, world: ShellWorld) -> None:
        super().__init__(world)
        self._copies_to_lose = world.copies_to_lose
        self._has_joiner = False
        self._staged_until_us = 0

    def _any_number(self) -> int:
        return self._world.rng.randrange(self._world.partitions)

    def _command(self, op: str, **args: object) -> None:
        """From an operator; it may be refused."""
        metadata = self._world.metadata
        if not metadata.is_down:
            metadata.apply(op, name="s", uuid=UUID, **args)
            metadata.broadcast()

    def _full_failover(self) -> None:
        """A follower that stood still finds no room for another segment in the middle of what it missed, and leads.

        Much comes in meanwhile, so that it is more than a segment, and what is missed in the end is sent again.
        """
        world, rng = self._world, self._world.rng
        info = world.infos[self._any_number()]
        leader = info.leader
        followers = [node for node in world.node_list if node.node_id in info.isr and node.node_id != leader]
        is_staged = world.scheduler.now_us < self._staged_until_us  # one at a time, or none is played to its end
        if leader is None or not followers or not followers[0].is_up or followers[0].is_paused or is_staged:
            return
        self._staged_until_us = world.scheduler.now_us + 3 * S
        node = followers[0]
        node.pause()
        for number in range(20):
            world.scheduler.after(number * 10 * MS, world.publishers[1].publish, 1)

        rolls: list[Path] = []
        skip = rng.randrange(3)

        def is_roll(path: Path) -> bool:
            if path.suffix == ".log":
                rolls.append(path)
            return path.suffix == ".log"

        def go_on() -> None:
            self._resume(node)
            if not self._is_over:
                node.disk.fail("create", code=errno.ENOSPC, skip=skip, times=None, where=is_roll)
                look()

        def look() -> None:
            if self._is_over:
                return
            if len(rolls) <= skip:
                world.scheduler.after(1 * MS, look)
                return
            world.seen["no room in the middle"] += 1
            for other in dying:
                if other.is_up:
                    other.kill()
                world.scheduler.after(1_500 * MS, self._up, other)
            self._later(1_500 * MS, node.disk.heal)

        dying = rng.choice(([world.nodes[leader]], [other for other in world.node_list if other is not node]))
        world.scheduler.after(300 * MS + int(rng.random() * 400 * MS), go_on)

    def _lose_all_early(self) -> None:
        """All disks are replaced soon after the first records: only the metadata know that there were any."""
        world = self._world
        if all(model.committed for model in world.models) and not world.models[0].needs_word:
            for model in world.models:
                model.needs_word = True
            world.scheduler.after(_STALL_US, self._replace_disks)

    def _replace_disks(self) -> None:
        world = self._world
        world.note("replaced all disks")
        for node in world.node_list:
            if node.is_up:
                node.kill(power=True)
            node.disk.delete_directory(ROOT)
            node.is_doubtful = True
            for model in world.models:
                model.loses(node)
            world.scheduler.after(int(world.rng.random() * S), self._up, node)

    def _lose_joiner(self) -> None:
        """A node that is about to be let into the ISR dies, loses its log and is back, before it is let in."""
        world, metadata = self._world, self._world.metadata
        node, number = self._any(), self._any_number()
        if not self._copies_to_lose or not node.is_up or metadata.late is not None or self._has_joiner:
            return
        self._has_joiner = True

        def lose() -> None:
            self._copies_to_lose -= 1
            node.kill()
            node.disk.delete_directory(ROOT / "streams" / f"s.{UUID}" / str(number))
            node.is_damaged = node.may_be_torn = False
            node.is_doubtful = True
            world.models[number].loses(node)
            node.start()
            self._later(2 * S, metadata.deliver_late)

        self._join(node, number, node.node_id, lambda: bool(self._copies_to_lose), lose)

    def _late_joiner(self) -> None:
        """A node that is about to be let into the ISR stands still, and is let in late.

        Whoever repeats that proposal hears that it is not taken, while the first is on its way still.
        """
        metadata = self._world.metadata
        node, number = self._any(), self._any_number()
        if not node.is_up or node.is_paused or metadata.late is not None or self._has_joiner:
            return
        self._has_joiner = True

        def stand_still() -> None:
            node.pause()
            self._later(3 * S, metadata.deliver_late)
            self._later(5 * S, lambda: self._resume(node))

        self._join(node, number, "-", lambda: True, stand_still)

    def _join(self, node: ShellNode, number: int, late: str, may: Callable[[], bool], then: Callable[[], None]) -> None:
        """Have a node leave the ISR, and do something as soon as the proposal to let it in again is on its way.

        Args:
            node: which.
            number: of the partition.
            late: see `ShellMetadata.late`.
            may: whether it may be done now.
            then: what.
        """
        world, metadata = self._world, self._world.metadata
        node.kill()

        def back() -> None:
            metadata.late = late
            node.start()
            self._when(lambda: metadata.has_late and may(), then)

        self._when(lambda: node.node_id not in world.infos[number].isr and not node.is_up, back)

    def _is_free(self, us: int) -> bool:
        """Whether nothing staged is played now; then this is, for so long."""
        now_us = self._world.scheduler.now_us
        if now_us < self._staged_until_us:
            return False
        self._staged_until_us = now_us + us
        return True

    def _when(self, is_so: Callable[[], bool], act: Callable[[], None]) -> None:
        """Do something as soon as something else is so, unless all is over before."""

        def look() -> None:
            if self._is_over:
                return
            if is_so():
                act()
            else:
                self._world.scheduler.after(1 * MS, look)

        look()

    def _lead(self, node: ShellNode, number: int, then: Callable[[], None]) -> None:
        """Let a node lead a partition as soon as it may."""
        world = self._world
        is_asked = [False]

        def leads() -> bool:
            info, partition = world.infos[number], node.partition(number)
            if not is_asked[0] and info.leader not in {None, node.node_id} and node.node_id in info.isr:
                is_asked[0] = True
                term = {"leader_epoch": info.leader_epoch, "version": info.version}
                self._command("move_leader", partition=number, leader=node.node_id, **term)
            return partition is not None and partition.is_leading

        self._when(leads, then)

    def _fail_follower(self) -> None:
        """With nothing else amiss, a write of a follower fails: what comes in is committed soon all the same.

        Raises:
            ViolationError: it waits as long as if the follower were slow.
        """
        world, number = self._world, self._any_number()
        info = world.infos[number]
        followers = [node for node in world.node_list if node.node_id in info.isr and node.node_id != info.leader]
        if set(info.isr) != set(info.voters) or not followers or not self._is_free(4 * S):
            return
        node = world.rng.choice(followers)
        world.network.is_calm = True

        def fail() -> None:
            place = _place(number)
            node.disk.fail("write", code=errno.EIO, times=None, where=lambda path: place in path.parents)
            world.publishers[1].publish(3)
            self._when(lambda: _has_failed(node.partition(number)), failed)

        def failed() -> None:
            node.disk.heal()
            epoch, leader = world.infos[number].leader_epoch, world.nodes[world.infos[number].leader or ""]
            partition = leader.partition(number)
            assert partition is not None
            world.note("follower failed")
            world.scheduler.after(_STALL_US, check, epoch, partition.log.log_end)

        def check(epoch: int, end: int) -> None:
            committed = len(world.models[number].committed)
            if committed < end and epoch == world.infos[number].leader_epoch and not self._is_over:
                raise ViolationError(
                    f"stall: the log of {node.node_id} failed {_STALL_US / S:g} s ago, and of {end} records "
                    f"{committed} are committed"
                )
            world.network.is_calm = self._is_over

        world.scheduler.after(1 * S, lambda: self._is_over or fail())  # what was late has arrived by then

    def _forget_failure(self) -> None:
        """A batch without ids turns out to be damaged when it is read; its node is killed before it has another copy.

        When the node starts again, it reads ids only.
        """
        world, rng, number = self._world, self._world.rng, self._any_number()
        node = self._any()
        partition = node.partition(number)
        if not self._copies_to_lose or partition is None or node.is_paused or _has_failed(partition):
            return

        def again() -> None:
            if node.is_up and not self._is_over:
                node.kill()
                node.start()

        for path in _closed_segments(node, number):
            content = node.disk.content(path)
            at = _batch_without_ids(content)
            if at is not None and self._copies_to_lose:
                self._copies_to_lose -= 1
                node.disk.overwrite(path, _with_bit_turned(content, at))
                node.is_damaged = node.is_doubtful = True
        if node.is_damaged:
            node.enter(node.run, _check, node, partition)
            world.note("damage is known")
            world.scheduler.after(1 + rng.randrange(100 * MS), again)

    def _lead_with_damaged_ids(self) -> None:
        """A bit turns in an id that was stored a while ago; its node starts and leads, and that message comes again."""
        world, rng, number = self._world, self._world.rng, self._any_number()
        node = self._any()
        if not self._copies_to_lose or not node.is_up or node.node_id not in world.infos[number].isr:
            return
        node.kill()
        found = [
            (path, match)
            for path in _closed_segments(node, number)
            for match in re.finditer(rb"m([0-9]+)", node.disk.content(path))
            if int(match[1]) in world.models[number].acked
        ]
        if found:
            self._copies_to_lose -= 1
            path, match = rng.choice(found)
            node.disk.overwrite(path, _with_bit_turned(node.disk.content(path), match.end() - 1))
            node.is_damaged = node.is_doubtful = True
            world.note(f"damaged the id of {int(match[1])}")
            self._lead(node, number, lambda: world.publishers[0].publish_again([int(match[1])]))
        node.start()

    def _behind_a_leap(self) -> None:
        """All nodes are killed, and their clocks set ahead; one is back late, and has much to copy. Then it leads.

        What was acked before is sent again.
        """
        world, number = self._world, self._any_number()
        info = world.infos[number]
        late = [node for node in world.node_list if node.node_id in info.isr and node.node_id != info.leader]
        if not late or not self._is_free(6 * S):
            return
        node = world.rng.choice(late)
        for each in world.node_list:
            each.clock_offset_ns += 600 * 10**9
            if each.is_up:
                each.kill()
            world.scheduler.after(1_500 * MS if each is node else 1, self._up, each)

        def again() -> None:
            world.note("leads behind a leap")
            world.publishers[0].publish_again(sorted(world.models[number].with_id & world.models[number].acked.keys()))

        world.scheduler.after(1_600 * MS, self._lead, node, number, again)

    def _miss_tombstone(self) -> None:
        """A follower is away while a key is deleted, until the others' logs have nothing of it."""
        world, publisher = self._world, self._world.publishers[1]
        if not world.has_keys or not self._is_free(60 * S):
            return
        number = publisher.publish_key("deleted")
        place = publisher.partition(number)
        model = world.models[place]

        def stored() -> None:
            info = world.infos[place]
            followers = [node for node in world.node_list if node.node_id in info.isr and node.node_id != info.leader]
            if followers:
                node = world.rng.choice(followers)
                node.kill()
                tombstone = publisher.publish_key("deleted", deletes=True)
                self._when(lambda: tombstone in model.acked, lambda: compacted(node, model.acked[tombstone]))

        def compacted(away: ShellNode, offset: int) -> None:
            if self._is_over:
                return
            leader = world.nodes.get(world.infos[place].leader or "")
            partition = None if leader is None else leader.partition(place)
            if partition is not None and partition.log.compaction.delete_horizon > offset:
                world.note("missed a tombstone")
                self._up(away)
                return
            publisher.publish(12)  # what is in the newest segment stays
            for node in world.node_list:
                if node is not away and node.is_up:
                    for _ in range(2):
                        node.enter(node.run, self._compact_at, node, place, 0)
            world.scheduler.after(300 * MS, compacted, away, offset)

        self._when(lambda: number in model.acked, stored)

    def _compact_at(self, node: ShellNode, number: int, keep_ns: int) -> None:
        partition = node.partition(number)
        if partition is None or partition.log.failure is not None:
            return
        config = replace(
            compaction_config(partition.stream.config),
            min_dirty_ratio=0.0,
            segment_bytes=4 * self._world.segment_bytes,
            delete_retention_ns=keep_ns,
        )
        try:
            plan = plan_compaction(partition.log.compaction, partition.high_watermark, node.wall_ns(), config)
            if plan is not None:
                partition.save_ordered()
                report = compact(
                    node.disk, plan, config, partition.log.compaction, seed=bytes(16), pause=lambda _: None
                )
                self._world.seen["compacted"] += 1
                self._world.seen["tombstones dropped"] += report.delete_horizon > 0
        except (PartitionOfflineError, SegmentCorruptError) as error:
            partition.fail(str(error))
        except (StorageFullError, OSError):
            self._world.seen["could not compact"] += 1


def _place(number: int) -> Path:
    """Where a partition is."""
    return ROOT / "streams" / f"s.{UUID}" / str(number)


def _closed_segments(node: ShellNode, number: int) -> list[Path]:
    """Those of a partition that nothing is written to any more."""
    return [path for path in node.disk.files(".log") if _place(number) in path.parents][:-1]


def _has_failed(partition: Partition | None) -> bool:
    return partition is not None and partition.log.failure is not None


def _batch_without_ids(content: bytes) -> int | None:
    """Where the body of one is in a segment."""
    position = 0
    while position < len(content):
        header = read_header(content, position)
        if not header.columns & Column.MESSAGE_ID:
            return position + HEADER_SIZE
        position += header.length
    return None


def _with_bit_turned(content: bytes, at: int) -> bytes:
    return content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :]


def _check(node: ShellNode, partition: Partition) -> None:
    """What a scrub does."""
    assert node.files is not None
    try:
        check_batches(partition.log.segments, node.files)
    except (SegmentCorruptError, OSError) as error:
        partition.fail(str(error))
