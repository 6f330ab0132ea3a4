"""The root of a partition: the one object that says what the bucket holds of it.

ROOT.end begins at the partition's first offset and only grows: a commit appends a fragment that begins exactly there.
What lies between two fragments' ranges does not exist. sum(children) + collected never changes but by what is appended.

The set manifests of nodes may hold what follows ROOT.end, in stream-set objects: that of the node whose claim covers
the range, see `Claim`. A leader claims the root with its epoch before it tiers anything, and by that ends the claim
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from liftpy_bucket.objects.pointers import FragmentPointer, SnapshotPointer

__all__ = ["COMMIT_IDS", "Claim", "Root"]

COMMIT_IDS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A leader's right to tier a partition from an offset on, until the next claim begins.

    Attributes:
        epoch: its leader epoch.
        node: its node id, whose set manifest may hold ranges of this partition.
        start: the first offset that it tiers; what was tiered into sets by earlier claims ends here at the latest.
    """

    epoch: int
    node: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """See the module.

    Attributes:
        uuid: of the stream, 32 hexadecimal digits.
        partition: its number.
        version: grows by one with every commit.
        start: the first offset that is still wanted: retention and purges moved it here.
        end: the offset after the last one below this root.
        snapshots: older pointers, oldest first.
        fragments: the newest pointers, oldest first; they follow on the snapshots.
        setsum: of all that is below.
        collected: of all that was there and is not any more.
        epochs: (leader epoch, first offset), oldest first, up to `end`.
        claims: those that are needed to read sets from `end` on, oldest first; the last one is in force.
        sealed: it takes no further append.
        gone_below: tombstones below this offset may be gone.
        compacted_end: key compaction has looked at everything below this offset.
        commits: ids of the last COMMIT_IDS commits, oldest first.
    """

    uuid: str
    partition: int
    version: int
    start: int
    end: int
    snapshots: tuple[SnapshotPointer, ...] = ()
    fragments: tuple[FragmentPointer, ...] = ()
    setsum: Setsum = NO_RECORDS
    collected: Setsum = NO_RECORDS
    epochs: tuple[tuple[int, int], ...] = ()
    claims: tuple[Claim, ...] = ()
    sealed: bool = False
    gone_below: int = 0
    compacted_end: int = 0
    commits: tuple[str, ...] = ()
