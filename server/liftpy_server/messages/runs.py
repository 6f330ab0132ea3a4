"""Messages of one subscription, in order, as the parser found them.

Two shapes with one face. A `ListRun` holds Python lists and is quick for a few messages; a `BlockRun` is a part of a
`Block`, whose columns are contiguous buffers, and never makes an object of a message unless someone asks for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from liftpy_envelope.batch import encode_body, encode_plain_body
from liftpy_envelope.columns import Column
from liftpy_envelope.envelope import COOKIE
from liftpy_envelope.ipc import values_column
from liftpy_envelope.limits import MESSAGE_ID_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_envelope.batch import BatchBody
    from liftpy_server.messages.packed import PackedColumn

__all__ = ["Block", "BlockRun", "ListRun", "Message", "Row", "Run"]


class Message(NamedTuple):
    """One NATS message; `reply` is empty when there is none."""

    subject: bytes
    reply: bytes
    headers: bytes | None
    value: bytes


_PLAIN: Final = Column.SUBJECT | Column.VALUE
_WITH_IDS: Final = Column.SUBJECT | Column.HEADERS | Column.VALUE | Column.MESSAGE_ID
_ID_HEADER: Final = b"NATS/1.0\r\nNats-Msg-Id: "

Row = tuple[bytes, bytes, bytes | None, bytes]
"""A `Message` before anyone needs its names: tuples are quicker to make."""


class Run(Protocol):
    """What can be done with the messages of one subscription.

    Attributes:
        count: How many there are.
        is_plain: None has headers or begins like an envelope; a share or part of a run that is not plain may say the
            same of itself, and is then only treated with more care than it needs.
        message_bytes_max: Size of the largest message, its headers and its value, or more.
        value_bytes: Size of all values.
    """

    count: int
    is_plain: bool
    message_bytes_max: int
    value_bytes: int

    def plain_body(self, skip: int) -> BatchBody:
        """A batch of the subjects, without their first `skip` bytes, and the values."""
        ...

    def replies(self) -> Sequence[bytes] | PackedColumn | None:
        """The reply subjects; None when no message has one."""
        ...

    def messages(self) -> list[Message]:
        """One object per message."""
        ...

    def identified(self, skip: int) -> tuple[list[bytes], BatchBody] | None:
        """The ids of the messages, and a batch that holds them.

        None unless every message has the header `Nats-Msg-Id`, no other header, and no envelope.
        """
        ...

    def split(self, partition_of: Callable[[bytes], int]) -> list[tuple[int, Run]]:
        """The messages by partition, given the partition of a subject."""
        ...

    def parts(self, value_bytes_max: int) -> list[Run]:
        """The same messages in runs of about so many bytes of values each."""
        ...


class ListRun:
    """Messages as rows, for when there are few or they have headers."""

    __slots__ = ("_values", "count", "is_plain", "message_bytes_max", "rows", "value_bytes")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.count = len(rows)
        if self.count == 1:  # the case that latency is made of
            _, _, headers, value = rows[0]
            self._values = [value]
            self.value_bytes = len(value)
            self.message_bytes_max = len(value) if headers is None else len(value) + len(headers)
            self.is_plain = headers is None and value[:4] != COOKIE
            return
        self._values = [row[3] for row in rows]
        sizes = list(map(len, self._values))
        self.value_bytes = sum(sizes)
        self.message_bytes_max = max(sizes)
        self.is_plain = COOKIE not in [value[:4] for value in self._values]
        if any([row[2] for row in rows]):  # noqa: C419 - a list is quicker
            self.is_plain = False
            self.message_bytes_max = max([size + len(row[2] or b"") for size, row in zip(sizes, rows, strict=True)])

    def plain_body(self, skip: int) -> BatchBody:
        """See `Run`."""
        return encode_plain_body([row[0][skip:] for row in self.rows], self._values)

    def replies(self) -> Sequence[bytes] | None:
        """See `Run`."""
        if self.count == 1:
            reply = self.rows[0][1]
            return [reply] if reply else None
        replies = [row[1] for row in self.rows]
        return replies if any(replies) else None

    def messages(self) -> list[Message]:
        """See `Run`."""
        return list(map(Message._make, self.rows))

    def identified(self, skip: int) -> tuple[list[bytes], BatchBody] | None:
        """See `Run`."""
        start = len(_ID_HEADER)
        headers = [row[2] or b"" for row in self.rows]
        ids = [block[start:-4] for block in headers if block.startswith(_ID_HEADER) and block.endswith(b"\r\n\r\n")]
        if len(ids) != self.count or COOKIE in [value[:4] for value in self._values]:
            return None
        if max(map(len, ids)) > MESSAGE_ID_BYTES_MAX or not all(ids) or ids != [key.strip(b" \t") for key in ids]:
            return None
        joined = b"".join(ids)
        if b"\r" in joined or b"\n" in joined:  # another header, or what is none
            return None
        subjects = values_column([row[0][skip:] for row in self.rows])
        columns = [subjects, values_column(headers), values_column(self._values), values_column(ids)]
        return ids, encode_body(self.count, _WITH_IDS, columns)

    def split(self, partition_of: Callable[[bytes], int]) -> list[tuple[int, Run]]:
        """See `Run`."""
        shares: dict[int, list[Row]] = {}
        for row in self.rows:
            shares.setdefault(partition_of(row[0]), []).append(row)
        return [(partition, ListRun(rows)) for partition, rows in shares.items()]

    def parts(self, value_bytes_max: int) -> list[Run]:
        """See `Run`."""
        if self.value_bytes <= value_bytes_max:
            return [self]
        parts: list[list[Row]] = [[]]
        size = 0
        for row in self.rows:
            if size and size + len(row[3]) > value_bytes_max:
                parts.append([])
                size = 0
            parts[-1].append(row)
            size += len(row[3])
        return [ListRun(rows) for rows in parts]


class Block(NamedTuple):
    """Plain messages of one chunk, ordered by subscription and, within one, as they came."""

    subjects: PackedColumn
    replies: PackedColumn
    values: PackedColumn
    value_bytes_max: int


class BlockRun:
    """The messages of a block from `first` up to `last`."""

    __slots__ = ("_block", "_first", "_last", "count", "is_plain", "message_bytes_max", "value_bytes")

    def __init__(self, block: Block, first: int, last: int, *, is_plain: bool = True) -> None:
        self._block = block
        self._first = first
        self._last = last
        self.count = last - first
        self.is_plain = is_plain
        self.message_bytes_max = block.value_bytes_max
        edges = block.values.offsets
        self.value_bytes = int(edges[last]) - int(edges[first])

    def plain_body(self, skip: int) -> BatchBody:
        """See `Run`."""
        subjects = self._block.subjects.cut(self._first, self._last, skip)
        return encode_body(self.count, _PLAIN, [subjects, self._block.values.cut(self._first, self._last)])

    def replies(self) -> PackedColumn | None:
        """See `Run`."""
        edges = self._block.replies.offsets
        if edges[self._first] == edges[self._last]:
            return None
        return self._block.replies.slice(self._first, self._last)

    def messages(self) -> list[Message]:
        """See `Run`."""
        columns = (column.strings(self._first, self._last) for column in self._block[:3])
        subjects, replies, values = columns
        return [
            Message(subject, reply, None, value)
            for subject, reply, value in zip(subjects, replies, values, strict=True)
        ]

    def identified(self, skip: int) -> tuple[list[bytes], BatchBody] | None:
        """See `Run`: in a block there are no headers."""
        del skip
        return None

    def split(self, partition_of: Callable[[bytes], int]) -> list[tuple[int, Run]]:
        """See `Run`."""
        only = self._block.subjects.repeated(self._first, self._last)
        if only is not None:
            return [(partition_of(only), self)]
        subjects = self._block.subjects.array(self._first, self._last).dictionary_encode()
        numbers = [partition_of(subject) for subject in subjects.dictionary.to_pylist()]
        if numbers.count(numbers[0]) == len(numbers):
            return [(numbers[0], self)]
        partitions = np.array(numbers, np.int16)[subjects.indices.to_numpy()]  # numpy sorts 16 bits without comparing
        order = np.argsort(partitions, kind="stable").astype(np.int32)
        ordered = partitions[order]
        firsts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()]
        subject_column, reply_column, value_column = (
            column.take(self._first, self._last, order) for column in self._block[:3]
        )
        block = Block(subject_column, reply_column, value_column, self.message_bytes_max)
        return [
            (int(ordered[first]), BlockRun(block, first, last, is_plain=self.is_plain))
            for first, last in pairwise([*firsts, self.count])
        ]

    def parts(self, value_bytes_max: int) -> list[Run]:
        """See `Run`."""
        if self.value_bytes <= value_bytes_max:
            return [self]
        edges = self._block.values.offsets
        parts: list[Run] = []
        first = self._first
        while first < self._last:
            limit = int(edges[first]) + value_bytes_max
            last = int(np.searchsorted(edges[: self._last + 1], limit, "right")) - 1
            last = min(max(last, first + 1), self._last)
            parts.append(BlockRun(self._block, first, last, is_plain=self.is_plain))
            first = last
        return parts
