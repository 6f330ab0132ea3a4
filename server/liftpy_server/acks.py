"""Acks: what is owed to publishers until a record is committed, and how a range of them is written at once.

An ack is a NATS `PUB` with a small JSON. Those of a committed range are put together in one piece of memory, with
array operations where the range is long, and go out in one write.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from liftpy_envelope.ack import Ack, encode_ack, encode_error_ack
from liftpy_server.ingest.runs import PackedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_envelope.errors import AckErrorCode

__all__ = ["AckItem", "AckTemplate", "ItemAcks", "PendingAcks", "RangeAcks", "publish_frame"]

_VECTOR_ACKS_MIN: Final = 48
_ZERO: Final = ord("0")


class Owed(Protocol):
    """Acks that are owed."""

    def encode(self, template: AckTemplate) -> bytes:
        """The frames that say the records are stored."""
        ...

    def encode_error(self, template: AckTemplate, code: AckErrorCode, description: str) -> bytes:
        """The frames that say why they are not."""
        ...


def publish_frame(subject: bytes, payload: bytes) -> bytes:
    """One NATS `PUB`."""
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


class AckItem(NamedTuple):
    """One ack of a message with options of its own."""

    destination: bytes
    offset: int
    records: int = 1
    duplicate: bool = False
    correlation_id: str | None = None


class ItemAcks:
    """Acks of messages with options of their own."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[AckItem]) -> None:
        self._items = items

    def encode(self, template: AckTemplate) -> bytes:
        """See `Owed`."""
        return b"".join(
            [
                template.frame(item.destination, item.offset)
                if item.records == 1 and not item.duplicate and item.correlation_id is None
                else publish_frame(item.destination, _ack(item, template))
                for item in self._items
            ]
        )

    def encode_error(self, template: AckTemplate, code: AckErrorCode, description: str) -> bytes:
        """See `Owed`."""
        return b"".join(
            publish_frame(item.destination, encode_error_ack(code, description, template.stream, item.correlation_id))
            for item in self._items
        )


def _ack(item: AckItem, template: AckTemplate) -> bytes:
    return encode_ack(
        Ack(
            stream=template.stream,
            offset=item.offset,
            partition=template.partition,
            epoch=template.epoch,
            count=item.records,
            duplicate=item.duplicate,
            correlation_id=item.correlation_id,
        )
    )


class RangeAcks:
    """Acks of plain messages with contiguous offsets; those with an empty reply subject want none."""

    __slots__ = ("_base_offset", "_replies")

    def __init__(self, base_offset: int, replies: Sequence[bytes] | PackedColumn) -> None:
        self._base_offset = base_offset
        self._replies = replies

    def _strings(self) -> Sequence[bytes]:
        replies = self._replies
        return replies.strings(0, len(replies.offsets) - 1) if isinstance(replies, PackedColumn) else replies

    def encode(self, template: AckTemplate) -> bytes:
        """See `Owed`."""
        if isinstance(self._replies, PackedColumn):
            frames = template.frames(self._replies, self._base_offset)
            if frames is not None:
                return frames
        strings = self._strings()
        if len(strings) == 1 and strings[0]:
            return template.frame(strings[0], self._base_offset)
        frame = template.frame
        return b"".join([frame(reply, offset) for offset, reply in enumerate(strings, self._base_offset) if reply])

    def encode_error(self, template: AckTemplate, code: AckErrorCode, description: str) -> bytes:
        """See `Owed`."""
        payload = encode_error_ack(code, description, template.stream)
        return b"".join(publish_frame(reply, payload) for reply in self._strings() if reply)


class AckTemplate:
    """Where acks come from, and the parts that they all share; `encode_ack` writes the same JSON.

    Args:
        stream: name of the stream, which needs no escaping in JSON.
        partition: its number.
        epoch: the leader epoch.
    """

    def __init__(self, stream: str, partition: int, epoch: int) -> None:
        self.stream = stream
        self.partition = partition
        self.epoch = epoch
        self._head = f'{{"stream":"{stream}","seq":'.encode()
        self._middle = b',"offset":'
        self._tail = f',"partition":{partition},"epoch":{epoch},"count":1}}\r\n'.encode()
        self._length = len(self._head) + len(self._middle) + len(self._tail) - 2

    def frame(self, reply: bytes, offset: int) -> bytes:
        """One frame."""
        seq, number = b"%d" % (offset + 1), b"%d" % offset
        size = self._length + len(seq) + len(number)
        return b"PUB %b %d\r\n%b%b%b%b%b" % (reply, size, self._head, seq, self._middle, number, self._tail)

    def frames(self, replies: PackedColumn, base_offset: int) -> bytes | None:
        """All frames of a range in which all have the same length; None when they do not, or are few."""
        edges = replies.offsets
        count = len(edges) - 1
        reply_size = int(edges[1]) - int(edges[0])
        digits = len(str(base_offset))
        if count < _VECTOR_ACKS_MIN or not reply_size or digits != len(str(base_offset + count)):
            return None
        if (np.diff(edges) != reply_size).any():
            return None
        size = b" %d\r\n" % (self._length + 2 * digits)
        row = (
            b"PUB " + bytes(reply_size) + size + self._head + bytes(digits) + self._middle + bytes(digits) + self._tail
        )
        reply_at = 4
        seq_at = reply_at + reply_size + len(size) + len(self._head)
        offset_at = seq_at + digits + len(self._middle)
        frames = np.empty((count, len(row)), np.uint8)
        frames[:] = np.frombuffer(row, np.uint8)
        start = int(edges[0])
        characters = np.frombuffer(replies.data, np.uint8)[start : start + count * reply_size]
        frames[:, reply_at : reply_at + reply_size] = characters.reshape(count, reply_size)
        numbers = _decimal(base_offset, count + 1, digits)
        frames[:, offset_at : offset_at + digits] = numbers[:-1]
        frames[:, seq_at : seq_at + digits] = numbers[1:]
        return frames.tobytes()


def _decimal(first: int, count: int, digits: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """`count` consecutive numbers of `digits` decimal digits, a row each."""
    rest = np.arange(first, first + count)
    rows = np.empty((count, digits), np.uint8)
    for column in range(digits - 1, -1, -1):
        rest, digit = np.divmod(rest, 10)
        rows[:, column] = digit + _ZERO
    return rows


class PendingAcks:
    """Acks owed by one partition, in the order in which their messages came.

    Each waits for an offset. An ack never waits for less than one that came before it did when it came, so the
    queue is served from its head.
    """

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Owed]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, next_offset: int, owed: Owed) -> None:
        """Owe acks until records below `next_offset` are committed."""
        self._queue.append((next_offset, owed))

    @property
    def end(self) -> int:
        """The highest offset that is waited for; 0 when nothing is owed."""
        return self._queue[-1][0] if self._queue else 0

    def take(self, committed_end: int) -> list[Owed]:
        """The acks that are due when records below `committed_end` are committed."""
        queue = self._queue
        due = []
        while queue and queue[0][0] <= committed_end:
            due.append(queue.popleft()[1])
        return due

    def take_all(self) -> list[Owed]:
        """Everything owed, for when nothing will be committed any more."""
        everything = [owed for _, owed in self._queue]
        self._queue.clear()
        return everything
