"""How many consumer groups a node coordinates, and how much they take: shared by the partitions that it leads.

Pure. Sizes are of what is kept: committed offsets with their keys, and what members asked for. A quota refuses what
would grow beyond it and nothing else: whoever is a member goes on, and offsets that take the place of others of their
size are always committed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_server.settings.groups import GroupsConfig

__all__ = ["GroupQuota"]


class GroupQuota:
    """Limits how many groups this node coordinates and how many bytes they keep.

    Args:
        config: The settings of groups.

    Attributes:
        groups: There are now.
        size_bytes: Size in bytes of all of them.
    """

    def __init__(self, config: GroupsConfig) -> None:
        self._config = config
        self.groups = 0
        self.size_bytes = 0
        self._groups_by_client: Counter[str] = Counter()
        self._bytes_by_client: Counter[str] = Counter()

    def change(self, groups: int, size_bytes: int, client: str = "") -> None:
        """There are so many more groups, and bytes, or fewer.

        Args:
            groups: Number of groups that appear; below 0 when they go.
            size_bytes: Size by which groups grow, bytes.
            client: The address of who made them; "" when nobody knows any more.
        """
        self.groups += groups
        self.size_bytes += size_bytes
        if client:
            self._groups_by_client[client] += groups
            self._bytes_by_client[client] += size_bytes
            if not self._groups_by_client[client]:
                del self._groups_by_client[client], self._bytes_by_client[client]

    def refuses_group(self, client: str) -> str:
        """Why there can not be another group; "" when there can.

        Args:
            client: The address of who wants it.
        """
        config, made = self._config, self._groups_by_client[client]
        if self.groups >= config.groups_max:
            return (
                f"the node coordinates {self.groups} groups and takes no more: delete some, let them expire "
                "(groups.retention_s), or raise groups.groups_max of the nodes"
            )
        if made >= config.client_groups_max:
            return (
                f"clients at {client} have made {made} groups on this node; an address makes no more: delete "
                "some, or raise groups.client_groups_max of the nodes"
            )
        return ""

    def refuses_bytes(self, group: str, size_bytes: int, more_bytes: int, client: str = "") -> str:
        """Why a group can not grow; "" when it can.

        Args:
            group: Name of the group.
            size_bytes: Size in bytes of the group now.
            more_bytes: Size that it is to grow by, bytes.
            client: The address of who made it; "" when nobody knows any more.
        """
        if more_bytes <= 0:
            return ""
        config = self._config
        if size_bytes + more_bytes > config.group_bytes_max:
            return (
                f"group {group!r} would take {size_bytes + more_bytes} bytes; the limit is {config.group_bytes_max}: "
                "commit less metadata, subscribe to fewer streams, or raise groups.group_bytes_max of the nodes"
            )
        of_client = self._bytes_by_client[client]
        if client and of_client + more_bytes > config.client_bytes_max:
            return (
                f"the groups that clients at {client} made take {of_client} bytes; the limit is "
                f"{config.client_bytes_max}: delete some, or raise groups.client_bytes_max of the nodes"
            )
        if self.size_bytes + more_bytes > config.bytes_max:
            return (
                f"the groups of the node take {self.size_bytes} bytes; the limit is {config.bytes_max}: delete some, "
                "let them expire (groups.retention_s), or raise groups.bytes_max of the nodes"
            )
        return ""
