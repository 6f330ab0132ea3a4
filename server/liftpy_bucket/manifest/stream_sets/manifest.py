"""The set manifest of a node: which stream-set objects it wrote, and whose records are in them.

It is authoritative for what its members cover until a root says otherwise: `resolving` tells which of them count. One
writer at a time: the node, or who adopted the manifest of a dead one, by compare-and-swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from liftpy_bucket.objects.pointers import SetObjectPointer

__all__ = ["SEQUENCE_FIRST", "SetManifest"]

SEQUENCE_FIRST: Final = 1
"""Of the first object of a node. 0 was that of objects that were written before the node had a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetManifest:
    """See the module.

    Attributes:
        node: whose.
        incarnation: of the node's process that wrote last; a lower one may not write any more.
        version: grows by one with every commit.
        sequence: of the next object.
        objects: oldest first.
        setsum: of all members.
        collected: of all members that were there and are not any more.
        commits: ids of the last `root.COMMIT_IDS` commits, oldest first.
    """

    node: str
    incarnation: int
    version: int
    sequence: int
    objects: tuple[SetObjectPointer, ...] = ()
    setsum: Setsum = NO_RECORDS
    collected: Setsum = NO_RECORDS
    commits: tuple[str, ...] = ()
