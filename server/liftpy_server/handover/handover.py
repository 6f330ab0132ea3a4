"""When a node hands partitions over: before it stops or is drained, and where another replica is to lead instead."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import LiftError
from liftpy_server.handover.giving import Giving
from liftpy_server.handover.held import Holding
from liftpy_server.handover.taking import Taking
from liftpy_server.metadata.placement import leader_moves

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_log.clock import Clock
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.handover.giving import LeaderMove
    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.ingest.marks import Marks
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.requests.between_nodes import NodeRequests
    from liftpy_server.streams.streams import Streams

__all__ = ["Handover"]

logger = logging.getLogger(__name__)

_LEAVE_TIMEOUT_S: Final = 15.0
_END_TIMEOUT_S: Final = 6.0  # longer than the old leader's side may take
_LOOK_S: Final = 0.005


class Handover:
    """Carries out planned changes of leaders on this node.

    Args:
        node_id: Id of this node.
        streams: Streams of this node.
        metadata: Metadata of the cluster.
        ingest: Hears publishers.
        marks: Heard there.
        requests: Asks nodes.
        clock: Clock of the node.
        flush: Sends the acks that are due.
    """

    def __init__(
        self,
        node_id: str,
        streams: Streams,
        metadata: RaftMetadataStore,
        ingest: IngestConnection,
        marks: Marks,
        requests: Callable[[], NodeRequests],
        clock: Clock,
        flush: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._requests = requests
        holding = Holding(streams, ingest, marks, clock, flush)
        self._giving = Giving(holding, self._ask, metadata)
        self._taking = Taking(holding, self._publish)
        self._wanted: dict[LocalReplica, LeaderMove] = {}
        self._task: asyncio.Task[None] | None = None
        streams.took_over = self._taking.took_over
        ingest.before_change = self._ended

    async def _ask(self, node_id: str, endpoint: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return await self._requests().ask(node_id, endpoint, body, timeout_s)

    async def _publish(self, subject: str, data: bytes) -> None:
        await self._requests().publish(subject, data)

    def endpoints(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]:
        """What other nodes ask."""
        return {
            "HANDOVER.GIVE": self._give_all,
            "HANDOVER.LISTEN": self._taking.listen,
            "HANDOVER.TAKE": self._taking.take,
        }

    async def _give_all(self, _body: dict[str, Any]) -> dict[str, Any]:
        """Hand over all that others can lead."""
        moves = leader_moves(self._metadata.state, self._node_id)
        left = await self._giving.give(moves)
        return {"given": len(moves) - len(left), "left": len(left)}

    async def leave(self) -> None:
        """Hand over all that others can lead before this node stops; bounded in time."""
        self._taking.is_closed = True
        await self.stop()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._give_all({})
        except (LiftError, TimeoutError) as error:
            logger.warning("not all partitions are handed over before this node stops: %s", str(error) or "too many")

    async def _ended(self) -> None:
        """Wait until nothing is handed over, by this node or to it; what takes too long is called off."""
        until_s = asyncio.get_running_loop().time() + _END_TIMEOUT_S
        while (  # noqa: ASYNC110 - they end in plain calls
            self._giving.is_giving or self._taking.is_holding
        ) and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(_LOOK_S)
        self._taking.call_off_all()

    async def stop(self) -> None:
        """Hand over nothing more that was wanted before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def want(self, replica: LocalReplica, leader: str, leader_epoch: int, version: int) -> None:
        """Another node is to lead: its preferred replica is back, or this one is to keep no copy.

        There is no hurry: what can not be handed over now stays here, until it is wanted again.
        """
        stream = replica.partition.stream
        self._wanted[replica] = {
            "name": stream.name,
            "uuid": stream.uuid,
            "partition": replica.partition.number,
            "leader": leader,
            "leader_epoch": leader_epoch,
            "version": version,
        }
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._give_wanted(), name="handover")

    async def _give_wanted(self) -> None:
        while self._wanted:
            await asyncio.sleep(0)  # the rest of a pass over many replicas
            wanted, self._wanted = self._wanted, {}
            try:
                await self._giving.give(list(wanted.values()))
            except LiftError as error:
                logger.info("%d partitions are not handed over now: %s", len(wanted), error)
            except Exception:
                logger.exception("%d partitions are not handed over", len(wanted))
