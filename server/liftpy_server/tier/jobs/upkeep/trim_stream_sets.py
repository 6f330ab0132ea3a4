"""Shared objects are written anew without what counts no more, so that what was deleted leaves the bucket.

One stream's records would stay otherwise as long as those of another one in the same object. What counts is told by the
roots as this process saw them last, as what does not count in an old root does not in a newer one; all roots are looked
at once in a grace period, for those that other nodes write. What a pinned version needs stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.stream_sets.changes import adopt, replace
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.reading.resolving import counting
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.roots import find, newest_set
from liftpy_server.tier.jobs.upkeep.merge_stream_sets import Part, write_set_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.objects.pointers import SetMember, SetObjectPointer
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["trim_sets"]

_FOUND_MAX: Final = 1_024
_BYTES_MAX: Final = 256 * 1024 * 1024  # of objects that are written anew in one pass


def trim_sets(context: Context, node: str, incarnation: int) -> int:
    """Write shared objects of a node anew of which something counts, and something does not. Returns how many.

    Raises:
        LineageError: a later incarnation of the node has written.
        OvertakenError: somebody else writes this manifest; try again.
    """
    with context.sets.alone(node, context.progress):
        loaded = context.sets.get(node) or newest_set(context, node)
        if loaded is None:
            return 0
        adopt(loaded.manifest, incarnation)
        roots = _Roots(context, node)
        left, trimmed = _BYTES_MAX, 0
        for pointer in _pointers(context, loaded, _partial(context, loaded, roots)):
            parts = [part for member in pointer.members if (part := roots.part_of(pointer, member)) is not None]
            whole = [(member.base, member.end) for member in pointer.members]
            if not parts or [(part.start, part.end) for part in parts] == whole:
                continue  # where nothing counts any more the collector drops it
            left -= pointer.size
            if left < 0 and trimmed:
                return trimmed
            loaded = _replaced(context, loaded, incarnation, pointer, parts)
            trimmed += 1
        roots.note_looked()
        return trimmed


def _partial(context: Context, loaded: LoadedSet, roots: _Roots) -> list[str]:
    """Names of objects of which something does not count; all members are looked at, one page at a time."""
    found: set[str] = set()
    for page in context.set_file(loaded.manifest.node).parts(loaded.manifest):
        for pointer in page.objects:
            if pointer.name not in found and not all(roots.is_whole(pointer, member) for member in pointer.members):
                found.add(pointer.name)
        context.progress()
    return [each.name for each in loaded.manifest.objects if each.name in found]


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
    before, after = (Setsum.total(member.setsum for member in each.members) for each in (pointer, added))
    changed = replace(manifest, [pointer.name], [added], collected=before - after)
    try:
        committed = context.set_file(manifest.node).commit(loaded, changed)
    except BaseException:
        context.sets.drop(manifest.node)  # it may have been written
        raise
    return context.sets.keep(manifest.node, committed)


class _Roots:
    """What roots and pins say of members."""

    def __init__(self, context: Context, node: str) -> None:
        self._context = context
        self._node = node
        self._pinned: dict[PartitionPath, list[Root]] = {}
        self._found: dict[PartitionPath, Loaded | None] = {}
        self._now_ns = context.now_ns()
        self._looks = self._now_ns - context.sets_looked_ns.get(node, 0) >= context.grace_ns

    def note_looked(self) -> None:
        """All members were asked for: the roots are not read again for a grace period."""
        if self._looks:
            self._context.sets_looked_ns[self._node] = self._now_ns

    def _find(self, path: PartitionPath) -> Loaded | None:
        """Members come by slot, so that those of a partition come together."""
        if path not in self._found:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[path] = find(self._context, path)
        return self._found[path]

    def is_whole(self, pointer: SetObjectPointer, member: SetMember) -> bool:
        """Whether all of a member counts."""
        part = self.part_of(pointer, member)
        return part is not None and (part.start, part.end) == (member.base, member.end)

    def part_of(self, pointer: SetObjectPointer, member: SetMember) -> Part | None:
        """The part of a member that counts; all of it where there is no root, as nobody knows."""
        context, path = self._context, PartitionPath(member.uuid, member.partition)
        loaded = self._find(path) if self._looks else context.roots.get(path)
        if loaded is None:
            return Part(pointer, member, member.base, member.end)
        counted = counting(member, self._node, loaded.root)
        if counted == (member.base, member.end):
            return Part(pointer, member, *counted)
        if path not in self._pinned:
            pins = load_pins(context.store, path)
            self._pinned[path] = [pin.root for pin in pins if pin.root and not pin.dropped and not pin.target]
        wanted = [counted, *(counting(member, self._node, root) for root in self._pinned[path])]
        there = [each for each in wanted if each is not None]
        if not there:
            return None
        return Part(pointer, member, min(start for start, _ in there), max(end for _, end in there))
