"""Delivery of fetched items to the application, message by message or as Arrow batches.

A delivered message is processed when the application requests the next one, or commits it, and not before: a handler
that raises leaves its message unprocessed. Until then it is in hand. A partition may be moved or revoked while its item
is delivered. Then nothing more of the item is delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from liftpy_client.consumer.decode import iterate_messages, to_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_client.consumer.decode import MessageRun, WireBatch
    from liftpy_client.consumer.fetcher import Fetcher
    from liftpy_client.consumer.filtering import SubjectFilter
    from liftpy_client.consumer.positions import Position
    from liftpy_client.consumer.prefetch import Fetched
    from liftpy_client.message import Message
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Cursor", "Delivery", "Mark"]

_RECORDS_MIN: Final = 4_096


class Mark(NamedTuple):
    """A position in a partition: the next offset, and the leader epoch of the record before it (-1 if unknown)."""

    offset: int
    epoch: int


class Cursor:
    """The state of one partition as the application sees it.

    Attributes:
        stream: Name of the stream.
        key: Key of the partition.
        fetcher: The fetcher of the stream.
        fetching: Position of the next fetch. A new object after each seek.
        finished: Position up to which records are processed, without those of the item in hand.
        delete_horizon: Delete horizon of the last delivered item: tombstones below this offset may be gone.
        is_paused: Whether the partition is neither fetched nor delivered.
    """

    __slots__ = ("delete_horizon", "fetcher", "fetching", "finished", "is_paused", "key", "stream")

    def __init__(self, stream: str, key: PartitionKey, fetcher: Fetcher, fetching: Position) -> None:
        self.stream = stream
        self.key = key
        self.fetcher = fetcher
        self.fetching = fetching
        self.finished = Mark(fetching.offset, fetching.epoch)
        self.delete_horizon = 0
        self.is_paused = False


class Delivery:
    """Delivers one item after the other, and knows what is delivered and what is processed.

    Args:
        subjects: Filter of the messages to deliver; None delivers all.
        extra: More columns of record batches, of `EXTRA_COLUMNS`.
    """

    def __init__(self, subjects: SubjectFilter | None, extra: tuple[str, ...] = ()) -> None:
        self._subjects = subjects
        self._extra = extra
        self._item: Fetched | None = None
        self._cursor: Cursor | None = None
        self._run: MessageRun | None = None
        self._epoch = -1  # of the run
        self._end: Mark | None = None  # of what is in hand, when it is not of the run
        self._held: tuple[Cursor, Mark] | None = None  # where several messages begin that are in hand together
        self._settled: tuple[Cursor, Mark] | None = None  # what was committed of what is in hand

    def messages(self, item: Fetched, cursor: Cursor) -> Iterator[Iterator[Message]]:
        """Return the messages of an item, batch by batch."""
        self._begin(item, cursor)
        for batch in item.batches:
            self._epoch = batch.header.leader_epoch
            self._run = run = iterate_messages(cursor.stream, item.partition, batch, self._subjects)
            yield run.messages
            if self._item is not item:
                self._leave()
                return
            self._run = None
            cursor.finished = _end(item, batch)
        self._finish_item(item, cursor)

    def records(self, item: Fetched, cursor: Cursor) -> Iterator[tuple[pa.RecordBatch]]:
        """Return the records of an item. Runs of small batches are joined."""
        self._begin(item, cursor)
        for records, last in self._coalesce(item):
            self._end = _end(item, last)
            yield (records,)
            if self._item is not item:
                self._leave()
                return
            cursor.finished, self._end = self._end, None
        self._finish_item(item, cursor)

    def _coalesce(self, item: Fetched) -> Iterator[tuple[pa.RecordBatch, WireBatch]]:
        """Return records, each with the batch of its last record."""
        small: list[pa.RecordBatch] = []
        rows = 0
        before: WireBatch | None = None
        for batch in item.batches:
            records = to_records(item.partition, batch, self._subjects, self._extra)
            if not records.num_rows:
                continue
            if records.num_rows < _RECORDS_MIN:
                small.append(records)
                rows += records.num_rows
                if rows >= _RECORDS_MIN:
                    yield _together(small), batch
                    small, rows = [], 0
            else:
                if small and before is not None:
                    yield _together(small), before
                    small, rows = [], 0
                yield records, batch
            before = batch
        if small and before is not None:
            yield _together(small), before

    def _begin(self, item: Fetched, cursor: Cursor) -> None:
        self.finish_interrupted()
        self._item, self._cursor = item, cursor
        cursor.delete_horizon = item.delete_horizon

    def _leave(self) -> None:
        """Handle a request for more after an interruption."""
        if self._item is None:  # else another iteration has begun, with an item of its own
            self.finish_interrupted()

    def _finish_item(self, item: Fetched, cursor: Cursor) -> None:
        cursor.finished = Mark(item.next_offset, item.epoch)
        self._item = self._cursor = None

    def _in_hand(self) -> Mark | None:
        """Return the position after the records in hand; None if there are none."""
        run = self._run
        if run is None:
            return self._end
        return Mark(run.offsets[run.taken - 1] + 1, self._epoch) if run.taken else None

    def delivered(self, cursor: Cursor) -> Mark:
        """Return the position after the last delivered record."""
        in_hand = self._in_hand() if cursor is self._cursor else None
        return cursor.finished if in_hand is None else in_hand

    def finished(self, cursor: Cursor) -> Mark:
        """Return the position after the last processed record."""
        run = self._run if cursor is self._cursor else None
        if self._held is not None and self._held[0] is cursor:
            mark = self._held[1]
        elif run is None or run.taken < 2:
            mark = cursor.finished
        else:
            mark = Mark(run.offsets[run.taken - 1], self._epoch)
        if self._settled is not None and self._settled[0] is cursor and self._settled[1].offset > mark.offset:
            return self._settled[1]
        return mark

    def hold(self, cursor: Cursor, mark: Mark) -> None:
        """Have everything from here on in hand together, until `release`."""
        self._held = cursor, mark

    def release(self) -> None:
        """The application requests more than what it has in hand together."""
        self._held = None

    def settle(self, cursor: Cursor, offset: int) -> None:
        """Count what is in hand below an offset as processed: the application has committed it."""
        delivered = self.delivered(cursor)
        if self.finished(cursor).offset < offset <= delivered.offset:
            self._settled = cursor, Mark(offset, delivered.epoch if offset == delivered.offset else -1)

    def interrupt(self, cursor: Cursor) -> bool:
        """Deliver nothing more of a partition. Records in hand can still be processed.

        Returns:
            Whether an item of the partition was being delivered.
        """
        if cursor is not self._cursor:
            return False
        if self._run is not None:
            self._end, cursor.finished = self._in_hand(), self.finished(cursor)
            self._run.stop()
            self._run = None
        self._item = None
        return True

    def forget(self, cursor: Cursor) -> None:
        """Deliver nothing more of a partition, and never count the records in hand as processed."""
        if self.interrupt(cursor):
            self._end = self._cursor = None
        if self._held is not None and self._held[0] is cursor:
            self._held = None
        if self._settled is not None and self._settled[0] is cursor:
            self._settled = None

    def finish_interrupted(self) -> None:
        """Count the records in hand of an interrupted partition as processed."""
        if self._cursor is not None and self._end is not None:
            self._cursor.finished = self._end
        self._end = None
        if self._item is None:
            self._cursor = None

    @property
    def in_hand(self) -> Cursor | None:
        """The partition whose records are in hand, or whose item is partly delivered, if any."""
        return self._cursor if self._held is None else self._held[0]

    @property
    def unfinished(self) -> Cursor | None:
        """The partition whose item is partly delivered, if any."""
        return self._cursor if self._item is not None else None


def _end(item: Fetched, batch: WireBatch) -> Mark:
    header = batch.header
    return Mark(item.position.limit(header.next_offset), header.leader_epoch)


def _together(small: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(small) if len(small) > 1 else small[0]
