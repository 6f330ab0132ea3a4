"""What clients ask of a node over a pull connection, and what a connection needs of its node for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.frames import encode_response
from liftpy_envelope.group_offsets import CommitRequest, OffsetFetchRequest
from liftpy_envelope.group_routing import FindCoordinatorRequest
from liftpy_envelope.groups import HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_envelope.pull import Api, EpochEndRequest, OffsetsRequest
from liftpy_log.histogram import Histogram
from liftpy_server.pull.fetching import FetchAnswers
from liftpy_server.pull.queries import epoch_ends, offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

    from liftpy_envelope.frames import Request
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.storage.files import FileCache
    from liftpy_server.groups.host.group_host import GroupHost
    from liftpy_server.groups.host.pending import PendingRequest
    from liftpy_server.partition.partition import Partition
    from liftpy_server.pull.follow_session import FollowedPartition
    from liftpy_server.pull.sending import ResponseSender
    from liftpy_server.pull.session import FetchSession
    from liftpy_server.settings.config import PullConfig
    from liftpy_server.tier.reads.reads import ColdReads

__all__ = ["ClientRequests", "PullBackend", "RequestError"]

_GROUP_REQUESTS: Final[dict[Api, type[Any]]] = {
    Api.OFFSET_COMMIT: CommitRequest,
    Api.OFFSET_FETCH: OffsetFetchRequest,
    Api.GROUP_JOIN: JoinRequest,
    Api.GROUP_HEARTBEAT: HeartbeatRequest,
    Api.GROUP_LEAVE: LeaveRequest,
}


NEVER_ASKED: Final = (float("-inf"), float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PullBackend:
    """What a connection needs of its node.

    Attributes:
        node_id: The node.
        incarnation: Incarnation of the node.
        token: What admits a peer.
        follow_token: What admits another node of the cluster; its word counts for what is on its disk.
        lookup: The partition with a key, or why there is none here.
        metadata: The answer to a metadata request.
        files: The node's open files.
        executor: Executor for reading from the disk.
        config: How patient the node is.
        readable: Like `lookup`, also for a partition of which the replica here follows and is in sync.
        replicas: What followers follow; nothing on a node that has none.
        groups: The consumer groups; None where there are none.
        heard: Told which node follows here, and whether it hears NATS, at every `follow`.
        asked: When NATS was asked a question last that was answered, and how long ago that is, in seconds.
        cold: Reads the bucket; None where there is none.
        fetch_s: How long fetches took to be answered, once there was news for them.
    """

    node_id: str
    incarnation: int
    token: str
    follow_token: str
    lookup: Callable[[PartitionKey], Partition | ErrorCode]
    metadata: Callable[[], Any]
    files: FileCache
    executor: Executor
    config: PullConfig
    readable: Callable[[PartitionKey], Partition | ErrorCode] | None = None
    replicas: Callable[[PartitionKey], FollowedPartition | ErrorCode] = lambda _: ErrorCode.NOT_LEADER
    groups: GroupHost | None = None
    heard: Callable[[str, bool], None] = lambda _node, _hears: None
    asked: Callable[[], tuple[float, float]] = lambda: NEVER_ASKED
    cold: ColdReads | None = None
    fetch_s: Histogram = field(default_factory=Histogram)


class RequestError(LiftError):
    """A request is refused as a whole.

    Attributes:
        code: Code that says why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ClientRequests:
    """The handlers of one connection.

    Args:
        backend: Backend of the node.
        session: The connection's fetch session.
        sender: Sender of the connection.
        client: The address of the peer.
        is_quiet: Whether the peer wants nothing else; what waits for news does so only while that is so.
    """

    def __init__(
        self,
        backend: PullBackend,
        session: FetchSession,
        sender: ResponseSender,
        client: str,
        is_quiet: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._client = client
        self._session = session
        self._sender = sender
        self._is_quiet = is_quiet
        self._fetches = FetchAnswers(
            session=session,
            sender=sender,
            files=backend.files,
            executor=backend.executor,
            is_urgent=lambda: not is_quiet(),
            fetch_s=backend.fetch_s,
        )
        self._asked: PendingRequest | None = None

    def handlers(self) -> dict[Api, Callable[[Request], Awaitable[None]]]:
        """By api."""
        return {
            Api.METADATA: self._metadata,
            Api.FETCH: self._fetches.answer,
            Api.LIST_OFFSETS: self._list_offsets,
            Api.EPOCH_END_OFFSET: self._epoch_end_offset,
            Api.FIND_COORDINATOR: self._find_coordinator,
            **dict.fromkeys(_GROUP_REQUESTS, self._group),
        }

    def hurry(self) -> None:
        """The peer asks for something else, or is gone: what waits for news waits no longer."""
        self._session.news.set()
        if self._asked is not None:
            self._asked.hurry()

    async def _metadata(self, request: Request) -> None:
        await self._sender.send(encode_response(request.correlation_id, self._backend.metadata()))

    async def _list_offsets(self, request: Request) -> None:
        wanted = unpack_body(OffsetsRequest, request.body)
        found = await offsets(wanted, self._backend.lookup, self._backend.cold)
        await self._sender.send(encode_response(request.correlation_id, found))

    async def _epoch_end_offset(self, request: Request) -> None:
        found = epoch_ends(unpack_body(EpochEndRequest, request.body), self._backend.lookup)
        await self._sender.send(encode_response(request.correlation_id, found))

    def _groups(self) -> GroupHost:
        if self._backend.groups is None:
            raise RequestError(ErrorCode.NOT_AVAILABLE, "this node coordinates no consumer groups")
        return self._backend.groups

    async def _find_coordinator(self, request: Request) -> None:
        wanted = unpack_body(FindCoordinatorRequest, request.body)
        found = await self._groups().finder.find(wanted.groups)
        await self._sender.send(encode_response(request.correlation_id, found))

    async def _group(self, request: Request) -> None:
        given = unpack_body(_GROUP_REQUESTS[Api(request.api)], request.body)
        asked = self._asked = await self._groups().take(given, self._client)
        try:
            if not self._is_quiet():
                asked.hurry()
            answer = await asked.answered
        finally:
            self._asked = None
            asked.hurry()
        frame = encode_response(request.correlation_id, answer)
        if not self._sender.send_now((frame,), len(frame)):  # all before it is in the socket: requests are in order
            await self._sender.drain(len(frame))
