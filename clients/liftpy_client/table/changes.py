"""The changes of a table as an iterator: bounded, so that a slow reader never delays the table."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from liftpy_client.errors import ChangesMissedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.table.rows import Row, RowChange

__all__ = ["Change", "Changes"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Change(Generic[V]):
    """What became of one key.

    Attributes:
        key: Key of the record.
        old: The value before; None when there was none.
        new: The value now; None when it is gone.
        partition: Partition of the record; None as for `offset`.
        offset: Offset of the record; None if the stream was read again and no longer has the key.
    """

    key: bytes
    old: V | None
    new: V | None
    partition: int | None
    offset: int | None


class Changes(Generic[V]):
    """An asynchronous iterator over the changes of a table from the moment on in which it was made.

    Args:
        stream: Stream of the table.
        changes_max: How many changes may wait.
        bytes_max: How many bytes of keys and values may wait.
        decode: Makes the value of a key from its row.
    """

    def __init__(
        self,
        stream: str,
        changes_max: int,
        bytes_max: int,
        decode: Callable[[bytes, Row], V],
    ) -> None:
        if changes_max < 1 or bytes_max < 1:
            raise UsageError(f"changes_max and bytes_max must be 1 or more, not {changes_max} and {bytes_max}")
        self._stream = stream
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._decode = decode
        self._waiting: deque[RowChange] = deque()
        self._bytes = 0
        self._missed = 0
        self._wake = asyncio.Event()
        self._is_closed = False
        self._failure: Exception | None = None

    def put(self, change: RowChange) -> None:
        """Add a change, or drop all that wait when it is one too many."""
        if self._is_closed:
            return
        self._wake.set()
        if self._missed:
            self._missed += 1
            return
        self._waiting.append(change)
        self._bytes += _size(change)
        if len(self._waiting) > self._changes_max or self._bytes > self._bytes_max:
            self._missed = len(self._waiting)
            self._clear()

    def finish(self, failure: Exception | None = None) -> None:
        """Nothing more will come, because the table was closed, or because of an error."""
        self._is_closed = True
        self._failure = failure
        self._wake.set()

    def close(self) -> None:
        """Nothing more is wanted."""
        self._clear()
        self._missed = 0
        self.finish()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[V]:
        """The next change.

        Raises:
            ChangesMissedError: some were dropped; the next call goes on.
            TableDecodeError: a value cannot be decoded; the next call goes on with the next change.
            LiftError: The table has failed.
        """
        while not self._waiting:
            if self._missed:
                missed, self._missed = self._missed, 0
                raise ChangesMissedError(self._stream, missed)
            if self._is_closed:
                if self._failure is not None:
                    raise self._failure.with_traceback(None)  # it would grow each time that it is raised
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        change = self._waiting.popleft()
        self._bytes -= _size(change)
        return self._decoded(change)

    def _decoded(self, change: RowChange) -> Change[V]:
        key, old, new, place = change
        return Change(
            key,
            None if old is None else self._decode(key, old),
            None if new is None else self._decode(key, new),
            *((None, None) if place is None else place),
        )

    def _clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0


def _size(change: RowChange) -> int:
    return len(change.key) + sum(len(row.value) for row in (change.old, change.new) if row is not None)
