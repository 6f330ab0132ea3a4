"""What the application has got of what was fetched: one item after the other, message by message or in Arrow batches.

A message that was handed out is finished when the next one is asked for, and not before: a handler that raises leaves
its message unfinished. While an item is handed out its partition may be moved elsewhere; then nothing of it follows.
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

__all__ = ["Cursor", "HandOut", "Mark"]

_RECORDS_MIN: Final = 4_096


class Mark(NamedTuple):
    """A place in a partition: the next offset, and the leader epoch of the record before it, -1 when not known."""

    offset: int
    epoch: int


class Cursor:
    """One partition as the application sees it.

    Attributes:
        stream: its name.
        key: of the partition.
        fetcher: fetches it.
        fetching: how far that is; another one after every move of the cursor.
        finished: up to here the application is done, but for what it has in hand.
        gone_below: tombstones below this offset may be gone, as the answer said that brought what was handed out last.
        is_paused: whether nothing is fetched and handed out.
    """

    __slots__ = ("fetcher", "fetching", "finished", "gone_below", "is_paused", "key", "stream")

    def __init__(self, stream: str, key: PartitionKey, fetcher: Fetcher, fetching: Position) -> None:
        self.stream = stream
        self.key = key
        self.fetcher = fetcher
        self.fetching = fetching
        self.finished = Mark(fetching.offset, fetching.epoch)
        self.gone_below = 0
        self.is_paused = False


class HandOut:
    """See the module.

    Args:
        subjects: takes what is wanted; None takes all.
    """

    def __init__(self, subjects: SubjectFilter | None) -> None:
        self._subjects = subjects
        self._item: Fetched | None = None
        self._cursor: Cursor | None = None
        self._run: MessageRun | None = None
        self._epoch = -1  # of the run
        self._end: Mark | None = None  # of what is in hand, when it is not of the run

    def messages(self, item: Fetched, cursor: Cursor) -> Iterator[Iterator[Message]]:
        """The messages of an item, batch by batch."""
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
        """The records of an item; runs of small batches are put together, since a batch per message helps nobody."""
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
        """Records, and the batch that the last of them are from."""
        small: list[pa.RecordBatch] = []
        rows = 0
        before: WireBatch | None = None
        for batch in item.batches:
            records = to_records(item.partition, batch, self._subjects)
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
        self.settle()
        self._item, self._cursor = item, cursor
        cursor.gone_below = item.gone_below

    def _leave(self) -> None:
        """More is asked for after an interruption."""
        if self._item is None:  # else somebody else iterates by now, and has something in hand
            self.settle()

    def _finish_item(self, item: Fetched, cursor: Cursor) -> None:
        cursor.finished = Mark(item.next_offset, item.epoch)
        self._item = self._cursor = None

    def _in_hand(self) -> Mark | None:
        """The place after what the application has in hand; None when it has nothing."""
        run = self._run
        if run is None:
            return self._end
        return Mark(run.offsets[run.taken - 1] + 1, self._epoch) if run.taken else None

    def handed(self, cursor: Cursor) -> Mark:
        """The place after what was handed out last."""
        in_hand = self._in_hand() if cursor is self._cursor else None
        return cursor.finished if in_hand is None else in_hand

    def finished(self, cursor: Cursor) -> Mark:
        """The place after what is finished."""
        run = self._run if cursor is self._cursor else None
        if run is None or run.taken < 2:
            return cursor.finished
        return Mark(run.offsets[run.taken - 1], self._epoch)

    def interrupt(self, cursor: Cursor) -> bool:
        """Let nothing follow of a partition; what is in hand is finished later. Returns whether it was at it."""
        if cursor is not self._cursor:
            return False
        if self._run is not None:
            self._end, cursor.finished = self._in_hand(), self.finished(cursor)
            self._run.stop()
            self._run = None
        self._item = None
        return True

    def forget(self, cursor: Cursor) -> None:
        """Let nothing follow of a partition, and never finish what is in hand."""
        if self.interrupt(cursor):
            self._end = self._cursor = None

    def settle(self) -> None:
        """Finish what is in hand of a partition that was interrupted."""
        if self._cursor is not None and self._end is not None:
            self._cursor.finished = self._end
        self._end = None
        if self._item is None:
            self._cursor = None

    @property
    def unfinished(self) -> Cursor | None:
        """The partition whose item was left half handed out, if any."""
        return self._cursor if self._item is not None else None


def _end(item: Fetched, batch: WireBatch) -> Mark:
    header = batch.header
    return Mark(item.position.limit(header.next_offset), header.leader_epoch)


def _together(small: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(small) if len(small) > 1 else small[0]
