"""An upload: record batches of one partition become stream objects, and the root names them.

Two writes for each in steady state, the object and the root, and no look. Whatever happens between them leaves objects
that nothing names, two at most. Of the record batches some MiB are in memory at a time, and the object that they
become.

A partition that is behind has several objects moved at once, as many as are begun within some seconds: two are sent
while the next one is made, so that neither the core nor the store waits for the other. They are named one after the
other, in their order. Of an object that is made one row group is encoded while the log is read for the next.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import (
    BucketVersionError,
    LineageError,
    ObjectCorruptError,
    ObjectMissingError,
    OvertakenError,
    SealedError,
)
from liftpy_bucket.manifest.lineage import check_lineage, cut_epochs, join_epochs
from liftpy_bucket.manifest.root.changes import Change, append
from liftpy_bucket.objects.merging import Source
from liftpy_bucket.objects.read import trimmed
from liftpy_bucket.objects.rows.convert import rows_of_many
from liftpy_server.tier.jobs.parts.context import LONG_NS
from liftpy_server.tier.jobs.parts.members import sources_of
from liftpy_server.tier.jobs.parts.producers import ProducersBelow
from liftpy_server.tier.jobs.parts.roots import check_in_force, commit, known, newest, path_of, resolved
from liftpy_server.tier.jobs.parts.slices import batches_in
from liftpy_server.tier.jobs.parts.stream_objects import Draft, drafted, put_draft
from liftpy_server.tier.requests import UploadedObject, UploadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.objects.record_hash import RecordHash
    from liftpy_bucket.reading.resolving import Resolved
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.jobs.parts.roots import Created
    from liftpy_server.tier.requests import LogSlice, UploadJob

__all__ = ["upload"]


_MAKING_BYTES: Final = 64 * 1024 * 1024  # rows of the log on their way into an object, besides what it takes itself
_SENT_AT_ONCE: Final = 2  # a store takes more than comes by one connection
_OF_OBJECTS: Final = (ObjectCorruptError, ObjectMissingError, BucketVersionError)  # all others have one look anyway


class _Piece(NamedTuple):
    """What becomes one object.

    Attributes:
        base: First offset of the piece.
        start: The first one that is taken from the log.
        end: The offset after the last one.
        slices: Slices of the log, which cover [start, end).
        front: What sets hold of [base, start); None where that is nothing.
        producers: Ordered producers below `end`; what sets hold is of none.
    """

    base: int
    start: int
    end: int
    slices: Sequence[LogSlice]
    front: Resolved | None
    producers: ProducersBelow

    @property
    def size(self) -> int:
        return sum(each.length for each in self.slices)


class _Sent(NamedTuple):
    """An object that counts.

    Attributes:
        pointer: Pointer to it.
        born: Version of the root that it was begun over.
        version: Version of the root as it stood after that named it.
    """

    pointer: StreamObjectPointer
    born: int
    version: int


def upload(context: Context, request: UploadJob) -> UploadResult:
    """Move [base, end) of a partition into the bucket, and what follows.

    What set objects hold of it between the end of the root and `base` is moved in front, into the same object.

    Args:
        context: What the jobs of the worker share.
        request: What is wanted.

    Raises:
        LineageError: this leader has no claim in force, or the bucket ends before `base`.
        OvertakenError: others write this root, the bucket ends behind `base`, or some objects were moved before one
            failed; claim anew. After an error of the store, too, some may count.
        SliceGoneError, BatchCorruptError, BatchVersionError: see `slices`; nothing was moved.
    """
    path = path_of(request)
    with context.roots.alone(path, context.progress):
        root, front = _begin(context, path, request)
        pieces = _pieces(root.end, front, request)
        moved = _move(context, path, pieces, request, root.record_hash)
    return UploadResult(
        end=moved[-1].end,
        records=sum(each.records for each in moved),
        bytes=sum(piece.size for piece in pieces[: len(moved)]),
        stored_bytes=sum(each.size for each in moved),
    )


def _pieces(base: int, front: Resolved | None, request: UploadJob) -> list[_Piece]:
    start, end = request.base, request.end
    pieces = [_Piece(base, start, end, request.slices, front, ProducersBelow(end, request.producers))]
    for each in request.further:
        start, end = end, each.end
        pieces.append(_Piece(start, start, end, each.slices, None, ProducersBelow(end, each.producers)))
    return pieces


def _begin(context: Context, path: PartitionPath, request: UploadJob) -> tuple[Root, Resolved | None]:
    """The root to append to, and what sets hold in front of the range, if they do."""
    try:
        root = known(context, path).root
        return root, _front(context, root, request)
    except LineageError:
        root = newest(context, path).root
        return root, _front(context, root, request)


def _front(context: Context, root: Root, request: UploadJob) -> Resolved | None:
    base = request.base
    check_in_force(root, request.epoch)
    if root.sealed:
        raise SealedError(f"partition {root.partition} of stream {root.uuid} is sealed in the bucket: nothing is added")
    if root.end == base:
        return None
    front = resolved(context, root, own=root.claims[-1].node) if root.end < base else None
    there = front.end if front else root.end
    _check_known(root, there, base)
    if there != base:
        raise LineageError(
            f"partition {root.partition} of stream {root.uuid} ends at offset {there} in the bucket; what begins at "
            f"{base} does not follow on it"
        )
    return front


def _check_known(root: Root, there: int, known_end: int) -> None:
    """Check that the bucket has no more than this leader, whose claim is in force, knows of.

    Raises:
        OvertakenError: a write of its own, whose answer was lost, has come late.
    """
    if there > known_end:
        raise OvertakenError(
            f"the bucket has partition {root.partition} of stream {root.uuid} up to offset {there}, and its leader "
            f"knows of {known_end}: a write came late; it is looked at again"
        )


def _move(
    context: Context, path: PartitionPath, pieces: Sequence[_Piece], request: UploadJob, record_hash: RecordHash
) -> list[StreamObjectPointer]:
    """Make one object after the other, while other threads send and name what was made."""
    moved: list[StreamObjectPointer] = []
    sending: deque[Future[_Sent]] = deque()
    last: Future[_Sent] | None = None
    began_ns, tell = context.now_ns(), context.teller()
    with ThreadPoolExecutor(_SENT_AT_ONCE, "send") as sender, ThreadPoolExecutor(1, "encode") as encoder:
        for piece in pieces:
            if last is not None and context.now_ns() - began_ns > LONG_NS:
                break
            try:
                draft, held = _drafted(context, path, piece, request, record_hash, encoder)
            except Exception:
                if last is None:
                    raise
                break  # what was made counts; the next upload begins here, and meets the same
            try:
                if len(sending) == _SENT_AT_ONCE:
                    moved.append(_pointer(sending.popleft(), moved))  # or nothing follows on it
                last = sender.submit(_send, context, path, piece, draft, held, request, last, tell)
                sending.append(last)
            except BaseException:
                held.close()
                raise
        for each in sending:
            moved.append(_pointer(each, moved))
    return moved


def _pointer(sending: Future[_Sent], moved: Sequence[StreamObjectPointer]) -> StreamObjectPointer:
    """What an object has come to. What is wrong with one is wrong for good only where none before it came to count."""
    try:
        return sending.result().pointer
    except _OF_OBJECTS as error:
        if not moved:
            raise
        raise OvertakenError(
            f"the bucket ends at offset {moved[-1].end} by now, and what follows failed: {error}"
        ) from error


def _drafted(
    context: Context,
    path: PartitionPath,
    piece: _Piece,
    request: UploadJob,
    record_hash: RecordHash,
    encoder: Executor,
) -> tuple[Draft, ExitStack]:
    """The object of a piece, and what it holds of memory until that is closed."""
    with ExitStack() as held:
        memory = held.enter_context(context.memory.hold(piece.size + _MAKING_BYTES, context.progress))

        def draft(*, keeps_replies: bool) -> Draft:
            made = drafted(
                *(context, path, lambda: _sources(context, piece, keeps_replies=keeps_replies)),
                base=piece.base,
                end=piece.end,
                epoch=request.epoch,
                keeps_replies=keeps_replies,
                record_hash=record_hash,
                expected_bytes=piece.size,
                pool=encoder,
            )
            return held.enter_context(made)

        keeps_replies = request.keeps_replies
        try:
            made = draft(keeps_replies=keeps_replies)
        except ValueError:  # the stream kept replies when the members were uploaded, and does not any more
            if piece.front is None or keeps_replies:
                raise
            made = draft(keeps_replies=True)
        memory.reduce(made.pointer.size)
        return made, held.pop_all()


def _sources(context: Context, piece: _Piece, *, keeps_replies: bool) -> Iterator[Source]:
    if piece.front is not None:
        yield from sources_of(context, piece.front.members)
    yield _local(piece, keeps_replies=keeps_replies)


def _local(piece: _Piece, *, keeps_replies: bool) -> Source:
    start, end = piece.start, piece.end
    batches = piece.producers.watch(batches_in(piece.slices, start, end))
    pieces = (trimmed(rows, start, end) for rows in rows_of_many(batches, keeps_replies=keeps_replies))
    return Source("the local log", pieces, None)


def _send(
    context: Context,
    path: PartitionPath,
    piece: _Piece,
    draft: Draft,
    held: ExitStack,
    request: UploadJob,
    before: Future[_Sent] | None,
    tell: Callable[[UploadedObject], None],
) -> _Sent:
    """Put an object, let its memory go, for which the next one may wait, and have the root name it behind `before`.

    The node is told at once: it may drop what is in the object before the others are there.
    """
    with held:
        if before is not None and not draft.pointer.records:
            before.result()  # it has the last time that there is
        stored = put_draft(context, known(context, path).root, draft)
    created = stored.created
    if before is not None:
        created = _born_again(created, before.result())
    loaded = commit(context, path, lambda root: _append(root, stored.pointer, piece, request), created=created)
    tell(UploadedObject(end=piece.end, bytes=piece.size, stored_bytes=stored.pointer.size))
    return _Sent(stored.pointer, created.born, loaded.root.version)


def _born_again(created: Created, before: _Sent) -> Created:
    """As if an object was begun only now, if nobody but this job has changed the root meanwhile; see `boundary`."""
    if created.born >= before.born == before.version - 1:
        return created._replace(born=max(created.born, before.version))
    return created


def _append(root: Root, pointer: StreamObjectPointer, piece: _Piece, request: UploadJob) -> Change:
    start, log = piece.start, request.epochs
    check_in_force(root, request.epoch)
    _check_known(root, root.end, pointer.base)
    there = root.epochs if piece.front is None else piece.front.epochs
    check_lineage(f"partition {root.partition} of stream {root.uuid}", there, log, root.start, start)
    before = () if piece.front is None else cut_epochs(there, pointer.base, start)
    epochs = join_epochs(before, cut_epochs(log, start, piece.end))
    return append(root, pointer, epoch=request.epoch, epochs=epochs, producers=piece.producers.batches)
