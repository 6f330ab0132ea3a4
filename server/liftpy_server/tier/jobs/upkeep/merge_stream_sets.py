"""Merging of shared objects: rounds of quiet partitions become fewer, larger objects, and the manifest stays short.

Members of one partition that follow on one another, of one leadership, become one; others stand beside each other in
the new object. What counts no more is left out. The sums of what goes and of what comes are compared before anything
is named. Of every object that goes one window is in memory at a time, besides the object that comes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from liftpy_bucket.layout import set_object_key
from liftpy_bucket.manifest.lineage import cut_epochs, join_epochs
from liftpy_bucket.manifest.stream_sets.changes import adopt, replace, sum_of
from liftpy_bucket.objects.merging import check_sum, member_source
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.conditional import create_once
from liftpy_server.tier.jobs.parts.counted_members import CountedMembers
from liftpy_server.tier.jobs.parts.read_ahead_store import ReadAheadStore
from liftpy_server.tier.jobs.parts.roots import newest_set
from liftpy_server.tier.jobs.parts.set_merge_plan import (
    OBJECT_BYTES_MAX,
    Part,
    chains_of,
    divided,
    objects_to_merge,
)
from liftpy_server.tier.jobs.uploads.upload_stream_set import set_object_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.objects.pointers import SetObjectPointer
    from liftpy_bucket.objects.write_stream_set import WrittenSet
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.jobs.parts.object_buffer import ObjectBuffer

__all__ = ["merge_sets", "write_set_object"]

_WINDOWS_BYTES: Final = 32 * 1024 * 1024  # of all objects that go, together
_WINDOW_BYTES_MIN: Final = 1024 * 1024
_ROUNDS_MAX: Final = 64


def merge_sets(context: Context, node: str, incarnation: int) -> int:
    """Merge shared objects of a node, as long as there are enough of a size. Returns how many became others.

    Raises:
        LineageError: a later incarnation of the node has written.
        OvertakenError: somebody else writes this manifest; try again.
    """
    merged = 0
    for _ in range(_ROUNDS_MAX):
        count = _merge_run(context, node, incarnation)
        if not count:
            break
        merged += count
    return merged


def _merge_run(context: Context, node: str, incarnation: int) -> int:
    with context.sets.alone(node, context.progress):
        loaded = context.sets.get(node) or newest_set(context, node)
        if loaded is None:
            return 0
        manifest = adopt(loaded.manifest, incarnation)
        bytes_max = min(context.object_bytes, OBJECT_BYTES_MAX)
        names = {each.name for each in objects_to_merge(manifest.objects, bytes_max)}
        if not names:
            return 0
        file = context.set_file(node)
        run = file.pointers(manifest, names)
        counted = CountedMembers(context, node, looks=False)
        parts = [
            Part(pointer, member, member.base, member.end)
            for pointer in run
            for member in pointer.members
            if counted.part_of(pointer, member) is not None
        ]
        added: list[SetObjectPointer] = []
        for chains in divided(chains_of(parts), bytes_max):
            size = sum(part.member.extent.size for chain in chains for part in chain)
            with context.memory.hold(size + _WINDOWS_BYTES, context.progress):
                added.append(write_set_object(context, node, manifest.sequence + len(added), run, chains))
        # Of each member that comes the sum is that of those that go. Of all together it is, too, where all come.
        collected = NO_RECORDS
        if len(parts) < sum(len(pointer.members) for pointer in run):
            gone = Setsum.total(each.setsum for each in manifest.objects if each.name in names)
            collected = gone - Setsum.total(sum_of(each) for each in added)
        try:
            context.sets.keep(node, file.commit(loaded, replace(manifest, names, added, collected=collected)))
        except BaseException:
            context.sets.drop(node)  # it may have been written
            raise
    return len(run)


def write_set_object(
    context: Context, node: str, sequence: int, run: Sequence[SetObjectPointer], chains: Sequence[list[Part]]
) -> SetObjectPointer:
    """Write an object of what others hold.

    Args:
        context: Context of the worker.
        node: Id of the node.
        sequence: Sequence of the object.
        run: The others.
        chains: Parts of one leadership of a partition that follow on one another, in the order of members.

    Raises:
        ManifestCorruptError: the records of a member do not give the sum that its footer says.
        ObjectCorruptError: a member is damaged.
    """
    nonce = context.new_id()
    name = set_object_name(sequence, nonce)
    expected_bytes = sum(part.member.extent.size for chain in chains for part in chain)
    made = context.buffers.filled(expected_bytes, lambda sink: _write(context, sink, node, nonce, run, chains))
    with made as (sink, written), sink.body() as body:
        create_once(context.store, set_object_key(node, name), body, nonce)
    members = [
        dataclasses.replace(each, epochs=_epochs_of(chain)) for each, chain in zip(written.members, chains, strict=True)
    ]
    return written.pointer(name, tuple(members))


def _write(
    context: Context,
    sink: ObjectBuffer,
    node: str,
    nonce: str,
    run: Sequence[SetObjectPointer],
    chains: Sequence[list[Part]],
) -> WrittenSet:
    keys = {each.name: set_object_key(node, each.name) for each in run}
    window_bytes = max(_WINDOW_BYTES_MIN, _WINDOWS_BYTES // len(run))
    store = ReadAheadStore(context.store, window_bytes, {keys[each.name]: each.size for each in run})
    writer = SetWriter(sink, node=node, nonce=nonce)
    for chain in chains:
        first = chain[0].member
        for place, part in enumerate(chain):
            reader = ObjectReader(store, keys[part.pointer.name], part.member.extent)
            if not place:
                range_ = (first.tier_epoch, chain[0].start, chain[-1].end)
                writer.begin(first.uuid, first.partition, *range_, record_hash=reader.record_hash)
            source = member_source(reader, part.member, part.start, part.end)
            before = writer.setsum
            for rows in source.rows:
                writer.write(rows)
            check_sum(source, writer.setsum - before)
        context.progress()
    return writer.finish()


def _epochs_of(chain: Sequence[Part]) -> tuple[tuple[int, int], ...]:
    """As the parts' members say it: a part may begin, or be, where no record is left that could tell."""
    epochs: tuple[tuple[int, int], ...] = ()
    for part in chain:
        epochs = join_epochs(epochs, cut_epochs(part.member.epochs, part.start, part.end))
    return epochs
