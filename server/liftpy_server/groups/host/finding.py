"""Where a group is coordinated: the leader of its partition. The stream of the groups is created when it is missing."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from uuid import uuid4

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.group_routing import GROUPS_STREAM, Coordinator, FindCoordinatorResult, partition_of_group
from liftpy_envelope.groups import MESSAGE_LENGTH_MAX, GroupError
from liftpy_envelope.stream_config import AckMode, StreamConfig
from liftpy_server.groups.host.limits import CREATE_WAIT_S
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.metadata.placement import place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.settings.groups import GroupsConfig

__all__ = ["CoordinatorFinder", "groups_stream"]

logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 8 * 1024 * 1024
_REPLICAS_MAX = 3


def groups_stream(partitions: int, replicas: int) -> StreamConfig:
    """The settings of the stream of the groups."""
    return StreamConfig(
        name=GROUPS_STREAM,
        subject="",
        partitions=partitions,
        replicas=replicas,
        acks=AckMode.OFF,
        compact=True,
        segment_bytes=_SEGMENT_BYTES,
        dedupe_ids_max=0,
    )


class CoordinatorFinder:
    """Finds the coordinator of a group, and creates `__consumer_offsets` when it is missing.

    Args:
        config: Configuration for the stream when it is created.
        metadata: Metadata of the cluster.
    """

    def __init__(self, config: GroupsConfig, metadata: RaftMetadataStore) -> None:
        self._config = config
        self._metadata = metadata
        self._creating: asyncio.Task[None] | None = None

    async def find(self, groups: Sequence[str]) -> FindCoordinatorResult:
        """Where these groups are coordinated; those of which that is not known now are told so."""
        if GROUPS_STREAM not in self._metadata.state.streams:
            try:
                await self._create_once()
            except LiftError as error:
                text = f"the stream of the consumer groups can not be created now: {error}"[:MESSAGE_LENGTH_MAX]
                return FindCoordinatorResult(
                    tuple(Coordinator(group, GroupError.NOT_AVAILABLE, text, 0) for group in groups)
                )
        state = self._metadata.state
        info = state.streams.get(GROUPS_STREAM)
        return FindCoordinatorResult(tuple(_coordinator(state, info, group) for group in groups))

    async def _create_once(self) -> None:
        """Create the stream; whoever else wants that meanwhile waits for the same."""
        if self._creating is None or self._creating.done():
            self._creating = asyncio.create_task(self._create(), name="create the stream of the groups")
            self._creating.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._creating)

    async def _create(self) -> None:
        metadata = self._metadata
        state = await metadata.read()
        if GROUPS_STREAM in state.streams:
            return
        await self._wait_for_nodes()
        state = metadata.state
        usable = sum(not node.draining for node in state.nodes.values())
        config = groups_stream(self._config.partitions, max(1, min(_REPLICAS_MAX, usable)))
        assignment = place(state, config)
        try:
            outcome = await metadata.propose(
                "create_stream", uuid=uuid4().hex, config=config.to_plain(), assignment=assignment
            )
        except MetadataRefusedError as error:
            if error.code is not ErrorCode.STREAM_EXISTS:  # another node was quicker, and saw other nodes
                raise
        else:
            if outcome["created"]:
                logger.info("stream %s is created with %d replicas", GROUPS_STREAM, config.replicas)

    async def _wait_for_nodes(self) -> None:
        """Nodes of the cluster may be starting: the number of replicas stays what it is at the creation."""
        metadata = self._metadata
        wanted = min(_REPLICAS_MAX, len(metadata.voters) + len(metadata.learners))
        try:
            async with asyncio.timeout(CREATE_WAIT_S):
                async for state in metadata.watch():
                    if len(state.nodes) >= wanted:
                        return
        except TimeoutError:
            logger.info("stream %s: some nodes of the cluster have not registered yet", GROUPS_STREAM)

    async def stop(self) -> None:
        """Create nothing any more."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)


def _coordinator(state: MetadataState, info: StreamInfo | None, group: str) -> Coordinator:
    if info is None:
        text = "this node does not know the stream of the consumer groups yet; ask again"
        return Coordinator(group, GroupError.NOT_AVAILABLE, text, 0)
    number = partition_of_group(group, len(info.partitions))
    leader = info.partitions[number].leader
    node = None if leader is None else state.nodes.get(leader)
    if node is None:
        text = f"partition {number} of {GROUPS_STREAM} has no leader now; ask again"
        return Coordinator(group, GroupError.NOT_AVAILABLE, text, number)
    return Coordinator(group, GroupError.NONE, "", number, node.node_id, node.pull_host, node.pull_port, node.pull_tls)
