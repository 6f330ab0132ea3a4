"""Collecting the stream-set objects of a node: the one place where they are deleted.

An object goes once none of its members counts any more, for the root of its partition or for a pinned version of it:
each was moved into a stream object, or lies below the start, or was put there by a leader that had been deposed. The
order is that of `collecting`: roots, then pins, then BOUNDARY (`sets/<node>/BOUNDARY`), then a set manifest that does
not name the object any more, committed over exactly the one that was read, and only then is it deleted. So are objects
that the manifest does not name and that are older than the grace period: the commit refuses whoever was about to name
one. One process at a time collects for a node, the node or who adopted its manifest: the incarnation fences the others.

A pack of pages was made for one version of the manifest. Once that version, or a later one, stands without it, nobody
can name it any more, and it goes at once: versions only grow, and a commit goes over the version before.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.layout import PartitionPath, set_directory, set_object_key, set_pack_key, set_root_key
from liftpy_bucket.manifest import boundary
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import is_older
from liftpy_bucket.manifest.stream_sets.changes import adopt, drop, empty
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.manifest.stream_sets.format import OBJECT_NAME, PACK_NAME, sequence_of
from liftpy_bucket.reading.resolving import counts
from liftpy_bucket.upkeep.missed import check_set_never_was

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet, PageCache
    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.objects.pointers import SetMember, SetObject
    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["CollectedSets", "SetCollector"]

_ATTEMPTS: Final = 4
_KEYS_PER_DELETE: Final = 1_000


class CollectedSets(NamedTuple):
    """What a collection of a node's sets did.

    Attributes:
        loaded: The set manifest as it stands; None: the node has none.
        dropped: How many objects the manifest does not name any more.
        deleted: How many objects were deleted; packs are not counted.
    """

    loaded: LoadedSet | None
    dropped: int = 0
    deleted: int = 0


class SetCollector:
    """Deletes the stream-set objects of one node that nothing needs any more.

    Args:
        store: Where the sets are.
        node: Id of the node.
        incarnation: Incarnation of the node's process, or of the adopter's.
        new_id: Gives a new unique id.
        now_ns: The time, ns since the epoch; used as in `Collector`.
        grace_ns: How long an object may lie around without being named, ns.
        progress: Called with (objects looked at, objects to look at, the node's directory).
        pages: Keeps pages of set manifests.
    """

    def __init__(
        self,
        store: ObjectStore,
        node: str,
        incarnation: int,
        *,
        new_id: Callable[[], str],
        now_ns: Callable[[], int],
        grace_ns: int,
        progress: Callable[[int, int, str], None] | None = None,
        pages: PageCache | None = None,
    ) -> None:
        self._store = store
        self._node = node
        self._incarnation = incarnation
        self._new_id = new_id
        self._now_ns = now_ns
        self._grace_ns = grace_ns
        self._progress = progress
        self._directory = set_directory(node)
        self._set_file = SetManifestFile(store, node, new_id=new_id, pages=pages or page_cache())

    def run(self) -> CollectedSets:
        """Collect.

        Raises:
            OvertakenError: another writer was faster, several times; nothing was deleted.
            RootMissingError: the manifest is gone; what it named is not garbage.
            LineageError: a later incarnation of the node has written.
            TierError: something is in the bucket that does not make sense; nothing was deleted.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._collect()
            except OvertakenError:
                continue
        raise OvertakenError(f"{self._directory}ROOT is written so often that nothing could be collected: try later")

    def _collect(self) -> CollectedSets:
        listing = list(self._store.list(f"{self._directory}objects/"))
        packs = [entry.key for entry in self._store.list(f"{self._directory}pages/")]
        loaded = self._set_file.load()
        if loaded is None and listing:
            check_set_never_was(self._store, self._node)
        # Without a manifest there may be one all the same: older programs wrote it before their first manifest.
        manifest = adopt(loaded.manifest, self._incarnation) if loaded else empty(self._node, self._incarnation)
        released = [each.name for each in self._released(manifest)]
        orphans = self._orphans(listing, manifest)
        if not released and not orphans:
            self._delete(self._dead(packs, manifest))
            return CollectedSets(loaded)
        boundary.move(self._store, self._directory, manifest.version + 1, self._new_id)
        if released:
            change = drop(manifest, released, self._incarnation)
        else:
            change = dataclasses.replace(manifest, version=manifest.version + 1)
        committed = self._set_file.commit(loaded, change)
        # written after the listing, by the clock of the store
        store_now_ns = self._store.head(set_root_key(self._node)).modified_ns
        keys = [set_object_key(self._node, name) for name in released]
        keys += [entry.key for entry in orphans if is_older(entry, store_now_ns, self._grace_ns)]
        packs += [set_pack_key(self._node, each.name) for each in manifest.packs]
        self._delete([*keys, *self._dead(dict.fromkeys(packs), committed.manifest)])
        return CollectedSets(committed, len(released), len(keys))

    def _delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _KEYS_PER_DELETE):
            self._store.delete(keys[first : first + _KEYS_PER_DELETE])

    def _dead(self, keys: Iterable[str], manifest: SetManifest) -> list[str]:
        """Packs that no version of the manifest can name any more, the one that stands included."""
        named = {each.name for each in manifest.packs}
        directory = set_pack_key(self._node, "")
        return [
            key
            for key in keys
            if (name := key.removeprefix(directory)) not in named
            and PACK_NAME.fullmatch(name)
            and sequence_of(name) <= manifest.version
        ]

    def _orphans(self, listing: Iterable[Entry], manifest: SetManifest) -> Sequence[Entry]:
        """What the manifest does not name and looks old enough."""
        named = {set_object_key(self._node, each.name) for each in manifest.objects}
        now_ns, prefix = self._now_ns(), f"{self._directory}objects/"
        return [
            entry
            for entry in listing
            if entry.key not in named
            and OBJECT_NAME.fullmatch(entry.key.removeprefix(prefix))
            and is_older(entry, now_ns, self._grace_ns)
        ]

    def _released(self, manifest: SetManifest) -> list[SetObject]:
        """Objects of which no member counts, for no root; roots are read anew, and pins after them."""
        roots: dict[PartitionPath, Root | None] = {}
        file = self._set_file
        found = []
        for number, each in enumerate(manifest.objects):
            # most end at their first member
            if not any(self._is_wanted(member, roots) for member in file.members(manifest, each)):
                found.append(each)
            if self._progress is not None:
                self._progress(number + 1, len(manifest.objects), self._directory)
        pinned: dict[PartitionPath, list[Root]] = {}
        return [
            each
            for each in found
            if not any(self._is_pinned(member, pinned) for member in file.members(manifest, each))
        ]

    def _is_pinned(self, member: SetMember, pinned: dict[PartitionPath, list[Root]]) -> bool:
        path = _path_of(member)
        if path not in pinned:
            pinned[path] = self._pinned(path)
        return any(counts(member, self._node, root) for root in pinned[path])

    def _is_wanted(self, member: SetMember, roots: dict[PartitionPath, Root | None]) -> bool:
        """Whether the root of its partition may make use of a member; without a root nobody knows."""
        path = _path_of(member)
        if path not in roots:
            loaded = RootFile(self._store, path, new_id=self._new_id).load()
            roots[path] = loaded.root if loaded else None
        root = roots[path]
        return root is None or counts(member, self._node, root)

    def _pinned(self, path: PartitionPath) -> list[Root]:
        """Pinned versions of a partition's root; an expired one counts until the partition's collector buries it."""
        pins = load_pins(self._store, path)
        return [pin.root for pin in pins if pin.root is not None and not pin.dropped and not pin.target]


def _path_of(member: SetMember) -> PartitionPath:
    return PartitionPath(member.uuid, member.partition)
