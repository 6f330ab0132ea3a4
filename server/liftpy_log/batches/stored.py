"""A whole record batch as it is stored, and what its records say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from liftpy_envelope.batch import HEADER_SIZE, BatchHeader, decode_records
from liftpy_envelope.columns import Column

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["StoredBatch"]


class StoredBatch(NamedTuple):
    """One whole and checked batch."""

    header: BatchHeader
    data: pa.Buffer

    @property
    def records(self) -> pa.RecordBatch:
        """The records of the batch, decoded at every call."""
        return decode_records(self.header, self.data.slice(HEADER_SIZE))

    def offsets(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The offset of each of its records."""
        base = self.header.base_offset
        if self.header.columns & Column.OFFSET_DELTA:
            deltas: npt.NDArray[np.int32] = records.column("offset_delta").to_numpy()
            return deltas.astype(np.int64) + base
        return np.arange(base, base + records.num_rows)

    def times(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The time of each of its records, in ns."""
        if self.header.columns & Column.TIMESTAMP:
            times: npt.NDArray[np.int64] = records.column("timestamp").to_numpy()
            return times
        return np.full(records.num_rows, self.header.base_timestamp, np.int64)
