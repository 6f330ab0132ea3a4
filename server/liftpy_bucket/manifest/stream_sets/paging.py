"""Writing pages of a set manifest: those whose members come or go are made anew, all others stay where they are.

Neighbours that are made anew are divided afresh, so that pages neither grow beyond a bound nor stay nearly empty. Of
old packs ever fewer pages are needed; once most of all their bytes are not, a commit takes along what is left of the
emptiest one, so that all packs together stay within a few times the bytes of the pages.
"""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.layout import set_pack_key, set_root_key
from liftpy_bucket.manifest.stream_sets.format import Pack, Page
from liftpy_bucket.manifest.stream_sets.listing import encode_listing
from liftpy_bucket.manifest.stream_sets.pages import Line, cut, encode_page, lines_in, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.objects.pointers import SetObject

    Fetch = Callable[[Sequence[Page]], Mapping[str, bytes]]

__all__ = ["Paged", "paged"]

_SLACK: Final = 4
_SLACK_BYTES: Final = 1024 * 1024


class Paged(NamedTuple):
    """What a commit writes.

    Attributes:
        manifest: Manifest with its pages.
        name: Name of the pack with those that are new.
        body: Bytes of the pack; empty where no page is new.
        pages: The bytes of each new page, and of the list of objects, by digest.
    """

    manifest: SetManifest
    name: str
    body: bytes
    pages: Mapping[str, bytes]


def paged(before: Sequence[SetObject], manifest: SetManifest, nonce: str, fetch: Fetch) -> Paged:
    """Bring the pages of a changed manifest up to date.

    Args:
        before: What was named by the manifest that was read, of which the pages still are.
        manifest: Made from it.
        nonce: Nonce of the commit, which no other attempt has.
        fetch: Gives the bytes of pages, by digest.

    Raises:
        StoreError, ManifestCorruptError: a page can not be read.
    """
    there = {each.name for each in manifest.objects}
    gone = {each.name: each for each in before if each.name not in there}
    pack = _NewPack(manifest, nonce)
    old = manifest.pages or (Page(0, "", 0, 0, "", 0),)
    pages = _pages(manifest, old, _changed(manifest, old, gone, fetch), pack, fetch)
    listing = manifest.listing
    if manifest.objects != tuple(before) or pack.bodies:
        listing = None
        if manifest.objects:
            members = sum(page.members for page in pages)
            listing = pack.put(0, encode_listing(pack.key, manifest.node, manifest.objects), members)
    sizes = {each.name: each.size for each in manifest.packs} | {pack.name: pack.size}
    used = {page.pack for page in (*pages, *filter(None, [listing]))}
    packs = tuple(Pack(name, size) for name, size in sizes.items() if name in used)
    changed = dataclasses.replace(manifest, packs=packs, pages=tuple(pages), listing=listing, added=())
    return Paged(changed, pack.name, b"".join(pack.bodies), pack.by_digest)


class _NewPack:
    """The pack of a commit, as far as it has come."""

    def __init__(self, manifest: SetManifest, nonce: str) -> None:
        self.name = f"{manifest.version:020d}-{nonce}"
        self.key = set_pack_key(manifest.node, self.name)
        self.size = 0
        self.bodies: list[bytes] = []
        self.by_digest: dict[str, bytes] = {}

    def put(self, first: int, body: bytes, members: int) -> Page:
        page = Page(first, self.name, self.size, len(body), sha256(body).hexdigest(), members)
        self.bodies.append(body)
        self.by_digest[page.digest] = body
        self.size += len(body)
        return page


def _pages(
    manifest: SetManifest, old: Sequence[Page], changed: Mapping[int, list[Line]], pack: _NewPack, fetch: Fetch
) -> list[Page]:
    carried = _carried(manifest, changed, fetch)
    members = sum(each.members for each in manifest.objects)
    pages: list[Page] = []
    place = 0
    while place < len(old):
        if place not in changed:
            page = old[place]
            if page.digest in carried:
                pages.append(pack.put(page.first, carried[page.digest], page.members))
            elif page.digest:
                pages.append(page)
            place += 1
            continue
        first, lines = old[place].first, list[Line]()
        while place in changed:
            lines += changed[place]
            place += 1
        for number, some in enumerate(cut(lines, members)):
            body = encode_page(pack.key, manifest.node, some)
            pages.append(pack.put(some[0].slot if number else first, body, len(some)))
    if pages:  # what is answered for by the first page may have been empty, and is gone
        pages[0] = pages[0]._replace(first=0)
    return pages


def _changed(
    manifest: SetManifest, old: Sequence[Page], gone: Mapping[str, SetObject], fetch: Fetch
) -> dict[int, list[Line]]:
    """The lines of the pages that change, by place."""
    added: dict[int, list[Line]] = {}
    for pointer in manifest.added:
        for line in lines_of(pointer):
            added.setdefault(_place_of(old, line.slot), []).append(line)
    looked: set[int] = set(added)
    for each in gone.values():
        looked.update(range(_place_of(old, each.first), _place_of(old, each.last) + 1))
    bodies = fetch([old[place] for place in sorted(looked) if old[place].digest])
    changed: dict[int, list[Line]] = {}
    removed = 0
    for place in looked:
        page = old[place]
        lines = (
            lines_in(set_pack_key(manifest.node, page.pack), page.digest, bodies[page.digest]) if page.digest else []
        )
        left = [line for line in lines if line.object[0] not in gone]
        removed += len(lines) - len(left)
        if place in added or len(left) < len(lines):
            changed[place] = left + added.get(place, [])
    if removed != sum(each.members for each in gone.values()):
        raise ManifestCorruptError(
            set_root_key(manifest.node), f"its pages do not have as many members as it says of {sorted(gone)}"
        )
    return changed


def _place_of(pages: Sequence[Page], slot: int) -> int:
    low, high = 0, len(pages)
    while high - low > 1:
        middle = (low + high) // 2
        if pages[middle].first <= slot:
            low = middle
        else:
            high = middle
    return low


def _carried(manifest: SetManifest, changed: Mapping[int, object], fetch: Fetch) -> Mapping[str, bytes]:
    """Pages that are to be written once more, so that the pack that they are in is needed no longer."""
    left = [page for place, page in enumerate(manifest.pages) if place not in changed]
    live: dict[str, int] = {}
    for page in left:
        live[page.pack] = live.get(page.pack, 0) + page.size
    sizes = {pack.name: pack.size for pack in manifest.packs if pack.name in live}
    if not changed or sum(sizes.values()) <= _SLACK * sum(page.size for page in manifest.pages) + _SLACK_BYTES:
        return {}
    emptiest = max(sizes, key=lambda name: sizes[name] - live[name])
    return fetch([page for page in left if page.pack == emptiest])
