"""What of shared objects counts, as roots and pins say.

It is told by the roots as this process saw them last, as what does not count in an old root does not in a newer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.reading.resolving import counting
from liftpy_server.tier.jobs.parts.roots import find
from liftpy_server.tier.jobs.parts.set_merge_plan import Part

if TYPE_CHECKING:
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SetMember, SetObjectPointer
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["CountedMembers"]

_FOUND_MAX: Final = 1_024


class CountedMembers:
    """What counts of members of a node's shared objects.

    Args:
        context: Context of the worker.
        node: Id of the node.
        looks: Roots are read anew; otherwise they are taken as they were seen last.
    """

    def __init__(self, context: Context, node: str, *, looks: bool) -> None:
        self._context = context
        self._node = node
        self._looks = looks
        self._pinned: dict[PartitionPath, list[Root]] = {}
        self._found: dict[PartitionPath, Loaded | None] = {}

    def _root(self, path: PartitionPath) -> Root | None:
        """Members come by slot, so that those of a partition come together."""
        if not self._looks:
            known = self._context.roots.get(path)
            return None if known is None else known.root
        if path not in self._found:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[path] = find(self._context, path)
        found = self._found[path]
        return None if found is None else found.root

    def part_of(self, pointer: SetObjectPointer, member: SetMember) -> Part | None:
        """The part of a member that counts; all of it where there is no root, as nobody knows."""
        path = PartitionPath(member.uuid, member.partition)
        root = self._root(path)
        if root is None:
            return Part(pointer, member, member.base, member.end)
        counted = counting(member, self._node, root)
        if counted == (member.base, member.end):
            return Part(pointer, member, *counted)
        if path not in self._pinned:
            pins = load_pins(self._context.store, path)
            self._pinned[path] = [pin.root for pin in pins if pin.root and not pin.dropped and not pin.target]
        wanted = [counted, *(counting(member, self._node, root) for root in self._pinned[path])]
        there = [each for each in wanted if each is not None]
        if not there:
            return None
        return Part(pointer, member, min(start for start, _ in there), max(end for _, end in there))

    def was_deleted(self, member: SetMember) -> bool:
        """Whether some of it was: by retention, a purge, with its stream, or by key compaction, if there was any.

        Otherwise what does not count has moved into an object of its own, or was never committed.
        """
        root = self._root(PartitionPath(member.uuid, member.partition))
        return root is not None and member.base < max(root.start, root.compacted_end)
