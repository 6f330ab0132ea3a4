"""The job of a tier worker that keeps the catalog in the bucket equal to the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_server.tier.jobs.parts.catalog_content import merged
from liftpy_server.tier.jobs.probe import check_names
from liftpy_server.tier.requests import DeletedStream, PutCatalogResult

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_server.tier.requests import PutCatalogJob

__all__ = ["put_catalog"]


def put_catalog(store: ObjectStore, request: PutCatalogJob) -> PutCatalogResult:
    """Have the catalog say what the metadata say; nothing is written where it does.

    Args:
        store: Object store of the bucket.
        request: What is wanted.

    Raises:
        ForeignBucketError: the bucket is another cluster's, or no cluster's and has other objects in it.
        OvertakenError: somebody else wrote the catalog meanwhile.
        StoreError, BucketVersionError, ManifestCorruptError: it can not be read or written.
    """
    file = CatalogFile(store, new_id=lambda: uuid4().hex)
    loaded = file.load()
    before = None if loaded is None else loaded.catalog
    if before is None:
        check_names(store)
    now_ns = request.now_ns
    after = merged(
        before,
        request.cluster_id,
        request.streams,
        frozenset(request.deleted),
        frozenset(request.collected),
        now_ns,
    )
    catalog = before if after is None else file.commit(loaded, after).catalog
    assert catalog is not None, "where there is none one is written"
    deleted = [
        DeletedStream(uuid=uuid, partitions=stream.partitions, deleted_ns=stream.deleted_ns)
        for uuid, stream in catalog.streams.items()
        if stream.deleted_ns is not None
    ]
    return PutCatalogResult(version=catalog.version, written=after is not None, deleted=tuple(deleted))
