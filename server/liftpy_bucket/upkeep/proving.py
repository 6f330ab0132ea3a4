"""Proving that the history of a partition is the one that somebody vouched for with the SHA-256 of its root.

The root names snapshots by their digests, and objects by those of their footers, which have those of the row groups. So
every record below the root is the one that was there when the digest was taken, whoever could write into the bucket
since. What follows on the root in shared objects is below no root, and is not proven.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.root.format import decode_root
from liftpy_bucket.reading.version import TierVersion
from liftpy_bucket.upkeep.scrubbing import scrub_piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Proof", "prove"]


class Proof(NamedTuple):
    """Result of a proof: which history was read, and that it is the one vouched for.

    Attributes:
        digest: SHA-256 of the root, hexadecimal.
        start: The first offset.
        end: The offset after the last one.
        objects: How many were read.
        records: How many they hold.
        size: Size of the objects in bytes.
    """

    digest: str
    start: int
    end: int
    objects: int
    records: int
    size: int


def prove(
    store: ObjectStore, path: PartitionPath, digest: str, progress: Callable[[int, int], None] | None = None
) -> Proof:
    """Read all that a root names, and compare every digest on the way.

    Args:
        store: Where it is.
        path: Path of the partition.
        digest: SHA-256 of its root, hexadecimal.
        progress: Called with (records read, records that the root names).

    Raises:
        ManifestCorruptError: the root, or a snapshot, is another one.
        ObjectCorruptError: an object is not what was written.
        ObjectMissingError: something is not there.
        StoreError, BucketVersionError: something can not be read.
    """
    body = store.get(path.root).body
    if (found := sha256(body).hexdigest()) != digest:
        raise ManifestCorruptError(
            path.root, f"its SHA-256 is {found}, not {digest}: it was written since, or by somebody else"
        )
    root = decode_root(path, body)
    version = TierVersion(store, path, root, None)
    children: tuple[SnapshotPointer | StreamObjectPointer, ...] = (*root.snapshots, *root.fragments)
    total = sum(each.records for each in children)
    objects = records = size = 0
    for piece in version.pieces():
        scrub_piece(store, version, piece)
        objects, records, size = objects + 1, records + piece.pointer.records, size + piece.size
        if progress is not None:
            progress(records, total)
    return Proof(digest, version.start, version.end, objects, records, size)
