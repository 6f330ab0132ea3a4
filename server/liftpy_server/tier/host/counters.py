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
        uploads: objects written, of one partition or shared.
        uploaded_bytes: of record batches in them.
        stored_bytes: of the objects.
        set_manifest_bytes: of the manifest of shared objects, when the node wrote it last.
        failures: jobs that failed, by the code of their error.
        requests: of the worker processes to the store, by kind.
        bytes_in: that these read from the store.
        bytes_out: that they wrote to it.
        deleted: objects that they deleted.
        upload_s: how long uploads took.
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
