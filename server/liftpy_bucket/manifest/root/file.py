"""The root of a partition in the store: read, walked and swapped.

A commit writes the snapshots that the new root names, then swaps the root over the one that was read. A crash between
leaves snapshots that nobody names. The names of snapshots and the id of the commit are new at every attempt.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.manifest.root.folding import SNAPSHOT_FRAGMENTS_MAX, roll_up, stamp
from liftpy_bucket.manifest.root.format import COMMIT_IDS, Root, decode_root, encode_root
from liftpy_bucket.manifest.root.snapshot import Snapshot, decode_snapshot
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.swapping import swap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.changes import Change
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.store.object_store import ObjectStore, Stored

__all__ = ["Loaded", "RootFile"]

_POINTERS_KEPT: Final = 2 * SNAPSHOT_FRAGMENTS_MAX
"""How many pointers of snapshots are kept; what a writer rolls up next is less than that."""
_Pointer = TypeVar("_Pointer", "StreamObjectPointer", "SnapshotPointer")


class Loaded(NamedTuple):
    """A root as it stands in the store.

    Attributes:
        root: The root.
        etag: ETag that names this version of it.
    """

    root: Root
    etag: str


class RootFile:
    """The root of one partition, in a store. May be used from several threads.

    Args:
        store: Object store.
        path: Path of the partition.
        new_id: Gives ids of commits: each call another one, never given before by anybody.
    """

    def __init__(self, store: ObjectStore, path: PartitionPath, *, new_id: Callable[[], str]) -> None:
        self._store = store
        self.path = path
        self._new_id = new_id
        self._kept: dict[SnapshotPointer, Snapshot] = {}
        self._lock = threading.Lock()

    def load(self) -> Loaded | None:
        """The root, or None where there is none.

        Raises:
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
        """
        try:
            return self._loaded(self._store.get(self.path.root))
        except ObjectMissingError:
            return None

    def load_newer(self, loaded: Loaded) -> Loaded | None:
        """The root, or None while it is still the one that was loaded.

        Raises:
            ObjectMissingError: there is none any more.
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
        """
        stored = self._store.get_newer(self.path.root, loaded.etag)
        return None if stored is None else self._loaded(stored)

    def _loaded(self, stored: Stored) -> Loaded:
        return Loaded(decode_root(self.path, stored.body), stored.head.etag)

    def commit(self, loaded: Loaded | None, change: Change) -> Loaded:
        """Make a change that was made from `loaded` the state of the partition.

        Args:
            loaded: What was read before; None where there was no root.
            change: Made from it.

        Returns:
            The root that stands now: it holds the change, and perhaps what another writer committed since.

        Raises:
            OvertakenError: another writer was first, and nothing came of the change.
            OutcomeUnknownError: it can not be told; `load` again before anything else.
        """
        assert change.root.version == (loaded.root.version if loaded else 0) + 1, "the change is of another root"
        commit_id = self._new_id()
        root, drafts = roll_up(change.root, change.snapshots, self.snapshot)
        root, snapshots = stamp(root, drafts, commit_id)
        root = replace(root, commits=(*root.commits, commit_id)[-COMMIT_IDS:])
        body = encode_root(root)
        decode_root(self.path, body)  # whatever is refused when it is read must not be written
        for snapshot in snapshots:
            create_once(self._store, self.path.snapshot(snapshot.pointer.digest), snapshot.body, commit_id)
        etag, standing = swap(
            self._store,
            self.path.root,
            body,
            etag=loaded.etag if loaded else None,
            nonce=commit_id,
            is_ours=lambda stored: commit_id in self._loaded(stored).root.commits,
        )
        for snapshot in snapshots:
            self._keep(snapshot)
        self._forget(loaded.root.snapshots if loaded else (), root.snapshots)
        return Loaded(root if standing is body else decode_root(self.path, standing), etag)

    def snapshot(self, pointer: SnapshotPointer) -> Snapshot:
        """Read a snapshot; the few that were used last are kept.

        Raises:
            ManifestCorruptError: it is not what the pointer says.
            ObjectMissingError: it is not there.
        """
        with self._lock:
            kept = self._kept.get(pointer)
        if kept is None:
            home = self.path.at(pointer.home)
            kept = decode_snapshot(home, pointer, self._store.get(home.snapshot(pointer.digest)).body)
        self._keep(kept)
        return kept

    def _keep(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._kept.pop(snapshot.pointer, None)
            self._kept[snapshot.pointer] = snapshot
            kept = sum(len(each.children) for each in self._kept.values())
            while kept > _POINTERS_KEPT and len(self._kept) > 1:
                kept -= len(self._kept.pop(next(iter(self._kept))).children)

    def _forget(self, before: Iterable[SnapshotPointer], after: Iterable[SnapshotPointer]) -> None:
        with self._lock:
            for pointer in {*before} - {*after}:
                self._kept.pop(pointer, None)

    def snapshots(self, root: Root, start: int = 0, end: int | None = None) -> dict[str, Snapshot]:
        """The snapshots between the root and the fragments of [start, end), by digest: what changes of them need."""
        found: dict[str, Snapshot] = {}
        waiting = list(_touched(root.snapshots, start, end))
        while waiting:
            pointer = waiting.pop()
            found[pointer.digest] = snapshot = self.snapshot(pointer)
            waiting += _touched(snapshot.snapshots, start, end)
        return found

    def fragments(self, root: Root, start: int = 0, end: int | None = None) -> Iterator[StreamObjectPointer]:
        """The fragments that answer for offsets in [start, end), oldest first. Reads the snapshots that it must.

        Args:
            root: Root that names them.
            start: The first wanted offset.
            end: The offset after the last wanted one; None for all.
        """
        yield from self._below(root.snapshots, start, end)
        yield from _touched(root.fragments, start, end)

    def _below(self, pointers: Iterable[SnapshotPointer], start: int, end: int | None) -> Iterator[StreamObjectPointer]:
        for pointer in _touched(pointers, start, end):
            snapshot = self.snapshot(pointer)
            yield from self._below(snapshot.snapshots, start, end)
            yield from _touched(snapshot.fragments, start, end)

    def find(self, root: Root, offset: int) -> StreamObjectPointer | None:
        """The fragment that answers for an offset, or None where none does."""
        return next(self.fragments(root, offset, offset + 1), None)


def _touched(pointers: Iterable[_Pointer], start: int, end: int | None) -> Iterator[_Pointer]:
    for pointer in pointers:
        if pointer.end > start and (end is None or pointer.base < end):
            yield pointer
