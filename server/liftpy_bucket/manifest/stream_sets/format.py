"""The root of a node's set manifest: where it says which stream-set objects it wrote, and whose records are in them.

It is authoritative for what its members cover until a root says otherwise: `resolving` tells which of them count. One
writer at a time: the node, or who adopted the manifest of a dead one, by compare-and-swap.

Members stand in pages, by slot (`layout.slot_of`): all of a partition in one page, so that who looks for one reads the
root and one page. Objects stand in a list of their own, which readers of a partition do not need. A commit writes the
pages that it changes and the list, one after the other, as one object: a pack. See `pages` and `listing`.

The root is JSON, compressed, of which docs/internals/formats.md lists the fields. Pages are lists of values.
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
from liftpy_bucket.manifest.stream_sets.compressed import compressed, decompressed
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from liftpy_bucket.manifest.json import Row
    from liftpy_bucket.objects.pointers import SetObject, SetObjectPointer

__all__ = [
    "OBJECT_NAME",
    "PACK_NAME",
    "SEQUENCE_FIRST",
    "Pack",
    "Page",
    "SetManifest",
    "SetPart",
    "SetRoot",
    "decode_set",
    "encode_set",
]
__all__ += ["sequence_of", "size_of"]

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
class SetRoot:
    """What stands in the root of a set manifest.

    Attributes:
        node: Id of the node.
        incarnation: Incarnation of the node's process that wrote last; a lower one may not write any more.
        version: Grows by one with every commit.
        sequence: Sequence of the next object.
        packs: Packs that hold the pages and the list of objects, oldest first.
        pages: Pages by slot; without a gap, as far as there are any.
        listing: Where the list of objects stands; None where there are none.
        setsum: Setsum of all members.
        collected: Setsum of all members that were there and are not any more.
        commits: Ids of the last `root.COMMIT_IDS` commits, oldest first.
    """

    node: str
    incarnation: int
    version: int
    sequence: int
    packs: tuple[Pack, ...] = ()
    pages: tuple[Page, ...] = ()
    listing: Page | None = None
    setsum: Setsum = NO_RECORDS
    collected: Setsum = NO_RECORDS
    commits: tuple[str, ...] = ()

    def pages_of(self, first: int, last: int) -> tuple[Page, ...]:
        """The pages that answer for the slots from `first` to `last`."""
        start = bisect_right(self.pages, first, key=lambda page: page.first) - 1
        return self.pages[max(0, start) : bisect_right(self.pages, last, key=lambda page: page.first)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetManifest(SetRoot):
    """Which stream-set objects a node wrote, too.

    Attributes:
        objects: Oldest first.
        added: Objects that no page has yet, with their members; a commit writes these.
    """

    objects: tuple[SetObject, ...] = ()
    added: tuple[SetObjectPointer, ...] = ()


OBJECT_NAME: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{1,128}\.parquet")
PACK_NAME: Final = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{1,128}")
_FIELDS: Final = frozenset(
    {
        *("node", "incarnation", "version", "sequence", "packs", "pages"),
        *("listing", "setsum", "collected", "commits"),
    }
)
_SEQUENCE_DIGITS: Final = 20


def sequence_of(name: str) -> int:
    """The number that the name of a stream-set object, or of a pack, begins with: its sequence, or its version."""
    return int(name[:_SEQUENCE_DIGITS])


_ROW_BYTES: Final = 112  # of a page in the root, and of a third of an object in the list


def size_of(manifest: SetManifest) -> int:
    """Bytes of the root of a manifest or of its list of objects, decompressed, whichever has more, about."""
    return _ROW_BYTES * max(3 + len(manifest.packs) + len(manifest.pages), 3 * len(manifest.objects))


def encode_set(root: SetRoot) -> bytes:
    """The bytes of the root of a set manifest.

    Raises:
        TierError: they are more than a manifest may have.
    """
    packs = {pack.name: number for number, pack in enumerate(root.packs)}

    def plain_of(page: Page) -> list[Any]:
        return [page.first, packs[page.pack], page.start, page.size, page.digest, page.members]

    plain = {
        "node": root.node,
        "incarnation": root.incarnation,
        "version": root.version,
        "sequence": root.sequence,
        "packs": [list(pack) for pack in root.packs],
        "pages": [plain_of(page) for page in root.pages],
        "listing": None if root.listing is None else plain_of(root.listing),
        "setsum": root.setsum.hex(),
        "collected": root.collected.hex(),
        "commits": root.commits,
    }
    return compressed(encode(set_root_key(root.node), plain))


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
    return tuple(pages)


def decode_set(node: str, body: bytes) -> SetRoot:
    """Read the root of a set manifest, and see that it makes sense.

    Args:
        node: Id of the node that the manifest must be of.
        body: Bytes of the root.

    Raises:
        ManifestCorruptError: it does not.
        BucketVersionError: it is newer than this program.
    """
    key = set_root_key(node)
    fields = Fields.of_body(key, decompressed(key, body), _FIELDS)
    packs = tuple(Pack(row.text(0, PACK_NAME), row.number(1, 1)) for row in fields.rows("packs", 2))
    root = SetRoot(
        node=fields.text("node", NODE),
        incarnation=fields.number("incarnation"),
        version=fields.number("version", 1),
        sequence=fields.number("sequence"),
        packs=packs,
        pages=_pages_of(fields, packs),
        listing=None if fields.is_null("listing") else _page_of(fields.row("listing", 6), packs, 0),
        setsum=fields.setsum("setsum"),
        collected=fields.setsum("collected"),
        commits=commits_of(fields),
    )
    if root.node != node:
        raise ManifestCorruptError(key, f"it is that of node {root.node}")
    named = {page.pack for page in (*root.pages, *filter(None, [root.listing]))}
    if named != {pack.name for pack in packs} or len({*packs}) < len(packs):
        raise fields.bad("packs", "has one twice, or one without a page")
    if sum(page.members for page in root.pages) != (root.listing.members if root.listing else 0):
        raise fields.bad("pages", "do not have as many members as the list of objects")
    return root
