"""What the leader of a partition knows of its history in the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_log.epochs import EpochHistory

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ColdSide"]


class ColdSide:
    """The history of a partition in the bucket, as its leader knows it.

    It changes in place as more is tiered and as retention moves its start.

    Attributes:
        start: The first offset that can be read from the bucket.
        end: The offset after the last one that is there.
        epochs: (leader epoch, first offset) of what is there.
        delete_horizon: Tombstones below this offset may be gone.
        stored_bytes: Stored bytes of the objects that hold it, as far as this leader knows.
        records: How many there are, as far as this leader knows.
        root_end: Offset after the last one in objects of its own, or less.
        holders: Nodes whose shared objects hold what follows, as far as this leader knows.
        record_hash: Hash of a record in the bucket's sums of this partition; "" while there is nothing in the bucket.
    """

    __slots__ = (
        "delete_horizon",
        "end",
        "epochs",
        "holders",
        "record_hash",
        "records",
        "root_end",
        "start",
        "stored_bytes",
    )

    def __init__(
        self,
        start: int,
        end: int,
        epochs: Iterable[tuple[int, int]] = (),
        delete_horizon: int = 0,
        *,
        stored_bytes: int = 0,
        records: int = 0,
        root_end: int = 0,
        holders: Iterable[str] = (),
        record_hash: str = "",
    ) -> None:
        self.start = start
        self.end = end
        self.epochs = EpochHistory(epochs)
        self.delete_horizon = delete_horizon
        self.stored_bytes = stored_bytes
        self.records = records
        self.root_end = root_end
        self.holders = frozenset(holders)
        self.record_hash = record_hash

    def advance(self, end: int, epochs: Iterable[tuple[int, int]]) -> None:
        """More is there: everything up to `end`, of which `epochs` tells the leader epochs."""
        for epoch, start in epochs:
            if epoch > self.epochs.latest and start < end:
                self.epochs.begin(epoch, start)
        self.end = max(self.end, end)

    def raise_start(self, start: int) -> None:
        """Nobody wants what is below `start` any more."""
        self.start = max(self.start, min(start, self.end))
        self.epochs.advance(self.start)
