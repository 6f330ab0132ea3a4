"""The set manifest of a node in the store: read, paged and swapped.

A commit writes a pack with the pages that it changes, and then the root over the one that was read. A crash between
leaves a pack that nobody names; its name is new at every attempt. Who has read a manifest may find that a pack is gone
which a newer one does not name: it is to be read again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import ManifestCorruptError, ObjectMissingError, OvertakenError
from liftpy_bucket.layout import SLOTS, set_pack_key, set_root_key, slot_of
from liftpy_bucket.lru import LruCache
from liftpy_bucket.manifest.root.format import COMMIT_IDS
from liftpy_bucket.manifest.stream_sets.changes import adopt
from liftpy_bucket.manifest.stream_sets.format import SetPart, decode_set, encode_set, size_of
from liftpy_bucket.manifest.stream_sets.listing import decode_listing, whole
from liftpy_bucket.manifest.stream_sets.pages import decode_page
from liftpy_bucket.manifest.stream_sets.paging import paged
from liftpy_bucket.objects.pointers import SetObjectPointer, member_order
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.swapping import swap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.stream_sets.format import Page, SetManifest, SetRoot
    from liftpy_bucket.objects.pointers import SetMember, SetObject
    from liftpy_bucket.store.object_store import ObjectStore, Stored

__all__ = ["LoadedRoot", "LoadedSet", "PageCache", "SetManifestFile", "page_cache"]

PageCache = LruCache[str, bytes]
_FETCHED_BYTES_MAX: Final = 8 * 1024 * 1024  # of pages that are neighbours, with one request
_CACHED_BYTES_MAX: Final = 16 * 1024 * 1024
_LOOKS_MAX: Final = 5


def page_cache(bytes_max: int = _CACHED_BYTES_MAX) -> PageCache:
    """Pages that were read or written, by digest, as they stand in the store."""
    return LruCache(bytes_max, len)


class LoadedRoot(NamedTuple):
    """The root of a set manifest as it stands in the store: all that a reader of partitions needs.

    Attributes:
        root: Root of the set manifest.
        etag: ETag that names this version of it.
    """

    root: SetRoot
    etag: str


class LoadedSet(NamedTuple):
    """A set manifest as it stands in the store.

    Attributes:
        manifest: Set manifest.
        etag: ETag that names this version of it.
        size: Bytes of its root or of its list of objects, decompressed, whichever has more: of the `MANIFEST_BYTES_MAX`
            that each may have, about.
    """

    manifest: SetManifest
    etag: str
    size: int


class SetManifestFile:
    """The set manifest of one node, in a store. May be used from several threads.

    Args:
        store: Object store that has the manifest.
        node: Id of the node.
        new_id: Gives ids of commits: each call another one, never given before by anybody.
        pages: Keeps pages; by default none are kept.
    """

    def __init__(
        self, store: ObjectStore, node: str, *, new_id: Callable[[], str], pages: PageCache | None = None
    ) -> None:
        self._store = store
        self.node = node
        self._new_id = new_id
        self._pages = page_cache(0) if pages is None else pages

    def load_root(self, known: LoadedRoot | None = None) -> LoadedRoot | None:
        """The root of the manifest, or None where there is none.

        Args:
            known: What was loaded before: it is returned while it is still the one.

        Raises:
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
        """
        key = set_root_key(self.node)
        try:
            stored = self._store.get(key) if known is None else self._store.get_newer(key, known.etag)
        except ObjectMissingError:
            return None
        return known if stored is None else LoadedRoot(decode_set(self.node, stored.body), stored.head.etag)

    def load(self) -> LoadedSet | None:
        """The manifest, or None where there is none.

        Raises:
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
            OvertakenError: it was another one at every look.
        """
        try:
            return self._whole(self._store.get(set_root_key(self.node)))
        except ObjectMissingError:
            return None

    def load_newer(self, loaded: LoadedSet) -> LoadedSet | None:
        """The manifest, or None while it is still the one that was loaded; errors as of `load`.

        Raises:
            ObjectMissingError: there is none any more.
        """
        stored = self._store.get_newer(set_root_key(self.node), loaded.etag)
        return None if stored is None else self._whole(stored)

    def _whole(self, stored: Stored) -> LoadedSet:
        for _ in range(_LOOKS_MAX):
            root = decode_set(self.node, stored.body)
            try:
                manifest = self.manifest_of(root)
            except OvertakenError:
                stored = self._store.get(set_root_key(self.node))
                continue
            return LoadedSet(manifest, stored.head.etag, size_of(manifest))
        raise OvertakenError(f"{set_root_key(self.node)} was written {_LOOKS_MAX} times while it was read")

    def manifest_of(self, root: SetRoot) -> SetManifest:
        """The manifest that has a root: the list of objects is read; errors as of `part`."""
        if root.listing is None:
            return whole(root, ())
        key = set_pack_key(self.node, root.listing.pack)
        body = self._bodies([root.listing])[root.listing.digest]
        return whole(root, decode_listing(key, self.node, root.listing.digest, body))

    def part(self, manifest: SetRoot, path: PartitionPath) -> SetPart:
        """What the manifest says of a partition: one page is read.

        Raises:
            OvertakenError: the page is gone, as the manifest is another one by now: read that.
            ManifestCorruptError: it makes no sense, or is gone all the same.
        """
        slot = slot_of(*path)
        return next(self._parts(manifest.pages_of(slot, slot), path), SetPart(self.node, ()))

    def parts(self, manifest: SetRoot, first: int = 0, last: int = SLOTS - 1) -> Iterator[SetPart]:
        """What the manifest says, one page at a time; errors as of `part`.

        Args:
            manifest: Manifest of the node.
            first: The first slot that is wanted.
            last: The last one.
        """
        return self._parts(manifest.pages_of(first, last))

    def _parts(self, pages: Sequence[Page], path: PartitionPath | None = None) -> Iterator[SetPart]:
        for some in _side_by_side(pages):
            bodies = self._bodies(some)
            for page in some:
                key = set_pack_key(self.node, page.pack)
                yield SetPart(self.node, decode_page(key, self.node, page.digest, bodies[page.digest], path))

    def members(self, manifest: SetManifest, listed: SetObject) -> Iterator[SetMember]:
        """The members of an object, by slot; errors as of `part`."""
        pages = manifest.pages_of(listed.first, listed.last)
        for some in (pages[:1], pages[1:]):  # who looks for one member often finds it in the first page
            for part in self._parts(some):
                for pointer in part.objects:
                    if pointer.name == listed.name:
                        yield from pointer.members

    def pointers(self, manifest: SetManifest, names: Collection[str] | None = None) -> list[SetObjectPointer]:
        """Objects with all their members, in the order of members, oldest object first; errors as of `part`.

        Args:
            manifest: Manifest of the node.
            names: Names of the objects; None for all.
        """
        listed = [each for each in manifest.objects if names is None or each.name in names]
        found: dict[str, list[SetMember]] = {each.name: [] for each in listed}
        if listed:
            first, last = min(each.first for each in listed), max(each.last for each in listed)
            for part in self.parts(manifest, first, last):
                for pointer in part.objects:
                    if pointer.name in found:
                        found[pointer.name] += pointer.members
        return [_pointer_of(self.node, each, found[each.name]) for each in listed]

    def commit(self, loaded: LoadedSet | None, manifest: SetManifest) -> LoadedSet:
        """Write a manifest that was made from `loaded` (`changes`).

        Args:
            loaded: What was read before; None where there was none.
            manifest: Made from it.

        Returns:
            What stands now: it holds the change, and perhaps what another writer committed since.

        Raises:
            LineageError: a later incarnation of the node has written, and nothing came of the change.
            OvertakenError: another writer was first, and nothing came of the change.
            OutcomeUnknownError: it can not be told; `load` again before anything else.
        """
        assert manifest.version == (loaded.manifest.version if loaded else 0) + 1, "the change is of another manifest"
        if loaded:
            adopt(loaded.manifest, manifest.incarnation)
        commit_id = self._new_id()
        manifest = dataclasses.replace(manifest, commits=(*manifest.commits, commit_id)[-COMMIT_IDS:])
        made = paged(loaded.manifest.objects if loaded else (), manifest, commit_id, self._bodies)
        manifest = made.manifest
        body = encode_set(manifest)
        whole(decode_set(self.node, body), manifest.objects)  # whatever is refused when read must not be written
        if made.body:
            create_once(self._store, set_pack_key(self.node, made.name), made.body, commit_id)
        try:
            etag, standing = swap(
                self._store,
                set_root_key(self.node),
                body,
                etag=loaded.etag if loaded else None,
                nonce=commit_id,
                is_ours=lambda stored: commit_id in decode_set(self.node, stored.body).commits,
            )
        except OvertakenError:
            if (newer := self.load()) is not None:
                adopt(newer.manifest, manifest.incarnation)
            raise
        for digest, page in made.pages.items():
            self._pages.put(digest, page)
        if standing is body:
            return LoadedSet(manifest, etag, size_of(manifest))
        newest = self.load()
        if newest is None:
            raise ObjectMissingError(set_root_key(self.node))
        return newest

    def _bodies(self, pages: Sequence[Page]) -> dict[str, bytes]:
        """The bytes of pages, by digest; of those that are not kept neighbours are fetched together."""
        kept = {page.digest: self._pages.get(page.digest) for page in pages}
        found = {digest: body for digest, body in kept.items() if body is not None}
        for some in _side_by_side([page for page in pages if page.digest not in found]):
            start, end = some[0].start, some[-1].start + some[-1].size
            body = self._range(some[0].pack, start, end - start)
            for page in some:
                found[page.digest] = body[page.start - start : page.start - start + page.size]
                self._pages.put(page.digest, found[page.digest])
        return found

    def _range(self, pack: str, start: int, length: int) -> bytes:
        key = set_pack_key(self.node, pack)
        try:
            return self._store.get_range(key, start, length)
        except ObjectMissingError as error:
            newer = self.load()
            if newer is None or any(each.name == pack for each in newer.manifest.packs):
                raise ManifestCorruptError(
                    key, "it is gone, and the set manifest names it: whose records are in shared objects stood there"
                ) from error
            raise OvertakenError(
                f"{set_root_key(self.node)} was written meanwhile, and {key} is gone: it is read again"
            ) from error


def _side_by_side(pages: Sequence[Page]) -> Iterator[list[Page]]:
    """Pages that follow on one another in a pack, up to some MiB."""
    some: list[Page] = []
    size = 0
    for page in pages:
        follows = some and (some[-1].pack, some[-1].start + some[-1].size) == (page.pack, page.start)
        if some and (not follows or size + page.size > _FETCHED_BYTES_MAX):
            yield some
            some, size = [], 0
        some.append(page)
        size += page.size
    if some:
        yield some


def _pointer_of(node: str, listed: SetObject, members: list[SetMember]) -> SetObjectPointer:
    if len(members) != listed.members:
        raise ManifestCorruptError(
            set_root_key(node), f"{listed.name} has {listed.members} members, and the pages have {len(members)} of them"
        )
    members.sort(key=member_order)
    return SetObjectPointer(
        name=listed.name, size=listed.size, footer=listed.footer, digest=listed.digest, members=tuple(members)
    )
