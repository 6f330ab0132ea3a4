"""What manifests say of the objects below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from liftpy_bucket.objects.setsum import Setsum

__all__ = ["Extent", "SetMember", "SetObject", "SetObjectPointer", "SnapshotPointer", "StreamObjectPointer"]


class Extent(NamedTuple):
    """What must be known of a Parquet file in the bucket to read it, and to know that it is the one that was written.

    Attributes:
        size: bytes of it.
        footer: position of its footer (the metadata, the length and the magic behind it).
        digest: SHA-256 of the footer, hexadecimal; the footer has those of the row groups. "": not known.
        start: where it begins in an object that several share; None where the object is this file.
    """

    size: int
    footer: int
    digest: str
    start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamObjectPointer:
    """A stream object: Parquet, one partition, sorted by offset.

    Attributes:
        name: `<base:020d>-<epoch>-<nonce>.parquet`.
        home: `<uuid>/<partition>` of the partition in whose directory it lies, where that is another one (a fork);
            otherwise "".
        base: the first offset it answers for.
        end: the offset after the last one it answers for. Not every offset between need have a record any more.
        records: how many it holds.
        size: bytes of the object.
        footer: as of an extent.
        digest: as of an extent.
        first_timestamp: of its first record, ns; of an empty one that of the record that was there.
        last_timestamp: of its last record, ns.
        setsum: of its records.
    """

    name: str
    base: int
    end: int
    records: int
    size: int
    footer: int
    digest: str
    first_timestamp: int
    last_timestamp: int
    setsum: Setsum
    home: str = ""

    @property
    def extent(self) -> Extent:
        """What must be known to read it."""
        return Extent(self.size, self.footer, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPointer:
    """An immutable list of pointers.

    Attributes:
        digest: SHA-256 of its bytes, hexadecimal; its name.
        home: as of a fragment.
        depth: 1 where it lists fragments; otherwise one more than the snapshots it lists.
        base: the first offset below it.
        end: the offset after the last one.
        records: how many are below it.
        size: bytes of all fragments below it.
        fragments: how many are below it.
        first_timestamp: of the first record below it, ns.
        last_timestamp: of the last one, ns.
        setsum: of all records below it.
    """

    digest: str
    depth: int
    base: int
    end: int
    records: int
    size: int
    fragments: int
    first_timestamp: int
    last_timestamp: int
    setsum: Setsum
    home: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMember:
    """One partition's share of a stream-set object: a Parquet file within it.

    Attributes:
        uuid: of the stream, 32 hexadecimal digits.
        partition: its number.
        tier_epoch: leader epoch of the leader that uploaded it; `resolving` says what that decides.
        base: as of a fragment.
        end: as of a fragment.
        records: how many it holds.
        extent: where it lies in the object, and what must be known to read it.
        epochs: (leader epoch, first offset of it) of its records, the first at `base` where that is known.
        first_timestamp: as of a fragment.
        last_timestamp: as of a fragment.
        setsum: of its records.
    """

    uuid: str
    partition: int
    tier_epoch: int
    base: int
    end: int
    records: int
    extent: Extent
    epochs: tuple[tuple[int, int], ...]
    first_timestamp: int
    last_timestamp: int
    setsum: Setsum


@dataclass(frozen=True, slots=True, kw_only=True)
class SetObjectPointer:
    """A stream-set object: Parquet, many partitions, sorted by (uuid, partition, offset).

    Attributes:
        name: `<sequence:020d>-<nonce>.parquet`.
        size: bytes of the object.
        footer: of the footer of all members together; as of an extent.
        digest: of that; as of an extent.
        members: whose records it holds; of those that a page has, where it was read from one; never empty.
    """

    name: str
    size: int
    footer: int
    digest: str
    members: tuple[SetMember, ...]

    @property
    def extent(self) -> Extent:
        """What must be known to read it."""
        return Extent(self.size, self.footer, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetObject:
    """A stream-set object as a set manifest lists it; its members stand in pages.

    Attributes:
        name: as of a `SetObjectPointer`.
        size: as of a `SetObjectPointer`.
        footer: as of a `SetObjectPointer`.
        digest: as of a `SetObjectPointer`.
        members: how many it has.
        records: of all members.
        first: the least slot of a member (`layout.slot_of`).
        last: the greatest one.
        setsum: of all members.
    """

    name: str
    size: int
    footer: int
    digest: str
    members: int
    records: int
    first: int
    last: int
    setsum: Setsum
