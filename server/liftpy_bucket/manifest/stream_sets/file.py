"""The set manifest of a node in the store."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.layout import set_root_key
from liftpy_bucket.manifest.root.format import COMMIT_IDS
from liftpy_bucket.manifest.stream_sets.changes import adopt
from liftpy_bucket.manifest.stream_sets.format import decode_set, encode_set
from liftpy_bucket.store.swapping import swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["LoadedSet", "SetManifestFile"]


class LoadedSet(NamedTuple):
    """A set manifest as it stands in the store.

    Attributes:
        manifest: it.
        etag: that names this version of it.
    """

    manifest: SetManifest
    etag: str


class SetManifestFile:
    """The set manifest of one node, in a store. May be used from several threads.

    Args:
        store: where.
        node: whose.
        new_id: gives ids of commits: each call another one, never given before by anybody.
    """

    def __init__(self, store: ObjectStore, node: str, *, new_id: Callable[[], str]) -> None:
        self._store = store
        self.node = node
        self._new_id = new_id

    def load(self) -> LoadedSet | None:
        """The manifest, or None where there is none.

        Raises:
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
        """
        try:
            stored = self._store.get(set_root_key(self.node))
        except ObjectMissingError:
            return None
        return LoadedSet(decode_set(self.node, stored.body), stored.head.etag)

    def load_newer(self, loaded: LoadedSet) -> LoadedSet | None:
        """The manifest, or None while it is still the one that was loaded.

        Raises:
            ObjectMissingError: there is none any more.
            ManifestCorruptError: it makes no sense.
            BucketVersionError: it is newer than this program.
        """
        stored = self._store.get_newer(set_root_key(self.node), loaded.etag)
        return None if stored is None else LoadedSet(decode_set(self.node, stored.body), stored.head.etag)

    def commit(self, loaded: LoadedSet | None, manifest: SetManifest) -> LoadedSet:
        """Write a manifest that was made from `loaded` (`changes`).

        Args:
            loaded: what was read before; None where there was none.
            manifest: made from it.

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
        body = encode_set(manifest)
        decode_set(self.node, body)  # whatever is refused when it is read must not be written
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
        return LoadedSet(manifest if standing is body else decode_set(self.node, standing), etag)
