"""The streams as coordinators see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.groups.core.assignment import RestoredPartition, StreamShape
from liftpy_server.groups.core.inputs import StreamsChanged

if TYPE_CHECKING:
    from liftpy_server.metadata.state import MetadataState, StreamInfo

__all__ = ["StreamShapes"]


class StreamShapes:
    """Makes shapes of the metadata's streams, again only of those that changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[StreamInfo, StreamShape]] = {}
        self._racks: dict[str, str | None] = {}

    def of(self, state: MetadataState) -> StreamsChanged:
        """All streams that users may read in groups."""
        racks = {node_id: node.rack for node_id, node in state.nodes.items()}
        known = self._known if racks == self._racks else {}
        found: dict[str, tuple[StreamInfo, StreamShape]] = {}
        for name, info in state.streams.items():
            before = known.get(name)
            if not info.config.is_internal:
                found[name] = before if before is not None and before[0] is info else (info, _shape(info, racks))
        self._known, self._racks = found, racks
        return StreamsChanged(state.revision, {name: shape for name, (_, shape) in found.items()})


def _shape(info: StreamInfo, racks: dict[str, str | None]) -> StreamShape:
    places: tuple[frozenset[str], ...] = ()
    if any(racks.values()):
        places = tuple(
            frozenset(rack for node in partition.replicas if (rack := racks.get(node)) is not None)
            for partition in info.partitions
        )
    recoveries = tuple(
        (number, RestoredPartition(partition.restored_ns, partition.local_start, partition.restored_epoch))
        for number, partition in enumerate(info.partitions)
        if partition.restored_ns
    )
    return StreamShape(bytes.fromhex(info.uuid), len(info.partitions), places, recoveries)
