"""What each admin request does. A handler takes a JSON object and returns one, or raises."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.settings import parse_settings
from liftpy_envelope.stream_config import AckMode, StreamConfig
from liftpy_envelope.subject import check_literal, is_literal, matches
from liftpy_server.admin.info import cluster_info, node_info, stream_info
from liftpy_server.admin.requests import (
    FindRequest,
    ListRequest,
    MetadataRequest,
    NameRequest,
    NoRequest,
    PurgeRequest,
    ReadOnlyRequest,
    read_update,
)
from liftpy_server.ingest.connection import SubscriptionRefusedError
from liftpy_server.metadata.store import MetadataRefusedError
from liftpy_server.streams import StreamNotOpenedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_server.metadata.state import StreamInfo
    from liftpy_server.node import Node

__all__ = ["AdminError", "Handlers"]

logger = logging.getLogger(__name__)

Body = dict[str, Any]

_READY_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 1024 * 1024  # a NATS server's default


class AdminError(LiftError):
    """The request can not be granted.

    Attributes:
        code: why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Handlers:
    """The handlers of one node.

    Attributes:
        answer_bytes_max: what the NATS server takes as one payload.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.answer_bytes_max = _ANSWER_BYTES_MAX

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {
            "METADATA": self.metadata,
            "NODE.INFO": self.node_info,
            "NODE.LIST": self.node_list,
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

    def _stream(self, name: str) -> StreamInfo:
        stream = self._node.metadata.state.streams.get(name)
        if stream is None:
            raise AdminError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {name!r}")
        return stream

    def _shown(self, name: str) -> Body:
        return stream_info(self._node, self._stream(name))

    async def metadata(self, body: Body) -> Body:
        """What a client needs to find partitions: nodes with their pull addresses, and streams."""
        return cluster_info(self._node.metadata.state, parse_settings(MetadataRequest, body).streams)

    async def node_info(self, body: Body) -> Body:
        """How this node is."""
        parse_settings(NoRequest, body)
        return {"node": node_info(self._node)}

    async def node_list(self, body: Body) -> Body:
        """The nodes of the cluster."""
        parse_settings(NoRequest, body)
        nodes = self._node.metadata.state.nodes.values()
        return {"nodes": [{k: v for k, v in node.to_plain().items() if k != "pull_token"} for node in nodes]}

    async def create(self, body: Body) -> Body:
        """Create a stream; answers when its subscription is confirmed. Idempotent."""
        config = StreamConfig.from_plain(body)
        node = self._node
        assignment = [[node.config.node_id]] * config.partitions
        outcome = await node.metadata.propose(
            "create_stream", uuid=uuid4().hex, config=config.to_plain(), assignment=assignment
        )
        uuid = outcome["uuid"]
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await node.streams.wait_ready(uuid)
        except TimeoutError:
            raise AdminError(
                ErrorCode.OUTCOME_UNKNOWN, f"stream {config.name!r} is created, but is not listening yet"
            ) from None
        except (SubscriptionRefusedError, StreamNotOpenedError) as error:
            if outcome["created"]:
                await node.metadata.propose("delete_stream", name=config.name, uuid=uuid)
            code = ErrorCode.INTERNAL if isinstance(error, StreamNotOpenedError) else ErrorCode.SUBSCRIPTION_REFUSED
            raise AdminError(code, str(error)) from None
        return {
            "stream": self._shown(config.name),
            "created": outcome["created"],
            "warnings": _warnings(config),
        }

    async def delete(self, body: Body) -> Body:
        """Delete a stream and all of its records."""
        name = parse_settings(NameRequest, body).name
        outcome: Body = await self._node.metadata.propose("delete_stream", name=name)
        await self._node.wait_followed()
        return {"deleted": name, "uuid": outcome["uuid"]}

    async def update(self, body: Body) -> Body:
        """Change settings of a stream. A subject that NATS does not let the node have is taken back."""
        request = read_update(body)
        node, before = self._node, self._stream(request.name).config
        asked = before.updated(request.changes)
        outcome = await node.metadata.propose(
            "update_stream",
            name=request.name,
            changes=request.changes,
            expected_version=request.expected_version,
        )
        after = self._stream(request.name)
        await node.wait_followed()
        local = node.streams.by_uuid.get(outcome["uuid"])
        refusal = None if local is None else local.refusal
        if refusal is not None and {"subject", "group"} & request.changes.keys():
            if (after.config.subject, after.config.group) == (asked.subject, asked.group):
                await self._take_back(after, before)
            raise AdminError(ErrorCode.SUBSCRIPTION_REFUSED, str(refusal))
        return {"stream": self._shown(request.name), "warnings": _warnings(self._stream(request.name).config)}

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
        await self._node.wait_followed()

    async def list(self, body: Body) -> Body:
        """A page of the streams, in the order of their names, and how many there are in all.

        A page may hold fewer than were asked for; the next one begins after the last that it holds.
        """
        request = parse_settings(ListRequest, body)
        streams = self._node.metadata.state.streams
        names = sorted(streams)[request.offset : request.offset + request.limit]
        page: list[Body] = []
        size = 0
        for name in names:  # a page ends before it is too large for an answer, but has one stream at least
            shown = stream_info(self._node, streams[name], brief=True)
            size += len(json.dumps(shown))
            if page and size > self.answer_bytes_max // 2:
                break
            page.append(shown)
        return {"streams": page, "total": len(streams)}

    async def info(self, body: Body) -> Body:
        """One stream, with partitions, counts and gaps."""
        return {"stream": self._shown(parse_settings(NameRequest, body).name)}

    async def pause(self, body: Body) -> Body:
        """Refuse messages until the stream is resumed."""
        return await self._set_state(parse_settings(NameRequest, body).name, paused=True)

    async def resume(self, body: Body) -> Body:
        """Take messages again."""
        return await self._set_state(parse_settings(NameRequest, body).name, paused=False)

    async def read_only(self, body: Body) -> Body:
        """Refuse messages from now on, or take them again."""
        request = parse_settings(ReadOnlyRequest, body)
        return await self._set_state(request.name, read_only=request.read_only)

    async def _set_state(self, name: str, *, paused: bool | None = None, read_only: bool | None = None) -> Body:
        await self._node.metadata.propose("set_stream_state", name=name, paused=paused, read_only=read_only)
        await self._node.wait_followed()
        return {"stream": self._shown(name)}

    async def purge(self, body: Body) -> Body:
        """Delete records below an offset, or all that are committed."""
        request = parse_settings(PurgeRequest, body)
        stream = self._stream(request.name)
        if request.offset is not None and request.partition is None and len(stream.partitions) > 1:
            raise AdminError(ErrorCode.INVALID_REQUEST, "offset: name a partition, since the stream has several")
        local = self._node.streams.by_uuid[stream.uuid].partitions
        if request.partition is not None and request.partition not in local:
            raise AdminError(ErrorCode.INVALID_REQUEST, f"stream {request.name!r} has no partition {request.partition}")
        starts = {}
        for number, partition in local.items():
            if request.partition in {None, number}:
                mark = partition.high_watermark
                log_start = mark if request.offset is None else min(request.offset, mark)
                outcome = await self._node.metadata.propose(
                    "purge_partition",
                    name=request.name,
                    uuid=stream.uuid,
                    partition=number,
                    log_start=log_start,
                )
                starts[number] = outcome["log_start"]
        await self._node.wait_followed()
        return {"stream": self._shown(request.name), "log_starts": {str(k): v for k, v in starts.items()}}

    async def find(self, body: Body) -> Body:
        """The streams that store a subject: a publisher gets an ack of each of them that acks replies."""
        subject = check_literal(parse_settings(FindRequest, body).subject)
        streams = self._node.metadata.state.streams.values()
        found = [stream for stream in streams if matches(stream.config.subject, subject)]
        return {
            "subject": subject,
            "streams": [{"name": stream.name, "acks": stream.config.acks.value} for stream in found],
        }


def _warnings(config: StreamConfig) -> list[str]:
    if config.acks is AckMode.REPLY and not is_literal(config.subject):
        text = (
            f"request-reply services under {config.subject} will see liftpy's ack before their own reply; "
            "acks = envelope leaves reply subjects alone"
        )
        return [text]
    return []
