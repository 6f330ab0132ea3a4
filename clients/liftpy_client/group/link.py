"""The connection to the coordinator of a group: found through any node, kept open, and found again when it moves.

The coordinator is the node that leads the group's partition of `__consumer_offsets`. Several requests may be pending.
When an answer shows that the coordinator has moved, or the connection is dead, the connection is closed. The next
request looks up the coordinator again, after a pause that grows with every failure.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from liftpy_client.connection.cluster import is_passing
from liftpy_client.errors import (
    AdminError,
    CoordinatorUnavailableError,
    DisconnectedError,
    NodeUnavailableError,
    PullError,
)
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import FrameError
from liftpy_envelope.group_offsets import CommitRequest, CommitResult, OffsetFetchRequest, OffsetFetchResult
from liftpy_envelope.group_routing import Coordinator, FindCoordinatorRequest, FindCoordinatorResult
from liftpy_envelope.groups import GroupError, HeartbeatRequest, JoinRequest, LeaveRequest, MembershipResult
from liftpy_envelope.pull import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.connection.pull_connection import PullConnection
    from liftpy_client.connection.session import Session

__all__ = ["GroupLink"]

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 5.0  # for what the coordinator writes to its log first
_OPEN_S_MAX: Final = 3.0
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_REPORT_S: Final = 10.0


class _Kind(NamedTuple):
    api: Api
    result: type[Any]


_Membership = JoinRequest | HeartbeatRequest | LeaveRequest
_KINDS: Final[dict[type, _Kind]] = {
    JoinRequest: _Kind(Api.GROUP_JOIN, MembershipResult),
    HeartbeatRequest: _Kind(Api.GROUP_HEARTBEAT, MembershipResult),
    LeaveRequest: _Kind(Api.GROUP_LEAVE, MembershipResult),
    CommitRequest: _Kind(Api.OFFSET_COMMIT, CommitResult),
    OffsetFetchRequest: _Kind(Api.OFFSET_FETCH, OffsetFetchResult),
}
_PASSING: Final = {GroupError.NOT_LEADER, GroupError.NOT_AVAILABLE, GroupError.INTERNAL}


class GroupLink:
    """Requests to the coordinator of one group.

    Args:
        session: Connections and the cluster's metadata.
        group: Name of the group, checked.
        answer_s: Seconds without an answer, beyond the requested wait, after which the node counts as dead.
    """

    def __init__(self, session: Session, group: str, answer_s: float = _ANSWER_S) -> None:
        self._session = session
        self._group = group
        self._answer_s = answer_s
        self._avoided = ""  # the node that failed last: it is asked last
        self._has_looked = False
        self._connection: PullConnection | None = None
        self._finding = asyncio.Lock()
        self._failures = 0
        self._troubled_s: float | None = None
        self._reported_s = 0.0

    @overload
    async def ask(self, request: _Membership) -> MembershipResult: ...
    @overload
    async def ask(self, request: CommitRequest) -> CommitResult: ...
    @overload
    async def ask(self, request: OffsetFetchRequest) -> OffsetFetchResult: ...
    async def ask(self, request: Any) -> Any:
        """Ask the coordinator once.

        Returns:
            What it says, which may be a refusal; but not that another node is to be asked.

        Raises:
            CoordinatorUnavailableError: there is none now, or its answer did not come: `pause`, and ask again.
            DisconnectedError: the connection to NATS is closed.
            PullError: the node does not understand the request.
        """
        kind = _KINDS[type(request)]
        wait_s = request.wait_ms_max / 1000 if isinstance(request, HeartbeatRequest) else 0.0
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._answer_s + wait_s):
                response = await connection.request(kind.api, request)
            result = unpack_body(kind.result, response.result)
        except (OSError, TimeoutError, FrameError, PullError) as error:
            self._drop(connection)
            raise self._unavailable(error) from error
        if result.error in _PASSING:  # also after an error of its own a coordinator is made anew from its log
            self._drop(connection)
            raise self._unavailable(result.message or result.error.name)
        self._failures, self._troubled_s = 0, None
        return result

    @overload
    async def insist(
        self, request: CommitRequest, until_s: float, is_wanted: Callable[[], bool] = ...
    ) -> CommitResult | None: ...
    @overload
    async def insist(
        self, request: OffsetFetchRequest, until_s: float, is_wanted: Callable[[], bool] = ...
    ) -> OffsetFetchResult | None: ...
    async def insist(self, request: Any, until_s: float, is_wanted: Callable[[], bool] = lambda: True) -> Any:
        """Ask as often as it takes, with the same request; None when its answer is not wanted any more.

        Args:
            request: Request that may be repeated.
            until_s: When to give up, by the loop's clock.
            is_wanted: Whether to go on.

        Raises:
            CoordinatorUnavailableError: time is up.
            DisconnectedError, PullError: as for `ask`.
        """
        loop = asyncio.get_running_loop()
        while is_wanted():
            try:
                return await self.ask(request)
            except CoordinatorUnavailableError:
                if loop.time() >= until_s:
                    raise
            await self.pause()
        return None

    async def pause(self) -> None:
        """Wait before the next try: the longer, the more have failed."""
        pause_s = min(_PAUSE_S_MIN * 2 ** min(self._failures, 10), _PAUSE_S_MAX)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, keeps no secret

    def close(self) -> None:
        """Give up the connection; requests under way fail."""
        if self._connection is not None:
            self._drop(self._connection)

    def _drop(self, connection: PullConnection) -> None:
        connection.close()
        if self._connection is connection:
            self._connection = None
            self._avoided = connection.node.node_id

    def _unavailable(self, reason: Exception | str) -> Exception:
        """The error to raise for a failure, which is counted if it may pass."""
        if isinstance(reason, PullError) and not is_passing(reason.code):
            return reason
        self._failures += 1
        now_s = asyncio.get_running_loop().time()
        since_s = self._troubled_s = now_s if self._troubled_s is None else self._troubled_s
        why = str(reason) or "no answer came"
        if now_s - max(since_s, self._reported_s) > _REPORT_S:
            self._reported_s = now_s
            logger.warning("group %s: no coordinator for %.0f s (%s); still trying", self._group, now_s - since_s, why)
        return CoordinatorUnavailableError(f"the coordinator of group {self._group!r} cannot be reached: {why}")

    async def _connected(self) -> PullConnection:
        async with self._finding:
            if self._connection is None:
                try:
                    self._connection = await self._find()
                except (NodeUnavailableError, AdminError) as error:
                    if isinstance(error, AdminError) and not error.code.retriable:
                        raise
                    raise self._unavailable(error) from error
            return self._connection

    async def _find(self) -> PullConnection:
        """A connection to the coordinator: any node knows where it is."""
        cluster = self._session.cluster
        if self._has_looked or not cluster.node_ids:  # whoever joins has just been told where the nodes are
            await cluster.refresh([])
        self._has_looked = True
        node_ids = list(cluster.node_ids)
        random.shuffle(node_ids)
        node_ids.sort(key=self._avoided.__eq__)
        reason = "no node is known"
        for node_id in node_ids:
            try:
                found = await self._find_from(node_id)
            except NodeUnavailableError as error:
                reason = str(error)
                continue
            if not isinstance(found, Coordinator):
                return found
            if found.error is GroupError.NONE:
                return await self._open(found.node_id)
            reason = f"node {node_id}: {found.message or found.error.name}"
        raise NodeUnavailableError(reason)

    async def _open(self, node_id: str) -> PullConnection:
        try:
            async with asyncio.timeout(min(self._answer_s, _OPEN_S_MAX)):
                return await self._session.open_pull(node_id)
        except DisconnectedError as error:
            if self._session.nats.is_closed:
                raise
            raise NodeUnavailableError(str(error)) from error
        except (OSError, TimeoutError, FrameError, PullError) as error:
            raise NodeUnavailableError(f"node {node_id}: {str(error) or 'no answer came'}") from error

    async def _find_from(self, node_id: str) -> PullConnection | Coordinator:
        """Where a node says that the group is coordinated, or the connection to it when it does that itself.

        Raises:
            NodeUnavailableError: it does not answer.
            PullError: it does not understand the question.
        """
        connection = await self._open(node_id)
        found = None
        try:
            async with asyncio.timeout(self._answer_s):
                response = await connection.request(Api.FIND_COORDINATOR, FindCoordinatorRequest((self._group,)))
            (found,) = unpack_body(FindCoordinatorResult, response.result).coordinators
        except (OSError, TimeoutError, FrameError, ValueError, PullError) as error:
            if isinstance(error, PullError) and not is_passing(error.code):
                raise
            raise NodeUnavailableError(f"node {node_id}: {str(error) or 'no answer came'}") from error
        finally:
            is_there = found is not None and found.error is GroupError.NONE and found.node_id == node_id
            if not is_there:
                connection.close()
        return connection if is_there else found
