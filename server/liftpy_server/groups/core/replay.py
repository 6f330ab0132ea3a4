"""From the log to coordinators: the newest record of everything in one partition of the stream of the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import BatchVersionError
from liftpy_server.groups.core.coordinator import GroupCoordinator
from liftpy_server.groups.core.member import GroupImage, Member
from liftpy_server.groups.core.offset_table import OffsetTable
from liftpy_server.groups.core.records import RecordKind, split_member_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["GroupsReplay"]


class GroupsReplay:
    """Takes the committed record batches of a partition in their order; then makes the coordinators of its groups.

    Attributes:
        table: What the groups have committed; all coordinators share it from then on.
    """

    def __init__(self) -> None:
        self.table = OffsetTable()
        self._images: dict[str, GroupImage] = {}
        self._members: dict[str, dict[str, Member]] = {}

    @property
    def groups(self) -> list[str]:
        """Names of all groups that have members, or have committed something, or once did."""
        return sorted(self._images.keys() | set(self.table.groups))

    @property
    def groups_with_members(self) -> list[str]:
        """Groups that have members and no coordinator yet."""
        return sorted(self._members)

    def knows(self, group: str) -> bool:
        """Whether there is such a group, apart from those of which a coordinator was made."""
        return group in self._images or group in self._members or self.table.has(group)

    def generation(self, group: str) -> int:
        """Generation of the newest assignment of a group without a coordinator; 0 if it never had any."""
        image = self._images.get(group)
        return 0 if image is None else image.generation

    def apply_batch(self, records: pa.RecordBatch) -> None:
        """Take the records of one batch.

        Raises:
            BatchVersionError: a newer liftpy wrote one of them.
        """
        self.apply(records.column("key").to_pylist(), records.column("value").to_pylist())

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Apply records of the log.

        Raises:
            BatchVersionError: a newer liftpy wrote one of them.
        """
        if all(key[0] == RecordKind.OFFSET for key in keys):
            self.table.apply_many(zip(keys, values, strict=True))
            return
        for key, value in zip(keys, values, strict=True):
            if key[0] == RecordKind.OFFSET:
                self.table.apply(key, value)
            elif key[0] == RecordKind.GROUP:
                self._apply_group(key[1:].decode(), value)
            elif key[0] == RecordKind.MEMBER:
                self._apply_member(*split_member_key(key), value)
            else:
                raise BatchVersionError(f"a record of the groups has kind {key[0]}, unknown here: upgrade the node")

    def _apply_group(self, group: str, value: bytes | None) -> None:
        if value is None:
            self._images.pop(group, None)
        else:
            self._images[group] = GroupImage.from_value(value)

    def _apply_member(self, group: str, member_id: str, value: bytes | None) -> None:
        members = self._members.setdefault(group, {})
        if value is None:
            members.pop(member_id, None)
        else:
            members[member_id] = Member.from_value(member_id, value)
        if not members:
            del self._members[group]

    def coordinator(self, group: str) -> GroupCoordinator:
        """The coordinator of a group, which may be new. To be called once per group."""
        members = self._members.pop(group, {}).values()
        return GroupCoordinator(group, self.table, self._images.pop(group, None), members)
