"""Jobs of the worker process that reads the bucket: row groups become record batches in a file; a time an offset.

What was read of manifests and footers is kept as long as the store is.
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_bucket.errors import LineageError, ObjectMissingError, TierError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.lru import LruCache
from liftpy_bucket.objects.read import trimmed
from liftpy_bucket.objects.rows.convert import batches_of, row_schema
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.version import TierVersion, open_version
from liftpy_log.storage.disk import OsDisk
from liftpy_server.tier.jobs.reads.fetch_runs import BROKEN, HoleError, Runs, Wanted, cuts_of, rows_of, spans_of
from liftpy_server.tier.requests import FetchChunkResult, Hole, OffsetAtTimeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from liftpy_bucket.manifest.root.file import RootFile
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.storage.disk import File
    from liftpy_server.tier.jobs.reads.fetch_runs import Span
    from liftpy_server.tier.requests import FetchChunkJob, OffsetAtTimeJob

    _Answer = TypeVar("_Answer")

__all__ = ["fetch", "offset_at_time"]

_BATCH_BYTES_MIN: Final = 256 * 1024  # who wants one record takes the batch that holds it
_BATCH_BYTES_MAX: Final = 1024 * 1024  # as those of a busy publisher
_BATCHES: Final = 16  # in a fetch, between these
_COVERED_MAX: Final = 2**31 - 1  # offsets by one file: its index counts them in 32 bits
_FOLLOWING_MAX: Final = 4  # fetches that are foreseen
_VERSIONS_MAX: Final = 256
_NEW_S: Final = 1.0  # a version is read for so long without a look whether it is the newest one
_BUCKETS_MAX: Final = 2  # a worker process has one
_SCHEMA: Final = row_schema(keeps_replies=False)
_NO_ROWS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, each) for each in _SCHEMA.types], schema=_SCHEMA)


class _Bucket:
    """What is kept of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._cache = ReadingCache(store)
        self._versions: LruCache[PartitionPath, tuple[TierVersion, float]] = LruCache(_VERSIONS_MAX)

    def read(
        self,
        store: ObjectStore,
        path: PartitionPath,
        offset: int | None,
        read: Callable[[TierVersion], _Answer],
        nodes: Iterable[str] = (),
    ) -> _Answer:
        """Read of a version that was the newest a moment ago, if it has the offset; of the newest one otherwise.

        Key compaction may have been done by somebody of whom this node knows nothing.
        """
        known, looked_s = self._versions.get(path) or (None, 0.0)
        is_new = time.monotonic() - looked_s < _NEW_S
        if known is not None and is_new and offset is not None and known.start <= offset < known.end:
            try:
                return read(known)
            except (*BROKEN, HoleError):
                self._versions.drop(path)  # merged or collected meanwhile
        looked_s = time.monotonic()
        version = open_version(store, path, offset=offset, cache=self._cache, nodes=nodes)
        if version is None:
            raise ObjectMissingError(path.root)
        self._versions.put(path, (version, looked_s))
        try:
            return read(version)
        except (*BROKEN, HoleError):
            self._versions.drop(path)  # who asks again is to have a fresh one
            raise

    def root_file(self, path: PartitionPath) -> RootFile:
        """The root of a partition, and its snapshots."""
        return self._cache.root_file(path)


_buckets: LruCache[int, _Bucket] = LruCache(_BUCKETS_MAX)


def _bucket_of(store: ObjectStore) -> _Bucket:
    return _buckets.get_or_make(id(store), lambda: _Bucket(store))  # it keeps the store, and so the id is no other's


def offset_at_time(store: ObjectStore, request: OffsetAtTimeJob) -> OffsetAtTimeResult:
    """Look for a time.

    Args:
        store: Object store of the bucket.
        request: What is wanted.

    Raises:
        TierError: the bucket can not be read.
    """
    path = PartitionPath(request.uuid, request.partition)
    timestamp = request.timestamp
    found = _bucket_of(store).read(store, path, None, lambda version: version.offset_at_time(timestamp))
    return OffsetAtTimeResult(offset=found)


def fetch(store: ObjectStore, request: FetchChunkJob) -> FetchChunkResult:
    """Write a range of a partition's history to a file, as record batches that cover all offsets of it.

    Whole row groups are written, from the one that holds the first offset on; so it begins before that as a rule.

    Args:
        store: Object store of the bucket.
        request: What is wanted.

    Raises:
        TierError: the bucket can not be read, or does not have the offset.
        OSError: the file can not be written; then there is none.
    """
    path = PartitionPath(request.uuid, request.partition)
    file_path = Path(request.path)
    wanted = Wanted(request.offset, request.end, request.enough, request.bytes_max, request.codec)
    until, following_bytes = request.until, request.following_bytes

    bucket = _bucket_of(store)

    def write(version: TierVersion) -> FetchChunkResult:
        file_path.unlink(missing_ok=True)  # of an older version, which turned out to be gone
        file = OsDisk().open(file_path, create=True)
        try:
            root_file = bucket.root_file(path)
            cover = _write(version, root_file, wanted if until is None else wanted.up_to(until), file)
            assert cover.end is not None, "what is wanted is there, or a hole was met"
            following = _following(version, root_file, wanted, cover, following_bytes)
            return FetchChunkResult(start=cover.start, end=cover.end, bytes=cover.size, following=tuple(following))
        finally:
            file.close()

    try:
        return bucket.read(store, path, wanted.offset, write, request.nodes)
    except HoleError as error:
        file_path.unlink(missing_ok=True)
        code = "missing" if error.is_missing else "corrupt"
        return FetchChunkResult(hole=Hole(start=error.start, end=error.end, code=code, message=str(error)))
    except BaseException:
        file_path.unlink(missing_ok=True)
        raise


def _write(version: TierVersion, root_file: RootFile, wanted: Wanted, file: File) -> _Cover:
    if not version.start <= wanted.offset < min(wanted.end, version.end):
        raise LineageError(
            f"partition {version.path.partition} of stream {version.path.uuid}: the bucket has offsets {version.start} "
            f"to {version.end - 1}, and {wanted.offset} was asked for"
        )
    cover = _Cover(version, wanted, file)
    try:
        with Runs(spans_of(version, root_file, wanted), wanted.bytes_max) as runs:
            while not cover.is_enough and (run := runs.take(cover.bytes_wanted)) is not None:
                for span in run.spans:
                    cover.add(span, rows_of(run, span))
    except HoleError:
        if cover.end is None:
            raise  # otherwise what lies before it is of use, and who reads on comes to it
    cover.finish()
    return cover


def _following(
    version: TierVersion, root_file: RootFile, wanted: Wanted, cover: _Cover, following_bytes: int
) -> list[int]:
    cuts: list[int] = []
    if following_bytes and cover.end is not None:
        spans = spans_of(version, root_file, wanted._replace(offset=cover.end), is_needed=False)
        with suppress(TierError):  # told to who asks for what can not be read
            for cut in islice(cuts_of(spans, following_bytes, cover.growth), _FOLLOWING_MAX):
                cuts.append(cut)  # noqa: PERF402 - those before an error count
    return cuts


class _Cover:
    """Writes batches that cover a range without holes.

    Attributes:
        start: The first offset of what was written.
        end: The one after the last; None while nothing was.
        size: Bytes that were written.
    """

    def __init__(self, version: TierVersion, wanted: Wanted, file: File) -> None:
        self._version = version
        self._wanted = wanted
        self._file = file
        self._sizes_said = 0
        self.start = wanted.offset
        self.size = 0
        self._batch_bytes = min(max(_BATCH_BYTES_MIN, wanted.bytes_max // _BATCHES), _BATCH_BYTES_MAX)
        self.end: int | None = None

    @property
    def is_enough(self) -> bool:
        covered = 0 if self.end is None else self.end - self.start
        return self.bytes_wanted <= 0 or covered >= _COVERED_MAX

    @property
    def bytes_wanted(self) -> int:
        return self._wanted.bytes_max - self.size

    @property
    def growth(self) -> float:
        """How many bytes of batches came of one byte of rows."""
        return self.size / self._sizes_said if self._sizes_said else 1.0

    def add(self, span: Span, rows: pa.RecordBatch | None) -> None:
        if self.end is None:
            is_near = span.start <= self._wanted.offset < span.start + _COVERED_MAX
            self.start = self.end = span.start if is_near else self._wanted.offset
        self._sizes_said += span.size
        self._extend(rows, self.end, min(span.end, self.start + _COVERED_MAX))

    def finish(self) -> None:
        if self.end is None:
            offset = self._wanted.offset
            self._extend(None, offset, min(self._wanted.end, self._version.end, offset + _COVERED_MAX))

    def _extend(self, rows: pa.RecordBatch | None, start: int, end: int) -> None:
        for parts in self._batches(rows, start, end):
            self._file.write(self.size, parts)
            self.size += sum(map(len, parts))
        self.end = end

    def _batches(self, rows: pa.RecordBatch | None, start: int, end: int) -> Iterator[list[BufferLike]]:
        """Batches that cover [start, end), cut where leader epochs begin: a batch must not vouch for a later one."""
        epochs = self._version.epochs
        later = [(epoch, first) for epoch, first in epochs if start < first < end]
        epoch = max((each for each, first in epochs if first <= start), default=0)
        for following, until in [*later, (0, end)]:
            part = _NO_ROWS if rows is None else trimmed(rows, start, until)
            yield from batches_of(
                part, self._wanted.codec, self._batch_bytes, start=start, end=until, leader_epoch=epoch
            )
            epoch, start = following, until
