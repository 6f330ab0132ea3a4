"""A log of records in an object store, and nothing but the store: every append is one object (after s3-log).

Objects have consecutive numbers, which are their keys, `<number:020d>`; an object holds the records of one append. That
it was created where there was none is the commit: of two who write the same number one succeeds. Because numbers have
no gaps, the end is found by asking which ones exist. Trimming moves a mark, `TRIM`, before it deletes anything, and
whoever has appended looks at the mark: a writer that stalled can not bring a number back that was trimmed.

    log = ObjectLog(store, "audit", writer="host-1")
    sequence = log.append(b"something happened")
    assert log.read(sequence) == b"something happened"

Any number of threads may use an `ObjectLog`; appends go one after the other. Records are numbered by their own
sequence, from 0; where all are appended one by one it is the number of the object as well.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import (
    AnotherWriterError,
    ObjectCorruptError,
    OutcomeUnknownError,
    OvertakenError,
    RecordMissingError,
    StoreError,
    TakenError,
    TierError,
)
from liftpy_bucket.object_log.format import NAME_BYTES_MAX, RECORDS_BYTES_MAX, RECORDS_MAX, encode_object
from liftpy_bucket.object_log.objects import LogObjects
from liftpy_bucket.object_log.trim import TrimFile
from liftpy_bucket.store.conditional import create_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["ObjectLog", "Record"]

_OVERTAKEN_MAX: Final = 50
_TRIMMED_MEANWHILE_MAX: Final = 5
_DELETE_MAX: Final = 1_000


class Record(NamedTuple):
    """One record.

    Attributes:
        sequence: Number of the record.
        data: Bytes of the record.
    """

    sequence: int
    data: bytes


@dataclass(slots=True)
class _Pending:
    """An append that is on its way, or of which nobody knows what became."""

    number: int
    first: int
    count: int
    body: bytes
    nonce: str
    is_sent: bool = False


def _random_id() -> str:
    return uuid.uuid4().hex


class ObjectLog:
    """An append-only log of records in an object store.

    Args:
        store: Where it is.
        prefix: What its keys begin with; nothing else may be there.
        writer: A name by which another writer is told of us.
        shared: Several processes append: where another was first, an append goes behind it instead of failing.
        new_id: Gives a text that was never used before.
        cache_bytes: Size of the objects that are kept in memory, bytes.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        writer: str = "unnamed",
        shared: bool = False,
        new_id: Callable[[], str] = _random_id,
        cache_bytes: int = 16 << 20,
    ) -> None:
        if len(writer.encode()) > NAME_BYTES_MAX:
            raise TierError(f"a writer's name has at most {NAME_BYTES_MAX} bytes, and this one {len(writer.encode())}")
        self.prefix = prefix.rstrip("/") + "/"
        self._store = store
        self._writer = writer
        self._shared = shared
        self._new_id = new_id
        self._objects = LogObjects(store, self.prefix, cache_bytes)
        self._trim = TrimFile(store, f"{self.prefix}TRIM")
        self._lock = threading.Lock()
        self._next: tuple[int, int] | None = None  # number of the next object, sequence of its first record
        self._pending: _Pending | None = None

    def append(self, data: bytes) -> int:
        """Append a record; it is in the store when this returns. Returns its sequence.

        Raises:
            AnotherWriterError: another one wrote there; nothing of ours is in the log. Not where the log is shared.
            OutcomeUnknownError: it may be in the log or may yet come to be; `resolve` says.
            StoreError: the store does not take it; it is not in the log.
        """
        return self.append_batch([data])[0]

    def append_batch(self, records: Sequence[bytes]) -> range:
        """Append records, all of them or none, as one object. Returns their sequences; raises as `append`."""
        size = sum(map(len, records))
        if not records or len(records) > RECORDS_MAX or size > RECORDS_BYTES_MAX:
            raise TierError(
                f"a batch has 1 to {RECORDS_MAX} records of at most {RECORDS_BYTES_MAX} bytes together, and this one "
                f"has {len(records)} of {size} bytes"
            )
        with self._lock:
            self._resolve()
            for _ in range(_OVERTAKEN_MAX):
                number, first = self._next or self._open()
                nonce = self._new_id()
                body = encode_object(number, first, records, self._writer, nonce)
                self._pending = _Pending(number, first, len(records), body, nonce)
                try:
                    return self._commit(self._pending)
                except AnotherWriterError:
                    if not self._shared:
                        raise
            raise OvertakenError(f"object log {self.prefix}: others were faster {_OVERTAKEN_MAX} times; try again")

    def _open(self) -> tuple[int, int]:
        """Where to append: at the end, if it is one; a hole must not be filled with something else."""
        for _ in range(_TRIMMED_MEANWHILE_MAX):
            number, first = self._find_end(0)
            behind = next(self._store.list(self.prefix, self._objects.key(number - 1) if number else ""), None)
            if behind is None or not self._objects.is_key(behind.key) or behind.key == self._objects.key(number):
                return number, first  # in the last case someone was faster, which the append will be told
            if self._trim.load().number <= number:
                raise ObjectCorruptError(self._objects.key(number), f"it is missing, and {behind.key} is there")
        raise OvertakenError(f"object log {self.prefix} is being trimmed all the time; try again")

    def resolve(self) -> range | None:
        """Find out what became of an append whose outcome is unknown, by sending it once more.

        Returns the sequences of its records, or None where there is no such append, or another writer has its place.

        Raises:
            OutcomeUnknownError: still unknown.
        """
        with self._lock:
            return self._resolve()

    def _resolve(self) -> range | None:
        if self._pending is None:
            return None
        try:
            return self._commit(self._pending)
        except AnotherWriterError:
            return None

    def _commit(self, pending: _Pending) -> range:
        key = self._objects.key(pending.number)
        self._next = None
        try:
            create_once(self._store, key, pending.body, pending.nonce)
        except TakenError:
            self._pending = None
            raise AnotherWriterError(self.prefix, self._objects.writer_of(pending.number), pending.first) from None
        except OutcomeUnknownError:
            pending.is_sent = True
            raise
        except StoreError as error:
            if not pending.is_sent:
                self._pending = None
                raise
            raise OutcomeUnknownError(f"object log {self.prefix}: {error}") from error
        pending.is_sent = True
        try:
            trim = self._trim.load()
        except StoreError as error:
            raise OutcomeUnknownError(f"object log {self.prefix}: {error}") from error
        self._pending = None
        if pending.number < trim.number:
            self._store.delete([key])
            raise OutcomeUnknownError(
                f"object log {self.prefix}: the append at {pending.first} took so long that the log has been trimmed "
                f"up to {trim.sequence}; it can not be said whether it was there before"
            )
        end = pending.first + pending.count
        self._next = (pending.number + 1, end)
        self._objects.note_exists(pending.number)
        return range(pending.first, end)

    def start(self) -> int:
        """Sequence of the first record that was not trimmed."""
        return self._trim.load().sequence

    def end(self, hint: int = 0) -> int:
        """Sequence behind the last record, with some 2 * log2(distance from where we knew it to be) requests.

        Args:
            hint: About where the end is, for example where it was at another time.
        """
        return self._find_end(hint)[1]

    def _find_end(self, hint: int) -> tuple[int, int]:
        """Number of the next object, and sequence of its first record."""
        for _ in range(_TRIMMED_MEANWHILE_MAX):
            trim = self._trim.load()
            found = self._objects.find_end(trim.number, trim.first, max(0, hint - 1))
            again = self._trim.load()
            if found is not None and found[0] > again.number:
                return found
            if again == trim and not trim.sequence:
                return 0, 0
            if again == trim:
                raise ObjectCorruptError(self._objects.key(trim.number), "the log begins with it, and it is missing")
        raise OvertakenError(f"object log {self.prefix} is being trimmed all the time; try again")

    def read(self, sequence: int) -> bytes:
        """A record.

        Raises:
            RecordMissingError: it was trimmed, or is not there yet.
            ObjectCorruptError: what is there is not what was written.
        """
        number = self._find(sequence)
        whole = self._objects.whole(number)
        return whole.records[sequence - whole.head.first]

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        """Records [start, end), an object at a time.

        Raises:
            RecordMissingError: one of them was trimmed, or is not there yet.
            ObjectCorruptError: what is there is not what was written.
        """
        if start >= end:
            return
        number = self._find(start)
        while start < end:
            whole = self._objects.next_whole(number, start)
            if whole is None:
                number = self._find(start)
                continue
            records = whole.records[start - whole.head.first : end - whole.head.first]
            yield from records
            start += len(records)
            number += 1

    def last_record(self, hint: int = 0) -> Record | None:
        """The last record, or None where there is none. `hint` as for `end`."""
        number, end = self._find_end(hint)
        if end == self._trim.known.sequence:
            return None
        return Record(end - 1, self._objects.whole(number - 1).records[-1])

    def _find(self, sequence: int) -> int:
        """The number of the object that has a record; it was just there."""
        assert sequence >= 0, "sequences begin at 0"
        trim = self._trim.known
        for _ in range(_TRIMMED_MEANWHILE_MAX):
            if sequence >= trim.sequence:
                number = self._objects.locate(sequence, trim.number, trim.first)
                if number is not None:
                    return number
            trim = self._trim.load()
            if sequence < trim.sequence:
                raise RecordMissingError(self.prefix, sequence, f"the log was trimmed up to {trim.sequence}")
            number, end = self._find_end(0)
            if sequence >= end:
                raise RecordMissingError(self.prefix, sequence, f"it is not there yet, the log ends before {end}")
            trim = self._trim.known
        raise ObjectCorruptError(self.prefix, f"record {sequence} is missing between others")

    def trim(self, sequence: int) -> None:
        """Drop the records below `sequence`; objects that hold none but those are deleted.

        The last object stays, so that the end is still known. A trim that was interrupted is finished by the next one.

        Raises:
            RecordMissingError: the log ends before.
        """
        number, end = self._find_end(0)
        if sequence > end:
            raise RecordMissingError(self.prefix, sequence, f"the log ends before {end}")
        if end and sequence > self._trim.known.sequence:
            number = number - 1 if sequence == end else self._find(sequence)
            first = self._objects.head(number).first
            self._trim.advance(number, first, sequence, self._new_id)
        self._sweep(self._trim.known.number)

    def _sweep(self, number: int) -> None:
        """Delete the objects below a number; also those that an interrupted trim left."""
        limit = self._objects.key(number)
        keys: list[str] = []
        for entry in self._store.list(self.prefix):
            if entry.key >= limit:
                break
            keys.append(entry.key)
            if len(keys) == _DELETE_MAX:
                self._store.delete(keys)
                keys = []
        if keys:
            self._store.delete(keys)
