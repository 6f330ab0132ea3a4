"""A cluster with real coordinators of groups and no network, log or disk; it fails as it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from liftpy_client.connection.cluster import StreamPlace
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import DisconnectedError, NoStreamError
from liftpy_client.group.consumer import GroupConsumer
from liftpy_client.group.options import GroupOptions
from liftpy_client.message import Message
from liftpy_client.tracing.interceptors import Interceptors
from liftpy_envelope.bodies import pack_body
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.group_offsets import CommitResult, OffsetFetchResult
from liftpy_envelope.group_routing import Coordinator, FindCoordinatorResult
from liftpy_envelope.groups import GroupError, HeartbeatRequest, LeaveRequest, MembershipResult
from liftpy_envelope.pull import EARLIEST, Api, OffsetResult, OffsetsResponse, PartitionKey
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import GroupTick, Now, StreamsChanged
from liftpy_server.groups.core.replay import GroupsReplay
from support.cluster import eventually

UUID = bytes(range(16))
END = 100
_RESULTS = {
    Api.GROUP_JOIN: MembershipResult,
    Api.GROUP_HEARTBEAT: MembershipResult,
    Api.GROUP_LEAVE: MembershipResult,
    Api.OFFSET_COMMIT: CommitResult,
    Api.OFFSET_FETCH: OffsetFetchResult,
}


class FakeGroups:
    """A cluster of nodes `n0`, `n1`, ...; also the session that a client reaches it with.

    Attributes:
        leader: the node that coordinates.
        asked: what coordinators were asked, in order.
        troubles: by api, what happens to its next requests: an exception that is raised before the coordinator hears
            of the request, or `lose` to have the answer lost, or an error or a result that answers it.
        is_silent: nobody answers anything.
    """

    def __init__(self, partitions: int = 4, nodes: int = 2) -> None:
        self.name = "test"
        self.options = SimpleNamespace(timeout_s=1.0)
        self.nats = SimpleNamespace(is_closed=False)
        self.cluster = self
        self.interceptors = Interceptors()
        self.running: set[Any] = set()
        self.node_ids = [f"n{number}" for number in range(nodes)]
        self.leader = "n0"
        self.asked: list[Any] = []
        self.troubles: dict[Api, list[Any]] = {}
        self.opened: Counter[str] = Counter()
        self.is_silent = False
        config = StreamConfig(name="s", subject="s.>", partitions=partitions)
        self.place = StreamPlace(UUID, config, ("n0",) * partitions)
        self._told = asyncio.Event()
        self.serve(self.place)

    def serve(self, place: StreamPlace) -> None:
        """Coordinate the group anew, of this stream."""
        self.place = place
        self.coordinator = GroupsReplay().coordinator("g")
        self._step(StreamsChanged(1, {"s": StreamShape(place.uuid, place.config.partitions)}))

    def _step(self, given: Any) -> Any:
        loop = asyncio.get_running_loop()
        effects = self.coordinator.step(given, Now(loop.time(), 1))
        if effects.told:
            self._told.set()
        return effects.answer

    def tick(self) -> None:
        """Let the coordinator look at the time."""
        self._step(GroupTick())

    def expel(self, member_id: str) -> None:
        """The member is out, as if its session had ended."""
        self._step(LeaveRequest("g", member_id, ""))

    # -- as `Cluster`

    async def request(self, _endpoint: str, _body: dict[str, Any]) -> dict[str, Any]:
        return {"nodes": [{"node_id": node_id} for node_id in self.node_ids]}

    async def refresh(self, _names: list[str]) -> None:
        pass

    def node(self, _node_id: str) -> None:
        return None

    async def confirmed(self, name: str, _patience_s: float) -> StreamPlace:
        return await self.stream(name, fresh=True)

    async def stream(self, name: str, *, fresh: bool = False) -> StreamPlace:
        if name != "s":
            raise NoStreamError(f"there is no stream {name!r}")
        return self.place

    latest = stream

    # -- as `Session`

    async def open_pull(self, node_id: str) -> FakeConnection:
        self.opened[node_id] += 1
        if self.is_silent:
            await asyncio.Event().wait()
        return FakeConnection(self, node_id)

    def of(self, kind: type) -> list[Any]:
        """The requests of one kind that coordinators were asked."""
        return [request for request in self.asked if isinstance(request, kind)]


class FakeConnection:
    """A connection to one node of it."""

    def __init__(self, groups: FakeGroups, node_id: str) -> None:
        self._groups = groups
        self.node = SimpleNamespace(node_id=node_id)
        self._closed = asyncio.Event()

    def close(self) -> None:
        self._closed.set()

    async def request(self, api: Api, body: Any) -> Any:
        answering = asyncio.ensure_future(self._answer(api, body))
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({answering, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise DisconnectedError("the connection was closed")
            return SimpleNamespace(result=pack_body(answering.result()))
        finally:
            answering.cancel()
            closing.cancel()

    async def _answer(self, api: Api, body: Any) -> Any:
        groups = self._groups
        await asyncio.sleep(0)
        if groups.is_silent:
            await asyncio.Event().wait()
        trouble = groups.troubles[api].pop(0) if groups.troubles.get(api) else None
        if api is Api.FIND_COORDINATOR:
            (name,) = body.groups
            found = Coordinator(name, GroupError.NONE, "", 0, groups.leader, "h", 1)
            if isinstance(trouble, Exception):
                raise trouble
            return FindCoordinatorResult((found if trouble is None else trouble,))
        if api is Api.LIST_OFFSETS:
            return OffsetsResponse(
                tuple(
                    OffsetResult(key, ErrorCode.NONE, "", 0 if at == EARLIEST else END, 1) for key, at in body.queries
                )
            )
        request, result_type = body, _RESULTS[api]
        groups.asked.append(request)
        if isinstance(trouble, Exception):
            raise trouble
        if isinstance(trouble, GroupError):
            return result_type(trouble, "because")
        if isinstance(trouble, result_type):
            return trouble
        if self.node.node_id != groups.leader:
            return result_type(GroupError.NOT_LEADER, "elsewhere")
        answer = groups._step(request)
        if isinstance(request, HeartbeatRequest) and not answer.error and answer.assignment is None:
            answer = await self._park(request, answer)
        if trouble == "lose":
            raise DisconnectedError("the answer is lost")
        return answer

    async def _park(self, request: HeartbeatRequest, answer: Any) -> Any:
        groups = self._groups
        groups._told.clear()
        try:
            async with asyncio.timeout(request.wait_ms_max / 1000):
                await groups._told.wait()
        except TimeoutError:
            return answer
        return groups._step(request)


class FakeAssigned:
    """As much of an `AssignedConsumer` as a group needs; what reaches the application is said by the test."""

    def __init__(self, _session: Any, _options: Any, *, batches: bool) -> None:
        self.at: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.is_closed = False
        self.in_hand: PartitionKey | None = None
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def hand(self, number: int, offset: int) -> None:
        """A message comes; it is finished when the next one is asked for."""
        self.items.put_nowait(Message("s", number, offset, 0, "s.x", None, None, b""))

    async def __aiter__(self):
        while (item := await self.items.get()) is not None:
            self.in_hand = PartitionKey(UUID, item.partition)
            yield item
            if ("s", UUID, item.partition) in self.at:
                self.at["s", UUID, item.partition] = (item.offset + 1, 1)

    async def assign(self, stream: str, uuid: bytes, positions: dict[int, Any]) -> None:
        self.calls.append(("assign", tuple(sorted(positions))))
        for number, position in positions.items():
            self.at[stream, uuid, number] = (position.offset, position.epoch)

    async def revoke(self, stream: str, uuid: bytes, partitions: list[int]) -> dict[Any, Any]:
        self.calls.append(("revoke", tuple(sorted(partitions))))
        return {key: self.at.pop(key) for number in partitions if (key := (stream, uuid, number)) in self.at}

    def pause(self, _stream: str, _uuid: bytes, partitions: list[int]) -> None:
        self.calls.append(("pause", tuple(sorted(partitions))))

    def settle(self, _stream: str, _uuid: bytes, _partition: int, _offset: int) -> None:
        pass

    def positions(self) -> dict[tuple[str, bytes, int], tuple[int, int]]:
        return dict(self.at)

    def position(self, stream: str, uuid: bytes, number: int) -> int | None:
        found = self.at.get((stream, uuid, number))
        return None if found is None else found[0] + 1

    async def close(self) -> None:
        self.is_closed = True
        self.items.put_nowait(None)


def member(groups: FakeGroups, **more: Any) -> GroupConsumer[Any]:
    """A consumer of stream `s` in group `g`, with short times."""
    options = GroupOptions(**({"session_timeout_s": 1.0, "rebalance_timeout_s": 3.0, "commit_interval_s": None} | more))
    return GroupConsumer(groups, ["s"], "g", ConsumeOptions(), options, batches=False)


async def reads(consumer: GroupConsumer[Any], *numbers: int) -> None:
    """Wait until it reads these partitions, and no others."""
    await eventually(lambda: sorted(consumer._assigned.at) == [("s", UUID, number) for number in numbers])
