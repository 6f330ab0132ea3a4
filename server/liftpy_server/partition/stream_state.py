"""What a node remembers of a stream while it runs: its settings as they are now, its counts and its gaps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from liftpy_server.gaps.partition_gaps import PartitionGaps

if TYPE_CHECKING:
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.clock import Clock
    from liftpy_server.gaps.partition_gaps import GapKeeper
    from liftpy_server.metadata.state import StreamInfo

__all__ = ["StreamCounters", "StreamState"]


@dataclass(slots=True)
class StreamCounters:
    """Counts since the node started."""

    messages: int = 0
    bytes: int = 0
    batches: int = 0
    duplicates: int = 0
    lookalikes: int = 0
    unsupported_stored: int = 0
    gaps: int = 0
    committed_lost: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class StreamState:
    """One stream on this node.

    Args:
        info: Description from the metadata.
        clock: Clock of the node.
        keeper: Has gaps written down.
    """

    def __init__(self, info: StreamInfo, clock: Clock, keeper: GapKeeper) -> None:
        self.uuid = info.uuid
        self._created_ns = info.created_ns
        self.config: StreamConfig = info.config
        self.paused = info.paused
        self.read_only = info.read_only
        self._partitions = info.partitions
        self.counters = StreamCounters()
        self._clock = clock
        self._keeper = keeper
        self._gaps: dict[int, PartitionGaps] = {}

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.config.name

    def update(self, info: StreamInfo) -> None:
        """Take over settings that changed."""
        self.config = info.config
        self.paused = info.paused
        self.read_only = info.read_only
        self._partitions = info.partitions

    def purged_below(self, partition: int) -> int:
        """Records of a partition below this offset were purged; a log may begin above it for other reasons."""
        return self._partitions[partition].log_start

    def gaps_of(self, partition: int) -> PartitionGaps:
        """The gaps of a partition that this node leads, or led."""
        gaps = self._gaps.get(partition)
        if gaps is None:
            gaps = PartitionGaps(
                self.uuid, self.name, partition, self._clock, self._keeper, self.counters, self._created_ns
            )
            self._gaps[partition] = gaps
        return gaps
