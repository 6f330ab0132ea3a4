"""A live key -> value view of a stream."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from liftpy_client.consumer.positions import check_partitions
from liftpy_client.errors import TableDecodeError, UsageError
from liftpy_client.table.changes import Changes
from liftpy_client.table.ends import StreamEnds
from liftpy_client.table.following import TableFollowing
from liftpy_client.table.reading import TableReading
from liftpy_client.table.rows import Row
from liftpy_envelope.ack import Ack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.table.following import DivergedCallback
    from liftpy_client.table.rows import TableRows

__all__ = ["Table"]

V = TypeVar("V")
_Default = TypeVar("_Default")


class Table(Generic[V]):
    """A live view of a stream: the last value of every key, without those that a tombstone removed.

    Made by `Lift.table`, and to be used in an `async with`, which waits until everything is read that is committed.
    Keys are bytes. Values are bytes, or what `decode` makes of them, which is called whenever a value is asked for.

    Reading from it is synchronous and never waits. An error that ends the table (the stream was deleted, the memory is
    used up) is raised by whatever is asked of it next.

    Args:
        session: Connections and the cluster's metadata.
        stream: Name of the stream.
        decode: Makes a value of bytes; None leaves them.
        partitions: Partitions to read; None for all.
        bytes_max: About how much memory the rows may take.
        fill_timeout_s: How long it may take to read the stream at the beginning.
        options: How to fetch; `on_lost` has no meaning here.
        on_diverged: Called when the cluster lost records that the table shows.
    """

    def __init__(
        self,
        session: Session,
        stream: str,
        *,
        decode: Callable[[bytes], V] | None,
        partitions: Sequence[int] | None,
        bytes_max: int,
        fill_timeout_s: float,
        options: ConsumeOptions,
        on_diverged: DivergedCallback | None = None,
    ) -> None:
        check_partitions(partitions)
        if bytes_max < 1 or not fill_timeout_s > 0:
            raise UsageError(
                f"bytes_max must be 1 or more and fill_timeout_s above 0, not {bytes_max} and {fill_timeout_s}"
            )
        self._session = session
        self._stream = stream
        self._decode = decode
        self._fill_timeout_s = fill_timeout_s
        options = replace(options, on_lost="error")  # then everything is read again
        self._ends = StreamEnds(session, stream, partitions, options)
        self._following = TableFollowing(
            stream,
            self._ends,
            lambda before, after: TableReading(session, stream, partitions, options, bytes_max, before, after),
            on_diverged,
        )

    async def __aenter__(self) -> Self:
        """Begin, and wait until what is committed now is in the table.

        Raises:
            NoStreamError: there is no such stream.
            TableTooLargeError: it needs more than `bytes_max`.
            TableTimeoutError: it is not read within `fill_timeout_s`.
            LiftError: as from a consumer.
        """
        self._session.running.add(self)
        try:
            await self._following.start(self._fill_timeout_s)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it has ended: it was closed, or it has failed."""
        return self._following.has_ended

    async def close(self) -> None:
        """End. The `async with` does it, and so does the end of the connection."""
        self._session.running.discard(self)
        await self._following.stop()

    def _rows(self) -> TableRows:
        return self._following.shown.rows

    def _shown(self, key: bytes, value: bytes) -> V:
        """A value that is in the table now."""
        if self._decode is None:
            return value  # type: ignore[return-value]
        return self._value(key, Row(value, self._rows().place(key)))

    def _value(self, key: bytes, row: Row) -> V:
        if self._decode is None:
            return row.value  # type: ignore[return-value]
        try:
            return self._decode(row.value)
        except Exception as error:
            raise TableDecodeError(self._stream, key, *row.place, error) from error

    # -- reading

    def __getitem__(self, key: bytes) -> V:
        """The value of a key.

        Raises:
            KeyError: it is not there.
            TableDecodeError: `decode` raised.
        """
        value = self._rows().values.get(_checked(key))
        if value is None:
            raise KeyError(key)
        return self._shown(key, value)

    @overload
    def get(self, key: bytes) -> V | None: ...
    @overload
    def get(self, key: bytes, default: _Default) -> V | _Default: ...
    def get(self, key: bytes, default: Any = None) -> Any:
        """The value of a key, or a default when it is not there.

        Raises:
            TableDecodeError: `decode` raised.
        """
        value = self._rows().values.get(_checked(key))
        return default if value is None else self._shown(key, value)

    def __contains__(self, key: bytes) -> bool:
        return _checked(key) in self._rows().values

    def __len__(self) -> int:
        return len(self._rows().values)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys())

    def keys(self) -> list[bytes]:
        """The keys that are there now."""
        return list(self._rows().values)

    def items(self) -> Iterator[tuple[bytes, V]]:
        """Keys with their values as they are now, even when the table changes while one goes through them.

        Raises:
            TableDecodeError: `decode` raised, while one goes through them.
        """
        rows = self._rows()
        if self._decode is None:
            return iter(list(rows.values.items()))  # type: ignore[arg-type]
        found = [(key, rows.row(key)) for key in rows.values]
        return ((key, self._value(key, row)) for key, row in found if row is not None)

    def values(self) -> Iterator[V]:
        """The values that are there now; raises as `items` does."""
        return (value for _, value in self.items())

    def to_arrow(self) -> pa.Table:
        """A copy of the table as it is now, with the binary columns key and value, which are not decoded."""
        return self._rows().to_arrow()

    def changes(self, *, changes_max: int = 10_000, bytes_max: int = 16 * 1024 * 1024) -> Changes[V]:
        """What changes from now on, with `async for`; any number of such iterators may be open.

        The table does not wait for readers of changes. If too many changes are pending, it drops them and raises a
        `ChangesMissedError` with their number.

        Args:
            changes_max: How many may wait.
            bytes_max: How many bytes of keys and values may wait.
        """
        following = self._following
        assert following.shown is not None
        feed = Changes(self._stream, changes_max, bytes_max, self._value)
        following.feeds.add(feed)
        return feed

    # -- waiting

    def offset(self, partition: int = 0) -> int:
        """Everything of a partition below this offset is in the table."""
        return self._following.shown.offset(partition)

    async def refresh(self, *, timeout_s: float = 30.0) -> None:
        """Wait until everything is in the table that is committed now.

        Raises:
            TableTimeoutError: that took too long.
            NodeUnavailableError: a partition has no leader that could tell how much that is.
            LiftError: The table has failed.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        following = self._following
        assert following.shown is not None
        ends = await self._ends.ask(timeout_s)
        await following.wait(
            lambda: following.shown.has_passed(ends), until_s - loop.time(), f"was to be, with {ends} read"
        )

    async def wait_for(self, record: int | Ack, *, partition: int = 0, timeout_s: float = 30.0) -> None:
        """Wait until a record is in the table: one's own, for instance.

        Args:
            record: Ack of the record, or its offset.
            partition: Where an offset is.
            timeout_s: How long to wait.

        Raises:
            TableTimeoutError: that took too long; perhaps there is no such record.
            LiftError: The table has failed.
        """
        if isinstance(record, Ack) and record.stream != self._stream:
            raise UsageError(f"the ack is of stream {record.stream}, and the table is of {self._stream}")
        offset, partition = (record.offset, record.partition) if isinstance(record, Ack) else (record, partition)
        following = self._following
        await following.wait(
            lambda: following.shown.offset(partition) > offset,
            timeout_s,
            f"was to be, with offset {offset} of partition {partition} read",
        )


def _checked(key: object) -> bytes:
    if not isinstance(key, bytes):
        raise UsageError(f"the keys of a table are bytes, not {type(key).__name__}: {key!r:.60}")
    return key
