"""The rows of a table: the last value of every key, filled from Arrow record batches, with its memory counted.

Filling creates two objects per record, the key and the value. Functions that run in C over whole batches do the rest.
Publishers put a key into one partition. If a key occurs in several, the record that was read last counts.
"""

from __future__ import annotations

import operator
from itertools import compress, filterfalse, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ENTRY_BYTES", "RecordPlace", "Row", "RowChange", "TableRows"]

ENTRY_BYTES: Final = 240
"""What a row takes beside the bytes of its key and value: two objects, its place, and its share of two dicts."""

_OFFSET_BITS: Final = 63  # a place is kept as one number, the partition above the offset
_OFFSET_MASK: Final = 2**_OFFSET_BITS - 1


class RecordPlace(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class Row(NamedTuple):
    """A value, and where its record is."""

    value: bytes
    place: RecordPlace


class RowChange(NamedTuple):
    """What became of one key; `place` is that of the record that says so, None when there is none."""

    key: bytes
    old: Row | None
    new: Row | None
    place: RecordPlace | None


class TableRows:
    """The last value of every key.

    Attributes:
        values: Values by key, without tombstones.
        bytes: Approximate memory of the rows.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.bytes = 0
        self._places: dict[bytes, int] = {}

    def row(self, key: bytes) -> Row | None:
        """What is there for a key."""
        value = self.values.get(key)
        return None if value is None else Row(value, self.place(key))

    def place(self, key: bytes) -> RecordPlace:
        """Where the record of a key is.

        Raises:
            KeyError: the key is not there.
        """
        packed = self._places[key]
        return RecordPlace(packed >> _OFFSET_BITS, packed & _OFFSET_MASK)

    def apply(self, records: pa.RecordBatch) -> None:
        """Take records of one partition, with the columns of `RECORDS_SCHEMA`, in their order."""
        records = _keyed(records)
        if records.num_rows == 0:
            return
        keys = records.column("key").to_pylist()
        latest = dict(zip(keys, records.column("value").to_pylist(), strict=True))
        base = records.column("partition")[0].as_py() << _OFFSET_BITS
        places = map(operator.or_, records.column("offset").to_pylist(), repeat(base))
        self._put(latest, dict(zip(keys, places, strict=True)))
        if records.column("value").null_count:
            self._remove([key for key, value in latest.items() if value is None])

    def _put(self, latest: dict[bytes, bytes | None], places: dict[bytes, int]) -> None:
        """Set values; a None is there only until `_remove`."""
        values = self.values
        before, new_bytes = len(values), 0
        if before:
            new_bytes -= sum(map(len, filter(None, map(values.get, latest))))
            new_bytes += sum(map(len, filterfalse(values.__contains__, latest)))
        else:
            new_bytes += sum(map(len, latest))
        new_bytes += sum(map(len, filter(None, latest.values())))
        values.update(latest)  # type: ignore[arg-type]
        self._places.update(places)
        self.bytes += new_bytes + ENTRY_BYTES * (len(values) - before)

    def _remove(self, keys: list[bytes]) -> None:
        for key in keys:
            del self.values[key], self._places[key]
        self.bytes -= sum(map(len, keys)) + ENTRY_BYTES * len(keys)

    def changes(self, records: pa.RecordBatch) -> Iterator[RowChange]:
        """What `apply` will change, record by record. To be exhausted before `apply`."""
        records = _keyed(records)
        columns = [records.column(name).to_pylist() for name in ("key", "value", "partition", "offset")]
        pending: dict[bytes, Row | None] = {}
        for key, value, partition, offset in zip(*columns, strict=True):
            place = RecordPlace(partition, offset)
            old = pending[key] if key in pending else self.row(key)
            new = pending[key] = None if value is None else Row(value, place)
            if old is not None or new is not None:
                yield RowChange(key, old, new, place)

    def differences(self, rows: TableRows) -> Iterator[RowChange]:
        """What changes for those who saw these rows and see others now: keys that are gone first."""
        for key in self.values.keys() - rows.values.keys():
            yield RowChange(key, self.row(key), None, None)
        differ = map(operator.ne, map(self.values.get, rows.values), rows.values.values())
        for key in compress(rows.values, differ):
            yield RowChange(key, self.row(key), rows.row(key), rows.place(key))

    def to_arrow(self) -> pa.Table:
        """A copy of the rows, with the columns key and value."""
        keys, values = list(self.values), list(self.values.values())
        return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _keyed(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records that have a key."""
    keys = records.column("key")
    return records.filter(pc.is_valid(keys)) if keys.null_count else records
