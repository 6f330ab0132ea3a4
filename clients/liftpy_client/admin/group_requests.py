"""Administration of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from liftpy_client.admin.groups import GroupDetails, GroupSummary
from liftpy_client.errors import NodeUnavailableError

if TYPE_CHECKING:
    from liftpy_client.connection.cluster import Cluster

__all__ = ["GroupAdmin", "GroupDetails", "GroupSummary"]

_FIRST_TIMEOUT_S: Final = 2.5  # a node waits 2 s for others before it answers without them
_DELETE_TIMEOUT_S: Final = 10.0
_LIST_PAGE: Final = 500


class GroupAdmin:
    """Requests to any node. All of them raise `AdminError` when refused, `NodeUnavailableError` when nobody answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _read(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request that changes nothing: NATS may hand it to a node that hangs, so it is asked a second time."""
        try:
            return await self._cluster.request(endpoint, body, _FIRST_TIMEOUT_S)
        except NodeUnavailableError:
            return await self._cluster.request(endpoint, body)

    async def groups(self) -> list[GroupSummary]:
        """All consumer groups, in the order of their names.

        Raises:
            NodeUnavailableError: a node that coordinates some of them does not answer.
        """
        found: list[GroupSummary] = []
        after, is_more = "", True
        while is_more:
            answer = await self._read("GROUP.LIST", {"after": after, "limit": _LIST_PAGE})
            if answer["unreachable"]:
                names = ", ".join(answer["unreachable"])
                raise NodeUnavailableError(f"nodes that coordinate consumer groups do not answer: {names}")
            found += map(GroupSummary.from_answer, answer["groups"])
            is_more = answer["more"] and bool(answer["groups"])
            after = found[-1].group if found else ""
        return found

    async def group(self, name: str) -> GroupDetails:
        """One consumer group, with its members and what it has committed.

        Raises:
            AdminError: there is no such group, or its coordinator is just being changed.
        """
        answer = await self._read("GROUP.INFO", {"group": name})
        offsets = list(answer["offsets"])
        while answer["offsets"] and len(offsets) < answer["offsets_total"]:
            more = await self._read("GROUP.INFO", {"group": name, "offsets_from": len(offsets)})
            if not more["offsets"]:
                break  # some went meanwhile
            offsets += more["offsets"]
        return GroupDetails.from_answer(answer | {"offsets": offsets})

    async def delete_group(self, name: str) -> None:
        """Delete a consumer group with all it has committed.

        Raises:
            AdminError: it has members, or there is no such group.
        """
        await self._cluster.request("GROUP.DELETE", {"group": name}, _DELETE_TIMEOUT_S)
