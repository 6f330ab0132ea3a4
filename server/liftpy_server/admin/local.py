"""What other nodes ask this one: `LIFT.NODE.<node_id>.<endpoint>`, answered by this node only."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.cluster.requests import (
    FollowedRequest,
    NodeLogsRequest,
    NodeStreamsRequest,
    QuarantineRequest,
    read_node_purge,
)
from liftpy_server.admin.info import follower_lags, kept_logs, led_stream, node_info, node_load, quarantined
from liftpy_server.admin.internal import check_owned
from liftpy_server.admin.requests import NoRequest
from liftpy_server.ingest.connection import SubscriptionRefusedError
from liftpy_server.requests.errors import AdminError
from liftpy_server.streams.streams import StreamNotOpenedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import StreamInfo
    from liftpy_server.partition.partition import Partition
    from liftpy_server.requests.between_nodes import Body

__all__ = ["ANSWER_BYTES_MAX", "LocalHandlers"]

ANSWER_BYTES_MAX: Final = 1024 * 1024  # a NATS server's default
_WAIT_S_MAX: Final = 10.0  # nobody waits for longer, see the time-outs of those who ask


class LocalHandlers:
    """The node-addressed handlers of one node.

    Attributes:
        answer_bytes_max: What the NATS server takes as one payload.
    """

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self.answer_bytes_max = ANSWER_BYTES_MAX

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {
            "NODE.INFO": self.node_info,
            "NODE.LAGS": self.lags,
            "NODE.QUARANTINE": self.quarantine,
            "STREAM.FOLLOWED": self.followed,
            "STREAM.INFO": self.streams,
            "STREAM.LOGS": self.logs,
            "STREAM.PURGE": self.purge,
            "STREAM.READY": self.ready,
        }

    async def node_info(self, body: Body) -> Body:
        """How this node is."""
        parse_settings(NoRequest, body)
        return {"node": node_info(self._node)}

    async def lags(self, body: Body) -> Body:
        """How far others are behind this node in the partitions that it leads, and how busy it is."""
        parse_settings(NoRequest, body)
        return {
            "version": version("liftpy"),
            "followers": follower_lags(self._node),
            "load": node_load(self._node),
        }

    async def quarantine(self, body: Body) -> Body:
        """What lies in this node's quarantine."""
        request = parse_settings(QuarantineRequest, body)
        try:
            return await asyncio.to_thread(quarantined, self._node, request.stream, request.limit)
        except OSError as error:
            text = f"node {self._node.config.node_id!r}: its quarantine can not be read: {error}"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text) from None

    async def streams(self, body: Body) -> Body:
        """What this node knows as a leader of streams, and the uuids of those that did not fit into the answer."""
        request = parse_settings(NodeStreamsRequest, body)
        by_uuid = {info.uuid: info for info in self._node.metadata.state.streams.values()}
        told: dict[str, Any] = {}
        size = 0
        for position, uuid in enumerate(request.uuids):
            stream = led_stream(self._node, by_uuid[uuid], brief=request.brief) if uuid in by_uuid else {}
            size += len(json.dumps(stream))
            if told and size > self.answer_bytes_max // 2:
                return {"streams": told, "rest": list(request.uuids[position:])}
            told[uuid] = stream
        return {"streams": told, "rest": []}

    async def logs(self, body: Body) -> Body:
        """What this node's logs of a stream have, whoever leads."""
        uuid = parse_settings(NodeLogsRequest, body).uuid
        return {
            "incarnation": self._node.incarnation,
            "has_bucket": self._node.tier is not None,
            "logs": kept_logs(self._node, uuid),
        }

    async def ready(self, body: Body) -> Body:
        """Answers when the subscriptions of a stream are confirmed here."""
        request = parse_settings(FollowedRequest, body)
        try:
            async with asyncio.timeout(_WAIT_S_MAX):
                await self._reach(request.revision)
                self._stream(request.uuid)
                # Until it has followed, it may listen for some of its partitions only.
                await self._node.wait_followed()
                await self._node.streams.wait_ready(request.uuid)
        except SubscriptionRefusedError as error:
            raise AdminError(ErrorCode.SUBSCRIPTION_REFUSED, str(error)) from None
        except StreamNotOpenedError as error:
            raise AdminError(ErrorCode.INTERNAL, f"node {self._node.config.node_id!r}: {error}") from None
        except TimeoutError:
            text = f"node {self._node.config.node_id!r} is not listening within {_WAIT_S_MAX:g} s"
            raise AdminError(ErrorCode.OUTCOME_UNKNOWN, text) from None
        return {}

    async def followed(self, body: Body) -> Body:
        """Answers when this node does what the metadata said in a revision; tells whether NATS lets it listen."""
        request = parse_settings(FollowedRequest, body)
        try:
            async with asyncio.timeout(_WAIT_S_MAX):
                await self._reach(request.revision)
                await self._node.wait_followed()
        except TimeoutError:
            text = f"it has not come to revision {request.revision} of the metadata within {_WAIT_S_MAX:g} s"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text) from None
        local = self._node.streams.by_uuid.get(request.uuid)
        refusal = None if local is None else local.refusal
        return {"refusal": None if refusal is None else str(refusal)}

    async def purge(self, body: Body) -> Body:
        """Purge partitions that this node leads; answers when their records are gone here."""
        request = read_node_purge(body)
        check_owned(self._stream(request.uuid).name, "be purged")
        led = {number: self._led(request.uuid, number) for number in request.partitions}
        for number, partition in led.items():
            _check_within(request.offset, number, partition)
        outcomes = await asyncio.gather(
            *(
                self._node.metadata.propose(
                    "purge_partition",
                    name=request.name,
                    uuid=request.uuid,
                    partition=number,
                    log_start=mark if request.offset is None else min(request.offset, mark),
                )
                for number, mark in ((number, partition.high_watermark) for number, partition in led.items())
            )
        )
        await self._node.wait_followed()
        starts = zip(led, outcomes, strict=True)
        return {"log_starts": {str(number): outcome["log_start"] for number, outcome in starts}}

    def _stream(self, uuid: str) -> StreamInfo:
        for info in self._node.metadata.state.streams.values():
            if info.uuid == uuid:
                return info
        raise AdminError(ErrorCode.UNKNOWN_STREAM, "the stream was deleted")

    def _led(self, uuid: str, number: int) -> Partition:
        """A partition that this node leads."""
        info, node = self._stream(uuid), self._node
        local = node.streams.by_uuid.get(uuid)
        is_led = number < len(info.partitions) and info.partitions[number].leader == node.config.node_id
        if not is_led or local is None or number not in local.partitions:
            text = (
                f"node {node.config.node_id!r} does not lead partition {number} of stream {info.name!r} now; try again"
            )
            raise AdminError(ErrorCode.NOT_LEADER, text)
        return local.partitions[number]

    async def _reach(self, revision: int) -> None:
        """Wait until this node knows a revision of the metadata."""
        async for state in self._node.metadata.watch():
            if state.revision >= revision:
                return


def _check_within(offset: int | None, number: int, partition: Partition) -> None:
    """An offset beyond the end is a mistake, which would delete everything."""
    end = partition.log.log_end
    if offset is not None and offset > end:
        text = f"offset: {offset} is beyond the end of partition {number}, which is {end}; nothing is purged"
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{text}. Without an offset all records are")
