"""The root of a partition: the one object that says what the bucket holds of it.

ROOT.end begins at the partition's first offset and only grows: a commit appends a fragment that begins exactly there.
What lies between two fragments' ranges does not exist. sum(children) + collected never changes but by what is appended.

The set manifests of nodes may hold what follows ROOT.end, in stream-set objects: that of the node whose claim covers
the range, see `Claim`. A leader claims the root with its epoch before it tiers anything, and by that ends the claim
before.

It is JSON, of which docs/internals/formats.md lists the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.json import ID, NODE, UUID, Fields, encode
from liftpy_bucket.manifest.pointer_format import (
    check_order,
    fragment_plain,
    fragments_of,
    snapshot_plain,
    snapshots_of,
)
from liftpy_bucket.manifest.root.producers import producers_of
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from liftpy_bucket.manifest.json import Row
    from liftpy_bucket.manifest.root.producers import HighestBatch
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer

__all__ = [
    "COMMIT_IDS",
    "EPOCH_MAX",
    "FORMATS",
    "Claim",
    "Root",
    "commits_of",
    "decode_root",
    "encode_root",
    "epochs_of",
]

COMMIT_IDS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A leader's right to tier a partition from an offset on, until the next claim begins.

    Attributes:
        epoch: Leader epoch of the claim.
        node: Id of the node whose set manifest may hold ranges of this partition.
        start: The first offset that it tiers; what was tiered into sets by earlier claims ends here at the latest.
    """

    epoch: int
    node: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What the bucket holds of a partition.

    Attributes:
        uuid: UUID of the stream, 32 hexadecimal digits.
        partition: Number of the partition.
        record_hash: Hash of a record in the sums, which stays the same as long as there is the partition.
        version: Grows by one with every commit.
        start: The first offset that is still wanted: retention and purges moved it here.
        end: The offset after the last one below this root.
        snapshots: Older pointers, oldest first.
        fragments: The newest pointers, oldest first; they follow on the snapshots.
        setsum: Setsum of all that is below.
        collected: Setsum of all that was there and is not any more.
        epochs: (leader epoch, first offset), oldest first, up to `end`.
        claims: Those that are needed to read sets from `end` on, oldest first; the last one is in force.
        sealed: Whether it takes no further append.
        delete_horizon: Tombstones below this offset may be gone.
        compacted_end: Key compaction has looked at everything below this offset.
        commits: Ids of the last COMMIT_IDS commits, oldest first.
        producers: Highest batch below `end` of each ordered producer, ascending by offset.
    """

    uuid: str
    partition: int
    version: int
    start: int
    end: int
    snapshots: tuple[SnapshotPointer, ...] = ()
    fragments: tuple[StreamObjectPointer, ...] = ()
    setsum: Setsum = NO_RECORDS
    collected: Setsum = NO_RECORDS
    epochs: tuple[tuple[int, int], ...] = ()
    claims: tuple[Claim, ...] = ()
    record_hash: RecordHash = RecordHash.BLAKE2B
    sealed: bool = False
    delete_horizon: int = 0
    compacted_end: int = 0
    commits: tuple[str, ...] = ()
    producers: tuple[HighestBatch, ...] = ()


FORMATS: Final = {RecordHash.BLAKE2B: 3, RecordHash.XXH3: 4}
"""Format of a root, by its hash: a program that does not know the hash says that it is too old."""

_HASHES: Final = {(FORMATS[each], str(each)): each for each in RecordHash}
EPOCH_MAX: Final = 2**31 - 1
_FIELDS: Final = frozenset(
    {
        *("hash", "uuid", "partition", "version", "start", "end", "snapshots", "fragments", "setsum", "collected"),
        *("epochs", "claims", "sealed", "gone_below", "compacted_end", "commits"),
    }
)


def encode_root(root: Root) -> bytes:
    """The bytes of a root.

    Raises:
        TierError: they are more than a manifest may have.
    """
    plain = {
        "hash": root.record_hash,
        "uuid": root.uuid,
        "partition": root.partition,
        "version": root.version,
        "start": root.start,
        "end": root.end,
        "snapshots": [snapshot_plain(each) for each in root.snapshots],
        "fragments": [fragment_plain(each) for each in root.fragments],
        "setsum": root.setsum.hex(),
        "collected": root.collected.hex(),
        "epochs": root.epochs,
        "claims": [[claim.epoch, claim.node, claim.start] for claim in root.claims],
        "sealed": root.sealed,
        "gone_below": root.delete_horizon,
        "compacted_end": root.compacted_end,
        "commits": root.commits,
    }
    if root.producers:
        plain["producers"] = root.producers
    return encode(PartitionPath(root.uuid, root.partition).root, plain, FORMATS[root.record_hash])


def decode_root(path: PartitionPath, body: bytes) -> Root:
    """Read a root, and see that it makes sense.

    Args:
        path: Path of the partition that it must be of.
        body: Bytes of the object.

    Raises:
        ManifestCorruptError: it does not, or its sum does not balance.
        BucketVersionError: it is newer than this program.
    """
    key = path.root
    fields = Fields.of_body(key, body, _FIELDS, optional=("producers",), newest=max(FORMATS.values()))
    end = fields.number("end")
    root = Root(
        uuid=fields.text("uuid", UUID),
        partition=fields.number("partition"),
        record_hash=_hash_of(fields),
        version=fields.number("version", 1),
        start=fields.number("start", most=end),
        end=end,
        snapshots=snapshots_of(fields, "snapshots"),
        fragments=fragments_of(fields, "fragments"),
        setsum=fields.setsum("setsum"),
        collected=fields.setsum("collected"),
        epochs=epochs_of(fields, "epochs"),
        claims=_claims_of(fields),
        sealed=fields.flag("sealed"),
        delete_horizon=fields.number("gone_below"),
        compacted_end=fields.number("compacted_end", most=end),
        commits=commits_of(fields),
        producers=producers_of(fields, end),
    )
    if (root.uuid, root.partition) != path:
        raise ManifestCorruptError(key, f"uuid and partition are those of {root.uuid}/{root.partition}")
    if root.epochs and root.epochs[-1][1] >= end:
        raise fields.bad("epochs", f"begin one behind the end, {end}")
    children: tuple[StreamObjectPointer | SnapshotPointer, ...] = (*root.snapshots, *root.fragments)
    check_order(key, children, end)
    total = Setsum.total(each.setsum for each in children)
    if total != root.setsum:
        raise fields.bad("setsum", f"is {root.setsum.hex()}, but that of what it names is {total.hex()}")
    return root


def epochs_of(fields: Row, at: int | str) -> tuple[tuple[int, int], ...]:
    """Read (leader epoch, first offset), both of which must grow."""
    epochs = tuple((row.number(0, most=EPOCH_MAX), row.number(1)) for row in fields.rows(at, 2))
    if any(later[0] <= earlier[0] or later[1] <= earlier[1] for earlier, later in pairwise(epochs)):
        raise fields.bad(at, "does not grow from row to row")
    return epochs


def commits_of(fields: Fields) -> tuple[str, ...]:
    """Read the ids of the last commits."""
    commits = fields.texts("commits", ID)
    if len(commits) > COMMIT_IDS:
        raise fields.bad("commits", f"has more than {COMMIT_IDS} ids")
    return commits


def _hash_of(fields: Fields) -> RecordHash:
    name = fields.text("hash", NODE)
    found = _HASHES.get((fields.number("format"), name))
    if found is None:
        raise fields.bad("hash", f"is {name}, which is none of a root of its format")
    return found


def _claims_of(fields: Fields) -> tuple[Claim, ...]:
    claims = tuple(
        Claim(epoch=row.number(0, most=EPOCH_MAX), node=row.text(1, NODE), start=row.number(2))
        for row in fields.rows("claims", 3)
    )
    if not claims:
        raise fields.bad("claims", "has none")
    if any(later.epoch <= earlier.epoch or later.start <= earlier.start for earlier, later in pairwise(claims)):
        raise fields.bad("claims", "does not grow from row to row")
    return claims
