"""Which row groups a fetch reads, and their rows: the bytes of what comes next are fetched while rows are decoded.

What can not be read is a `HoleError` that says which offsets that concerns; what lies before it comes first.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from liftpy_bucket.errors import ObjectCorruptError, ObjectMissingError, TierError
from liftpy_bucket.objects.rows.schema import batch_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from liftpy_bucket.manifest.root.file import RootFile
    from liftpy_bucket.objects.pointers import SnapshotPointer
    from liftpy_bucket.objects.read import Fetched, ObjectReader
    from liftpy_bucket.reading.version import Piece, TierVersion

__all__ = ["BROKEN", "HoleError", "ReadRun", "Runs", "Span", "Wanted", "cuts_of", "rows_of", "spans_of"]

BROKEN: Final = (ObjectMissingError, ObjectCorruptError)
_GUESSED: Final = 2  # times as much comes as was foreseen, at most
_AT_ONCE_BYTES: Final = 16 * 1024 * 1024  # of rows, decoded, that are fetched with one request


class HoleError(TierError):
    """Offsets that can not be read, because an object is missing or damaged.

    Args:
        start: The first of them.
        end: The one after the last of them.
        error: What is wrong with the object.
    """

    def __init__(self, start: int, end: int, error: ObjectMissingError | ObjectCorruptError) -> None:
        super().__init__(str(error))
        self.start = start
        self.end = end
        self.is_missing = isinstance(error, ObjectMissingError)


class Wanted(NamedTuple):
    """What is to be fetched; see `liftpy_server.tier.jobs.reads.fetch.fetch`."""

    offset: int
    end: int
    enough: int
    bytes_max: int
    codec: str

    def up_to(self, until: int) -> Wanted:
        """The same up to an offset that was foreseen; how many bytes come of that was a guess."""
        return self._replace(end=min(self.end, until), bytes_max=_GUESSED * self.bytes_max)


class Span(NamedTuple):
    """A row group with the offsets that it answers for; without a row group where there are no rows.

    Attributes:
        size: Bytes of its rows, decoded.
        is_last: Whether it is the last of its object.
    """

    piece: Piece
    reader: ObjectReader
    row_group: int | None
    start: int
    end: int
    size: int
    is_last: bool


class ReadRun(NamedTuple):
    """Spans of one object that are neighbours.

    Attributes:
        spans: Spans in their order.
        fetched: Bytes of the row groups; None where there are none, or where they could not be fetched together.
    """

    spans: list[Span]
    fetched: Fetched | None

    @property
    def size(self) -> int:
        """Bytes of their rows, decoded."""
        return sum(span.size for span in self.spans)


class Runs:
    """Runs of spans, each fetched with one request while the one before it is in use. To be closed, by `with`.

    Args:
        spans: What is read, in order.
        bytes_max: About how much of them.
    """

    def __init__(self, spans: Iterator[Span], bytes_max: int) -> None:
        self._runs = _runs(spans, min(bytes_max, _AT_ONCE_BYTES))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._coming: Future[ReadRun | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def take(self, bytes_wanted: int) -> ReadRun | None:
        """The next one; None at the end.

        Args:
            bytes_wanted: Size of the rows that are wanted. Where this run has fewer, the one after it is fetched
                meanwhile.

        Raises:
            HoleError: what comes next can not be read.
            TierError: the bucket can not be read.
        """
        run = self._next() if self._coming is None else self._coming.result()
        is_more_wanted = run is not None and run.size < bytes_wanted
        self._coming = self._thread.submit(self._next) if is_more_wanted else None
        return run

    def _next(self) -> ReadRun | None:
        spans = next(self._runs, None)
        if spans is None:
            return None
        indexes = [span.row_group for span in spans if span.row_group is not None]
        with suppress(*BROKEN):  # one by one, so that what is before the damage is still read, and the damage found
            return ReadRun(spans, spans[0].reader.fetch(indexes) if indexes else None)
        return ReadRun(spans, None)


def rows_of(run: ReadRun, span: Span) -> pa.RecordBatch | None:
    """The rows of one span of a run, with the columns of `batch_names`; None where there are none.

    Raises:
        HoleError: they can not be read.
    """
    if span.row_group is None:
        return None
    reader, index = span.reader, span.row_group
    names = batch_names(keeps_replies=reader.metadata.keeps_replies)
    if run.fetched is not None:
        with suppress(ObjectCorruptError):  # maybe on its way only: it is fetched once more
            return reader.decode(run.fetched, index, names)
    try:
        return reader.decode(reader.fetch([index]), index, names)
    except ObjectMissingError as error:
        raise HoleError(span.piece.start, span.piece.end, error) from error
    except ObjectCorruptError as error:
        raise HoleError(span.start, span.end, error) from error


def spans_of(version: TierVersion, root_file: RootFile, wanted: Wanted, *, is_needed: bool = True) -> Iterator[Span]:
    """What follows on one another from the wanted offset on.

    Args:
        version: Version of the partition.
        root_file: Root file of the partition.
        wanted: What of it.
        is_needed: One span at least, if there is any, also where it begins behind what is `enough`.

    Raises:
        HoleError: what comes next can not be read.
        TierError: the bucket can not be read.
    """
    is_first = is_needed
    for piece in _pieces(version, root_file, wanted):
        if not is_first and piece.start >= wanted.enough:
            return
        try:
            spans = list(_spans_of_piece(version.reader(piece), piece))
        except BROKEN as error:
            raise HoleError(piece.start, piece.end, error) from error
        for span in spans:
            if span.end > wanted.offset and span.start < wanted.end:
                if not is_first and span.start >= wanted.enough:
                    return
                is_first = False
                yield span._replace(end=min(span.end, wanted.end))


def cuts_of(spans: Iterator[Span], bytes_max: int, growth: float) -> Iterator[int]:
    """Where fetches end that take all of these spans, one after the other.

    Args:
        spans: Spans in order.
        bytes_max: About how many bytes of batches each writes.
        growth: How many bytes of batches come of one byte of rows.

    Raises:
        TierError: as the spans do.
    """
    size, end = 0.0, None
    for span in spans:
        size, end = size + growth * span.size, span.end
        if size >= bytes_max:
            yield end
            size, end = 0.0, None
    if end is not None:
        yield end


def _pieces(version: TierVersion, root_file: RootFile, wanted: Wanted) -> Iterator[Piece]:
    pieces, offset = version.pieces(wanted.offset, wanted.end), wanted.offset
    while True:
        try:
            piece = next(pieces, None)
        except BROKEN as error:
            pointer = _broken_snapshot(root_file, version.root.snapshots, offset)
            if pointer is None:
                raise  # it can be read by now
            raise HoleError(max(pointer.base, version.start), pointer.end, error) from error
        if piece is None:
            return
        yield piece
        offset = piece.end


def _broken_snapshot(root_file: RootFile, pointers: Sequence[SnapshotPointer], offset: int) -> SnapshotPointer | None:
    """The snapshot on the way to an offset that can not be read."""
    while pointer := next((each for each in pointers if each.end > offset), None):
        try:
            pointers = root_file.snapshot(pointer).snapshots
        except BROKEN:
            return pointer
    return None


def _spans_of_piece(reader: ObjectReader, piece: Piece) -> Iterator[Span]:
    groups = reader.covering(piece.start, piece.end)
    if not groups:
        yield Span(piece, reader, None, piece.start, piece.end, 0, is_last=True)
    start = piece.start
    for place, index in enumerate(groups, 1):
        is_last = place == len(groups)
        end = piece.end if is_last else reader.row_groups[groups[place]].first
        size = reader.metadata.parquet.row_group(index).total_byte_size
        yield Span(piece, reader, index, start, end, size, is_last)
        start = end


def _runs(spans: Iterator[Span], limit: int) -> Iterator[list[Span]]:
    """Spans of one object, as many as are worth a request; what follows is not looked at before it is needed."""
    run: list[Span] = []
    for span in spans:
        run.append(span)
        if span.is_last or sum(each.size for each in run) >= limit:
            yield run
            run = []
    if run:
        yield run
