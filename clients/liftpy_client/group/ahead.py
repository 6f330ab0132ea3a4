"""What is said of partitions that a member of a group is told of, and that are not read yet.

`on_assigned` is called before the first message, and is where one says where to go on, or what to pause. Nobody reads
the partitions then; so it is remembered, and done when reading begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.pull import PartitionKey

__all__ = ["Ahead", "Said"]


class Said(NamedTuple):
    """What was said of a partition.

    Attributes:
        offset: where it begins.
        is_sought: whether somebody said so, rather than the group.
        is_paused: whether it is to wait.
    """

    offset: int
    is_sought: bool = False
    is_paused: bool = False


class Ahead:
    """See the module."""

    def __init__(self) -> None:
        self._said: dict[PartitionKey, Said] = {}

    def expect(self, offsets: Mapping[PartitionKey, int]) -> None:
        """These partitions are about to be read, from these offsets on, and no others."""
        self._said = {key: Said(offset) for key, offset in offsets.items()}

    def has(self, key: PartitionKey) -> bool:
        """Whether it is one of them."""
        return key in self._said

    def find(self, key: PartitionKey) -> Said | None:
        """What was said of it, if it is one of them."""
        return self._said.get(key)

    def take(self, key: PartitionKey) -> Said | None:
        """It is read from now on. Returns what was said of it."""
        return self._said.pop(key, None)

    def seek(self, key: PartitionKey, offset: int) -> None:
        """One of them is to begin elsewhere."""
        self._said[key] = self._said[key]._replace(offset=offset, is_sought=True)

    def pause(self, key: PartitionKey, *, is_paused: bool) -> None:
        """One of them is to wait, or is not."""
        self._said[key] = self._said[key]._replace(is_paused=is_paused)
