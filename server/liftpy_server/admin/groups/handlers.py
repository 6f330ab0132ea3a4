"""What each admin request about consumer groups does; any node answers, and asks those that coordinate them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from liftpy_envelope.groups import GroupError
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.gather import FOLLOW_TIMEOUT_S, NUMBERS_TIMEOUT_S
from liftpy_server.admin.groups.requests import OFFSETS_LIMIT, GroupListRequest, GroupNameRequest, GroupOffsetsRequest
from liftpy_server.admin.stream_view import leaders_of
from liftpy_server.groups.core.inputs import DeleteGroup
from liftpy_server.groups.host.pending import PendingRequest
from liftpy_server.groups.host.summary import describe_group, summarize_group
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.groups.host.coordinators import Coordinators
    from liftpy_server.groups.host.group_partition import GroupPartition
    from liftpy_server.metadata.state import StreamInfo
    from liftpy_server.requests.between_nodes import Body, NodeRequests

__all__ = ["GroupHandlers", "LocalGroupHandlers"]

_AGAIN_S: Final = 0.2
_PASSING: Final = frozenset({ErrorCode.NOT_LEADER, ErrorCode.NOT_AVAILABLE})
_CODES: Final = {
    GroupError.NOT_LEADER: ErrorCode.NOT_LEADER,
    GroupError.NOT_AVAILABLE: ErrorCode.NOT_AVAILABLE,
    GroupError.GROUP_NOT_EMPTY: ErrorCode.CONFLICT,
}


class GroupHandlers:
    """The handlers of one node.

    Args:
        node: This node.
        requests: Asks other nodes.
    """

    def __init__(self, node: NodeParts, requests: NodeRequests) -> None:
        self._node = node
        self._requests = requests

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {"GROUP.DELETE": self.delete, "GROUP.INFO": self.info, "GROUP.LIST": self.list}

    async def list(self, body: Body) -> Body:
        """A page of the groups. `unreachable` names coordinators that did not tell, whose groups are missing."""
        request = parse_settings(GroupListRequest, body)
        deadline_s = _now_s() + NUMBERS_TIMEOUT_S
        while True:
            stream = self._node.metadata.state.streams.get(GROUPS_STREAM)
            nodes = [] if stream is None else leaders_of(stream)
            left_s = max(deadline_s - _now_s(), _AGAIN_S)
            answers = await self._requests.ask_all(nodes, "GROUP.LIST", body, left_s)
            silent = [node_id for node_id, answer in answers.items() if isinstance(answer, LiftError)]
            silent += [] if stream is None else [f"partition {number}" for number in _leaderless(stream)]
            if not silent or _now_s() + _AGAIN_S > deadline_s:
                break
            await asyncio.sleep(_AGAIN_S)  # another may coordinate by then
        told = [answer for answer in answers.values() if isinstance(answer, dict)]
        groups = sorted((group for answer in told for group in answer["groups"]), key=lambda group: group["group"])
        # Beyond the last group of a node that has more of them, there may be any.
        ends = [answer["groups"][-1]["group"] for answer in told if answer["more"]]
        known = [group for group in groups if not ends or group["group"] <= min(ends)]
        return {
            "groups": known[: request.limit],
            "more": bool(ends) or len(known) > request.limit,
            "unreachable": silent,
        }

    async def info(self, body: Body) -> Body:
        """One group, with its members and as many of its offsets as fit."""
        request = parse_settings(GroupOffsetsRequest, body)
        return await self._ask(request.group, "GROUP.INFO", body, NUMBERS_TIMEOUT_S)

    async def delete(self, body: Body) -> Body:
        """Delete a group that has no members, with all it has committed."""
        request = parse_settings(GroupNameRequest, body)
        return await self._ask(request.group, "GROUP.DELETE", body, FOLLOW_TIMEOUT_S)

    async def _ask(self, group: str, endpoint: str, body: Body, timeout_s: float) -> Body:
        """Ask the group's coordinator, again while it changes."""
        deadline_s = _now_s() + timeout_s
        while True:
            try:
                node_id = self._coordinator(group)
                return await self._requests.ask(node_id, endpoint, body, max(deadline_s - _now_s(), _AGAIN_S))
            except AdminError as error:
                if error.code not in _PASSING or _now_s() + _AGAIN_S > deadline_s:
                    raise
            await asyncio.sleep(_AGAIN_S)

    def _coordinator(self, group: str) -> str:
        stream = self._node.metadata.state.streams.get(GROUPS_STREAM)
        if stream is None:
            raise AdminError(ErrorCode.UNKNOWN_GROUP, f"there is no group {group!r:.300}")
        number = partition_of_group(group, len(stream.partitions))
        leader = stream.partitions[number].leader
        if leader is None:
            text = f"partition {number} of {GROUPS_STREAM}, where the group is kept, has no leader now; try again"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text)
        return leader


def _leaderless(stream: StreamInfo) -> list[int]:
    return [number for number, partition in enumerate(stream.partitions) if partition.leader is None]


def _led(node: NodeParts) -> list[int]:
    """Partitions of the stream of the groups that this node is to lead."""
    stream = node.metadata.state.streams.get(GROUPS_STREAM)
    partitions = () if stream is None else stream.partitions
    return [number for number, each in enumerate(partitions) if each.leader == node.config.node_id]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class LocalGroupHandlers:
    """What other nodes ask this one about the groups that it coordinates."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {"GROUP.DELETE": self.delete, "GROUP.INFO": self.info, "GROUP.LIST": self.list}

    async def list(self, body: Body) -> Body:
        """The groups that are coordinated here."""
        request = parse_settings(GroupListRequest, body)
        found: list[tuple[str, Coordinators]] = []
        for number in _led(self._node):
            hosted = self._node.groups.hosted.get(number)
            if hosted is None or hosted.coordinators is None:
                text = f"node {self._node.config.node_id!r} begins to coordinate groups; try again"
                raise AdminError(ErrorCode.NOT_AVAILABLE, text)
            found += [(name, hosted.coordinators) for name in hosted.coordinators.groups if name > request.after]
        found.sort(key=lambda each: each[0])
        node_id = self._node.config.node_id
        page = [summarize_group(coordinators, name, node_id) for name, coordinators in found[: request.limit]]
        return {"groups": page, "more": len(found) > request.limit}

    def _place(self, group: str) -> GroupPartition:
        place = self._node.groups.at(group)
        if isinstance(place, GroupError):
            text = f"node {self._node.config.node_id!r} does not coordinate the group now; try again"
            raise AdminError(_CODES[place], text)
        if place.coordinators is None:
            text = f"node {self._node.config.node_id!r} begins to coordinate the group; try again"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text)
        if not place.coordinators.knows(group):
            raise AdminError(ErrorCode.UNKNOWN_GROUP, f"there is no group {group!r:.300}")
        return place

    async def info(self, body: Body) -> Body:
        """A group that is coordinated here; told when all of it is committed."""
        request = parse_settings(GroupOffsetsRequest, body)
        place = self._place(request.group)
        assert place.coordinators is not None
        names = {info.uuid: info.name for info in self._node.metadata.state.streams.values()}
        shown = describe_group(
            place.coordinators,
            request.group,
            self._node.config.node_id,
            names,
            request.offsets_from,
            OFFSETS_LIMIT,
        )
        pending = PendingRequest(request.group, None)
        place.show(pending, shown)
        answer = await pending.answered
        is_shown = answer is shown
        if not is_shown:
            raise AdminError(_CODES.get(answer.error, ErrorCode.INTERNAL), answer.message)
        return shown

    async def delete(self, body: Body) -> Body:
        """Delete a group that is coordinated here; answers when that is committed."""
        request = parse_settings(GroupNameRequest, body)
        pending = PendingRequest(request.group, DeleteGroup())
        self._place(request.group).ask(pending)
        answer = await pending.answered
        if answer.error:
            raise AdminError(_CODES.get(answer.error, ErrorCode.INTERNAL), answer.message)
        return {"deleted": request.group}
