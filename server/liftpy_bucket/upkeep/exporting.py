"""What of a partition others may read without us: the objects of one version, and which part of each counts.

Spark, DuckDB or Polars read the objects as they are; rows outside of [start, end) of an object are of no account, and
so are those of others in an object that is shared. Who reads for long pins the version first
(`Pins.hold_version`) and hands the pin in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.resolving import resolve
from liftpy_bucket.reading.version import TierVersion, open_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Export", "ExportedObject", "export_list"]

_ATTEMPTS: Final = 4


class ExportedObject(NamedTuple):
    """A part of the history, or all that an object holds.

    Attributes:
        key: Key of the object.
        size: Bytes of it, or of the partition's file in it.
        is_shared: Whether it has other partitions, too; `stream` and `partition` tell its rows.
        start: The first offset that counts.
        end: The offset after the last one.
        records: How many it holds of the partition; not all of them need to count.
        is_whole: Every row of the object counts.
    """

    key: str
    size: int
    is_shared: bool
    start: int
    end: int
    records: int
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One version of a partition.

    Attributes:
        version: Version of the partition's root.
        start: The first offset.
        end: The offset after the last one.
        epochs: (leader epoch, first offset), oldest first.
        objects: Objects that hold the history, in order.
    """

    version: int
    start: int
    end: int
    epochs: tuple[tuple[int, int], ...]
    objects: tuple[ExportedObject, ...]


def export_list(store: ObjectStore, path: PartitionPath, *, pin: Pin | None = None) -> Export | None:
    """The objects of the newest version, or of a pinned one; None when the bucket has nothing of the partition.

    Args:
        store: The bucket.
        path: Path of the partition.
        pin: Pin of a version, as `Pins.hold_version` gave it.

    Raises:
        OvertakenError: the partition moved on many times while it was looked at.
        TierError: something in the bucket does not make sense.
    """
    for _ in range(_ATTEMPTS):
        version = open_version(store, path) if pin is None else _pinned(store, path, pin)
        if version is None:
            return None
        try:
            objects = tuple(_objects(version))
        except ObjectMissingError:  # a snapshot of a version that is over
            if pin is not None or _is_newest(store, path, version):
                raise
            continue
        return Export(
            version=version.root.version, start=version.start, end=version.end, epochs=version.epochs, objects=objects
        )
    raise OvertakenError(f"{path.root} moved on many times while it was looked at: pin a version, and export that")


def _objects(version: TierVersion) -> Iterator[ExportedObject]:
    for piece in version.pieces():
        pointer = piece.pointer
        is_shared = piece.extent.start is not None
        is_whole = not is_shared and (piece.start, piece.end) == (pointer.base, pointer.end)
        yield ExportedObject(piece.key, piece.size, is_shared, piece.start, piece.end, pointer.records, is_whole)


def _pinned(store: ObjectStore, path: PartitionPath, pin: Pin) -> TierVersion:
    assert pin.root is not None, "only a version can be exported"
    cache = ReadingCache(store)
    found = {claim.node: cache.set_part(claim.node, path) for claim in pin.root.claims}
    parts = {node: part for node, part in found.items() if part is not None}
    return TierVersion(store, path, pin.root, resolve(pin.root, parts), cache)


def _is_newest(store: ObjectStore, path: PartitionPath, version: TierVersion) -> bool:
    loaded = ReadingCache(store).root_file(path).load()
    return loaded is not None and loaded.root.version == version.root.version
