"""Reads objects of the bucket by ranges: the footer, once, and then the row groups that are asked for, nothing else.

Bytes are checked before they are decoded: the footer by the digest in its manifest and the checksum in front of it, a
row group by the digest in the footer. Where only some columns of a row group are fetched the checksums of its pages do
that. What would take more memory than anything that we write is refused before it is decoded, see `pages`. Whatever is
wrong with an object is an `ObjectCorruptError` that names it.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from liftpy_bucket.errors import BucketVersionError, ObjectCorruptError
from liftpy_bucket.objects.pages import DECODED_BYTES_MAX, ROWS_MAX, measure_column
from liftpy_bucket.objects.parquet import FOOTER_GUARD, FOOTER_GUARD_BYTES, ROW_GROUPS_KEY
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.rows.schema import row_names, row_schema
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.objects.write import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import Extent, SetMember, StreamObjectPointer
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Fetched", "Footer", "ObjectReader", "RowGroup", "fragment_key", "parse_footer", "trimmed"]

_OURS: Final = "liftpy."
_FOOTER_BYTES_MAX: Final = 64 * 1024 * 1024  # that of all members of a shared object has 2 KB of each
_WHOLE_BYTES: Final = 64 * 1024
"""Up to this size a member of a shared object is fetched with one request, and kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Some MiB of rows.

    Attributes:
        index: Index of the row group in the object.
        first: The offset of its first row.
        last: The offset of its last row.
        first_timestamp: The earliest in it, ns.
        last_timestamp: The latest in it, ns.
        start: The byte where it begins.
        length: How many bytes it has.
        records: How many rows.
        digest: SHA-256 of its bytes, hexadecimal.
        stream: UUID of the stream whose rows these are, in a stream-set object; otherwise "".
        partition: Number of the partition whose rows these are.
    """

    index: int
    first: int
    last: int
    first_timestamp: int
    last_timestamp: int
    start: int
    length: int
    records: int
    digest: str
    stream: str
    partition: int


class Footer(NamedTuple):
    """A footer.

    Attributes:
        parquet: The metadata as pyarrow has it.
        about: What stands in it under names that begin with `liftpy.`.
        row_groups: Row groups in the order of the file.
        columns: Positions of the columns, by name.
    """

    parquet: pq.FileMetaData
    about: Mapping[str, str]
    row_groups: tuple[RowGroup, ...]
    columns: Mapping[str, int]

    @property
    def keeps_replies(self) -> bool:
        """Whether there is a column `reply`."""
        return "reply" in self.columns

    @property
    def tombstones(self) -> int:
        """How many records have a key and no value."""
        return int(self.about.get("liftpy.tombstones", "0"))

    @property
    def cleaned_ns(self) -> int:
        """See `liftpy_bucket.upkeep.compaction`; 0 where it says nothing."""
        return int(self.about.get("liftpy.cleaned_ns", "0"))

    def extent(self, index: int, names: Sequence[str]) -> tuple[int, int]:
        """The first byte of some columns of a row group, and the byte behind the last one."""
        group = self.parquet.row_group(index)
        bounds = [_bounds(group.column(self.columns[name])) for name in names]
        return min(start for start, _ in bounds), max(end for _, end in bounds)


def parse_footer(content: bytes) -> Footer:
    """Read a footer.

    Args:
        content: Bytes from the checksum in front of the footer to the end of the object.

    Raises:
        BucketVersionError: a newer liftpy wrote it.
        ValueError, OSError, pyarrow.ArrowException: it is damaged, or was not written by liftpy.
    """
    footer = content[FOOTER_GUARD_BYTES:]
    crc = int.from_bytes(content[len(FOOTER_GUARD) : FOOTER_GUARD_BYTES], "little")
    if content[: len(FOOTER_GUARD)] != FOOTER_GUARD or google_crc32c.value(footer) != crc:
        raise ValueError("its checksum does not match")
    parquet = pq.read_metadata(pa.BufferReader(footer))
    about = {
        name.decode(): value.decode()
        for name, value in (parquet.metadata or {}).items()
        if name.startswith(_OURS.encode())
    }
    found = int(about["liftpy.format"])
    oldest, newest = min(FORMATS.values()), max(FORMATS.values())
    if found > newest:
        raise BucketVersionError(f"it has format {found}; this liftpy reads format {newest}")
    if found < oldest:
        raise ValueError(f"it has format {found}, of before the first release; this liftpy reads format {newest}")
    columns = {name: place for place, name in enumerate(parquet.schema.names)}
    _check_types(parquet.schema.to_arrow_schema())
    digests = [digest for digest in about[ROW_GROUPS_KEY].split(",") if digest]
    if len(digests) != parquet.num_row_groups:
        raise ValueError(f"it has {parquet.num_row_groups} row groups, and {len(digests)} digests of them")
    groups = tuple(_row_group(parquet, columns, index, digest) for index, digest in enumerate(digests))
    return Footer(parquet, about, groups, columns)


def _row_group(parquet: pq.FileMetaData, columns: Mapping[str, int], index: int, digest: str) -> RowGroup:
    group = parquet.row_group(index)
    offsets = group.column(columns["offset"]).statistics
    times = group.column(columns["timestamp_ns"]).statistics
    start, _ = _bounds(group.column(0))
    _, end = _bounds(group.column(group.num_columns - 1))
    if not (0 < start <= end <= start + DECODED_BYTES_MAX and 0 < group.num_rows <= ROWS_MAX):
        raise ValueError(f"row group {index} has bytes {start} to {end} and {group.num_rows} rows")
    return RowGroup(
        index=index,
        first=offsets.min,
        last=offsets.max,
        first_timestamp=times.min,
        last_timestamp=times.max,
        start=start,
        length=end - start,
        records=group.num_rows,
        digest=digest,
        stream=_only_value(group, columns["stream"]) if "stream" in columns else "",
        partition=_only_value(group, columns["partition"]),
    )


def _check_types(schema: pa.Schema) -> None:
    """Columns of other types could be large though their pages are small."""
    expected = row_schema(keeps_replies=True)
    for field in schema:
        place = expected.get_field_index(field.name)
        if place >= 0 and field.type != expected.field(place).type:
            raise ValueError(f"column {field.name} has type {field.type}, and must have {expected.field(place).type}")


def _only_value(group: pq.RowGroupMetaData, place: int) -> Any:
    statistics = group.column(place).statistics
    if statistics.min != statistics.max:
        raise ValueError(f"a row group holds {group.column(place).path_in_schema} {statistics.min} to {statistics.max}")
    return statistics.min


def _bounds(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


_DECODING_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def fragment_key(path: PartitionPath, pointer: StreamObjectPointer) -> str:
    """Key of a fragment that the root of `path` names."""
    return path.at(pointer.home).fragment(pointer.name)


def trimmed(rows: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows with offsets from `start` up to `end`."""
    offsets = rows.column("offset").to_numpy()
    first, last = offsets.searchsorted([start, end]).tolist()
    return rows.slice(first, max(0, last - first))


class Fetched(NamedTuple):
    """Bytes of an object that were fetched, and not looked at yet.

    Attributes:
        start: Position of the first one in the object.
        content: The bytes.
    """

    start: int
    content: pa.Buffer


class _Window(io.RawIOBase):
    """A file of which only a part is there. What is read of it is not copied."""

    def __init__(self, fetched: Fetched, size: int) -> None:
        super().__init__()
        self._start, self._content = fetched.start, fetched.content
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int = -1) -> pa.Buffer:  # Arrow takes any memory
        start = self._position - self._start
        if size < 0 or start < 0 or start + size > len(self._content):
            raise OSError(f"{size} bytes at byte {self._position} are outside of what was fetched")
        self._position += size
        return self._content.slice(start, size)


class ObjectReader:
    """Reads one object. Any number of threads may use it; keep it to keep its footer.

    Args:
        store: Where it is.
        key: Key of the object.
        extent: Extent of the object, as its manifest says.

    Attributes:
        key: Key of the object.
        extent: Extent of the object.
        is_read_whole: All of it comes with one request, and is kept.
    """

    def __init__(self, store: ObjectStore, key: str, extent: Extent) -> None:
        self._store = store
        self.key = key
        self.extent = extent
        self._size, self._footer_at, self._digest, start = extent
        self._start = start or 0
        self.is_read_whole = start is not None and self._size <= _WHOLE_BYTES
        self._whole: bytes | None = None
        self._lock = threading.Lock()
        self._footer: Footer | None = None

    @property
    def metadata(self) -> Footer:
        """What the footer says; fetched once, with one request.

        Raises:
            ObjectCorruptError: it is damaged, or not one of ours.
            BucketVersionError: a newer liftpy wrote it.
            StoreError: it could not be fetched.
        """
        with self._lock:
            if self._footer is None:
                start = self._footer_at - FOOTER_GUARD_BYTES
                if not 0 < start < self._size <= start + _FOOTER_BYTES_MAX:
                    raise ObjectCorruptError(self.key, f"no footer begins at byte {self._footer_at} of {self._size}")
                content = self._fetch(start, self._size - start)
                found = sha256(memoryview(content)[FOOTER_GUARD_BYTES:]).hexdigest()
                if self._digest and found != self._digest:
                    raise ObjectCorruptError(
                        self.key, f"its footer has the SHA-256 {found}, and its manifest says {self._digest}"
                    )
                try:
                    self._footer = parse_footer(content)
                except BucketVersionError as error:
                    raise BucketVersionError(f"object {self.key}: {error}") from None
                except _DECODING_ERRORS as error:
                    raise ObjectCorruptError(self.key, f"its footer can not be read: {error}") from error
            return self._footer

    @property
    def row_groups(self) -> tuple[RowGroup, ...]:
        """All of them, in the order of the file. Raises as `metadata` does."""
        return self.metadata.row_groups

    @property
    def setsum(self) -> Setsum:
        """Setsum of its records, as the footer says. Raises as `metadata` does."""
        try:
            return Setsum.from_hex(self.metadata.about["liftpy.setsum"])
        except (KeyError, ValueError) as error:
            raise ObjectCorruptError(self.key, f"its footer has no liftpy.setsum that makes sense ({error})") from error

    @property
    def record_hash(self) -> RecordHash:
        """Hash of its records, as the footer says. Raises as `metadata` does."""
        try:
            return RecordHash(self.metadata.about["liftpy.hash"])
        except (KeyError, ValueError) as error:
            raise ObjectCorruptError(self.key, f"its footer has no liftpy.hash that is known ({error})") from error

    def covering(self, start: int, end: int) -> list[int]:
        """Indexes of the row groups that have offsets from `start` up to `end`. Raises as `metadata` does.

        Args:
            start: The first offset that is wanted.
            end: The offset after the last one.
        """
        return [group.index for group in self.row_groups if group.first < end and group.last >= start]

    def check_fragment(self, path: PartitionPath, pointer: StreamObjectPointer) -> None:
        """Check that this is the object that a root means.

        Args:
            path: Path of the root.
            pointer: Pointer to the object in that root.

        Raises:
            ObjectCorruptError: its footer says something else. Also as `metadata` does.
        """
        home = path.at(pointer.home)
        self._check(home.uuid, home.partition, pointer)
        if self.setsum != pointer.setsum:
            raise ObjectCorruptError(
                self.key, f"liftpy.setsum is {self.setsum.hex()} in it, and must be {pointer.setsum.hex()}"
            )

    def check_member(self, member: SetMember) -> None:
        """Check that this is the file of a member, as far as the footer says.

        Raises:
            ObjectCorruptError: it is not. Also as `metadata` does.
        """
        self._check(member.uuid, member.partition, member)

    def _check(self, uuid: str, partition: int, pointer: StreamObjectPointer | SetMember) -> None:
        about = self.metadata.about
        for name, value in (("liftpy.uuid", uuid), ("liftpy.partition", str(partition))):
            if about.get(name) != value:
                raise ObjectCorruptError(self.key, f"{name} is {about.get(name)} in it, and must be {value}")
        records = sum(group.records for group in self.row_groups)
        if records != pointer.records:
            raise ObjectCorruptError(self.key, f"it holds {records} records, and must hold {pointer.records}")

    def read(self, index: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of one row group, with one request.

        Args:
            index: Index of the row group.
            columns: The only ones that are wanted; of them and what stands between them the bytes are fetched.

        Raises:
            ObjectCorruptError: it is damaged. Also as `metadata` does.
        """
        return self.read_many([index], columns)[0]

    def read_many(self, indexes: Sequence[int], columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        """The rows of several row groups, with one request for those that are neighbours.

        Args:
            indexes: Indexes of the row groups, ascending. All of them are in memory at once.
            columns: Columns, as for `read`.

        Raises:
            ObjectCorruptError: one is damaged. Also as `metadata` does.
        """
        found = []
        run: list[int] = []
        for index in [*indexes, None]:
            if run and index != run[-1] + 1:
                found += self._read_run(run, columns)
                run = []
            if index is not None:
                run.append(index)
        return found

    def rows(self, start: int, end: int, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows with offsets from `start` up to `end`, one row group at a time, with one request each.

        Args:
            start: The first offset that is wanted.
            end: The offset after the last one.
            columns: Columns, as for `read`; `offset` must be one of them.

        Raises:
            ObjectCorruptError: a row group is damaged. Also as `metadata` does.
        """
        for index in self.covering(start, end):
            rows = trimmed(self.read(index, columns), start, end)
            if rows.num_rows:
                yield rows

    def fetch(self, indexes: Sequence[int]) -> Fetched:
        """The bytes of row groups, with one request.

        Args:
            indexes: Indexes of the row groups, each the neighbour of the one before it.

        Raises:
            ObjectCorruptError: the object is too short. Also as `metadata` does.
        """
        assert list(indexes) == list(range(indexes[0], indexes[-1] + 1)), "between neighbours there is nothing else"
        first, last = self.row_groups[indexes[0]], self.row_groups[indexes[-1]]
        return self._fetched(first.start, last.start + last.length)

    def decode(self, fetched: Fetched, index: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of a row group whose bytes were fetched.

        Args:
            fetched: The bytes, with others or without.
            index: Index of the row group.
            columns: The only ones that are wanted.

        Raises:
            ObjectCorruptError: it is damaged. Also as `metadata` does.
        """
        footer = self.metadata
        group = footer.row_groups[index]
        names = list(columns) if columns is not None else row_names(keeps_replies=footer.keeps_replies)
        first = group.start - fetched.start
        is_whole = first >= 0 and first + group.length <= len(fetched.content)
        if is_whole:
            found = sha256(fetched.content.slice(first, group.length)).hexdigest()
            if found != group.digest:
                raise ObjectCorruptError(self.key, f"the bytes of row group {index} are not those that were put")
        try:
            repeating = _measure(footer, fetched, index, names)
            file = pq.ParquetFile(
                _Window(fetched, self._size),
                metadata=footer.parquet,
                pre_buffer=False,
                page_checksum_verification=not is_whole,
            )
            arrays = {name: _in_steps(file, index, name, longest) for name, longest in repeating.items()}
            others = [name for name in names if name not in repeating]
            table = file.read_row_group(index, columns=others, use_threads=False).combine_chunks()
            for name in others:
                (arrays[name],) = table.column(name).chunks
            schema = row_schema(keeps_replies=footer.keeps_replies)
            wanted = pa.schema([schema.field(name) for name in names])
            return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=wanted)
        except _DECODING_ERRORS as error:
            raise ObjectCorruptError(self.key, f"row group {index} can not be read: {error}") from error

    def _read_run(self, indexes: Sequence[int], columns: Sequence[str] | None) -> list[pa.RecordBatch]:
        if columns is None or len(indexes) > 1:
            fetched = self.fetch(indexes)
        else:
            fetched = self._fetched(*self.metadata.extent(indexes[0], columns))
        return [self.decode(fetched, index, columns) for index in indexes]

    def _fetched(self, start: int, end: int) -> Fetched:
        return Fetched(start, pa.py_buffer(self._fetch(start, end - start)))

    def _fetch(self, start: int, length: int) -> bytes:
        if self.is_read_whole:
            if self._whole is None:
                self._whole = self._get(0, self._size)
            return self._whole[start : start + length]
        return self._get(start, length)

    def _get(self, start: int, length: int) -> bytes:
        start += self._start
        content = self._store.get_range(self.key, start, length)
        if len(content) != length:
            raise ObjectCorruptError(self.key, f"it ends at byte {start + len(content)}, before byte {start + length}")
        return content


def _measure(footer: Footer, fetched: Fetched, index: int, names: Sequence[str]) -> dict[str, int]:
    """See that columns of a row group do not take too much memory.

    Returns:
        Those that still could, as values of a dictionary may repeat, and how long a value is at most.

    Raises:
        ValueError, IndexError: they would.
    """
    content = memoryview(fetched.content).cast("B")  # Arrow gives signed bytes
    group = footer.parquet.row_group(index)
    plain, repeating = 0, {}
    for name in names:
        column = group.column(footer.columns[name])
        start, end = _bounds(column)
        if start < fetched.start or end > fetched.start + len(content):
            raise ValueError(f"bytes {start} to {end} of column {name} are outside of what was fetched")
        if column.num_values != group.num_rows:
            raise ValueError(f"column {name} has {column.num_values} values in {group.num_rows} rows")
        size = measure_column(content[start - fetched.start : end - fetched.start], group.num_rows)
        plain += size.plain
        if size.dictionary * group.num_rows > DECODED_BYTES_MAX:
            repeating[name] = size.dictionary
    if plain > DECODED_BYTES_MAX:
        raise ValueError(f"it would decompress to {plain} bytes, and {DECODED_BYTES_MAX} are the most")
    return repeating


def _in_steps(file: pq.ParquetFile, index: int, name: str, longest: int) -> pa.Array:
    """A column of a row group, decoded in steps, so that it is refused when it is too large and not when it is there.

    Args:
        file: File with the row group.
        index: Index of the row group.
        name: Name of the column.
        longest: How long a value is at most, bytes.

    Raises:
        ValueError: it is too large.
    """
    rows = max(1, DECODED_BYTES_MAX // longest)
    found, size = [], 0
    for step in file.iter_batches(rows, row_groups=[index], columns=[name], use_threads=False):
        found.append(step.column(0))
        size += found[-1].nbytes
        if size > DECODED_BYTES_MAX:
            raise ValueError(f"column {name} would take more than {DECODED_BYTES_MAX} bytes")
    return pa.concat_arrays(found)
