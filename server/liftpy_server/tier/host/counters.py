"""What a node has done to the bucket since it started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from liftpy_log.histogram import Histogram

if TYPE_CHECKING:
    from liftpy_server.tier.requests import CountsResult

__all__ = ["TierCounters"]


@dataclass(slots=True)
class TierCounters:
    """Counts what a node has done to the bucket.

    Attributes:
        uploads: Objects written, of one partition or shared.
        uploaded_bytes: Size of the record batches in them, bytes.
        stored_bytes: Size of the objects, bytes.
        set_manifest_bytes: Size of the manifest of shared objects when the node wrote it last, bytes.
        failures: Jobs that failed, by the code of their error.
        requests: Number of requests of the worker processes to the store, by kind.
        bytes_in: Bytes that these read from the store.
        bytes_out: Bytes that they wrote to it.
        deleted: Objects that they deleted.
        upload_s: How long uploads took.
    """

    uploads: int = 0
    uploaded_bytes: int = 0
    stored_bytes: int = 0
    set_manifest_bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    deleted: int = 0
    upload_s: Histogram = field(default_factory=Histogram)
    _told: dict[str, int] = field(default_factory=dict)

    def take(self, told: CountsResult) -> None:
        """Add what a worker process has counted since it said so last; one that was started again counts anew."""
        counted = {**told.counts, "bytes_in": told.bytes_in, "bytes_out": told.bytes_out, "deleted": told.deleted}
        is_new = any(counted.get(name, 0) < count for name, count in self._told.items())
        grown = {name: count - (0 if is_new else self._told.get(name, 0)) for name, count in counted.items()}
        self._told = counted
        self.bytes_in += grown.pop("bytes_in")
        self.bytes_out += grown.pop("bytes_out")
        self.deleted += grown.pop("deleted")
        self.requests.update(grown)
