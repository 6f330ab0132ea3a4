"""Immutable lists of pointers, named by the SHA-256 of their bytes.

The bytes hold the nonce of the commit that wrote them, so that no two attempts ever write the same name: what a
collector found to be an orphan stays one. Pointers in a snapshot are relative to the partition in whose directory it
lies; `homed` makes them absolute where that is another one than the root's (a fork).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.json import ID, INT64_MAX, PUT_BACK, UUID, Fields, encode_named_by_digest
from liftpy_bucket.manifest.pointer_format import (
    check_order,
    fragment_plain,
    fragments_of,
    snapshot_plain,
    snapshots_of,
)
from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
from liftpy_bucket.objects.setsum import Setsum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.layout import PartitionPath

__all__ = ["Snapshot", "decode_snapshot", "homed", "make_snapshot"]

_Pointer = TypeVar("_Pointer", StreamObjectPointer, SnapshotPointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An immutable list of pointers.

    Attributes:
        pointer: Pointer to the snapshot.
        children: What it lists, oldest first: fragments where its depth is 1, otherwise snapshots of lower depth.
        body: Bytes of the object.
    """

    pointer: SnapshotPointer
    children: tuple[StreamObjectPointer, ...] | tuple[SnapshotPointer, ...]
    body: bytes

    @property
    def fragments(self) -> tuple[StreamObjectPointer, ...]:
        """The fragments that it lists, with the home that they have for the root that names it; () above depth 1."""
        return tuple(homed(each, self.pointer.home) for each in self.children if isinstance(each, StreamObjectPointer))

    @property
    def snapshots(self) -> tuple[SnapshotPointer, ...]:
        """The snapshots that it lists, with the home that they have for the root that names it; () at depth 1."""
        return tuple(homed(each, self.pointer.home) for each in self.children if isinstance(each, SnapshotPointer))


def homed(pointer: _Pointer, home: str) -> _Pointer:
    """A pointer from a manifest that lies in `home`, as seen from where that is not at home."""
    return replace(pointer, home=home) if home and not pointer.home else pointer


def make_snapshot(
    path: PartitionPath, children: Sequence[StreamObjectPointer] | Sequence[SnapshotPointer], nonce: str
) -> Snapshot:
    """A snapshot of pointers.

    Args:
        path: Path of the partition in whose directory it will lie.
        children: All fragments or all snapshots, oldest first; at least one.
        nonce: Nonce of the commit.
    """
    fragments = [each for each in children if isinstance(each, StreamObjectPointer)]
    snapshots = [each for each in children if isinstance(each, SnapshotPointer)]
    assert bool(fragments) != bool(snapshots), "a snapshot lists fragments or snapshots"
    plain = {
        "nonce": nonce,
        "uuid": path.uuid,
        "partition": path.partition,
        "fragments": [fragment_plain(each) for each in fragments],
        "snapshots": [snapshot_plain(each) for each in snapshots],
    }
    body = encode_named_by_digest(f"{path.directory}snapshots/", plain)
    pointer = SnapshotPointer(
        digest=sha256(body).hexdigest(),
        depth=1 + max((each.depth for each in snapshots), default=0),
        base=children[0].base,
        end=children[-1].end,
        records=sum(each.records for each in children),
        size=sum(each.size for each in children),
        fragments=len(fragments) + sum(each.fragments for each in snapshots),
        first_timestamp=children[0].first_timestamp,
        last_timestamp=children[-1].last_timestamp,
        setsum=Setsum.total(each.setsum for each in children),
    )
    return Snapshot(pointer=pointer, children=tuple(fragments) or tuple(snapshots), body=body)


def decode_snapshot(path: PartitionPath, pointer: SnapshotPointer, body: bytes) -> Snapshot:
    """Read a snapshot, and see that it is what the pointer says.

    Args:
        path: Path of the partition in whose directory it lies.
        pointer: Pointer to the snapshot.
        body: Bytes of the object.

    Raises:
        ManifestCorruptError: it is not.
        BucketVersionError: it is newer than this program.
    """
    key = path.snapshot(pointer.digest)
    if (found := sha256(body).hexdigest()) != pointer.digest:
        raise ManifestCorruptError(key, f"its name is not the SHA-256 of its bytes, {found}. {PUT_BACK}")
    names = ("nonce", "uuid", "partition", "fragments", "snapshots")
    fields = Fields.of_body(key, body, names, is_named_by_digest=True)
    nonce = fields.text("nonce", ID)
    if (fields.text("uuid", UUID), fields.number("partition")) != path:
        raise ManifestCorruptError(key, "uuid and partition are those of another partition")
    fragments = fragments_of(fields, "fragments")
    snapshots = snapshots_of(fields, "snapshots")
    if bool(fragments) == bool(snapshots):
        raise ManifestCorruptError(key, "it does not list either fragments or snapshots")
    children = fragments or snapshots
    check_order(key, children, INT64_MAX)
    read = replace(make_snapshot(path, children, nonce).pointer, home=pointer.home)
    if read != pointer:
        raise ManifestCorruptError(key, f"what it lists is {read}, not {pointer} as the manifest above it says")
    return Snapshot(pointer=pointer, children=children, body=body)
