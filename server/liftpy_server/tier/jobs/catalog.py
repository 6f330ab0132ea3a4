"""The job of a tier worker that keeps the catalog in the bucket equal to the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_server.tier.jobs.parts.catalog_content import merged

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["put_catalog"]


def put_catalog(store: ObjectStore, arguments: dict[str, Any]) -> dict[str, Any]:
    """Have the catalog say what the metadata say; nothing is written where it does.

    Args:
        store: the bucket.
        arguments: `cluster_id` of this cluster; `streams` and `deleted` as `Description.of` gives them; `collected`,
            uuids of deleted streams of which the bucket holds nothing more; `now_ns`, the wall clock.

    Returns:
        `version` of the catalog; `written`, whether this wrote it; `deleted`, the streams that are marked as deleted,
        as {uuid, partitions, deleted_ns}.

    Raises:
        ForeignBucketError: the bucket is another cluster's.
        OvertakenError: somebody else wrote the catalog meanwhile.
        StoreError, BucketVersionError, ManifestCorruptError: it can not be read or written.
    """
    file = CatalogFile(store, new_id=lambda: uuid4().hex)
    loaded = file.load()
    before = None if loaded is None else loaded.catalog
    now_ns = arguments["now_ns"]
    after = merged(
        before,
        arguments["cluster_id"],
        arguments["streams"],
        frozenset(arguments["deleted"]),
        frozenset(arguments["collected"]),
        now_ns,
    )
    catalog = before if after is None else file.commit(loaded, after).catalog
    assert catalog is not None, "where there is none one is written"
    deleted = [
        {"uuid": uuid, "partitions": stream.partitions, "deleted_ns": stream.deleted_ns}
        for uuid, stream in catalog.streams.items()
        if stream.deleted_ns is not None
    ]
    return {"version": catalog.version, "written": after is not None, "deleted": deleted}
