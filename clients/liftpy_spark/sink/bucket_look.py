"""Which chunks of a producer are in the bucket, which has what is no longer on the disk of a partition's leader.

A row in the bucket has the producer and the sequence of the batch that it came in. Key compaction drops rows, and
merges batches to ones without a producer, whose rows say so: where it was at work, a chunk that is not found may have
been there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.objects.rows.schema import MERGED_SEQUENCE
from liftpy_bucket.reading.version import open_version
from liftpy_spark.sink.target import ChunkScan

if TYPE_CHECKING:
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.reading.version import Piece, TierVersion
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["look_in_bucket"]

_LOOKS_MAX: Final = 5
_PRODUCER: Final = ("producer_id", "producer_sequence")
_COMPACTED: Final = "it is compacted by key, which takes records, and the ids of batches"


def look_in_bucket(store: ObjectStore, path: PartitionPath, start: int, end: int, producer_id: bytes) -> ChunkScan:
    """Read producers and sequences of the records with offsets from `start` up to `end`.

    Args:
        store: The bucket.
        path: Path of the partition.
        start: Where to begin.
        end: Where to end; the leader says that the bucket has what is before.
        producer_id: Id of the producer whose chunks are looked for.

    Raises:
        TierError: something can not be read.
    """
    for _ in range(_LOOKS_MAX):
        version = open_version(store, path, offset=end - 1)
        if version is None or version.start > start or version.end < end:
            has = "nothing of it" if version is None else f"offsets from {version.start} up to {version.end}"
            doubt = f"its records before offset {end} are no longer on the disk of its leader; the bucket has {has}"
            return ChunkScan(end, frozenset(), doubt)
        scan = _Scan(start, end, producer_id)
        try:
            scan.read(version)
        except ObjectMissingError:
            continue  # merged or compacted meanwhile
        is_whole = scan.rows == end - start and not scan.has_merged
        return ChunkScan(end, frozenset(scan.sequences), "" if is_whole else _COMPACTED)
    raise OvertakenError(f"objects of {path} went {_LOOKS_MAX} times while they were read")


class _Scan:
    """Goes through a range.

    Attributes:
        rows: How many were there.
        sequences: Sequences of the producer.
        has_merged: Whether there were rows of batches that key compaction wrote.
    """

    def __init__(self, start: int, end: int, producer_id: bytes) -> None:
        self._start = start
        self._end = end
        self._producer = pa.scalar(producer_id, pa.binary(len(producer_id)))
        self.rows = 0
        self.sequences: set[int] = set()
        self.has_merged = False

    def read(self, version: TierVersion) -> None:
        for piece in version.pieces(self._start, self._end):
            self._read_piece(version, piece)

    def _read_piece(self, version: TierVersion, piece: Piece) -> None:
        reader = version.reader(piece)
        first, last = max(self._start, piece.start), min(self._end, piece.end)
        for index in reader.covering(first, last):
            group = reader.row_groups[index]
            rows = reader.read(index, _PRODUCER)
            if group.first < first or group.last >= last:
                offsets = reader.read(index, ("offset",)).column("offset").to_numpy()
                begin, until = offsets.searchsorted([first, last]).tolist()
                rows = rows.slice(begin, until - begin)
            producers, sequences = (rows.column(name) for name in _PRODUCER)
            self.rows += rows.num_rows
            self.has_merged = self.has_merged or pc.any(pc.equal(sequences, MERGED_SEQUENCE)).as_py() is True
            self.sequences.update(sequences.filter(pc.equal(producers, self._producer)).unique().to_pylist())
