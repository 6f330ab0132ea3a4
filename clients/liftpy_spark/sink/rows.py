"""From rows to chunks: which partition and subject each row belongs to, and how many of them go into one NATS message.

A chunk is what becomes one message: records of one partition and subject, in the order of their rows. Everything is
done for columns at once; only what is done for a chunk, or for a subject, is done in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from liftpy_bucket.staging.section import RowChunk
from liftpy_envelope.binary_columns import lengths_of
from liftpy_envelope.errors import SubjectInvalidError
from liftpy_envelope.limits import ENVELOPE_RECORDS_MAX, KEY_BYTES_MAX
from liftpy_envelope.subject import check_literal, matches
from liftpy_spark.sink.errors import SinkRowError
from liftpy_spark.sink.hashing import partitions_of
from liftpy_spark.sink.headers import header_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from liftpy_spark.sink.contents import RowTally

__all__ = ["Layout", "flushes"]

CHUNK_BYTES: Final = 1024 * 1024  # each costs the node a write, a sync and an ack; NATS takes no more by default
_TAKEN_BYTES: Final = 4 * CHUNK_BYTES  # are put in order at a time
_ROW_BYTES: Final = 16  # offsets and validity of three columns, rounded up
_BINARY: Final = pa.binary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What rows are laid out by; fixed for one writing of a DataFrame.

    Attributes:
        stream: Name of the stream.
        pattern: The subjects that it stores.
        partitions: How many it has.
        subject: Subject of rows that say none; None where all have to say one.
        record_bytes_max: How large a record may be: what one NATS message, and the stream, take.
    """

    stream: str
    pattern: str
    partitions: int
    subject: str | None
    record_bytes_max: int

    @property
    def chunk_bytes(self) -> int:
        """How large a chunk may be; only a single record may need more."""
        return min(CHUNK_BYTES, self.record_bytes_max)


def flushes(
    rows: Iterable[pa.RecordBatch],
    layout: Layout,
    bytes_max: int,
    first_row: int = 0,
    tally: RowTally | None = None,
) -> Iterator[Iterator[RowChunk]]:
    """All rows as chunks, some at a time, ordered by partition; they are made as they are taken.

    Args:
        rows: Rows, as Spark hands them over, in order.
        layout: What they are laid out by.
        bytes_max: About how many bytes of rows are held at a time.
        first_row: Number of the first row: rows without key and partition are dealt out by their numbers.
        tally: Takes them all.

    Raises:
        SinkRowError: a row can not become a record.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        if not batch.num_rows:
            continue
        records = _records(batch, layout, first_row)
        first_row += batch.num_rows
        if tally is not None:
            tally.add(records)
        held.append(records)
        size += records.nbytes
        if size >= bytes_max:
            yield _chunks(held, layout)
            held, size = [], 0
    if held:
        yield _chunks(held, layout)


def _records(batch: pa.RecordBatch, layout: Layout, first_row: int) -> pa.RecordBatch:
    """Checked rows with the columns `value`, `key`, `headers` of records, and what they are to be sorted by."""
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = {name: given[name].cast(_BINARY) for name in ("value", "key") if name in given}
    if "headers" in given:
        columns["headers"] = header_blocks(given["headers"])
    _check_sizes(columns, layout)
    columns["partition"] = pa.array(_partitions(columns, given.get("partition"), layout, first_row))
    if "subject" in given:
        columns["subject"] = _subjects(given["subject"], layout)
    return pa.RecordBatch.from_pydict(columns)


def _check_sizes(columns: dict[str, pa.Array], layout: Layout) -> None:
    sizes = _sizes(list(columns.values()))
    row = int(sizes.argmax())
    key = columns["key"][row].as_py() if "key" in columns else None
    if sizes[row] > layout.record_bytes_max:
        raise SinkRowError(
            f"a record of {sizes[row]} bytes ({_of_key(key)}) is over what stream {layout.stream} takes in one message "
            f"({layout.record_bytes_max} bytes: the least of max_payload of the NATS server and message_bytes_max of "
            "the stream)"
        )
    if "key" in columns:
        longest = int(lengths_of(columns["key"]).max())
        if longest > KEY_BYTES_MAX:
            raise SinkRowError(f"a key of {longest} bytes is over the limit of {KEY_BYTES_MAX}")


def _of_key(key: bytes | None) -> str:
    return "without a key" if key is None else f"key {key!r:.80}"


def _sizes(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Bytes of each record in a chunk, at most."""
    total = np.full(len(columns[0]), _ROW_BYTES, np.int64)
    for column in columns:
        total += lengths_of(column)
    return total


def _partitions(
    columns: dict[str, pa.Array], given: pa.Array | None, layout: Layout, first_row: int
) -> npt.NDArray[np.int32]:
    """The partition of each row: the one given, else that of its key, else the rows are dealt out one by one."""
    count = len(columns["value"])
    if layout.partitions == 1 and given is None:
        return np.zeros(count, np.int32)
    dealt = (np.arange(first_row, first_row + count) % layout.partitions).astype(np.int32)
    chosen = dealt
    if "key" in columns:
        hashed = partitions_of(columns["key"], layout.partitions)
        chosen = np.where(hashed < 0, dealt, hashed)
    if given is None:
        return chosen
    wrong = given.filter(pc.or_(pc.less(given, 0), pc.greater_equal(given, layout.partitions)))
    if len(wrong):
        raise SinkRowError(
            f"column partition: {wrong[0].as_py()} is not a partition of stream {layout.stream}, which has 0 to "
            f"{layout.partitions - 1}"
        )
    named = pc.fill_null(given.cast(pa.int32()), -1).to_numpy(zero_copy_only=False)
    return np.where(named < 0, chosen, named)


def _subjects(given: pa.StringArray, layout: Layout) -> pa.DictionaryArray:
    """The subject of each row, checked once each."""
    given = given.cast(pa.string())
    if given.null_count:
        if layout.subject is None:
            raise SinkRowError(
                f"column subject: a row has none; fill it, or give the option subject for those of stream "
                f"{layout.stream} that have none"
            )
        given = pc.fill_null(given, layout.subject)
    encoded = given.dictionary_encode()
    for subject in encoded.dictionary.to_pylist():
        check_subject(subject, layout.stream, layout.pattern)
    return encoded


def check_subject(subject: str, stream: str, pattern: str) -> None:
    """See that a stream stores a subject.

    Raises:
        SinkRowError: it does not.
    """
    try:
        check_literal(subject)
    except SubjectInvalidError as error:
        raise SinkRowError(f"subject {subject!r:.80} can not be published to: {error}") from None
    if not matches(pattern, subject):
        raise SinkRowError(f"subject {subject!r:.80} is none that stream {stream} stores: those match {pattern!r}")


def _chunks(held: list[pa.RecordBatch], layout: Layout) -> Iterator[RowChunk]:
    """Records as chunks, ordered by partition and subject; in each, records keep their order.

    A pure function of the records and the layout. Some chunks at a time are taken out of their order, so that not all
    rows are there twice.
    """
    table = pa.Table.from_batches(held)
    subjects = [layout.subject or ""]
    places = table.column("partition").to_numpy().astype(np.int64)
    if "subject" in table.column_names:
        encoded = table.column("subject").unify_dictionaries()
        subjects = encoded.chunk(0).dictionary.to_pylist()
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
        places = places * len(subjects) + codes
    names = [name for name in ("value", "key", "headers") if _is_needed(table, name)]
    (whole,) = table.select(names).combine_chunks().to_batches()
    order = None
    sizes = _sizes(whole.columns)
    if (np.diff(places) < 0).any():
        # numpy sorts small integers by radix, and stably.
        order = np.argsort(places.astype(np.uint16) if places.max() < 1 << 16 else places, kind="stable")
        places, sizes = places[order], sizes[order]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    begins = np.concatenate(([0], np.flatnonzero(np.diff(places)) + 1, [len(places)])).tolist()
    ranges = (piece for begin, end in pairwise(begins) for piece in _pieces(offsets, begin, end, layout.chunk_bytes))
    for group in _groups(ranges, offsets):
        first, last = group[0][0], group[-1][1]
        taken = whole.slice(first, last - first) if order is None else whole.take(pa.array(order[first:last]))
        for begin, end in group:
            partition, subject = divmod(int(places[begin]), len(subjects))
            yield RowChunk(partition, subjects[subject], taken.slice(begin - first, end - begin))


def _groups(ranges: Iterable[tuple[int, int]], offsets: npt.NDArray[np.int64]) -> Iterator[list[tuple[int, int]]]:
    """Ranges of rows that follow each other, as many at a time as have some megabytes."""
    group: list[tuple[int, int]] = []
    for begin, end in ranges:
        if group and offsets[end] - offsets[group[0][0]] > _TAKEN_BYTES:
            yield group
            group = []
        group.append((begin, end))
    if group:
        yield group


def _is_needed(table: pa.Table, name: str) -> bool:
    return name == "value" or (name in table.column_names and table.column(name).null_count < table.num_rows)


def _pieces(offsets: npt.NDArray[np.int64], begin: int, end: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut a range of rows into pieces of about one size, of which none is over `bytes_max`, unless it is one record.

    Args:
        offsets: Where each row begins, and the last one ends, bytes.
        begin: Where the range begins.
        end: Where it ends.
        bytes_max: How large a piece may be.
    """
    total = int(offsets[end] - offsets[begin])
    even = total // -(-total // bytes_max) + int(np.diff(offsets[begin : end + 1]).max())
    while begin < end:
        fitting = int(np.searchsorted(offsets[begin : end + 1], offsets[begin] + min(even, bytes_max), "right")) - 1
        until = min(begin + max(fitting, 1), begin + ENVELOPE_RECORDS_MAX, end)
        yield begin, until
        begin = until
