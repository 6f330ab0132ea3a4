"""Requests of consumer groups over raw pull connections, to whichever node coordinates the group."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from liftpy_envelope.group_offsets import (
    NO_MEMBER,
    CommitOffset,
    CommitRequest,
    CommitResult,
    CommitStream,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from liftpy_envelope.group_routing import Coordinator, FindCoordinatorRequest, FindCoordinatorResult
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest, MembershipResult
from liftpy_envelope.pull import Api, PartitionKey
from support.raw_pull import RawPull, pull_token

if TYPE_CHECKING:
    from collections.abc import Iterable

    import liftpy

PATIENCE_S = 30.0
SESSION_MS = 60_000  # nobody is put out because a machine is busy
PASSING = {GroupError.NOT_AVAILABLE, GroupError.NOT_LEADER}


class GroupPull:
    """A pull connection that speaks of groups. Requests are given as they are; answers are decoded."""

    def __init__(self, pull: RawPull) -> None:
        self.pull = pull

    @classmethod
    async def open(cls, lift: liftpy.Lift, port: int, node_id: str = "liftpy-1") -> Self:
        pull = await RawPull.open(port)
        answer = await pull.hello(await pull_token(lift, node_id))
        assert answer.error == 0, answer
        return cls(pull)

    def close(self) -> None:
        self.pull.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _ask(self, api: Api, request: Any, result: Any) -> Any:
        answer = await self.pull.request(api, request, timeout_s=PATIENCE_S)
        assert answer.error == 0, answer
        return answer.decoded(result)

    async def _patient(self, api: Api, request: Any, result: Any) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            answer = await self._ask(api, request, result)
            if answer.error is not GroupError.NOT_AVAILABLE or time.monotonic() > deadline_s:
                return answer
            await asyncio.sleep(0.02)

    async def find(self, group: str) -> Coordinator:
        """Where the group is coordinated, once somebody knows."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            request = FindCoordinatorRequest((group,))
            (found,) = (await self._ask(Api.FIND_COORDINATOR, request, FindCoordinatorResult)).coordinators
            if found.error is GroupError.NONE or time.monotonic() > deadline_s:
                return found
            await asyncio.sleep(0.05)

    async def join(self, group: str, nonce: bytes, streams: Iterable[str], **more: Any) -> MembershipResult:
        wishes = {"revision": 0, "instance_id": "", "client_id": "test", "rack": ""}
        times = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS}
        request = JoinRequest(group=group, nonce=nonce, subscriptions=tuple(streams), **wishes | times | more)
        return await self._patient(Api.GROUP_JOIN, request, MembershipResult)

    async def heartbeat(self, group: str, member: MembershipResult, wait_ms: int = 0, **more: Any) -> MembershipResult:
        fields = {"instance_id": "", "generation": member.generation, "wait_ms_max": wait_ms}
        request = HeartbeatRequest(group, member.member_id, **fields | more)
        return await self._patient(Api.GROUP_HEARTBEAT, request, MembershipResult)

    async def leave(self, group: str, member: MembershipResult) -> MembershipResult:
        return await self._patient(Api.GROUP_LEAVE, LeaveRequest(group, member.member_id, ""), MembershipResult)

    async def commit(
        self, group: str, member: MembershipResult | None, sequence: int, streams: Iterable[CommitStream], **more: Any
    ) -> CommitResult:
        who = (NO_MEMBER, -1) if member is None else (member.member_id, member.generation)
        fields = {"member_id": who[0], "instance_id": "", "generation": who[1], "sequence": sequence}
        request = CommitRequest(group=group, streams=tuple(streams), **fields | more)
        return await self._patient(Api.OFFSET_COMMIT, request, CommitResult)

    async def fetch(
        self, group: str, keys: Iterable[PartitionKey], member: MembershipResult | None = None
    ) -> OffsetFetchResult:
        who = (NO_MEMBER, -1) if member is None else (member.member_id, member.generation)
        request = OffsetFetchRequest(group, who[0], "", who[1], tuple(keys))
        return await self._patient(Api.OFFSET_FETCH, request, OffsetFetchResult)

    async def offsets(self, group: str, keys: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """What is committed."""
        result = await self.fetch(group, keys)
        assert result.error is GroupError.NONE, result
        return {found.key: found.offset for found in result.offsets}


def offsets_of(uuid: bytes, name: str, offsets: dict[int, int]) -> CommitStream:
    """What is committed for a stream: offsets by partition."""
    return CommitStream(uuid, name, tuple(CommitOffset(number, offset) for number, offset in offsets.items()))


def assigned(result: MembershipResult) -> dict[str, tuple[int, ...]]:
    """Partitions by the name of their stream."""
    assert result.error is GroupError.NONE, result
    assert result.assignment is not None
    return {stream.name: stream.partitions for stream in result.assignment}
