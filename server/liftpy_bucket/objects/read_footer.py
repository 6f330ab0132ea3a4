"""What the footer of an object says, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from liftpy_bucket.errors import BucketVersionError
from liftpy_bucket.objects.parquet import FOOTER_GUARD, FOOTER_GUARD_BYTES, ROW_GROUPS_KEY
from liftpy_bucket.objects.write import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Footer", "RowGroup", "parse_footer"]

_OURS: Final = "liftpy."


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Some MiB of rows.

    Attributes:
        index: of the row group in the object.
        first: the offset of its first row.
        last: the offset of its last row.
        first_timestamp: the earliest in it, ns.
        last_timestamp: the latest in it, ns.
        start: the byte where it begins.
        length: how many bytes it has.
        records: how many rows.
        crc: CRC32C of its bytes.
        stream: whose rows these are, in a stream-set object; otherwise "".
        partition: as `stream`; otherwise -1.
    """

    index: int
    first: int
    last: int
    first_timestamp: int
    last_timestamp: int
    start: int
    length: int
    records: int
    crc: int
    stream: str
    partition: int


class Footer(NamedTuple):
    """A footer.

    Attributes:
        parquet: the metadata as pyarrow has it.
        about: what stands in it under names that begin with `liftpy.`.
        row_groups: in the order of the file.
        columns: positions of the columns, by name.
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
        content: from the checksum in front of it to the end of the object.

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
    if found > FORMAT:
        raise BucketVersionError(f"it has format {found}; this liftpy reads format {FORMAT}")
    columns = {name: place for place, name in enumerate(parquet.schema.names)}
    crcs = [int(crc, 16) for crc in about[ROW_GROUPS_KEY].split(",") if crc]
    groups = tuple(_row_group(parquet, columns, index, crc) for index, crc in enumerate(crcs))
    if len(groups) != parquet.num_row_groups:
        raise ValueError(f"it has {parquet.num_row_groups} row groups, and {len(groups)} checksums of them")
    return Footer(parquet, about, groups, columns)


def _row_group(parquet: pq.FileMetaData, columns: Mapping[str, int], index: int, crc: int) -> RowGroup:
    group = parquet.row_group(index)
    offsets = group.column(columns["offset"]).statistics
    times = group.column(columns["timestamp_ns"]).statistics
    start, _ = _bounds(group.column(0))
    _, end = _bounds(group.column(group.num_columns - 1))
    is_shared = "stream" in columns
    return RowGroup(
        index=index,
        first=offsets.min,
        last=offsets.max,
        first_timestamp=times.min,
        last_timestamp=times.max,
        start=start,
        length=end - start,
        records=group.num_rows,
        crc=crc,
        stream=_only_value(group, columns["stream"]) if is_shared else "",
        partition=_only_value(group, columns["partition"]) if is_shared else -1,
    )


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
