"""From which replica a consumer reads a partition: its leader, or one that is near."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftpy_client.connection.cluster import Cluster, StreamPlace
    from liftpy_client.consumer.options import ConsumeOptions

__all__ = ["ReplicaChoice"]

_AVOID_S: Final = 10.0
_SILENT_S_MAX: Final = 1.0


class ReplicaChoice:
    """Chooses among replicas that are in sync: those of the consumer's rack, or all of them when it names none.

    Consumers spread over the replicas they may choose from. A replica that could not be read is left alone for a
    while, and the leader read instead.

    Args:
        cluster: Knows the nodes' racks.
        options: Options of the consumer.
    """

    def __init__(self, cluster: Cluster, options: ConsumeOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._spread = random.randrange(2**16)  # noqa: S311 - spreads consumers, keeps no secret
        self._avoided_s: dict[tuple[int, str], float] = {}

    def node(self, place: StreamPlace, number: int) -> str | None:
        """Where to read a partition; None while it has no leader: then nobody commits anything."""
        leader = place.leaders[number]
        near = self._near(place, number)
        if leader is None or not near:
            return leader
        return near[(self._spread + number) % len(near)]

    def avoid(self, number: int, node_id: str) -> None:
        """Read a partition elsewhere for a while."""
        self._avoided_s[number, node_id] = asyncio.get_running_loop().time() + _AVOID_S

    def is_elsewhere(self, place: StreamPlace, number: int, node_id: str, silent_s: float) -> bool:
        """Whether to leave a node that has been silent for so long."""
        leader = place.leaders[number]
        if node_id == leader:
            return False
        if self._options.read_from == "leader":
            return leader is not None
        if silent_s >= _SILENT_S_MAX or node_id not in place.replicas_to_read(number):
            self.avoid(number, node_id)
            return True
        return False

    def _near(self, place: StreamPlace, number: int) -> list[str]:
        if self._options.read_from == "leader":
            return []
        now_s = asyncio.get_running_loop().time()
        return sorted(
            node_id
            for node_id in place.replicas_to_read(number)
            if self._is_near(node_id) and self._avoided_s.get((number, node_id), 0.0) <= now_s
        )

    def _is_near(self, node_id: str) -> bool:
        node = self._cluster.node(node_id)
        return node is not None and self._options.rack in {None, node.rack}
