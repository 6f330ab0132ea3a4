"""What a replica knows: of its partition from the metadata, of its own log, and how long it is patient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from liftpy_log.epochs import EpochHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_server.metadata.state import LogReport, MetadataState

__all__ = ["LogMarks", "PartitionView", "ReplicationTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationTimes:
    """How long a replica is patient, in seconds of its own monotonic clock.

    Attributes:
        replica_lag_max_s: A follower that is further behind than this leaves the in-sync replica set.
        leader_timeout_s: A leader that was silent for so long is suspected, and suspected again.
        request_timeout_s: A question or fetch without an answer is sent again; longer than a fetch may wait.
        retry_s: Time between two attempts at a proposal, or at an append that failed, seconds.
        preferred_return_s: The preferred replica leads again after it was in sync for so long.
    """

    replica_lag_max_s: float = 10.0
    leader_timeout_s: float = 1.0
    request_timeout_s: float = 0.75
    retry_s: float = 0.5
    preferred_return_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition as the metadata has it, at one revision.

    Attributes:
        revision: Revision of the metadata; views of older revisions are ignored.
        uuid: UUID of the stream.
        replicas: Nodes that keep a copy; the first is the preferred leader.
        isr: The committed in-sync replica set.
        leader: The node that leads; None while there is none.
        leader_epoch: Leader epoch of that leader.
        version: Version of the partition; an ISR proposal names it.
        min_isr: Fewest in-sync replicas with which anything commits.
        reports: What the replicas have said of their logs, where no clean member of the ISR is left.
        unclean_epoch: The leader epoch that began with the last election by which committed records may have been lost;
            0 when there was none.
        incarnations: Incarnations of the replicas that ever registered.
        observers: Replicas that follow and nothing else: they are never in the ISR, suspect nobody and never lead.
        delete_retention_s: How long a leader's log keeps a tombstone after all that it deleted has gone.
        failed: Replicas whose log has failed, and which have no new copy yet: they take no role.
        renewed: Version from which on the fetches of a replica are about the copy that it began, by replica.
        empty_from: The metadata know of no record from this offset on, and the leader tells them when the first ones
            are committed; None where they know of some.
    """

    revision: int
    uuid: str
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader: str | None
    leader_epoch: int
    version: int
    min_isr: int
    incarnations: Mapping[str, int]
    reports: tuple[LogReport, ...] = ()
    unclean_epoch: int = 0
    observers: tuple[str, ...] = ()
    delete_retention_s: float = 0.0
    failed: tuple[str, ...] = ()
    renewed: Mapping[str, int] = field(default_factory=dict)
    empty_from: int | None = None

    @classmethod
    def of(cls, state: MetadataState, name: str, partition: int) -> PartitionView | None:
        """The view of one partition; None when there is no such stream or partition."""
        stream = state.streams.get(name)
        if stream is None or not 0 <= partition < len(stream.partitions):
            return None
        info = stream.partitions[partition]
        return cls(
            revision=state.revision,
            uuid=stream.uuid,
            replicas=info.replicas,
            isr=info.isr,
            leader=info.leader,
            leader_epoch=info.leader_epoch,
            version=info.version,
            min_isr=stream.config.min_isr_effective,
            reports=info.reports,
            unclean_epoch=info.unclean_epoch,
            incarnations={node: state.nodes[node].incarnation for node in info.replicas if node in state.nodes},
            observers=info.observers,
            delete_retention_s=stream.config.delete_retention_s,
            failed=info.failed,
            renewed=dict(info.renewed),
            empty_from=None if info.first_end > info.empty_log_start else info.empty_log_start,
        )


class LogMarks:
    """How far a replica's log reaches: start <= high watermark <= end, durable end <= end.

    Args:
        start: Offset of the first record that is kept.
        end: The log end offset (LEO): the offset after the last record.
        durable_end: The offset after the last record that is on disk.
        high_watermark: High watermark as it was checkpointed; it may be too low, and is cut to what is there.
        epochs: (leader epoch, its first offset), oldest first.
        delete_horizon: Tombstones below this offset may be missing, but only with all that they deleted.
        known_end: Records below it are known to have been committed, whether this log still has them or not.
    """

    def __init__(
        self,
        *,
        start: int = 0,
        end: int = 0,
        durable_end: int = 0,
        high_watermark: int = 0,
        epochs: Iterable[tuple[int, int]] = (),
        delete_horizon: int = 0,
        known_end: int = 0,
    ) -> None:
        assert start <= durable_end <= end, f"a log from {start} to {end} is not durable up to {durable_end}"
        self.start = start
        self.end = end
        self.durable_end = durable_end
        self.high_watermark = max(start, min(high_watermark, end))
        self.epochs = EpochHistory(epochs)
        self.delete_horizon = delete_horizon
        self.known_end = known_end

    def append(self, epoch: int, base: int, end: int) -> None:
        """Records of one epoch were appended."""
        assert base == self.end < end, f"records {base}..{end} do not follow a log that ends at {self.end}"
        self.epochs.begin(epoch, base)
        self.end = end

    def sync(self, end: int) -> None:
        """Everything below `end` is on disk."""
        self.durable_end = max(self.durable_end, min(end, self.end))

    def truncate(self, end: int) -> None:
        """Records from `end` on are gone, and will not come back after a crash."""
        assert self.start <= end <= self.end, f"a log from {self.start} to {self.end} can not be cut at {end}"
        self.epochs.truncate(end)
        self.end = end
        self.durable_end = min(self.durable_end, end)
        self.high_watermark = min(self.high_watermark, end)

    def rebuild(self, start: int) -> None:
        """The log is empty and goes on at `start`."""
        self.epochs = EpochHistory()
        self.start = self.end = self.durable_end = self.high_watermark = start

    def advance_start(self, start: int) -> None:
        """Retention removed the records below `start`; only committed records are removed."""
        assert start <= self.high_watermark, f"records up to {start} are not committed, {self.high_watermark} are"
        self.start = max(self.start, start)
        self.epochs.advance(self.start)
