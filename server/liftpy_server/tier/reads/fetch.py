"""A fetch from the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.partition.partition import Partition

__all__ = ["ColdFetch"]


class ColdFetch:
    """One that waits for its turn, or is under way.

    Args:
        partition: Partition that is fetched.
        offset: The first that is wanted.
        target_bytes: About how much to fetch.
        is_wanted: Somebody waits for it.
        until: Where it was foreseen to end; None where nobody can tell.

    Attributes:
        is_slow: Whether it has been under way for long.
    """

    __slots__ = ("is_slow", "is_wanted", "offset", "partition", "target_bytes", "until")

    def __init__(
        self, partition: Partition, offset: int, target_bytes: int, *, is_wanted: bool, until: int | None = None
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.target_bytes = target_bytes
        self.is_wanted = is_wanted
        self.until = until
        self.is_slow = False

    @property
    def place(self) -> tuple[PartitionKey, int]:
        """What it is known by."""
        return self.partition.key, self.offset
