"""What the catalog in the bucket is to say, by the metadata of the cluster. Pure.

A stream that is gone from the metadata stays in the catalog, marked as deleted, until its objects are gone, too; only
what the metadata remembers as deleted is marked, so that a cluster that is being restored deletes nothing that it does
not know yet. A stream that was created again under its name is another one, with a uuid of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from liftpy_bucket.errors import ForeignBucketError
from liftpy_bucket.manifest.catalog import Catalog, CatalogStream
from liftpy_envelope.events import EVENTS_STREAM

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.metadata.state import MetadataState, StreamInfo

__all__ = ["Description", "check_owner", "is_described", "merged", "taken"]


class Description:
    """What the metadata say of streams, as plain values; those of streams that did not change are made once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[StreamConfig, dict[str, Any]]] = {}

    def of(self, state: MetadataState) -> dict[str, Any]:
        """The arguments of the catalog job: streams by uuid, and the uuids of those that were deleted last.

        Equal states of streams give equal values.
        """
        known, self._known = self._known, {}
        for stream in filter(is_described, state.streams.values()):
            found = known.get(stream.uuid)
            if found is None or found[0] is not stream.config:
                plain = {
                    "name": stream.name,
                    "config": stream.config.to_plain(),
                    "partitions": len(stream.partitions),
                    "created_ns": stream.created_ns,
                }
                found = stream.config, plain
            self._known[stream.uuid] = found
        return {
            "streams": {uuid: plain for uuid, (_, plain) in self._known.items()},
            "deleted": list(state.deleted),
        }


def is_described(stream: StreamInfo) -> bool:
    """Whether the catalog names a stream. That of the events is about this cluster alone: no other is to restore it."""
    return stream.name != EVENTS_STREAM


def check_owner(catalog: Catalog | None, cluster_id: str) -> None:
    """A catalog must be this cluster's, or not be there yet.

    Raises:
        ForeignBucketError: it is another's.
    """
    if catalog is not None and catalog.cluster_id != cluster_id:
        raise ForeignBucketError(
            f"the bucket belongs to cluster {catalog.cluster_id}, and this is cluster {cluster_id}: nothing is tiered. "
            "Give this cluster a prefix of its own; or, if the other one is lost, let this one take over its streams "
            "with `liftpy restore`"
        )


def merged(
    before: Catalog | None,
    cluster_id: str,
    streams: Mapping[str, Mapping[str, Any]],
    deleted: Collection[str],
    collected: Collection[str],
    now_ns: int,
) -> Catalog | None:
    """Merge streams into the catalog; returns the next version.

    Args:
        before: Catalog as it was read; None when there is none.
        cluster_id: Id of this cluster.
        streams: What `Description` says of those that are there.
        deleted: UUIDs of those that were deleted last.
        collected: UUIDs of those that were deleted and of which the bucket holds nothing more.
        now_ns: When those that are marked now were deleted, about.

    Returns:
        It, with the next version; None when nothing changes.

    Raises:
        ForeignBucketError: what is there is another cluster's.
    """
    check_owner(before, cluster_id)
    known = {} if before is None else before.streams
    there = {uuid: CatalogStream(**plain, deleted_ns=None) for uuid, plain in streams.items()}
    for uuid, stream in known.items():
        if uuid in there or (uuid in collected and stream.deleted_ns is not None):
            continue
        is_marked = stream.deleted_ns is None and uuid in deleted
        there[uuid] = replace(stream, deleted_ns=now_ns) if is_marked else stream
    if before is not None and there == known:
        return None
    version, generation = (1, 0) if before is None else (before.version + 1, before.generation)
    return Catalog(cluster_id=cluster_id, version=version, generation=generation, streams=there)


def taken(before: Catalog, cluster_id: str) -> Catalog:
    """The catalog of another cluster, as this one's own."""
    return replace(before, cluster_id=cluster_id, version=before.version + 1, generation=before.generation + 1)
