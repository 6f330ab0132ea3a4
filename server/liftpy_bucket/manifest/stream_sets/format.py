"""The set manifest of a node: which stream-set objects it wrote, and whose records are in them.

It is authoritative for what its members cover until a root says otherwise: `resolving` tells which of them count. One
writer at a time: the node, or who adopted the manifest of a dead one, by compare-and-swap.

It is JSON, of which docs/internals/formats.md lists the fields. Members are lists of values, not objects: a node with
a thousand quiet partitions writes a thousand of them in every round.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import set_root_key
from liftpy_bucket.manifest.json import DIGEST, INT64_MIN, NODE, UUID, Fields, encode
from liftpy_bucket.manifest.root.format import EPOCH_MAX, commits_of, epochs_of
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from liftpy_bucket.manifest.json import Row

__all__ = ["SEQUENCE_FIRST", "SetManifest", "decode_set", "encode_set", "sequence_of"]

SEQUENCE_FIRST: Final = 1
"""Of the first object of a node. 0 was that of objects that were written before the node had a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetManifest:
    """Which stream-set objects a node wrote.

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


_NAME: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{1,128}\.parquet")
_FIELDS: Final = frozenset({"node", "incarnation", "version", "sequence", "objects", "setsum", "collected", "commits"})
_OBJECT: Final = frozenset({"name", "size", "footer", "digest", "members"})
_SEQUENCE_DIGITS: Final = 20
_MEMBER_VALUES: Final = 14


def sequence_of(name: str) -> int:
    """The sequence in the name of a stream-set object."""
    return int(name[:_SEQUENCE_DIGITS])


def _member_plain(member: SetMember) -> list[Any]:
    return [
        member.uuid,
        member.partition,
        member.tier_epoch,
        member.base,
        member.end,
        member.records,
        member.extent.start,
        member.extent.size,
        member.extent.footer,
        member.extent.digest,
        member.epochs,
        member.first_timestamp,
        member.last_timestamp,
        member.setsum.hex(),
    ]


def encode_set(manifest: SetManifest) -> bytes:
    """The bytes of a set manifest.

    Raises:
        TierError: they are more than a manifest may have.
    """
    plain = {
        "node": manifest.node,
        "incarnation": manifest.incarnation,
        "version": manifest.version,
        "sequence": manifest.sequence,
        "objects": [
            {
                "name": each.name,
                "size": each.size,
                "footer": each.footer,
                "digest": each.digest,
                "members": [_member_plain(member) for member in each.members],
            }
            for each in manifest.objects
        ],
        "setsum": manifest.setsum.hex(),
        "collected": manifest.collected.hex(),
        "commits": manifest.commits,
    }
    return encode(set_root_key(manifest.node), plain)


def _member_of(row: Row) -> SetMember:
    base = row.number(3)
    end = row.number(4, base + 1)
    size = row.number(7)
    epochs = epochs_of(row, 10)
    if epochs and (epochs[0][1] < base or epochs[-1][1] >= end):
        raise row.bad(10, f"has epochs that begin outside of [{base}, {end})")
    return SetMember(
        uuid=row.text(0, UUID),
        partition=row.number(1),
        tier_epoch=row.number(2, most=EPOCH_MAX),
        base=base,
        end=end,
        records=row.number(5),
        extent=Extent(size, row.number(8, most=size), row.text(9, DIGEST), start=row.number(6)),
        epochs=epochs,
        first_timestamp=row.number(11, INT64_MIN),
        last_timestamp=row.number(12, INT64_MIN),
        setsum=row.setsum(13),
    )


def _object_of(fields: Fields) -> SetObjectPointer:
    size = fields.number("size")
    members = tuple(_member_of(row) for row in fields.rows("members", _MEMBER_VALUES))
    if not members:
        raise fields.bad("members", "has none")
    return SetObjectPointer(
        name=fields.text("name", _NAME),
        size=size,
        footer=fields.number("footer", most=size),
        digest=fields.text("digest", DIGEST),
        members=members,
    )


def decode_set(node: str, body: bytes) -> SetManifest:
    """Read a set manifest, and see that it makes sense.

    Args:
        node: whose it must be.
        body: its bytes.

    Raises:
        ManifestCorruptError: it does not, or its sum does not balance.
        BucketVersionError: it is newer than this program.
    """
    key = set_root_key(node)
    fields = Fields.of_body(key, body, _FIELDS)
    manifest = SetManifest(
        node=fields.text("node", NODE),
        incarnation=fields.number("incarnation"),
        version=fields.number("version", 1),
        sequence=fields.number("sequence"),
        objects=tuple(_object_of(each) for each in fields.objects("objects", _OBJECT)),
        setsum=fields.setsum("setsum"),
        collected=fields.setsum("collected"),
        commits=commits_of(fields),
    )
    if manifest.node != node:
        raise ManifestCorruptError(key, f"it is that of node {manifest.node}")
    sequences = [sequence_of(each.name) for each in manifest.objects]
    if len({*sequences}) < len(sequences) or any(sequence >= manifest.sequence for sequence in sequences):
        raise fields.bad("objects", "has a sequence twice, or one that is not given out yet")
    total = Setsum.total(member.setsum for each in manifest.objects for member in each.members)
    if total != manifest.setsum:
        raise fields.bad("setsum", f"is {manifest.setsum.hex()}, but that of its members is {total.hex()}")
    return manifest
