"""Messages of a partition that wait: at the next leader until it leads, at the old one until it knows that it does."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.batch import NO_PRODUCER
from liftpy_envelope.columns import column_names
from liftpy_envelope.errors import ErrorCode
from liftpy_log.errors import PartitionOfflineError
from liftpy_server.handover.matching import stored_of_held
from liftpy_server.handover.refused import Refused
from liftpy_server.messages.incoming import Incoming, read_message
from liftpy_server.messages.runs import ListRun
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import pyarrow as pa

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.clock import Clock
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.ingest.marks import Marks
    from liftpy_server.messages.runs import Run
    from liftpy_server.partition.partition import Partition
    from liftpy_server.streams.streams import Streams

    Left = tuple[Run | list[Incoming], int]
    """Messages, and the size of their subjects' prefix, which is not stored."""

__all__ = ["HELD_BYTES_MAX", "Held", "HeldBytes", "Holding", "append_left"]

logger = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 128 * 1024 * 1024
_MESSAGE_BYTES = 100  # what one takes beside its value, about
_STEADY_TIMEOUT_S: Final = 2.0
_LOOK_S: Final = 0.005
_SETTLED = 2  # what came before so many marks has been stored by the old leader, which heard the others too


class HeldBytes:
    """How much may be held, for several partitions together.

    Attributes:
        left: Size that is left, bytes.
    """

    def __init__(self, left: int) -> None:
        self.left = left


class Holding:
    """A node's messages of partitions that are handed over, by it or to it, and where they go in the end.

    Args:
        streams: Streams of this node.
        ingest: Hears publishers.
        marks: Heard there.
        clock: Clock that says when messages are appended.
        flush: Sends the acks that are due.

    Attributes:
        room: Room for what is held of all partitions together.
    """

    def __init__(
        self, streams: Streams, ingest: IngestConnection, marks: Marks, clock: Clock, flush: Callable[[], None]
    ) -> None:
        self.streams = streams
        self.ingest = ingest
        self.marks = marks
        self.room = HeldBytes(HELD_BYTES_MAX)
        self._clock = clock
        self._flush = flush

    async def steady(self) -> None:
        """Wait until this node does not change its NATS server.

        Raises:
            AdminError: it takes too long.
        """
        until_s = asyncio.get_running_loop().time() + _STEADY_TIMEOUT_S
        while self.ingest.is_changing:
            if asyncio.get_running_loop().time() >= until_s:
                raise AdminError(ErrorCode.NOT_AVAILABLE, "this node is changing its NATS server")
            await asyncio.sleep(_LOOK_S)

    def append(
        self, partition: Partition, held: Held, left: Callable[[Held], Iterable[Left]], since_s: float | None
    ) -> None:
        """Append what a leader held, and hold nothing more. What can not be appended is a gap.

        Args:
            partition: Partition of this node, which leads it.
            held: What it holds.
            left: Messages that are to be appended.
            since_s: What was published before has been stored, by elapsed time; None where nobody knows.
        """
        partition.held = None
        name, number = partition.stream.name, partition.number
        try:
            append_left(partition, left(held), self._clock.now_ns())
            partition.heard_s = since_s
        except Exception as error:
            cause = f"messages that were held while the lead was handed over could not be taken: {error!r}"
            logger.exception("stream %s partition %d: %s", name, number, cause)
            partition.gaps.missed(since_s, cause)
            if isinstance(error, PartitionOfflineError):
                partition.fail(str(error))
        held.drop()
        try:
            partition.end_pass()
            self._flush()
        except Exception:  # the messages are in the log, and the next pass settles
            logger.exception("stream %s partition %d can not commit now", name, number)


def append_left(partition: Partition, left: Iterable[Left], now_ns: int) -> None:
    """Append messages to a partition."""
    for messages, skip in left:
        if isinstance(messages, list):
            partition.append_incoming(messages, now_ns)
        else:
            partition.append(messages, skip, now_ns)


class _Part(NamedTuple):
    """Messages that came together: a run, or, where their options were read already, what was read."""

    run: Run | None
    read: list[Incoming]
    skip: int


class Held:
    """Messages of a partition that wait until it is known which leader stores them.

    Args:
        room: Room for what is held.
        on_full: Called when there is too much; before, nothing was dropped. By default all of it is.

    Attributes:
        is_broken: There was too much, or some of it was lost; nothing is held any more.
        stored: The end of the old leader's log at each mark; None until it has said so.
        refused: Messages that the old leader did not store, as their publishers were told.
    """

    def __init__(self, room: HeldBytes, on_full: Callable[[Held], None] | None = None) -> None:
        self._room = room
        self._on_full = on_full
        self._taken = 0
        self._segments: list[list[_Part]] = [[]]
        self.is_broken = False
        self.stored: tuple[int, ...] | None = None
        self.refused = Refused(0)

    def add(self, run: Run, skip: int) -> bool:
        """Hold a run; False when it is not held."""
        if not self._has_room(run.value_bytes, run.count):
            return False
        self._segments[-1].append(_Part(run, [], skip))
        return True

    def add_read(self, messages: list[Incoming]) -> bool:
        """Hold messages whose options were read; False when they are not held."""
        if not self._has_room(sum(map(_size_of, messages)), len(messages)):
            return False
        self._segments[-1].append(_Part(None, messages, 0))
        return True

    def _has_room(self, value_bytes: int, count: int) -> bool:
        if self.is_broken:
            return False
        size = value_bytes + count * _MESSAGE_BYTES
        if size > self._room.left:
            self.is_broken = True
            if self._on_full is not None:
                self._on_full(self)
            self.drop()
            return False
        self._room.left -= size
        self._taken += size
        return True

    def mark(self) -> None:
        """Note that a mark was heard."""
        self._segments.append([])
        if self.marks == _SETTLED:
            self.drop()

    @property
    def marks(self) -> int:
        """How many marks came."""
        return len(self._segments) - 1

    def break_off(self) -> None:
        """Something that belongs to it is lost: nothing is held any more."""
        self.is_broken = True
        self.drop()

    def drop(self) -> None:
        """Forget what is held."""
        self._room.left += self._taken
        self._taken = 0
        self._segments = [[] for _ in self._segments]

    def all(self) -> list[Left]:
        """Everything that is held, in order."""
        return [(_messages(part), part.skip) for segment in self._segments for part in segment]

    def not_stored(self, log: PartitionLog, config: StreamConfig) -> list[Left]:
        """What is not in the log yet and was not refused, in order.

        Raises:
            SegmentCorruptError, PartitionOfflineError: the log can not be read.
        """
        assert self.stored is not None, "the old leader has said what it stored"
        segments = self._segments[_SETTLED:]
        contents = [
            [None if is_last and _is_plain(part) else _contents(part, config) for part in segment]
            for is_last, segment in zip([False] * (len(segments) - 1) + [True], segments, strict=True)
        ]
        held = [[content for part in segment for content in part or ()] for segment in contents]
        sizes = {len(content) for segment in held for content in segment if isinstance(content, _Batch)}
        both = stored_of_held(_stored_contents(log, self.stored, sizes), held[:-1])
        left: list[Left] = []
        for segment, of_segment in zip(segments, contents, strict=True):
            for part, known in zip(segment, of_segment, strict=True):
                if known is None and not both:  # as soon as all that is stored has been found
                    left.append((_messages(part), part.skip))
                else:
                    left += _left_of(part, known or _contents(part, config), both)
        return list(self.refused.without(left, config))


class _Batch(tuple[Any, ...]):
    """The contents of the records of a publisher's batch: it is stored whole."""

    __slots__ = ()


def _size_of(message: Incoming) -> int:
    if message.batch is not None:
        return sum(array.nbytes for array in message.batch.arrays)
    return len(message.value or b"")


def _content(
    subject: bytes, value: bytes | None, key: bytes | None, headers: bytes | None, message_id: bytes | None
) -> Hashable:
    """What the log keeps of a message."""
    if key is None and headers is None and message_id is None:
        return subject, value
    return subject, value, key, headers, message_id


def _is_plain(part: _Part) -> bool:
    return part.run is not None and part.run.is_plain


def _contents(part: _Part, config: StreamConfig) -> list[Hashable]:
    run, skip = part.run, part.skip
    if run is None:
        return [_content_of(message) for message in part.read]
    if run.is_plain:
        return [(message.subject[skip:], message.value) for message in run.messages()]
    return [_content_of(read_message(message, config, skip)) for message in run.messages()]


def _content_of(message: Incoming) -> Hashable:
    batch, options = message.batch, message.options
    if message.staged is not None:
        return message.staged.producer_id, message.staged.producer_sequence
    if batch is None:
        return _content(message.subject, message.value, options.key, message.headers, options.message_id)
    if batch.producer_id is not None:
        return batch.producer_id, batch.producer_sequence
    columns = dict(zip(column_names(batch.columns), batch.arrays, strict=True))
    return _Batch(_of_columns(columns | {"subject": [message.subject] * batch.count}, batch.count))


def _of_columns(columns: dict[str, Any], count: int) -> Iterable[Hashable]:
    nothing = [None] * count
    lists = [
        nothing if (column := columns.get(name)) is None else column if isinstance(column, list) else column.to_pylist()
        for name in ("subject", "value", "key", "headers", "message_id")
    ]
    if lists[2] == lists[3] == lists[4] == nothing:
        return zip(lists[0], lists[1], strict=True)
    return (_content(*row) for row in zip(*lists, strict=True))


def _stored_contents(log: PartitionLog, marks: tuple[int, ...], sizes: set[int]) -> list[list[Hashable]]:
    """The contents of what is in the log from the first mark on, by segment; of batches of these sizes as a whole, too.

    Those before the marks that are settled belong to the first segment: one that is held later may be among them.
    """
    segments: list[list[Hashable]] = [[] for _ in range(len(marks) + 1 - _SETTLED)]
    if marks[0] >= log.log_end:
        return segments
    for header, read in log.batches(max(marks[0], log.log_start)):
        # A mark never comes within a batch, which is made of one pass over what was read.
        segment = segments[max(0, bisect_right(marks, header.base_offset) - _SETTLED)]
        if header.producer_id != NO_PRODUCER:
            segment.append((header.producer_id, header.producer_sequence))
            continue
        records: pa.RecordBatch = read()
        found = list(_of_columns({name: records.column(name) for name in records.schema.names}, records.num_rows))
        segment += found
        if len(found) in sizes:
            segment.append(_Batch(found))
    return segments


def _messages(part: _Part) -> Run | list[Incoming]:
    return part.read if part.run is None else part.run


def _left_of(part: _Part, contents: Sequence[Hashable], both: Counter[Hashable]) -> list[Left]:
    """What of a part is not stored; `both` counts down what is."""
    kept = [number for number, content in enumerate(contents) if not _is_stored(content, both)]
    if len(kept) == len(contents):
        return [(_messages(part), part.skip)]
    if not kept:
        return []
    if part.run is None:
        return [([part.read[number] for number in kept], part.skip)]
    messages = part.run.messages()
    return [(ListRun([messages[number] for number in kept]), part.skip)]


def _is_stored(content: Hashable, both: Counter[Hashable]) -> bool:
    count = both.get(content, 0)
    if count > 1:
        both[content] = count - 1
    elif count:
        del both[content]
    return bool(count)
