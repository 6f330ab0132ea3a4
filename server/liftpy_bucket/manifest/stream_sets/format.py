"""The set manifest of a node: which stream-set objects it wrote, and where it says whose records are in them.

It is authoritative for what its members cover until a root says otherwise: `resolving` tells which of them count. One
writer at a time: the node, or who adopted the manifest of a dead one, by compare-and-swap.

Its members stand in pages, by slot (`layout.slot_of`): all of a partition in one page, so that who looks for one reads
one page. A commit writes the pages that it changes, one after the other, as one object: a pack. See `pages`.

It is JSON, of which docs/internals/formats.md lists the fields. Objects and pages are lists of values.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import SLOTS, set_root_key
from liftpy_bucket.manifest.json import DIGEST, MANIFEST_BYTES_MAX, NODE, Fields, encode
from liftpy_bucket.manifest.root.format import commits_of
from liftpy_bucket.objects.pointers import SetObject
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from liftpy_bucket.manifest.json import Row
    from liftpy_bucket.objects.pointers import SetObjectPointer

__all__ = [
    "OBJECT_NAME",
    "PACK_NAME",
    "SEQUENCE_FIRST",
    "Pack",
    "Page",
    "SetManifest",
    "SetPart",
    "decode_set",
    "encode_set",
]
__all__ += ["sequence_of"]

SEQUENCE_FIRST: Final = 1
"""Of the first object of a node. 0 was that of objects that were written before the node had a manifest."""


class Pack(NamedTuple):
    """An object that holds pages, one after the other.

    Attributes:
        name: `<version:020d>-<nonce>`.
        size: Bytes of it.
    """

    name: str
    size: int


class Page(NamedTuple):
    """Where a page stands.

    Attributes:
        first: The first slot that it answers for, up to that of the next page.
        pack: Name of the pack that it is in.
        start: Where it begins there.
        size: Bytes of it.
        digest: SHA-256 of them, hexadecimal.
        members: How many it has.
    """

    first: int
    pack: str
    start: int
    size: int
    digest: str
    members: int


class SetPart(NamedTuple):
    """What a set manifest says of some partitions.

    Attributes:
        node: Id of the node.
        objects: Oldest first, each with those members that are of these partitions.
    """

    node: str
    objects: tuple[SetObjectPointer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetManifest:
    """Which stream-set objects a node wrote.

    Attributes:
        node: Id of the node.
        incarnation: Incarnation of the node's process that wrote last; a lower one may not write any more.
        version: Grows by one with every commit.
        sequence: Sequence of the next object.
        objects: Oldest first.
        packs: Packs that hold the pages, oldest first.
        pages: Pages by slot; without a gap, as far as there are any.
        setsum: Setsum of all members.
        collected: Setsum of all members that were there and are not any more.
        commits: Ids of the last `root.COMMIT_IDS` commits, oldest first.
        added: Objects that no page has yet, with their members; a commit writes these.
    """

    node: str
    incarnation: int
    version: int
    sequence: int
    objects: tuple[SetObject, ...] = ()
    packs: tuple[Pack, ...] = ()
    pages: tuple[Page, ...] = ()
    setsum: Setsum = NO_RECORDS
    collected: Setsum = NO_RECORDS
    commits: tuple[str, ...] = ()
    added: tuple[SetObjectPointer, ...] = ()

    def pages_of(self, first: int, last: int) -> tuple[Page, ...]:
        """The pages that answer for the slots from `first` to `last`."""
        start = bisect_right(self.pages, first, key=lambda page: page.first) - 1
        return self.pages[max(0, start) : bisect_right(self.pages, last, key=lambda page: page.first)]


OBJECT_NAME: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{1,128}\.parquet")
PACK_NAME: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{1,128}")
_FIELDS: Final = frozenset(
    {
        *("node", "incarnation", "version", "sequence", "objects", "packs", "pages"),
        *("setsum", "collected", "commits"),
    }
)
_SEQUENCE_DIGITS: Final = 20


def sequence_of(name: str) -> int:
    """The number that the name of a stream-set object, or of a pack, begins with: its sequence, or its version."""
    return int(name[:_SEQUENCE_DIGITS])


def _object_plain(each: SetObject) -> list[Any]:
    sums = each.setsum.hex()
    return [*(each.name, each.size, each.footer, each.digest, each.members, each.records, each.first, each.last, sums)]


def encode_set(manifest: SetManifest) -> bytes:
    """The bytes of a set manifest.

    Raises:
        TierError: they are more than a manifest may have.
    """
    packs = {pack.name: number for number, pack in enumerate(manifest.packs)}
    plain = {
        "node": manifest.node,
        "incarnation": manifest.incarnation,
        "version": manifest.version,
        "sequence": manifest.sequence,
        "objects": [_object_plain(each) for each in manifest.objects],
        "packs": [list(pack) for pack in manifest.packs],
        "pages": [
            [page.first, packs[page.pack], page.start, page.size, page.digest, page.members] for page in manifest.pages
        ],
        "setsum": manifest.setsum.hex(),
        "collected": manifest.collected.hex(),
        "commits": manifest.commits,
    }
    return encode(set_root_key(manifest.node), plain)


def _object_of(row: Row) -> SetObject:
    size = row.number(1)
    first = row.number(6, most=SLOTS - 1)
    return SetObject(
        name=row.text(0, OBJECT_NAME),
        size=size,
        footer=row.number(2, most=size),
        digest=row.text(3, DIGEST),
        members=row.number(4, 1),
        records=row.number(5),
        first=first,
        last=row.number(7, first, SLOTS - 1),
        setsum=row.setsum(8),
    )


def _page_of(row: Row, packs: tuple[Pack, ...], first: int) -> Page:
    pack = packs[row.number(1, most=len(packs) - 1)]
    start = row.number(2, most=pack.size)
    return Page(
        first=row.number(0, first, SLOTS - 1 if first else 0),
        pack=pack.name,
        start=start,
        size=row.number(3, 1, min(pack.size - start, MANIFEST_BYTES_MAX)),
        digest=row.text(4, DIGEST),
        members=row.number(5),
    )


def _pages_of(fields: Fields, packs: tuple[Pack, ...]) -> tuple[Page, ...]:
    pages: list[Page] = []
    for row in fields.rows("pages", 6):
        pages.append(_page_of(row, packs, pages[-1].first + 1 if pages else 0))
    if {page.pack for page in pages} != {pack.name for pack in packs} or len({*packs}) < len(packs):
        raise fields.bad("packs", "has one twice, or one without a page")
    return tuple(pages)


def decode_set(node: str, body: bytes) -> SetManifest:
    """Read a set manifest, and see that it makes sense.

    Args:
        node: Id of the node that the manifest must be of.
        body: Bytes of the manifest.

    Raises:
        ManifestCorruptError: it does not, or its sum does not balance.
        BucketVersionError: it is newer than this program.
    """
    key = set_root_key(node)
    fields = Fields.of_body(key, body, _FIELDS)
    packs = tuple(Pack(row.text(0, PACK_NAME), row.number(1, 1)) for row in fields.rows("packs", 2))
    manifest = SetManifest(
        node=fields.text("node", NODE),
        incarnation=fields.number("incarnation"),
        version=fields.number("version", 1),
        sequence=fields.number("sequence"),
        objects=tuple(_object_of(row) for row in fields.rows("objects", 9)),
        packs=packs,
        pages=_pages_of(fields, packs),
        setsum=fields.setsum("setsum"),
        collected=fields.setsum("collected"),
        commits=commits_of(fields),
    )
    if manifest.node != node:
        raise ManifestCorruptError(key, f"it is that of node {manifest.node}")
    sequences = [sequence_of(each.name) for each in manifest.objects]
    if len({*sequences}) < len(sequences) or any(sequence >= manifest.sequence for sequence in sequences):
        raise fields.bad("objects", "has a sequence twice, or one that is not given out yet")
    if sum(each.members for each in manifest.objects) != sum(page.members for page in manifest.pages):
        raise fields.bad("pages", "do not have as many members as the objects")
    total = Setsum.total(each.setsum for each in manifest.objects)
    if total != manifest.setsum:
        raise fields.bad("setsum", f"is {manifest.setsum.hex()}, but that of its objects is {total.hex()}")
    return manifest
