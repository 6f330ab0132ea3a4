"""What nodes that are gone have left in shared objects: partitions led here move theirs, and one node clears up.

A node is gone when the cluster has removed it, or when its session has been over for longer than the grace period. The
leader of the metadata adopts the set manifests of such nodes. None of it must be right: a node that was thought to be
gone finds everything that counts where it was, or moved by the leaders whose claims are in force.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.requests import AdoptSetsJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_server.metadata.state import NodeInfo
    from liftpy_server.tier.schedule.schedule import Schedule
    from liftpy_server.tier.worker.port import Worker

__all__ = ["GoneNodes", "Members"]

logger = logging.getLogger(__name__)


class Members(Protocol):
    """The cluster, as far as this is concerned."""

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        """All nodes, by name."""

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the metadata."""

    @property
    def level(self) -> int:
        """What all nodes understand, see `liftpy_server.metadata.state.LEVEL`."""


class GoneNodes:
    """Finds what nodes that are gone have left in the bucket.

    Args:
        members: Members of the cluster.
        node_id: This node, which is never gone.
        schedule: Has partitions moved.
        worker: Works on the bucket.
        clock: Clock for the grace period.
        grace_s: How long a session may be over.
    """

    def __init__(
        self, members: Members, node_id: str, schedule: Schedule, worker: Worker, clock: Clock, grace_s: float
    ) -> None:
        self._members = members
        self._node_id = node_id
        self._schedule = schedule
        self._worker = worker
        self._clock = clock
        self._grace_s = grace_s
        self._expired_s: dict[str, float] = {}
        self._holders: dict[PartitionKey, frozenset[str]] = {}
        self._is_adopting = False

    def held(self, key: PartitionKey, nodes: Iterable[str]) -> None:
        """Shared objects of these nodes hold something of a partition that is led here, as far as it is known."""
        others = frozenset(nodes) - {self._node_id}
        if others:
            self._holders[key] = others
        else:
            self._holders.pop(key, None)

    def look(self) -> None:
        """Have partitions moved of which a node that is gone holds something; costs nothing where none does."""
        now_s = self._clock.monotonic()
        nodes = self._members.nodes
        self._expired_s = {name: self._expired_s.get(name, now_s) for name, node in nodes.items() if node.expired}
        if not self._holders:
            return
        present = self._present(now_s)
        for key, holders in list(self._holders.items()):
            if key not in self._schedule.places:
                del self._holders[key]
            elif not holders <= present:
                self._schedule.moves_in(key, now_s)

    async def adopt(self) -> None:
        """Clear up after the nodes that are gone, if that is for this node to do and the store is well."""
        if self._is_adopting or not self._members.is_leader or not self._schedule.health.is_usable:
            return
        self._is_adopting = True
        try:
            present = tuple(sorted(self._present(self._clock.monotonic())))
            found = await self._worker.call(AdoptSetsJob(present=present))
        except TierWorkError as error:
            logger.info("the shared objects of nodes that are gone stay for now: %s", error)
        else:
            if found.deleted:
                logger.info("%d shared objects of nodes that are gone were deleted", found.deleted)
        finally:
            self._is_adopting = False

    def _present(self, now_s: float) -> set[str]:
        until_s = now_s - self._grace_s
        return {self._node_id} | {name for name in self._members.nodes if self._expired_s.get(name, now_s) >= until_s}
