"""What each admin request does. A handler takes a JSON object and returns one, or raises."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING
from uuid import uuid4

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.settings import parse_settings
from liftpy_envelope.stream_config import AckMode, StreamConfig
from liftpy_envelope.subject import check_pattern, is_literal, overlaps
from liftpy_server.admin.gather import Gatherer
from liftpy_server.admin.info import cluster_info
from liftpy_server.admin.internal import check_changed, check_created, check_owned
from liftpy_server.admin.local import ANSWER_BYTES_MAX
from liftpy_server.admin.requests import (
    FindRequest,
    ListRequest,
    MetadataRequest,
    NameRequest,
    PurgeRequest,
    ReadOnlyRequest,
    read_update,
)
from liftpy_server.admin.reserved import check_unreserved
from liftpy_server.admin.stream_view import leaders_of
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.metadata.placement import Placement, shared_racks, too_few_nodes
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.requests.between_nodes import Body, NodeRequests

__all__ = ["Handlers"]

logger = logging.getLogger(__name__)

_NEWEST_TIMEOUT_S = 2.0
_NODES_TIMEOUT_S = 3.0  # for nodes that are starting to register
_UNUSABLE = frozenset({ErrorCode.SUBSCRIPTION_REFUSED, ErrorCode.INTERNAL})
"""A stream that was just created is deleted again when one of its leaders can not listen, or can not store it."""


class Handlers:
    """The handlers of one node for requests about streams, which any node answers.

    Args:
        node: This node.
        requests: Asks other nodes.

    Attributes:
        answer_bytes_max: What the NATS server takes as one payload.
    """

    def __init__(self, node: NodeParts, requests: NodeRequests) -> None:
        self._node = node
        self._gather = Gatherer(node, requests)
        self._placement = Placement()
        self.answer_bytes_max = ANSWER_BYTES_MAX

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {
            "METADATA": self.metadata,
            "STREAM.CREATE": self.create,
            "STREAM.DELETE": self.delete,
            "STREAM.FIND": self.find,
            "STREAM.INFO": self.info,
            "STREAM.LIST": self.list,
            "STREAM.PAUSE": self.pause,
            "STREAM.PURGE": self.purge,
            "STREAM.READONLY": self.read_only,
            "STREAM.RESUME": self.resume,
            "STREAM.UPDATE": self.update,
        }

    async def _stream(self, name: str) -> StreamInfo:
        state = self._node.metadata.state
        stream = (state if name in state.streams else await self._newest()).streams.get(name)
        if stream is None:
            raise AdminError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {name!r}")
        return stream

    async def _newest(self) -> MetadataState:
        """The metadata with all that was ever answered: what this node does not know, another may have created."""
        try:
            async with asyncio.timeout(_NEWEST_TIMEOUT_S):
                return await self._node.metadata.read()
        except TimeoutError:
            text = "the metadata has no leader now, so nobody can tell whether it is there; try again"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text) from None

    async def _shown(self, name: str) -> Body:
        (shown,) = await self._gather.show([await self._stream(name)])
        return shown

    async def metadata(self, body: Body) -> Body:
        """What a client needs to find partitions: nodes with their pull addresses, and streams."""
        wanted = parse_settings(MetadataRequest, body).streams
        state = self._node.metadata.state
        if not all(name in state.streams for name in wanted or ()):
            state = await self._newest()
        return cluster_info(state, wanted)

    async def create(self, body: Body) -> Body:
        """Create a stream; answers when all of its leaders have confirmed their subscriptions. Idempotent."""
        check_created(body)
        config = StreamConfig.from_plain(body)
        check_unreserved(config, self._node.config)
        metadata = self._node.metadata
        await self._wait_for_nodes(config)
        assignment = self._placement.place(metadata.state, config)
        outcome = await metadata.propose(
            "create_stream", uuid=uuid4().hex, config=config.to_plain(), assignment=assignment
        )
        uuid = outcome["uuid"]
        try:
            await self._gather.wait_listening(uuid, config.name)
        except AdminError as error:
            if outcome["created"] and error.code in _UNUSABLE:
                await metadata.propose("delete_stream", name=config.name, uuid=uuid)
            raise
        return {
            "stream": await self._shown(config.name),
            "created": outcome["created"],
            "warnings": _warnings(config) + self._rack_warnings(await self._stream(config.name)),
        }

    def _rack_warnings(self, stream: StreamInfo) -> list[str]:
        racks = shared_racks(self._node.metadata.state, (partition.replicas for partition in stream.partitions))
        if not racks:
            return []
        text = (
            f"replicas of a partition share rack {', '.join(racks)}, and are lost with it together; add nodes in other "
            f"racks, then move replicas there with liftpy stream reassign {stream.name}"
        )
        return [text]

    async def _wait_for_nodes(self, config: StreamConfig) -> None:
        """Wait until there are enough nodes for a stream, if more belong to the cluster: they may be starting."""
        metadata, copies = self._node.metadata, config.replicas + config.observers
        if config.name in metadata.state.streams:
            return
        try:
            async with asyncio.timeout(_NODES_TIMEOUT_S):
                async for state in metadata.watch():
                    if len(state.nodes) >= copies or len(metadata.voters) + len(metadata.learners) < copies:
                        break
        except TimeoutError:
            logger.info("stream %s: some nodes of the cluster have not registered yet", config.name)
        known = len(metadata.state.nodes)
        if known < copies and config.name not in metadata.state.streams:
            raise AdminError(ErrorCode.INVALID_CONFIG, too_few_nodes(config, known))

    async def delete(self, body: Body) -> Body:
        """Delete a stream and all of its records."""
        name = check_owned(parse_settings(NameRequest, body).name, "be deleted")
        nodes = {node for partition in (await self._stream(name)).partitions for node in partition.replicas}
        outcome: Body = await self._node.metadata.propose("delete_stream", name=name)
        _, warnings = await self._gather.wait_followed(outcome["uuid"], sorted(nodes))
        return {"deleted": name, "uuid": outcome["uuid"], "warnings": warnings}

    async def update(self, body: Body) -> Body:
        """Change settings of a stream. A subject that NATS does not let its leaders have is taken back."""
        request = read_update(body)
        check_changed(request)
        before = (await self._stream(request.name)).config
        asked = before.updated(request.changes)
        if {"subject", "group"} & request.changes.keys():
            check_unreserved(asked, self._node.config)
        await self._node.metadata.propose(
            "update_stream",
            name=request.name,
            changes=request.changes,
            expected_version=request.expected_version,
        )
        after = await self._stream(request.name)
        refusal, slow = await self._gather.wait_followed(after.uuid, leaders_of(after))
        if refusal is not None and {"subject", "group"} & request.changes.keys():
            if (after.config.subject, after.config.group) == (asked.subject, asked.group):
                await self._take_back(after, before)
            raise AdminError(ErrorCode.SUBSCRIPTION_REFUSED, refusal)
        warnings = _warnings((await self._stream(request.name)).config)
        return {"stream": await self._shown(request.name), "warnings": warnings + slow}

    async def _take_back(self, stream: StreamInfo, before: StreamConfig) -> None:
        """Give a stream its former subscription, unless someone has changed it again."""
        try:
            await self._node.metadata.propose(
                "update_stream",
                name=stream.name,
                changes={"subject": before.subject, "group": before.group},
                expected_version=stream.version,
            )
        except MetadataRefusedError as error:
            logger.info("stream %s: the refused change is not taken back: %s", stream.name, error)
        await self._gather.wait_followed(stream.uuid, leaders_of(stream))

    async def list(self, body: Body) -> Body:
        """A page of the streams, in the order of their names, and how many there are in all.

        A page may hold fewer than were asked for; the next one begins after the last that it holds.
        """
        request = parse_settings(ListRequest, body)
        streams = self._node.metadata.state.streams
        listed = sorted(name for name, info in streams.items() if request.internal or not info.config.is_internal)
        names = listed[request.offset : request.offset + request.limit]
        page: list[Body] = []
        size = 0
        for shown in await self._gather.show([streams[name] for name in names], brief=True):
            size += len(json.dumps(shown))  # a page ends before it is too large, but has one stream at least
            if page and size > self.answer_bytes_max // 2:
                break
            page.append(shown)
        return {"streams": page, "total": len(listed)}

    async def info(self, body: Body) -> Body:
        """One stream, with partitions, counts and gaps."""
        return {"stream": await self._shown(parse_settings(NameRequest, body).name)}

    async def pause(self, body: Body) -> Body:
        """Refuse messages until the stream is resumed."""
        return await self._set_state(parse_settings(NameRequest, body).name, paused=True)

    async def resume(self, body: Body) -> Body:
        """Accept messages again."""
        return await self._set_state(parse_settings(NameRequest, body).name, paused=False)

    async def read_only(self, body: Body) -> Body:
        """Refuse messages from now on, or take them again."""
        request = parse_settings(ReadOnlyRequest, body)
        return await self._set_state(request.name, read_only=request.read_only)

    async def _set_state(self, name: str, *, paused: bool | None = None, read_only: bool | None = None) -> Body:
        check_owned(name, "be paused or made read-only")
        await self._node.metadata.propose("set_stream_state", name=name, paused=paused, read_only=read_only)
        info = await self._stream(name)
        _, warnings = await self._gather.wait_followed(info.uuid, leaders_of(info))
        return {"stream": await self._shown(name), "warnings": warnings}

    async def purge(self, body: Body) -> Body:
        """Delete records below an offset, or all that are committed."""
        request = parse_settings(PurgeRequest, body)
        check_owned(request.name, "be purged")
        stream = await self._stream(request.name)
        count = len(stream.partitions)
        if request.offset is not None and request.partition is None and count > 1:
            raise AdminError(ErrorCode.INVALID_REQUEST, "offset: name a partition, since the stream has several")
        if request.partition is not None and request.partition >= count:
            raise AdminError(ErrorCode.INVALID_REQUEST, f"stream {request.name!r} has no partition {request.partition}")
        numbers = range(count) if request.partition is None else [request.partition]
        starts = await self._gather.purge(stream, numbers, request.offset)
        return {"stream": await self._shown(request.name), "log_starts": starts}

    async def find(self, body: Body) -> Body:
        """The streams that store a subject: a publisher gets an ack of each of them that acks replies.

        Of a pattern, those that store any subject of it.
        """
        subject = check_pattern(parse_settings(FindRequest, body).subject)
        found = _storing(self._node.metadata.state, subject) or _storing(await self._newest(), subject)
        return {
            "subject": subject,
            "streams": [
                {"name": stream.name, "acks": stream.config.acks.value, "subject": stream.config.subject}
                for stream in found
            ],
        }


def _storing(state: MetadataState, subject: str) -> list[StreamInfo]:
    streams = [stream for stream in state.streams.values() if not stream.config.is_internal]
    return [stream for stream in streams if overlaps(stream.config.subject, subject)]


def _warnings(config: StreamConfig) -> list[str]:
    if config.acks is AckMode.REPLY and not is_literal(config.subject):
        text = (
            f"request-reply services under {config.subject} will see liftpy's ack before their own reply; "
            "acks = envelope leaves reply subjects alone"
        )
        return [text]
    return []
