"""Merging of shared objects: rounds of quiet partitions become fewer, larger objects, and the manifest stays short.

Members of one partition that follow on one another, of one leadership, become one; others keep beside each other, in
objects of their own. So of a partition that has had many leaders there may come as many objects as go: these are left
alone until merging halves their number. Nothing is dropped, and the sums of what goes and of what comes are compared
before anything is named. Of every object that goes one window is in memory at a time, besides the object that comes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from liftpy_bucket.layout import set_object_key
from liftpy_bucket.manifest.lineage import cut_epochs, join_epochs
from liftpy_bucket.manifest.stream_sets.changes import adopt, replace
from liftpy_bucket.objects.merging import member_source
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.write_stream_set import SetWriter
from liftpy_bucket.store.conditional import create_once
from liftpy_server.tier.jobs.parts.merge_plan import runs_to_merge
from liftpy_server.tier.jobs.parts.object_buffer import ObjectBuffer
from liftpy_server.tier.jobs.parts.read_ahead_store import ReadAheadStore
from liftpy_server.tier.jobs.parts.roots import newest_set
from liftpy_server.tier.jobs.uploads.upload_stream_set import set_object_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.objects.pointers import SetMember, SetObjectPointer
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["Part", "merge_sets", "write_set_object"]

_WINDOWS_BYTES: Final = 32 * 1024 * 1024  # of all objects that go, together
_WINDOW_BYTES_MIN: Final = 1024 * 1024
_OBJECT_BYTES_MAX: Final = 64 * 1024 * 1024
_ROUNDS_MAX: Final = 8
_FEWER: Final = 2  # so many objects become one, or more


class Part(NamedTuple):
    """The rows [start, end) of a member, and where they are."""

    pointer: SetObjectPointer
    member: SetMember
    start: int
    end: int


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
        bytes_max = min(context.object_bytes, _OBJECT_BYTES_MAX)
        file = context.set_file(node)
        run, layers = _chosen(file, manifest, bytes_max)
        if not run:
            return 0
        size = sum(each.size for each in run)
        with context.memory.hold(size + _WINDOWS_BYTES, context.progress):
            added = [
                write_set_object(context, node, manifest.sequence + number, run, parts)
                for number, parts in enumerate(layers)
            ]
        try:
            changed = replace(manifest, [each.name for each in run], added)
            context.sets.keep(node, file.commit(loaded, changed))
        except BaseException:
            context.sets.drop(node)  # it may have been written
            raise
    return len(run)


def _chosen(
    file: SetManifestFile, manifest: SetManifest, bytes_max: int
) -> tuple[Sequence[SetObjectPointer], list[list[list[Part]]]]:
    """Objects that are worth merging, and what each of the new ones holds; nothing where there are none."""
    for places in runs_to_merge([each.size for each in manifest.objects], bytes_max):
        run = file.pointers(manifest, {manifest.objects[place].name for place in places})
        layers = list(_layers(run))
        if len(run) >= _FEWER * len(layers):
            return run, layers
    return (), []


def _layers(run: Sequence[SetObjectPointer]) -> Iterator[list[list[Part]]]:
    """What each new object holds: of every partition at most one chain of members that follow on one another."""
    parts: dict[tuple[str, int], list[Part]] = {}
    for pointer in run:
        for member in pointer.members:
            parts.setdefault((member.uuid, member.partition), []).append(Part(pointer, member, member.base, member.end))
    chains = {owner: _chains(of_owner) for owner, of_owner in sorted(parts.items())}
    for layer in range(max(map(len, chains.values()))):
        yield [of_owner[layer] for of_owner in chains.values() if layer < len(of_owner)]


def _chains(parts: Sequence[Part]) -> list[list[Part]]:
    chains: list[list[Part]] = []
    for part in sorted(parts, key=lambda each: (each.member.tier_epoch, each.member.base)):
        last = chains[-1][-1].member if chains else None
        if last is not None and (last.tier_epoch, last.end) == (part.member.tier_epoch, part.member.base):
            chains[-1].append(part)
        else:
            chains.append([part])
    return chains


def write_set_object(
    context: Context, node: str, sequence: int, run: Sequence[SetObjectPointer], chains: Sequence[list[Part]]
) -> SetObjectPointer:
    """Write an object of what others hold.

    Args:
        context: Context of the worker.
        node: Id of the node.
        sequence: Sequence of the object.
        run: The others.
        chains: Parts of each partition of one leadership that follow on one another, by uuid and number.
    """
    keys = {each.name: set_object_key(node, each.name) for each in run}
    window_bytes = max(_WINDOW_BYTES_MIN, _WINDOWS_BYTES // len(run))
    store = ReadAheadStore(context.store, window_bytes, {keys[each.name]: each.size for each in run})
    nonce = context.new_id()
    name = set_object_name(sequence, nonce)
    with ObjectBuffer(sum(each.size for each in run)) as sink:
        writer = SetWriter(sink, node=node, nonce=nonce)
        for chain in chains:
            first = chain[0].member
            writer.begin(first.uuid, first.partition, first.tier_epoch, chain[0].start, chain[-1].end)
            for part in chain:
                reader = ObjectReader(store, keys[part.pointer.name], part.member.extent)
                source = member_source(reader, part.member, part.start, part.end)
                for rows in source.rows:
                    writer.write(rows)
            context.progress()
        written = writer.finish()
        pa.default_memory_pool().release_unused()
        with sink.body() as body:
            create_once(context.store, set_object_key(node, name), body, nonce)
    members = [
        dataclasses.replace(each, epochs=_epochs_of(chain)) for each, chain in zip(written.members, chains, strict=True)
    ]
    return written.pointer(name, tuple(members))


def _epochs_of(chain: Sequence[Part]) -> tuple[tuple[int, int], ...]:
    """As the parts' members say it: a part may begin, or be, where no record is left that could tell."""
    epochs: tuple[tuple[int, int], ...] = ()
    for part in chain:
        epochs = join_epochs(epochs, cut_epochs(part.member.epochs, part.start, part.end))
    return epochs
