"""Sessions of a node in its cluster: it registers, and again when it was given up; and it gives others up.

Whoever leads the metadata hears of every other node several times a second. One that is silent for too long is
expired: it loses its leaderships, and its places in the in-sync replica sets. It finds that out when it is back, and
registers again, in another incarnation.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from liftpy_envelope.errors import LiftError
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.metadata.state import MetadataState, NodeInfo

__all__ = ["NodeSession"]

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_WARN_AFTER_S: Final = 3.0
_LOOKS_PER_TIMEOUT: Final = 10
_LEAVE_TIMEOUT_S: Final = 5.0
_DOUBTED_AFTER: Final = 0.25  # of the time-out it is looked whether the process of a node that is silent is still there
_PROBE_TIMEOUT_S: Final = 0.1


class NodeSession:
    """Registers this node, also after it was expired, and expires silent nodes where it leads the metadata.

    Args:
        metadata: Metadata of the cluster.
        node: What others need to know of this node.
        timeout_s: A node that is silent for so long is given up.
        on_registered: Called with every incarnation.
        on_superseded: Called when another process has registered as this node, or the cluster does not take it back.
        failed_logs: UUID and number of partitions whose log has failed here, by what the metadata says is here.
    """

    def __init__(
        self,
        metadata: RaftMetadataStore,
        node: dict[str, Any],
        timeout_s: float,
        on_registered: Callable[[int], None],
        on_superseded: Callable[[str], None],
        failed_logs: Callable[[MetadataState], Sequence[tuple[str, int]]],
    ) -> None:
        self._metadata = metadata
        self._node = node
        self._timeout_s = timeout_s
        self._on_registered = on_registered
        self._on_superseded = on_superseded
        self._failed_logs = failed_logs
        self._is_leaving = False
        self._watching: asyncio.Task[None] | None = None
        self.incarnation = 0

    @property
    def node_id(self) -> str:
        """Id of this node."""
        return str(self._node["node_id"])

    async def reach(self) -> MetadataState:
        """The metadata as it is now. Waits for a majority of the metadata nodes, for as long as it takes."""
        state: MetadataState = await self._persist(self._metadata.read)
        return state

    async def register(
        self,
        *,
        is_log_proven: bool,
        lost_logs: Sequence[tuple[str, int]] = (),
        failed_logs: Sequence[tuple[str, int]] = (),
        cut_logs: Sequence[tuple[str, int]] = (),
        known_ends: Sequence[tuple[str, int, int]] = (),
    ) -> None:
        """Get an incarnation. Waits for a majority of the metadata nodes, for as long as it takes.

        Args:
            is_log_proven: The logs hold all that they ever counted as durable.
            lost_logs: UUID and number of partitions of which that is not so.
            failed_logs: Keys of those whose log has failed, and is not to count before there is a new copy.
            cut_logs: Keys of those whose log may lack its end.
            known_ends: Known ends of lost and failed ones, with the offset below which they are known to have held
                all.

        Raises:
            MetadataRefusedError: the cluster does not want this node.
        """
        command_id = uuid4().hex
        incarnation = await self._persist(
            lambda: self._metadata.propose(
                "register_node",
                command_id=command_id,
                node=self._node,
                is_log_proven=is_log_proven,
                lost=[list(each) for each in lost_logs],
                failed=[list(each) for each in failed_logs],
                cut=[list(each) for each in cut_logs],
                known_ends=[list(each) for each in known_ends],
            )
        )
        await self._applied(incarnation)
        self.incarnation = incarnation
        self._on_registered(incarnation)

    @staticmethod
    async def _persist(ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer; a refusal is one."""
        loop = asyncio.get_running_loop()
        warnings, begun_s = RepeatedWarnings(logger), loop.time()
        while True:
            try:
                return await ask()
            except MetadataRefusedError:
                raise
            except LiftError as error:
                if loop.time() - begun_s >= _WARN_AFTER_S:
                    warnings.tell("majority", f"waiting for a majority of the metadata nodes: {error}", loop.time())
                await asyncio.sleep(_RETRY_S)

    async def _applied(self, incarnation: int) -> None:
        """Wait until this node's own copy of the metadata has it, too."""
        async for state in self._metadata.watch():
            known = state.nodes.get(self.node_id)
            if known is not None and known.incarnation >= incarnation:
                return

    def start(self) -> None:
        """Begin to look after the others."""
        self._watching = asyncio.create_task(self._watch(), name="node sessions")

    async def stop(self) -> None:
        """Stop looking."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def follow(self, state: MetadataState) -> None:
        """Register again when this node was given up."""
        known = state.nodes.get(self.node_id)
        if known is None or self._is_leaving:
            return
        if known.incarnation > self.incarnation:
            self._on_superseded(f"another process has registered as node {self.node_id}")
        elif known.expired:
            logger.warning("this node was silent for %g s and was given up: it registers again", self._timeout_s)
            try:
                await self.register(is_log_proven=True, failed_logs=self._failed_logs(state))
            except MetadataRefusedError as error:
                self._on_superseded(f"the cluster does not take node {self.node_id} back: {error}")

    async def leave(self) -> None:
        """Give up all leaderships before a stop, so that nobody has to wait for a time-out. Bounded in time."""
        self._is_leaving = True
        if len(self._metadata.state.nodes) < 2:
            return
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._metadata.propose("expire_node", node_id=self.node_id, incarnation=self.incarnation)
                if self._metadata.is_leader:
                    await self._metadata.transfer_leadership()
        except (LiftError, TimeoutError) as error:
            why = str(error) or f"no answer within {_LEAVE_TIMEOUT_S:g} s"
            logger.warning("the others could not be told that this node stops, and will find out: %s", why)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._timeout_s / _LOOKS_PER_TIMEOUT)
            try:
                await self._expire_silent()
            except LiftError as error:
                logger.info("a silent node could not be given up yet: %s", error)
            except Exception:
                logger.exception("looking after the other nodes failed; trying again")

    async def _expire_silent(self) -> None:
        if not self._metadata.is_leader:
            return
        for node in list(self._metadata.state.nodes.values()):
            if node.expired or node.node_id == self.node_id:
                continue
            silent_s = self._metadata.silent_s(node.node_id)
            is_lost = self._metadata.has_lost(node.node_id)
            is_doubted = is_lost or silent_s >= self._timeout_s * _DOUBTED_AFTER
            if silent_s >= self._timeout_s or (is_doubted and await _is_gone(node)):
                logger.warning("node %s has been silent for %.1f s: it is given up", node.node_id, silent_s)
                await self._metadata.propose("expire_node", node_id=node.node_id, incarnation=node.incarnation)


async def _is_gone(node: NodeInfo) -> bool:
    """Whether nobody listens on the node's port any more: then its process has ended, and there is nothing to wait for.

    A process that stands still, or a host that is cut off, does not refuse connections.
    """
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(node.pull_host, node.pull_port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
