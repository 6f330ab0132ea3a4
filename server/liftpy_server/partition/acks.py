"""Acks: what is owed to publishers until a record is committed, and how a range of them is written at once.

An ack is a NATS `PUB` with a small JSON. Those of a committed range are put together in one piece of memory, with
array operations where the range is long, and go out in one write.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from liftpy_envelope.ack import Ack, encode_ack, encode_error_ack
from liftpy_server.messages.packed import PackedColumn, strided

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from liftpy_envelope.errors import AckErrorCode

__all__ = ["AckItem", "AckTemplate", "ItemAcks", "PendingAcks", "RangeAcks", "publish_frame"]

_VECTOR_ACKS_MIN: Final = 16
_BLOCK: Final = 10_000  # so many numbers in a row differ in their last four digits only
_BLOCK_FIRST: Final = 1_000  # the first number that has four digits
_LAST_DIGITS: Final = np.frombuffer(b"".join(b"%04d" % number for number in range(_BLOCK)), "<u4")


class Owed(Protocol):
    """Acks that are owed."""

    def encode(self, template: AckTemplate) -> bytes:
        """The frames that say the records are stored."""
        ...

    def encode_error(self, template: AckTemplate, code: AckErrorCode, description: str) -> bytes:
        """The frames that say why they are not."""
        ...


def publish_frame(subject: bytes, payload: bytes) -> bytes:
    """Encode one NATS `PUB` frame."""
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
        stream: Name of the stream, which needs no escaping in JSON.
        partition: Number of the partition.
        epoch: The leader epoch.
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
        """All frames of a range whose replies have the same length; None when they do not, or when it is too short."""
        edges = replies.offsets
        count = len(edges) - 1
        width = int(edges[1]) - int(edges[0])
        if count < _VECTOR_ACKS_MIN or not width or base_offset < _BLOCK_FIRST:
            return None
        if replies.width is None and (np.diff(edges) != width).any():
            return None
        reply_at = int(edges[0])
        pieces: list[bytes] = []
        offset, end = base_offset, base_offset + count
        while offset < end:
            same = min(_BLOCK - 1 - offset % _BLOCK, end - offset)
            if same:
                pieces.append(self._block_frames(replies.data, reply_at, width, offset, same))
            else:  # its offset is the last of a block, and its `seq` the first of the next
                same = 1
                pieces.append(self.frame(replies.data.slice(reply_at, width).to_pybytes(), offset))
            offset += same
            reply_at += same * width
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _block_frames(self, replies: pa.Buffer, reply_at: int, width: int, offset: int, count: int) -> bytes:
        """Frames whose numbers differ in the last four digits only, and so are equal in size."""
        block, first = divmod(offset, _BLOCK)
        number = b"%d0000" % block if block else b"0000"
        size = b" %d\r\n" % (self._length + 2 * len(number))
        before_seq = b"PUB %b%b%b" % (bytes(width), size, self._head)
        row = b"%b%b%b%b%b" % (before_seq, number, self._middle, number, self._tail)
        seq_at = len(before_seq) + len(number) - 4
        offset_at = seq_at + 4 + len(self._middle) + len(number) - 4
        step = len(row)
        frames = bytearray(row) * count
        strided(frames, 4, step, count, width)[:] = strided(replies, reply_at, width, count, width)
        np.ndarray((count,), "<u4", frames, seq_at, (step,))[:] = _LAST_DIGITS[first + 1 : first + 1 + count]
        np.ndarray((count,), "<u4", frames, offset_at, (step,))[:] = _LAST_DIGITS[first : first + count]
        return bytes(frames)


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
