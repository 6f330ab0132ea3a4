"""The JSON of a root; docs/formats.md lists its fields."""

from __future__ import annotations

import re
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
from liftpy_bucket.manifest.root.root import COMMIT_IDS, Claim, Root
from liftpy_bucket.objects.setsum import Setsum

if TYPE_CHECKING:
    from liftpy_bucket.manifest.json import Row
    from liftpy_bucket.objects.pointers import FragmentPointer, SnapshotPointer

__all__ = ["EPOCH_MAX", "HASH", "commits_of", "decode_root", "encode_root", "epochs_of"]

HASH: Final = "blake2b-256"
_HASH: Final = re.compile(re.escape(HASH))
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
        "hash": HASH,
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
        "gone_below": root.gone_below,
        "compacted_end": root.compacted_end,
        "commits": root.commits,
    }
    return encode(PartitionPath(root.uuid, root.partition).root, plain)


def decode_root(path: PartitionPath, body: bytes) -> Root:
    """Read a root, and see that it makes sense.

    Args:
        path: of the partition that it must be of.
        body: its bytes.

    Raises:
        ManifestCorruptError: it does not, or its sum does not balance.
        BucketVersionError: it is newer than this program.
    """
    key = path.root
    fields = Fields.of_body(key, body, _FIELDS)
    fields.text("hash", _HASH)
    end = fields.number("end")
    root = Root(
        uuid=fields.text("uuid", UUID),
        partition=fields.number("partition"),
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
        gone_below=fields.number("gone_below"),
        compacted_end=fields.number("compacted_end", most=end),
        commits=commits_of(fields),
    )
    if (root.uuid, root.partition) != path:
        raise ManifestCorruptError(key, f"uuid and partition are those of {root.uuid}/{root.partition}")
    if root.epochs and root.epochs[-1][1] >= end:
        raise fields.bad("epochs", f"begin one behind the end, {end}")
    children: tuple[FragmentPointer | SnapshotPointer, ...] = (*root.snapshots, *root.fragments)
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
