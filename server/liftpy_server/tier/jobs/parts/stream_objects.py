"""Stream objects, written once and whole: one request, whatever their size."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.objects.merging import Source, merge
from liftpy_bucket.store.conditional import create_once
from liftpy_server.tier.jobs.parts.roots import Created

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    import pyarrow as pa

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.objects.record_hash import RecordHash
    from liftpy_bucket.objects.write import Written
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.jobs.parts.object_buffer import ObjectBuffer

__all__ = ["Draft", "Stored", "drafted", "fragment_name", "put_draft"]


class Stored(NamedTuple):
    """A stream object that no root names yet.

    Attributes:
        pointer: Pointer to the object.
        created: What its commit must know of it.
    """

    pointer: StreamObjectPointer
    created: Created


class Draft(NamedTuple):
    """A stream object that is not in the bucket yet.

    Attributes:
        key: Key of the object.
        nonce: Nonce of the write.
        sink: Holds its bytes.
        pointer: Pointer to the object; where it has no records the times are still to be said.
    """

    key: str
    nonce: str
    sink: ObjectBuffer
    pointer: StreamObjectPointer


def fragment_name(base: int, epoch: int, nonce: str) -> str:
    """How a stream object is called."""
    return f"{base:020d}-{epoch}-{nonce}.parquet"


@contextmanager
def drafted(
    context: Context,
    path: PartitionPath,
    sources_of: Callable[[], Iterable[Source]],
    *,
    base: int,
    end: int,
    epoch: int,
    keeps_replies: bool,
    record_hash: RecordHash,
    expected_bytes: int = 0,
    pool: Executor | None = None,
) -> Iterator[Draft]:
    """Write rows into memory, as the stream object that answers for [base, end). Its memory goes with the context.

    Args:
        context: What the jobs of the worker share.
        path: Path of the partition.
        sources_of: Gives the sources of the rows, in the order of their offsets, all within the range. They are asked
            for again where the object is larger than was expected.
        base: The first offset.
        end: The offset after the last one.
        epoch: Leader epoch of the writer.
        keeps_replies: Whether there is a column for replies.
        record_hash: Hash of the partition.
        expected_bytes: About how large the object becomes, where that is known.
        pool: See `merge`.
    """
    nonce = context.new_id()

    def write(sink: ObjectBuffer) -> Written:
        sources = _watched(sources_of(), context.progress)
        return merge(
            sources, sink, path=path, nonce=nonce, keeps_replies=keeps_replies, record_hash=record_hash, pool=pool
        )

    with context.buffers.filled(expected_bytes, write) as (sink, written):
        pointer = written.pointer(fragment_name(base, epoch, nonce), base=base, end=end)
        yield Draft(path.fragment(pointer.name), nonce, sink, pointer)


def put_draft(context: Context, root: Root, draft: Draft) -> Stored:
    """Put a draft into the bucket.

    Args:
        context: What the jobs of the worker share.
        root: Root of the partition, as it is known before the object is begun in the bucket.
        draft: Draft of the object, whose memory is there still.
    """
    with draft.sink.body() as body:
        create_once(context.store, draft.key, body, draft.nonce)
    pointer = draft.pointer
    if not pointer.records:
        pointer = replace(pointer, first_timestamp=(last := _last_timestamp(root)), last_timestamp=last)
    return Stored(pointer, Created(draft.key, root.version))


def _watched(sources: Iterable[Source], progress: Callable[[], None]) -> Iterator[Source]:
    for source in sources:
        yield source._replace(rows=_told(source.rows, progress))


def _told(pieces: Iterable[pa.RecordBatch], progress: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for rows in pieces:
        progress()
        yield rows


def _last_timestamp(root: Root) -> int:
    """Of what is there: the best that is known of a range that has no record left, ns."""
    newest = root.fragments[-1:] or root.snapshots[-1:]
    return newest[0].last_timestamp if newest else 0
