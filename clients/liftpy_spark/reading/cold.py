"""Records from the bucket: row group by row group, of each only the columns that are needed, some row groups ahead.

Neighbours of which nearly all is needed come with one request: what a request costs, here and in the store, is more
than what it costs to decode a row group. They are decoded one by one, as they are taken: what was fetched is in memory,
and of its rows those of one row group.

What is left out is not fetched: row groups without a wanted subject or key, by the statistics in the footer of their
object; columns that nobody asked for; and, where records are chosen, all other columns of a row group in which none is.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import TierError
from liftpy_bucket.objects.rows.schema import subject_bytes
from liftpy_spark.reading.record_filter import Match

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from liftpy_bucket.objects.read import Fetched, ObjectReader
    from liftpy_bucket.reading.version import TierVersion
    from liftpy_spark.reading.projection import Projection
    from liftpy_spark.reading.record_filter import RecordFilter

__all__ = ["ColdReading", "Step"]

_AHEAD: Final = 3  # jobs whose bytes or rows are in memory
_TOGETHER_BYTES: Final = 16 * 1024 * 1024  # of row groups that are fetched with one request
_THREADS: Final = 2
_GAP_BYTES: Final = 128 * 1024  # fetching these costs less than another request


class Step(NamedTuple):
    """How reading goes on.

    Attributes:
        batch: Records; None where there is none that is wanted up to `next_offset`.
        next_offset: All before it was read.
    """

    batch: pa.RecordBatch | None
    next_offset: int


class _Job(NamedTuple):
    """Row groups to read; `run` is None where nothing of them is wanted, up to `next_offset`.

    What `run` does is done ahead, and what it returns is gone through when it is its turn.
    """

    run: Callable[[], Iterable[Step]] | None
    next_offset: int


class ColdReading:
    """Reads ranges of one partition.

    Args:
        stream: Name of the stream.
        partition: Number of the partition.
        projection: What columns are wanted.
        chosen: Filter that says which records are wanted.

    Attributes:
        objects: How many objects it has read from.
    """

    def __init__(self, stream: str, partition: int, projection: Projection, chosen: RecordFilter) -> None:
        self._stream = stream
        self._partition = partition
        self._projection = projection
        self._chosen = chosen
        self.objects = 0

    def read(self, version: TierVersion, start: int, end: int) -> Generator[Step]:
        """The records of a version with offsets from `start` up to `end`, both within it.

        Raises:
            TierError: something can not be read; what came before stands.
        """
        pool = ThreadPoolExecutor(_THREADS, "liftpy cold")
        waiting: deque[tuple[Future[Iterable[Step]] | None, int]] = deque()
        jobs = self._jobs(version, start, end)
        failure: TierError | None = None
        try:
            while True:
                try:
                    job = next(jobs, None)
                except TierError as error:
                    failure = error  # raised below: what lies before it can be read
                    break
                if job is None:
                    break
                waiting.append((None if job.run is None else pool.submit(job.run), job.next_offset))
                if len(waiting) >= _AHEAD:
                    yield from _finished(*waiting.popleft())
            while waiting:
                yield from _finished(*waiting.popleft())
            if failure is not None:
                raise failure
            yield Step(None, end)  # behind the last row, and between objects, there may be holes
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _jobs(self, version: TierVersion, start: int, end: int) -> Iterator[_Job]:
        for piece in version.pieces(start, end):
            first, last = max(start, piece.start), min(end, piece.end)
            yield from self._jobs_of(version.reader(piece), first, last)

    def _jobs_of(self, reader: ObjectReader, first: int, last: int) -> Iterator[_Job]:
        self.objects += 1
        run: list[int] = []
        size = 0
        for index in reader.covering(first, last):
            group = reader.row_groups[index]
            match = self._judge(reader, index)
            is_inner = group.first >= first and group.last < last
            is_plain = is_inner and match is Match.ALL and self._needs_nearly_all(reader, index)
            if run and not (is_plain and run[-1] == index - 1 and size + group.length <= _TOGETHER_BYTES):
                yield self._plain_job(reader, run)
                run, size = [], 0
            if is_plain:
                run.append(index)
                size += group.length
            elif match is Match.NONE:
                yield _Job(None, min(group.last + 1, last))
            else:
                next_offset = min(group.last + 1, last)
                span = None if is_inner else (first, last)
                yield _Job(partial(self._read_one, reader, index, span, match, next_offset), next_offset)
        if run:
            yield self._plain_job(reader, run)

    def _needs_nearly_all(self, reader: ObjectReader, index: int) -> bool:
        wanted = self._projection.columns
        if not wanted:
            return False
        start, end = reader.metadata.extent(index, wanted)
        return reader.row_groups[index].length - (end - start) <= _GAP_BYTES and len(_runs(reader, index, wanted)) == 1

    def _plain_job(self, reader: ObjectReader, indexes: list[int]) -> _Job:
        return _Job(partial(self._read_plain, reader, indexes), reader.row_groups[indexes[-1]].last + 1)

    def _read_plain(self, reader: ObjectReader, indexes: Sequence[int]) -> Iterator[Step]:
        """All rows of row groups that are neighbours; their bytes are fetched at once."""
        return self._decoded(reader, reader.fetch(indexes), indexes)

    def _decoded(self, reader: ObjectReader, fetched: Fetched, indexes: Sequence[int]) -> Iterator[Step]:
        for index in indexes:
            rows = reader.decode(fetched, index, self._projection.columns)
            columns = _in_bytes({name: rows.column(name) for name in self._projection.columns})
            batch = self._projection.apply(columns, rows.num_rows, self._stream, self._partition)
            yield Step(batch, reader.row_groups[index].last + 1)

    def _read_one(
        self, reader: ObjectReader, index: int, span: tuple[int, int] | None, match: Match, next_offset: int
    ) -> list[Step]:
        return [Step(self._read(reader, index, span, match), next_offset)]

    def _judge(self, reader: ObjectReader, index: int) -> Match:
        if not self._chosen.columns:
            return Match.ALL
        footer = reader.metadata
        group = footer.parquet.row_group(index)
        found: list[dict[str, Any]] = [{}, {}, {}]
        for name in self._chosen.columns:
            statistics = group.column(footer.columns[name]).statistics
            if statistics is not None and statistics.has_min_max:
                nulls = statistics.null_count if statistics.has_null_count else None
                for of, value in zip(found, (statistics.min, statistics.max, nulls), strict=True):
                    of[name] = value
        return self._chosen.judge(*found)

    def _read(
        self, reader: ObjectReader, index: int, span: tuple[int, int] | None, match: Match
    ) -> pa.RecordBatch | None:
        """What is wanted of a row group.

        Args:
            reader: Reader of the object.
            index: Index of the row group.
            span: The offsets that are wanted; None when all of them are.
            match: Whether its records have to be looked at one by one.
        """
        wanted = self._projection.columns
        first = [*(("offset",) if span else ()), *(self._chosen.columns if match is Match.SOME else ())]
        chooses = match is Match.SOME
        columns = _fetch(reader, index, first if chooses else [*first, *wanted])
        rows = reader.row_groups[index].records
        begin, count = 0, rows
        if span:
            begin, until = columns["offset"].to_numpy().searchsorted(list(span)).tolist()
            count = until - begin
        mask = None
        if chooses:
            mask = self._chosen.mask({name: array.slice(begin, count) for name, array in columns.items()})
            if not count or (mask is not None and not mask.true_count):
                return None
            columns |= _fetch(reader, index, [name for name in wanted if name not in columns])
        if not count:
            return None
        cut = {name: columns[name].slice(begin, count) for name in wanted}
        if mask is not None and mask.true_count < count:
            cut, count = {name: array.filter(mask) for name, array in cut.items()}, mask.true_count
        return self._projection.apply(cut, count, self._stream, self._partition)


def _finished(found: Future[Iterable[Step]] | None, next_offset: int) -> Iterable[Step]:
    return [Step(None, next_offset)] if found is None else found.result()


def _fetch(reader: ObjectReader, index: int, names: Sequence[str]) -> dict[str, pa.Array]:
    """Columns of a row group; subjects as bytes."""
    columns: dict[str, pa.Array] = {}
    for run in _runs(reader, index, names):
        rows = reader.read(index, run)
        columns |= {name: rows.column(name) for name in run}
    return _in_bytes(columns)


def _in_bytes(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """The same with subjects as bytes."""
    if "subject" in columns:
        columns["subject"] = subject_bytes(columns["subject"])
    return columns


def _runs(reader: ObjectReader, index: int, names: Sequence[str]) -> list[list[str]]:
    """Columns that are fetched together, since little lies between them."""
    footer = reader.metadata
    places: Mapping[str, int] = footer.columns
    runs: list[list[str]] = []
    end = 0
    for name in sorted(set(names), key=places.__getitem__):
        start, until = footer.extent(index, [name])
        if not runs or start - end > _GAP_BYTES:
            runs.append([])
        runs[-1].append(name)
        end = until
    return runs
