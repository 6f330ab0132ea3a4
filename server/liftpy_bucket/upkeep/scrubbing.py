"""Scrubbing a partition: every byte of every object is read, and what it holds is compared with what manifests say.

An object is named when its bytes are damaged, when its records are not those that the manifest means (their sum says
so, whatever the reason), or when their offsets, times, epochs or number differ. What it costs is what it costs to read
everything once, a row group at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from liftpy_bucket.errors import BucketVersionError, ObjectCorruptError, ObjectMissingError, OvertakenError
from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.verifying import Problem, hole_of, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.reading.version import Piece, TierVersion
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_bucket.upkeep.verifying import Kind, Report

__all__ = ["problem_of", "scrub", "scrub_piece"]

_MAGIC: Final = b"PAR1"
_VERSIONS_MAX: Final = 100


def scrub(store: ObjectStore, path: PartitionPath, progress: Callable[[int, int, str], None] | None = None) -> Report:
    """Verify a partition, and read all of it.

    Args:
        store: Where it is.
        path: Path of the partition.
        progress: Called with (bytes read, bytes to be read, what is being done).

    Raises:
        StoreError: the store could not be asked.
        OvertakenError: the partition moved on at every look.
    """
    report = verify(store, path)
    if any(each.kind == "manifest" for each in report.problems):
        return report  # what can not be read can not be followed
    scrubbing = _Scrubbing(store, report, progress)
    offset = 0
    for _ in range(_VERSIONS_MAX):
        version = open_version(store, path, cache=ReadingCache(store))
        again = None if version is None else scrubbing.run(version, offset)
        if again is None:
            return report
        offset = again
    raise OvertakenError(f"{path.root} moved on {_VERSIONS_MAX} times while it was read: scrub at a quieter time")


class _Scrubbing:
    """A scrub of one partition."""

    def __init__(self, store: ObjectStore, report: Report, progress: Callable[[int, int, str], None] | None) -> None:
        self._store = store
        self._report = report
        self._progress = progress
        self._known = {each.key for each in report.problems}
        self._bytes = 0

    def run(self, version: TierVersion, start: int) -> int | None:
        """Read a version from an offset on; gives where to go on in a newer one, as this one is over."""
        for piece in version.pieces(start):
            problem = problem_of(self._store, version, piece)
            if problem is not None:
                if problem.kind == "missing" and _has_moved(self._store, version):
                    return piece.start  # it was collected, and something else took its place
                if problem.key not in self._known:
                    self._report.add(*problem)
            self._bytes += piece.size
            if self._progress is not None:
                self._progress(self._bytes, max(self._bytes, self._report.size), f"reading {piece.key}")
        return None


def _has_moved(store: ObjectStore, version: TierVersion) -> bool:
    loaded = ReadingCache(store).root_file(version.path).load()
    return loaded is None or loaded.root.version != version.root.version


def problem_of(store: ObjectStore, version: TierVersion, piece: Piece) -> Problem | None:
    """Read what a pointer names, and say what is wrong with it, for people; None where nothing is.

    Raises:
        StoreError: it could not be read.
    """
    try:
        scrub_piece(store, version, piece)
    except BucketVersionError as error:
        return Problem("corrupt", piece.key, piece.start, str(error))
    except (ObjectMissingError, ObjectCorruptError) as error:
        kind: Kind = "missing" if isinstance(error, ObjectMissingError) else "corrupt"
        return Problem(kind, piece.key, piece.start, f"{error}; {hole_of(piece.start)}")
    return None


def scrub_piece(store: ObjectStore, version: TierVersion, piece: Piece) -> None:
    """Read what a pointer names, all of it, and compare.

    Raises:
        ObjectCorruptError: it is not what the pointer says.
        BucketVersionError: a newer liftpy wrote it.
        StoreError: it could not be read.
    """
    if store.get_range(piece.key, piece.extent.start or 0, len(_MAGIC)) != _MAGIC:
        raise ObjectCorruptError(piece.key, "it does not begin as Parquet does")
    reader = version.reader(piece)
    pointer = piece.pointer
    found, records, reached = NO_RECORDS, 0, pointer.base
    times: list[int] = []
    for group in reader.row_groups:
        rows = reader.read(group.index)
        reached = _check_offsets(piece, rows, reached)
        _check_epochs(version, piece, rows)
        found, records = found + setsum_of(rows, reader.record_hash), records + rows.num_rows
        stamps = rows.column("timestamp_ns")
        times += [stamps[0].as_py(), stamps[-1].as_py()]
    told = reader.setsum if pointer.setsum is None else pointer.setsum
    if found != told:
        raise ObjectCorruptError(piece.key, f"the sum of its records is {found.hex()}, not {told.hex()}")
    if records != pointer.records:
        raise ObjectCorruptError(piece.key, f"it holds {records} records, not {pointer.records}")
    if records and (times[0], times[-1]) != (pointer.first_timestamp, pointer.last_timestamp):
        raise ObjectCorruptError(piece.key, "the times of its first and last record are not those of its pointer")


def _check_offsets(piece: Piece, rows: pa.RecordBatch, reached: int) -> int:
    """See that offsets grow and lie where the pointer says; gives the one after the last."""
    offsets = rows.column("offset").to_numpy()
    grows = bool((np.diff(offsets) > 0).all())
    if not grows or offsets[0] < reached or offsets[-1] >= piece.pointer.end:
        raise ObjectCorruptError(
            piece.key, f"its offsets do not lie in order in [{piece.pointer.base}, {piece.pointer.end})"
        )
    return int(offsets[-1]) + 1


def _check_epochs(version: TierVersion, piece: Piece, rows: pa.RecordBatch) -> None:
    """See that records are of the leader epochs that the manifests say."""
    history = np.array(version.epochs, dtype=np.int64).reshape(-1, 2)
    offsets = rows.column("offset").to_numpy()
    counting = (offsets >= max(piece.start, int(history[0, 1]))) & (offsets < piece.end)
    expected = history[np.searchsorted(history[:, 1], offsets[counting], "right") - 1, 0]
    if not np.array_equal(rows.column("leader_epoch").to_numpy()[counting], expected):
        raise ObjectCorruptError(
            piece.key, f"its records are not all of the leader epochs that the manifests give for {offsets[0]} on"
        )
