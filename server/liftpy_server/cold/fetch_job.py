"""Jobs of the worker process that reads the bucket: row groups become record batches in a file; a time an offset.

Both have the signature (store, arguments). What was read of manifests and footers is kept as long as the store is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from liftpy_log.tier.errors import LineageError, ObjectCorruptError, ObjectMissingError, TierError
from liftpy_log.tier.fragment_read import trimmed
from liftpy_log.tier.layout import PartitionPath
from liftpy_log.tier.reading import TierVersion, open_version
from liftpy_log.tier.reading_cache import Latest, ReadingCache
from liftpy_log.tier.rows import batches_of, row_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO, TypeVar

    from liftpy_log.tier.fragment_read import ObjectReader
    from liftpy_log.tier.pointers import SnapshotPointer
    from liftpy_log.tier.reading import Piece
    from liftpy_log.tier.root_file import RootFile
    from liftpy_log.tier.store import ObjectStore

    _Answer = TypeVar("_Answer")

__all__ = ["fetch", "offset_at_time"]

_BATCH_BYTES: Final = 256 * 1024
_AT_ONCE_BYTES: Final = 16 * 1024 * 1024  # of rows, decoded, that are fetched with one request
_COVERED_MAX: Final = 2**31 - 1  # offsets by one file: its index counts them in 32 bits
_VERSIONS_MAX: Final = 256
_BUCKETS_MAX: Final = 2  # a worker process has one
_BROKEN: Final = (ObjectMissingError, ObjectCorruptError)
_NO_ROWS: Final = pa.RecordBatch.from_pylist([], row_schema(keeps_replies=False))


class _HoleError(TierError):
    """Offsets that can not be read, because an object is missing or damaged.

    Args:
        start: the first of them.
        end: the one after the last of them.
        error: what is wrong with the object.
    """

    def __init__(self, start: int, end: int, error: ObjectMissingError | ObjectCorruptError) -> None:
        super().__init__(str(error))
        self.start = start
        self.end = end
        self.is_missing = isinstance(error, ObjectMissingError)


class _Bucket:
    """What is kept of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._cache = ReadingCache(store)
        self._versions: Latest[PartitionPath, TierVersion] = Latest(_VERSIONS_MAX)

    def read(
        self, store: ObjectStore, path: PartitionPath, offset: int | None, read: Callable[[TierVersion], _Answer]
    ) -> _Answer:
        """Read of a version that is known, if it has the offset; of the newest one, where that is too old."""
        known = None if offset is None else self._versions.get(path)
        if known is not None and offset is not None and known.start <= offset < known.end:
            try:
                return read(known)
            except (*_BROKEN, _HoleError):
                self._versions.drop(path)  # merged or collected meanwhile
        version = open_version(store, path, offset=offset, cache=self._cache)
        if version is None:
            raise ObjectMissingError(path.root)
        self._versions.put(path, version)
        try:
            return read(version)
        except (*_BROKEN, _HoleError):
            self._versions.drop(path)  # who asks again is to have a fresh one
            raise

    def root_file(self, path: PartitionPath) -> RootFile:
        """The root of a partition, and its snapshots."""
        return self._cache.root_file(path)


_buckets: Latest[int, _Bucket] = Latest(_BUCKETS_MAX)


def _bucket_of(store: ObjectStore) -> _Bucket:
    return _buckets.get_or_make(id(store), lambda: _Bucket(store))  # it keeps the store, and so the id is no other's


def offset_at_time(store: ObjectStore, arguments: dict[str, Any]) -> dict[str, Any]:
    """Look for a time.

    Args:
        store: the bucket.
        arguments: uuid (32 hexadecimal digits), partition, timestamp (ns).

    Returns:
        `offset` of the first record not before it; None where all are earlier.

    Raises:
        TierError: the bucket can not be read.
    """
    path = PartitionPath(arguments["uuid"], arguments["partition"])
    timestamp = arguments["timestamp"]
    return {"offset": _bucket_of(store).read(store, path, None, lambda version: version.offset_at_time(timestamp))}


def fetch(store: ObjectStore, arguments: dict[str, Any]) -> dict[str, Any]:
    """Write a range of a partition's history to a file, as record batches that cover all offsets of it.

    Whole row groups are written, from the one that holds the first offset on; so it begins before that as a rule.

    Args:
        store: the bucket.
        arguments: uuid (32 hexadecimal digits), partition, offset (the first that is wanted), end (nothing from there
            on is wanted), enough (nor need what begins there or later be fetched), bytes_max (about how many
            bytes of batches to write), codec (of the batches: none, lz4 or zstd), path (of the file).

    Returns:
        `start` and `end` of what was written, and how many `bytes` that are. Or `hole`, when the object that holds the
        first offset is missing or damaged: `start` and `end` of what can not be read, `code` ("missing" or "corrupt")
        and `message`; then there is no file.

    Raises:
        TierError: the bucket can not be read, or does not have the offset.
        OSError: the file can not be written; then there is none.
    """
    path = PartitionPath(arguments["uuid"], arguments["partition"])
    file_path = Path(arguments["path"])
    wanted = _Wanted(*(arguments[name] for name in _Wanted._fields))

    bucket = _bucket_of(store)

    def write(version: TierVersion) -> dict[str, Any]:
        with file_path.open("wb") as file:
            return _write(version, bucket.root_file(path), wanted, file)

    try:
        return bucket.read(store, path, wanted.offset, write)
    except _HoleError as error:
        file_path.unlink(missing_ok=True)
        code = "missing" if error.is_missing else "corrupt"
        return {"hole": {"start": error.start, "end": error.end, "code": code, "message": str(error)}}
    except BaseException:
        file_path.unlink(missing_ok=True)
        raise


class _Wanted(NamedTuple):
    """Arguments of `fetch`."""

    offset: int
    end: int
    enough: int
    bytes_max: int
    codec: str


class _Span(NamedTuple):
    """A row group with the offsets that it answers for; without a row group where there are no rows.

    Attributes:
        size: bytes of its rows, decoded.
        is_last: of its object.
    """

    piece: Piece
    reader: ObjectReader
    row_group: int | None
    start: int
    end: int
    size: int
    is_last: bool


def _write(version: TierVersion, root_file: RootFile, wanted: _Wanted, file: BinaryIO) -> dict[str, Any]:
    if not version.start <= wanted.offset < min(wanted.end, version.end):
        raise LineageError(
            f"partition {version.path.partition} of stream {version.path.uuid}: the bucket has offsets {version.start} "
            f"to {version.end - 1}, and {wanted.offset} was asked for"
        )
    cover = _Cover(version, wanted, file)
    try:
        for found in _found(_spans(version, root_file, wanted), wanted.bytes_max):
            for span, rows in found:
                cover.add(span, rows)
            if cover.is_enough:
                break
    except _HoleError:
        if cover.end is None:
            raise  # otherwise what lies before it is of use, and who reads on comes to it
    return cover.result()


class _Cover:
    """Writes batches that cover a range without holes."""

    def __init__(self, version: TierVersion, wanted: _Wanted, file: BinaryIO) -> None:
        self._version = version
        self._wanted = wanted
        self._file = file
        self._start = wanted.offset
        self._size = 0
        self.end: int | None = None

    @property
    def is_enough(self) -> bool:
        covered = 0 if self.end is None else self.end - self._start
        return self._size >= self._wanted.bytes_max or covered >= _COVERED_MAX

    def add(self, span: _Span, rows: pa.RecordBatch | None) -> None:
        if self.end is None:
            is_near = span.start <= self._wanted.offset < span.start + _COVERED_MAX
            self._start = self.end = span.start if is_near else self._wanted.offset
        self._extend(rows, self.end, min(span.end, self._start + _COVERED_MAX))

    def result(self) -> dict[str, Any]:
        if self.end is None:
            offset = self._wanted.offset
            self._extend(None, offset, min(self._wanted.end, self._version.end, offset + _COVERED_MAX))
        return {"start": self._start, "end": self.end, "bytes": self._size}

    def _extend(self, rows: pa.RecordBatch | None, start: int, end: int) -> None:
        for data in _batches(rows, start, end, self._version.epochs, self._wanted.codec):
            self._file.write(data)
            self._size += len(data)
        self.end = end


def _spans(version: TierVersion, root_file: RootFile, wanted: _Wanted) -> Iterator[_Span]:
    """What follows on one another from the wanted offset on; one span at least, if there is any."""
    is_first = True
    for piece in _pieces(version, root_file, wanted):
        if not is_first and piece.start >= wanted.enough:
            return
        try:
            spans = list(_spans_of(version.reader(piece), piece))
        except _BROKEN as error:
            raise _HoleError(piece.start, piece.end, error) from error
        for span in spans:
            if span.end > wanted.offset and span.start < wanted.end:
                if not is_first and span.start >= wanted.enough:
                    return
                is_first = False
                yield span._replace(end=min(span.end, wanted.end))


def _pieces(version: TierVersion, root_file: RootFile, wanted: _Wanted) -> Iterator[Piece]:
    pieces, offset = version.pieces(wanted.offset, wanted.end), wanted.offset
    while True:
        try:
            piece = next(pieces, None)
        except _BROKEN as error:
            pointer = _broken_snapshot(root_file, version.root.snapshots, offset)
            if pointer is None:
                raise  # it can be read by now
            raise _HoleError(max(pointer.base, version.start), pointer.end, error) from error
        if piece is None:
            return
        yield piece
        offset = piece.end


def _broken_snapshot(root_file: RootFile, pointers: Sequence[SnapshotPointer], offset: int) -> SnapshotPointer | None:
    """The snapshot on the way to an offset that can not be read."""
    while pointer := next((each for each in pointers if each.end > offset), None):
        try:
            pointers = root_file.snapshot(pointer).snapshots
        except _BROKEN:
            return pointer
    return None


def _spans_of(reader: ObjectReader, piece: Piece) -> Iterator[_Span]:
    groups = reader.covering(piece.start, piece.end, piece.row_groups)
    if not groups:
        yield _Span(piece, reader, None, piece.start, piece.end, 0, is_last=True)
    start = piece.start
    for place, index in enumerate(groups, 1):
        is_last = place == len(groups)
        end = piece.end if is_last else reader.row_groups[groups[place]].first
        size = reader.metadata.parquet.row_group(index).total_byte_size
        yield _Span(piece, reader, index, start, end, size, is_last)
        start = end


def _runs(spans: Iterator[_Span], bytes_max: int) -> Iterator[list[_Span]]:
    """Spans of one object, as many as are worth a request; what follows is not looked at before it is needed."""
    limit = min(bytes_max, _AT_ONCE_BYTES)
    run: list[_Span] = []
    for span in spans:
        run.append(span)
        if span.is_last or sum(each.size for each in run) >= limit:
            yield run
            run = []
    if run:
        yield run


def _found(spans: Iterator[_Span], bytes_max: int) -> Iterator[list[tuple[_Span, pa.RecordBatch | None]]]:
    for run in _runs(spans, bytes_max):
        try:
            rows = _rows_of(run)
        except _BROKEN:
            for span in run:  # so that what is before the damage is still read, and the damage found
                yield [(span, _rows_of_one(span))]
        else:
            yield list(zip(run, rows, strict=True))


def _rows_of_one(span: _Span) -> pa.RecordBatch | None:
    try:
        return _rows_of([span])[0]
    except ObjectMissingError as error:
        raise _HoleError(span.piece.start, span.piece.end, error) from error
    except ObjectCorruptError as error:
        raise _HoleError(span.start, span.end, error) from error


def _rows_of(spans: Sequence[_Span]) -> list[pa.RecordBatch | None]:
    indexes = [span.row_group for span in spans if span.row_group is not None]
    found = iter(spans[0].reader.read_many(indexes))
    return [None if span.row_group is None else next(found) for span in spans]


def _batches(
    rows: pa.RecordBatch | None, start: int, end: int, epochs: Sequence[tuple[int, int]], codec: str
) -> Iterator[bytes]:
    """Batches that cover [start, end), cut where leader epochs begin: a batch must not vouch for a later one."""
    later = [(epoch, first) for epoch, first in epochs if start < first < end]
    epoch = max((each for each, first in epochs if first <= start), default=0)
    for following, until in [*later, (0, end)]:
        part = _NO_ROWS if rows is None else trimmed(rows, start, until)
        for _, data in batches_of(part, codec, _BATCH_BYTES, start=start, end=until, leader_epoch=epoch):
            yield data
        epoch, start = following, until
