"""Stream objects, written once and whole: one request, whatever their size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from liftpy_log.tier.conditional import create_once
from liftpy_log.tier.layout import PartitionPath
from liftpy_log.tier.merging import Source, merge
from liftpy_server.tiering.object_buffer import ObjectBuffer
from liftpy_server.tiering.roots import Created

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from liftpy_log.tier.pointers import FragmentPointer
    from liftpy_log.tier.root import Root
    from liftpy_server.tiering.context import Context

__all__ = ["Stored", "fragment_name", "store_fragment"]


class Stored(NamedTuple):
    """A stream object that no root names yet.

    Attributes:
        pointer: to it.
        created: what its commit must know of it.
    """

    pointer: FragmentPointer
    created: Created


def fragment_name(base: int, epoch: int, nonce: str) -> str:
    """How a stream object is called."""
    return f"{base:020d}-{epoch}-{nonce}.parquet"


def store_fragment(
    context: Context,
    root: Root,
    sources: Iterable[Source],
    *,
    base: int,
    end: int,
    epoch: int,
    keeps_replies: bool,
    expected_bytes: int = 0,
) -> Stored:
    """Write rows as a stream object that answers for [base, end).

    Args:
        context: of the worker.
        root: of the partition, as it is known before the object is begun.
        sources: of the rows, in the order of their offsets, all within the range.
        base: the first offset.
        end: the offset after the last one.
        epoch: leader epoch of the writer.
        keeps_replies: whether there is a column for replies.
        expected_bytes: about how large the object becomes, where that is known.
    """
    path, nonce = PartitionPath(root.uuid, root.partition), context.new_id()
    name = fragment_name(base, epoch, nonce)
    key = path.fragment(name)
    with ObjectBuffer(expected_bytes) as sink:
        watched = _watched(sources, context.progress)
        written = merge(watched, sink, path=path, nonce=nonce, keeps_replies=keeps_replies)
        pa.default_memory_pool().release_unused()
        with sink.body() as body:
            create_once(context.store, key, body, nonce)
    pointer = written.pointer(name, base=base, end=end)
    if not written.records:
        pointer = replace(pointer, first_timestamp=(last := _last_timestamp(root)), last_timestamp=last)
    return Stored(pointer, Created(key, root.version))


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
