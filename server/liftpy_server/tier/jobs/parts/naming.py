"""Whether the catalog names a stream: nothing of it is begun in the bucket before it does.

A restore finds what the catalog names, and nothing else.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_server.tier.errors import NotNamedError
from liftpy_server.tier.jobs.parts.catalog_content import check_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Naming"]


class Naming:
    """Knows which streams the catalog names; any number of threads may use it.

    The catalog is read only for a stream that it did not name.

    Args:
        store: Object store of the bucket.
        new_id: A new name for an attempt, each time another one.
    """

    def __init__(self, store: ObjectStore, new_id: Callable[[], str]) -> None:
        self._file = CatalogFile(store, new_id=new_id)
        self._lock = threading.Lock()
        self._named: tuple[str, frozenset[str]] = ("", frozenset())

    def check(self, uuid: str, cluster_id: str) -> None:
        """Check that the catalog of a cluster names a stream.

        Raises:
            NotNamedError: it does not, or there is none.
            ForeignBucketError: the catalog is another cluster's.
            StoreError, BucketVersionError, ManifestCorruptError: it can not be read.
        """
        with self._lock:  # of many that begin at once the first one reads it for all
            if self._named[0] == cluster_id and uuid in self._named[1]:
                return
            loaded = self._file.load()
            catalog = None if loaded is None else loaded.catalog
            check_owner(catalog, cluster_id)
            streams = {} if catalog is None else catalog.streams
            self._named = cluster_id, frozenset(each for each, it in streams.items() if it.deleted_ns is None)
            if uuid not in self._named[1]:
                raise NotNamedError(
                    f"the catalog in the bucket does not name stream {uuid} yet, so that a restore would not find it; "
                    "the node that leads the metadata writes it as soon as it can"
                )
