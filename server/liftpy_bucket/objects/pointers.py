"""What manifests say of the objects below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from liftpy_bucket.layout import slot_of

if TYPE_CHECKING:
    from liftpy_bucket.objects.setsum import Setsum

__all__ = ["Extent", "SetMember", "SetObject", "SetObjectPointer", "SnapshotPointer", "StreamObjectPointer"]
__all__ += ["member_order"]


class Extent(NamedTuple):
    """What must be known of a Parquet file in the bucket to read it, and to know that it is the one that was written.

    Attributes:
        size: Bytes of it.
        footer: Position of its footer (the metadata, the length and the magic behind it).
        digest: SHA-256 of the footer, hexadecimal; the footer has those of the row groups. "": not known.
        start: Where it begins in an object that several share; None where the object is this file.
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
        base: The first offset it answers for.
        end: The offset after the last one it answers for. Not every offset between need have a record any more.
        records: How many it holds.
        size: Bytes of the object.
        footer: Where the footer begins, as in `Extent`.
        digest: Digest of the footer, as in `Extent`.
        first_timestamp: Time of the first record, ns; of an empty object, that of the record that was there.
        last_timestamp: Time of the last record, ns.
        setsum: Setsum of its records.
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
        home: Home, as of a stream object.
        depth: 1 where it lists fragments; otherwise one more than the snapshots it lists.
        base: The first offset below it.
        end: The offset after the last one.
        records: How many are below it.
        size: Bytes of all fragments below it.
        fragments: How many are below it.
        first_timestamp: Time of the first record below it, ns.
        last_timestamp: Time of the last record below it, ns.
        setsum: Setsum of all records below it.
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
        uuid: UUID of the stream, 32 hexadecimal digits.
        partition: Number of the partition.
        tier_epoch: Leader epoch of the leader that uploaded it; `resolving` says what that decides.
        base: First offset, as of a stream object.
        end: Offset after the last one, as of a stream object.
        records: How many it holds.
        extent: Where it lies in the object, and what must be known to read it.
        epochs: (leader epoch, first offset of it) of its records, the first at `base` where that is known.
        first_timestamp: Time of the first record, as of a stream object.
        last_timestamp: Time of the last record, as of a stream object.
        setsum: Setsum of its records; None where the member was read from a page, and only its footer says it.
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
    setsum: Setsum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetObjectPointer:
    """A stream-set object: Parquet, many partitions, sorted by `member_order`.

    Attributes:
        name: `<sequence:020d>-<nonce>.parquet`.
        size: Bytes of the object.
        footer: Where the footer of all members together begins, as in `Extent`.
        digest: Digest of that footer, as in `Extent`.
        members: Members whose records the object holds: those that a page has, where the pointer was read from a page;
            never empty.
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
        name: Name, as in `SetObjectPointer`.
        size: Size, as in `SetObjectPointer`.
        footer: Where the footer begins, as in `SetObjectPointer`.
        digest: Digest of the footer, as in `SetObjectPointer`.
        members: How many it has.
        records: Number of records of all members.
        first: The least slot of a member (`layout.slot_of`).
        last: The greatest one.
        setsum: Setsum of all members.
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


class _Placed(Protocol):
    @property
    def uuid(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def tier_epoch(self) -> int: ...
    @property
    def base(self) -> int: ...


def member_order(member: _Placed) -> tuple[int, str, int, int, int]:
    """How members stand in an object: by slot, as in pages, so that a range of slots is a range of bytes.

    Returns:
        (slot, uuid, partition, leader epoch, first offset)
    """
    return slot_of(member.uuid, member.partition), member.uuid, member.partition, member.tier_epoch, member.base
