"""Pages of a set manifest: the members of the partitions of some slots, in their order. Pure.

A page is JSON, compressed as zlib does (RFC 1950), and named by the SHA-256 of its bytes in the set manifest. Who
changes one moves lines from page to page as they stand; only who reads members makes values of them.
"""

from __future__ import annotations

import json
from math import isqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import slot_of
from liftpy_bucket.manifest.json import (
    DIGEST,
    INT64_MIN,
    NODE,
    UUID,
    Fields,
    encode_named_by_digest,
)
from liftpy_bucket.manifest.root.format import EPOCH_MAX, epochs_of
from liftpy_bucket.manifest.stream_sets.compressed import compressed, decompressed_page
from liftpy_bucket.manifest.stream_sets.format import OBJECT_NAME
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.json import Row

__all__ = ["Line", "cut", "decode_page", "encode_page", "lines_in", "lines_of"]

_PAGE_MEMBERS: Final = 512  # some 65 bytes each, compressed

_FIELDS: Final = frozenset({"node", "objects", "members"})
_OBJECT_VALUES: Final = 4
_MEMBER_VALUES: Final = 14


class Line(NamedTuple):
    """A member as it stands in a page.

    Attributes:
        slot: Slot of its partition.
        object: Name, size, footer and digest of the object that it is in.
        values: What is written of it, without the number of the object.
    """

    slot: int
    object: tuple[str, int, int, str]
    values: list[Any]


def _order(line: Line) -> tuple[int, str, int, int, str]:
    return line.slot, line.values[0], line.values[1], line.values[3], line.object[0]


def lines_of(pointer: SetObjectPointer) -> list[Line]:
    """What is to be written of an object."""
    there = (pointer.name, pointer.size, pointer.footer, pointer.digest)
    return [Line(slot_of(member.uuid, member.partition), there, _member_plain(member)) for member in pointer.members]


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
    ]


def cut(lines: Iterable[Line], members: int) -> list[list[Line]]:
    """Put lines in their order, and divide them among pages of about the same length.

    A reader fetches one page, and of all others what the root says, which is as much as a member takes. So it fetches
    least where a page has as many members as there are pages.

    Args:
        lines: Lines of pages that are neighbours.
        members: Members of all pages.
    """
    ordered = sorted(lines, key=_order)
    count = -(-len(ordered) // max(_PAGE_MEMBERS, isqrt(members)))
    pages: list[list[Line]] = []
    for line in ordered:
        if not pages or (len(pages[-1]) * count >= len(ordered) and pages[-1][-1].slot != line.slot):
            pages.append([])
        pages[-1].append(line)
    return pages


def encode_page(key: str, node: str, lines: Sequence[Line]) -> bytes:
    """The bytes of a page.

    Args:
        key: Key of the pack that it is for.
        node: Id of the node.
        lines: Lines in their order.

    Raises:
        TierError: they are more than a manifest may have.
    """
    objects = sorted({line.object for line in lines})
    numbers = {there: number for number, there in enumerate(objects)}
    plain = {
        "node": node,
        "objects": objects,
        "members": [[numbers[line.object], *line.values] for line in lines],
    }
    return compressed(encode_named_by_digest(key, plain))


def lines_in(key: str, digest: str, body: bytes) -> list[Line]:
    """The lines of a page, as they stand; what a digest vouches for is not looked at again.

    Args:
        key: Key of the pack.
        digest: Digest of the page, as the set manifest says.
        body: Bytes of the page.

    Raises:
        ManifestCorruptError: it is another page.
    """
    plain = json.loads(decompressed_page(key, digest, body))
    objects = [tuple(each) for each in plain["objects"]]
    return [Line(slot_of(row[1], row[2]), objects[row[0]], row[1:]) for row in plain["members"]]


def decode_page(
    key: str, node: str, digest: str, body: bytes, path: PartitionPath | None = None
) -> tuple[SetObjectPointer, ...]:
    """Read a page, and see that it makes sense.

    Args:
        key: Key of the pack.
        node: Id of the node that the page must be of.
        digest: Digest of the page, as the set manifest says.
        body: Bytes of the page.
        path: Path of the only partition whose members are wanted; None for all.

    Returns:
        The objects that have some, oldest first, each with those of its members.

    Raises:
        ManifestCorruptError: it does not.
        BucketVersionError: it is newer than this program.
    """
    fields = Fields.of_body(key, decompressed_page(key, digest, body), _FIELDS, is_named_by_digest=True)
    if fields.text("node", NODE) != node:
        raise ManifestCorruptError(key, "a page in it is another node's")
    objects = [_object_of(row) for row in fields.rows("objects", _OBJECT_VALUES)]
    members: list[list[SetMember]] = [[] for _ in objects]
    for row in fields.rows("members", _MEMBER_VALUES):
        if path is None or (row.text(1, UUID), row.number(2)) == path:
            members[row.number(0, most=len(objects) - 1)].append(_member_of(row))
    return tuple(
        SetObjectPointer(name=name, size=size, footer=footer, digest=digest, members=tuple(some))
        for (name, size, footer, digest), some in zip(objects, members, strict=True)
        if some
    )


def _object_of(row: Row) -> tuple[str, int, int, str]:
    size = row.number(1)
    return row.text(0, OBJECT_NAME), size, row.number(2, most=size), row.text(3, DIGEST)


def _member_of(row: Row) -> SetMember:
    base = row.number(4)
    end = row.number(5, base + 1)
    size = row.number(8)
    epochs = epochs_of(row, 11)
    if epochs and (epochs[0][1] < base or epochs[-1][1] >= end):
        raise row.bad(11, f"has epochs that begin outside of [{base}, {end})")
    return SetMember(
        uuid=row.text(1, UUID),
        partition=row.number(2),
        tier_epoch=row.number(3, most=EPOCH_MAX),
        base=base,
        end=end,
        records=row.number(6),
        extent=Extent(size, row.number(9, most=size), row.text(10, DIGEST), start=row.number(7)),
        epochs=epochs,
        first_timestamp=row.number(12, INT64_MIN),
        last_timestamp=row.number(13, INT64_MIN),
    )
