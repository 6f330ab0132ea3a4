"""Shared objects are written anew without what counts no more, so that what was deleted leaves the bucket.

One stream's records would stay otherwise as long as those of another one in the same object. All roots are looked at
once in a grace period, for those that other nodes write. What a pinned version needs stays. What only moved into an
object of its own is in nobody's way: merging leaves it out, and an object is written anew once a quarter of it has.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from liftpy_bucket.manifest.stream_sets.changes import adopt, replace, sum_of
from liftpy_server.tier.jobs.parts.counted_members import CountedMembers
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.roots import newest_set
from liftpy_server.tier.jobs.parts.set_merge_plan import has_moved
from liftpy_server.tier.jobs.upkeep.merge_stream_sets import write_set_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.objects.pointers import SetObjectPointer
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.jobs.parts.set_merge_plan import Part

__all__ = ["trim_sets"]

_BYTES_MAX: Final = 256 * 1024 * 1024  # of objects that are written anew in one pass


def trim_sets(context: Context, node: str, incarnation: int) -> int:
    """Write shared objects of a node anew that hold what was deleted, or much that has moved. Returns how many.

    Raises:
        LineageError: a later incarnation of the node has written.
        OvertakenError: somebody else writes this manifest; try again.
    """
    with context.sets.alone(node, context.progress):
        loaded = context.sets.get(node) or newest_set(context, node)
        if loaded is None:
            return 0
        adopt(loaded.manifest, incarnation)
        began_ns = context.now_ns()
        looks = began_ns - context.sets_looked_ns.get(node, 0) >= context.grace_ns
        counted = CountedMembers(context, node, looks=looks)
        left, trimmed = _BYTES_MAX, 0
        for pointer in _pointers(context, loaded, _to_trim(context, loaded, counted)):
            parts = [part for member in pointer.members if (part := counted.part_of(pointer, member)) is not None]
            whole = [(member.base, member.end) for member in pointer.members]
            if not parts or [(part.start, part.end) for part in parts] == whole:
                continue  # where nothing counts any more the collector drops it
            left -= pointer.size
            if left < 0 and trimmed:
                return trimmed
            loaded = _replaced(context, loaded, incarnation, pointer, parts)
            trimmed += 1
        if looks:
            context.sets_looked_ns[node] = began_ns
        return trimmed


def _to_trim(context: Context, loaded: LoadedSet, counted: CountedMembers) -> list[str]:
    """Names of objects to be written anew; all members are looked at, one page at a time."""
    deleted: set[str] = set()
    moved: Counter[str] = Counter()
    for page in context.set_file(loaded.manifest.node).parts(loaded.manifest):
        for pointer in page.objects:
            for member in pointer.members:
                part = counted.part_of(pointer, member)
                if part is not None and (part.start, part.end) == (member.base, member.end):
                    continue
                if counted.was_deleted(member):
                    deleted.add(pointer.name)
                moved[pointer.name] += member.extent.size
        context.progress()
    return [
        each.name for each in loaded.manifest.objects if each.name in deleted or has_moved(moved[each.name], each.size)
    ]


def _pointers(context: Context, loaded: LoadedSet, names: Sequence[str]) -> Iterator[SetObjectPointer]:
    """Those objects, one at a time: pages are of the manifest as it was, which this process alone writes."""
    for name in names:
        yield from context.set_file(loaded.manifest.node).pointers(loaded.manifest, [name])


def _replaced(
    context: Context, loaded: LoadedSet, incarnation: int, pointer: SetObjectPointer, parts: Sequence[Part]
) -> LoadedSet:
    manifest = adopt(loaded.manifest, incarnation)
    with context.memory.hold(pointer.size + WORK_BYTES, context.progress):
        chains = [[part] for part in parts]
        added = write_set_object(context, manifest.node, manifest.sequence, [pointer], chains)
    before = next(each.setsum for each in manifest.objects if each.name == pointer.name)
    changed = replace(manifest, [pointer.name], [added], collected=before - sum_of(added))
    try:
        committed = context.set_file(manifest.node).commit(loaded, changed)
    except BaseException:
        context.sets.drop(manifest.node)  # it may have been written
        raise
    return context.sets.keep(manifest.node, committed)
