"""Which message may be handled now, and what may be committed. Pure: messages and outcomes go in, decisions come out.

Messages of one *lane* are handled one after the other, in the order of their offsets. Lanes run side by side, up to
`concurrency`. A message that failed keeps its lane while it waits for its next attempt, but takes none of the
concurrency.

A partition is committed up to its first unfinished message. Finished messages behind a hole stay on record, without
their content, until the hole is closed. Both are bounded: when there is no room, nothing more may be added.

A partition that is to be released is first *held*: what lies behind the last message that was started is dropped. What
lies before it goes on, because it would be a hole, and then finished messages would be handled again elsewhere. If that
takes too long, the partition is *cut*: nothing more of it starts. Then it is dropped as a whole. A message that still
runs by then keeps its lane, so that the same process never handles two messages of a lane
at the same time, even if the partition comes back at once.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from liftpy_envelope.pull import PartitionKey

__all__ = ["Schedule", "State", "Work"]

_SHARES_MAX: Final = 8


class State(Enum):
    """What becomes of a piece of work."""

    OPEN = "open"  # a batch that may still grow
    WAITING = "waiting"  # behind another of its lane
    READY = "ready"
    RUNNING = "running"
    HANDLED = "handled"  # its outputs wait for those of the messages before it
    SENDING = "sending"  # its outputs are being stored
    POSTPONED = "postponed"  # until its next attempt
    FINISHED = "finished"
    DROPPED = "dropped"


_ENDED_OR_RUNNING: Final = frozenset({State.RUNNING, State.SENDING, State.FINISHED, State.DROPPED})


class _Partition:
    """What is in flight of a partition.

    Attributes:
        pending: Work that is not committed, in the order of the offsets.
        end: Offset after the last work that left `pending`, and the leader epoch of that work.
        live: How many of them may still be handled.
        is_held: Whether nothing more is added to it.
        is_gone: Whether it was dropped.
    """

    __slots__ = ("end", "is_gone", "is_held", "key", "live", "pending")

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.pending: deque[Work] = deque()
        self.end = (-1, -1)
        self.live = 0
        self.is_held = False
        self.is_gone = False


class Work:
    """A message or a batch of one partition.

    Attributes:
        offset: Offset of its first message.
        end: Offset after its last message.
        epoch: Leader epoch of its last message.
        lane: What it is handled in order with; None if with nothing.
        item: The message, or the batch. None when it is finished or dropped.
        size: Approximate bytes of memory.
        state: What has become of it.
        attempts: How often its handler was called.
        started_s: For the caller: when the handler was called last.
        looks: For the caller: how often it was seen to run since then.
        interrupt: For the caller: what ends the handler early.
        outputs: For the caller: what is to be stored before it is finished.
    """

    __slots__ = (
        "attempts",
        "end",
        "epoch",
        "interrupt",
        "item",
        "lane",
        "looks",
        "offset",
        "outputs",
        "partition",
        "size",
        "started_s",
        "state",
    )

    def __init__(
        self, partition: _Partition, lane: Hashable, offset: int, end: int, epoch: int, size: int, item: Any
    ) -> None:
        self.partition = partition
        self.lane = lane
        self.offset = offset
        self.end = end
        self.epoch = epoch
        self.size = size
        self.item = item
        self.state = State.OPEN
        self.attempts = 0
        self.started_s = 0.0
        self.looks = 0
        self.interrupt: Any = None
        self.outputs: Any = None

    @property
    def key(self) -> PartitionKey:
        """Key of the partition."""
        return self.partition.key

    @property
    def is_wanted(self) -> bool:
        """Whether its outcome still counts here: its partition was not dropped."""
        return not self.partition.is_gone


class Schedule:
    """The work in flight of one process.

    Args:
        concurrency: How much may run at the same time.
        works_max: Most works that are not committed.
        bytes_max: Bytes of unfinished works at which nothing more is added.

    Attributes:
        running: Works whose handlers run.
    """

    def __init__(self, concurrency: int, works_max: int, bytes_max: int) -> None:
        self._concurrency = concurrency
        self._works_max = works_max
        self._bytes_max = bytes_max
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._lanes: dict[Hashable, deque[Work]] = {}  # one per lane that is taken, with what waits for it
        self._ready: deque[Work] = deque()
        self._count = 0
        self._bytes = 0
        self._is_stopped = False
        self.running: set[Work] = set()

    # -- what comes

    @property
    def has_room(self) -> bool:
        """Whether more may be added."""
        return self._count < self._works_max and self._bytes < self._bytes_max

    def has_share(self, key: PartitionKey) -> bool:
        """Whether a partition has less in flight than its share of the room, so that slow ones stop no others."""
        partition = self._partitions.get(key)
        return partition is None or len(partition.pending) < self._share()

    def is_behind(self, key: PartitionKey) -> bool:
        """Whether a partition has used half of its share or more."""
        partition = self._partitions.get(key)
        return partition is not None and len(partition.pending) * 2 >= self._share()

    def _share(self) -> int:
        return max(1, self._works_max // max(1, min(len(self._partitions), _SHARES_MAX)))

    def is_held(self, key: PartitionKey) -> bool:
        """Whether a partition is being released."""
        partition = self._partitions.get(key)
        return partition is not None and partition.is_held

    def add(self, key: PartitionKey, lane: Hashable, offset: int, epoch: int, size: int, item: Any) -> Work:
        """Add a message, after those of its partition before it."""
        work = self.open(key, lane, offset, offset + 1, epoch, size, item)
        self.seal(work)
        return work

    def open(self, key: PartitionKey, lane: Hashable, offset: int, end: int, epoch: int, size: int, item: Any) -> Work:
        """Add a batch that may still grow."""
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition(key)
        assert not partition.pending or partition.pending[-1].end <= offset, "offsets only grow"
        work = Work(partition, lane, offset, end, epoch, size, item)
        partition.pending.append(work)
        partition.live += 1
        self._count += 1
        self._bytes += size
        if self._is_stopped or partition.is_held:
            self._drop(work)  # it was delivered, so it must stay on record as unfinished
        return work

    def grow(self, work: Work, end: int, epoch: int, size: int) -> None:
        """A batch has got further messages."""
        work.end, work.epoch = end, epoch
        if work.state is State.OPEN:
            work.size += size
            self._bytes += size

    def seal(self, work: Work) -> None:
        """A batch is complete: it may be handled when its lane is free."""
        if work.state is not State.OPEN:
            return
        waiting = None if work.lane is None else self._lanes.get(work.lane)
        if waiting is not None:
            waiting.append(work)
            work.state = State.WAITING
            return
        if work.lane is not None:
            self._lanes[work.lane] = deque()
        self._make_ready(work)

    def _make_ready(self, work: Work) -> None:
        work.state = State.READY
        self._ready.append(work)

    # -- what is handled

    @property
    def has_ready(self) -> bool:
        """Whether there may be work to start."""
        return bool(self._ready)

    def start(self) -> Work | None:
        """Return work to be handled now, or None if nothing may start."""
        while self._ready and len(self.running) < self._concurrency:
            work = self._ready.popleft()
            if work.state is State.READY:
                work.state = State.RUNNING
                work.attempts += 1
                self.running.add(work)
                return work
            self._free_lane(work)
        return None

    def postpone(self, work: Work) -> bool:
        """An attempt failed, and the work waits for the next one. Return whether there will be one."""
        self._end_run(work)
        if work.partition.is_gone:
            self._drop(work)
            return False
        work.state = State.POSTPONED
        return True

    def resume(self, work: Work) -> None:
        """The wait before the next attempt is over."""
        if work.state is State.POSTPONED:
            self._make_ready(work)

    def handled(self, work: Work, outputs: Any, size: int) -> None:
        """The handler has ended; the work is finished when these outputs are stored."""
        self._end_run(work)
        self._free_lane(work)
        self._bytes += size
        work.size += size
        work.item = work.interrupt = None
        work.outputs, work.state = outputs, State.HANDLED
        if work.partition.is_gone:
            self._drop(work)

    def next_to_send(self, key: PartitionKey) -> Work | None:
        """Return the first unfinished work of a partition if its outputs may be stored now."""
        partition = self._partitions.get(key)
        first = partition.pending[0] if partition is not None and partition.pending else None
        if first is None or first.state is not State.HANDLED:
            return None
        first.state = State.SENDING
        return first

    def finish(self, work: Work) -> None:
        """The work is done: it was handled and its outputs are stored, or its dead letter is."""
        was_running = work.state is State.RUNNING
        assert was_running or work.state is State.SENDING
        if was_running:
            self._end_run(work)
        work.state = State.FINISHED
        work.partition.live -= 1
        self._forget_content(work)
        if was_running:
            self._free_lane(work)
        partition = work.partition
        if partition.is_gone:
            return
        pending = partition.pending
        while pending and pending[0].state is State.FINISHED:
            first = pending.popleft()
            partition.end = (first.end, first.epoch)
            self._count -= 1

    def abandon(self, work: Work) -> None:
        """The work ended without an outcome, so nothing more of its partition may start here."""
        self._cut(work.partition)
        if work.state is State.RUNNING:
            self._end_run(work)
        self._drop(work)

    def _end_run(self, work: Work) -> None:
        assert work.state is State.RUNNING
        self.running.discard(work)

    def _forget_content(self, work: Work) -> None:
        self._bytes -= work.size
        work.size = 0
        work.item = work.interrupt = work.outputs = None

    def _drop(self, work: Work) -> None:
        was = work.state
        work.state = State.DROPPED
        work.partition.live -= 1
        self._forget_content(work)
        if was in {State.POSTPONED, State.RUNNING}:
            self._free_lane(work)

    def _free_lane(self, work: Work) -> None:
        """The next of the lane may start; what was dropped meanwhile does not."""
        if work.lane is None:
            return
        waiting = self._lanes[work.lane]
        while waiting:
            following = waiting.popleft()
            if following.state is State.WAITING:
                self._make_ready(following)
                return
        del self._lanes[work.lane]

    # -- what is committed, and what goes

    def low(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return the first unfinished offset of a partition, or None if nothing of it is in flight.

        The second number is the leader epoch of the record before that offset, -1 if it is not known.
        """
        partition = self._partitions.get(key)
        if partition is None or not partition.pending:
            return None
        offset = partition.pending[0].offset
        end, epoch = partition.end
        return offset, epoch if end == offset else -1

    def is_busy(self, keys: Iterable[PartitionKey] | None = None) -> bool:
        """Whether something of these partitions, or of any, runs or may start."""
        wanted = self._partitions if keys is None else keys
        partitions = (self._partitions.get(key) for key in wanted)
        return any(partition is not None and partition.live > 0 for partition in partitions)

    def hold(self, keys: Iterable[PartitionKey]) -> None:
        """Add nothing more to these partitions. What lies behind the last message that was started is dropped."""
        for key in keys:
            partition = self._partitions.get(key)
            if partition is not None:
                partition.is_held = True
                for work in reversed(partition.pending):
                    if work.attempts or work.state is State.DROPPED:
                        break
                    self._drop(work)

    def cut(self, keys: Iterable[PartitionKey]) -> None:
        """Start nothing more of these partitions. What runs may end."""
        for key in keys:
            partition = self._partitions.get(key)
            if partition is not None:
                self._cut(partition)

    def _cut(self, partition: _Partition) -> None:
        partition.is_held = True
        for work in partition.pending:
            if work.state not in _ENDED_OR_RUNNING:
                self._drop(work)

    def drop(self, key: PartitionKey) -> list[Work]:
        """Forget a partition. Return what still runs of it: its outcome does not count any more."""
        partition = self._partitions.pop(key, None)
        if partition is None:
            return []
        self._cut(partition)
        partition.is_gone = True
        self._count -= len(partition.pending)
        return [work for work in partition.pending if work.state is State.RUNNING]

    def stop(self) -> None:
        """Add nothing more at all; hold all partitions."""
        self._is_stopped = True
        self.hold(list(self._partitions))

    @property
    def partitions(self) -> list[PartitionKey]:
        """Keys of the partitions of which something was added."""
        return list(self._partitions)
