"""What a manifest says of records, counted while they pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.setsum import NO_RECORDS

if TYPE_CHECKING:
    import pyarrow as pa

    from liftpy_bucket.objects.record_hash import RecordHash

__all__ = ["RowsTally"]


class RowsTally:
    """Counts rows of one partition, which ascend by offset, and whose leader epochs never fall.

    Args:
        record_hash: Hash of the partition.

    Attributes:
        record_hash: Hash of the partition.
        base: Offset of the first one; 0 while there is none.
        end: The offset after the last one; 0 while there is none.
        records: Number of records.
        tombstones: How many of them have a key and no value.
        first_timestamp: Time of the first one, ns; 0 while there is none.
        last_timestamp: Time of the last one, ns; 0 while there is none.
        setsum: Setsum of all.
        epochs: (leader epoch, offset of its first record), oldest first.
    """

    def __init__(self, record_hash: RecordHash) -> None:
        self.record_hash = record_hash
        self.base = self.end = 0
        self.records = self.tombstones = 0
        self.first_timestamp = self.last_timestamp = 0
        self.setsum = NO_RECORDS
        self.epochs: tuple[tuple[int, int], ...] = ()

    def take(self, rows: pa.RecordBatch) -> None:
        """Count the next ones.

        Raises:
            ValueError: they do not follow on those before.
        """
        if not rows.num_rows:
            return
        offsets = rows.column("offset").to_numpy()
        epochs = rows.column("leader_epoch").to_numpy()
        before = int(offsets[0]) - 1 if not self.records else self.end - 1
        if offsets[0] <= before or (np.diff(offsets) <= 0).any():
            raise ValueError(f"offsets of rows do not ascend: {before}, then {offsets[0]} to {offsets[-1]}")
        epoch = self.epochs[-1][0] if self.epochs else int(epochs[0])
        if epochs[0] < epoch or (np.diff(epochs) < 0).any():
            raise ValueError(f"leader epochs fall from {epoch} between the offsets {offsets[0]} and {offsets[-1]}")
        self._note_epochs(epochs.tolist() if epochs[0] != epochs[-1] else [int(epochs[0])], offsets)
        times = rows.column("timestamp_ns").to_numpy()
        if not self.records:
            self.base, self.first_timestamp = int(offsets[0]), int(times[0])
        self.end, self.last_timestamp = int(offsets[-1]) + 1, int(times[-1])
        self.records += len(offsets)
        if rows.column("value").null_count and rows.column("key").null_count < len(offsets):
            is_null = np.asarray(rows.column("value").is_null())
            self.tombstones += int((is_null & np.asarray(rows.column("key").is_valid())).sum())
        self.setsum += setsum_of(rows, self.record_hash)

    def _note_epochs(self, epochs: list[int], offsets: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        last = self.epochs[-1][0] if self.epochs else -1
        for place, epoch in enumerate(epochs):
            if epoch != last:
                self.epochs += ((epoch, int(offsets[place])),)
                last = epoch
