"""Jobs of a tier worker that bring streams back from the bucket.

They read and claim what a cluster that is gone has left; the metadata are changed by the node that asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ForeignBucketError, ObjectMissingError, OvertakenError
from liftpy_bucket.layout import CATALOG, PartitionPath
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_server.tier.jobs.parts.catalog_content import check_owner, taken
from liftpy_server.tier.jobs.restores.restoring import Bucket
from liftpy_server.tier.requests import FenceStreamsResult, LookAtPartitionsResult, ReadCatalogResult, TakeCatalogResult

if TYPE_CHECKING:
    from liftpy_bucket.manifest.catalog import Catalog
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import FenceStreamsJob, LookAtPartitionsJob, ReadCatalogJob, TakeCatalogJob

__all__ = ["fence_streams", "look_at_partitions", "read_catalog", "take_catalog"]

_ATTEMPTS: Final = 4


def _catalog(context: Context) -> Catalog:
    loaded = CatalogFile(context.store, new_id=context.new_id).load()
    if loaded is None:
        raise ObjectMissingError(CATALOG)
    return loaded.catalog


def read_catalog(context: Context, request: ReadCatalogJob) -> ReadCatalogResult:
    """Read the owner of the bucket, and a page of the streams that can be restored, ordered by uuid.

    Args:
        context: Context with the store.
        request: What is wanted.

    Raises:
        ObjectMissingError: there is no catalog.
    """
    catalog = _catalog(context)
    live = sorted(uuid for uuid, stream in catalog.streams.items() if stream.deleted_ns is None)
    page = [uuid for uuid in live if uuid > request.after][: request.limit]
    return ReadCatalogResult(
        cluster_id=catalog.cluster_id,
        version=catalog.version,
        written_ns=context.store.head(CATALOG).modified_ns,
        total=len(live),
        streams=tuple(_shown(catalog, uuid) for uuid in page),
    )


def _shown(catalog: Catalog, uuid: str) -> dict[str, Any]:
    stream = catalog.streams[uuid]
    return {
        "uuid": uuid,
        "name": stream.name,
        "config": stream.config,
        "partitions": stream.partitions,
        "created_ns": stream.created_ns,
    }


def take_catalog(context: Context, request: TakeCatalogJob) -> TakeCatalogResult:
    """Make the bucket of a cluster that is gone this cluster's own.

    Args:
        context: Context with the store.
        request: What is wanted.

    Raises:
        ForeignBucketError: it is yet another cluster's.
        OvertakenError: the other cluster has just written to it.
        ObjectMissingError: there is no catalog.
    """
    file = CatalogFile(context.store, new_id=context.new_id)
    loaded = file.load()
    if loaded is None:
        raise ObjectMissingError(CATALOG)
    own, other, owner = request.cluster_id, request.from_cluster_id, loaded.catalog.cluster_id
    if owner not in {own, other}:
        raise ForeignBucketError(
            f"the bucket belongs to cluster {owner}, and neither to {other} nor to this one, {own}"
        )
    strangers = [uuid for uuid in request.streams if uuid not in loaded.catalog.streams]
    if not strangers and owner != own:  # where it is ours, this was done before, and our nodes write by now
        try:
            file.commit(loaded, taken(loaded.catalog, own))
        except OvertakenError as error:
            raise OvertakenError(
                f"cluster {owner} still writes to the bucket: stop its nodes before this one takes over"
            ) from error
    return TakeCatalogResult(strangers=tuple(strangers))


def look_at_partitions(context: Context, request: LookAtPartitionsJob) -> LookAtPartitionsResult:
    """Where the history of partitions ends in the bucket.

    Args:
        context: Context with the store.
        request: What is wanted.
    """
    bucket = Bucket(context.store, new_id=context.new_id, tell=context.progress)
    plans = bucket.look([PartitionPath(uuid, number) for uuid, number in request.partitions])
    return LookAtPartitionsResult(partitions=tuple(plan.to_plain() for plan in plans))


def fence_streams(context: Context, request: FenceStreamsJob) -> FenceStreamsResult:
    """Have nobody add anything to streams any more, and tell where they end.

    Args:
        context: Context with the store.
        request: What is wanted.

    Raises:
        ForeignBucketError: the bucket is another cluster's.
        OvertakenError: somebody else goes on writing.
    """
    catalog = _catalog(context)
    check_owner(catalog, request.cluster_id)
    bucket = Bucket(context.store, new_id=context.new_id, tell=context.progress)
    found = []
    for uuid in request.uuids:
        stream = catalog.streams.get(uuid)
        if stream is not None and stream.deleted_ns is None:
            paths = [PartitionPath(uuid, number) for number in range(stream.partitions)]
            plans = [plan.to_plain() for plan in bucket.fence(paths, request.node)]
            found.append(_shown(catalog, uuid) | {"plans": plans})
    return FenceStreamsResult(streams=tuple(found))
