"""The replicated state: immutable values, replaced as a whole by every command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.gaps.gap import Gap
from liftpy_server.metadata.outcomes import OutcomeTable

if TYPE_CHECKING:
    from liftpy_envelope.events import Event

__all__ = ["LEVEL", "LogReport", "MetadataState", "NodeInfo", "PartitionInfo", "StreamInfo"]

LEVEL: Final = 2
"""The newest level of the metadata that this liftpy understands.

Grows whenever a command is added or gets another meaning, or the state another field: nodes of an older liftpy would
come to another state by the same commands. Also when another format is to be written, on disks, on the wire or in the
bucket, which the version before could read already. With 2 histories in the bucket are begun with another hash, see
`liftpy_server.tier.host.tiered_partition`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node of the cluster.

    Attributes:
        node_id: Name of the node.
        incarnation: Counts its starts.
        pull_host: Where consumers and followers reach its pull server.
        pull_port: Port for consumers.
        pull_tls: The pull server speaks TLS.
        pull_token: What the pull server admits clients by; told to whoever may ask over NATS.
        follow_token: What it admits other nodes by, whose word on what they have on disk counts; told to nobody else.
        rack: Replicas are spread over racks.
        expired: Whether its session ended; it leads nothing until it registers again.
        metadata_host: Where the other nodes reach its metadata port; None when it does not listen.
        metadata_port: Port for the metadata of other nodes.
        draining: Whether it is to be emptied: it gets no further replicas or leaderships.
        level: The newest level of the metadata that it understands.
    """

    node_id: str
    incarnation: int
    pull_host: str
    pull_port: int
    pull_tls: bool = False
    pull_token: str = field(default="", repr=False)
    follow_token: str = field(default="", repr=False)
    rack: str | None = None
    expired: bool = False
    metadata_host: str | None = None
    metadata_port: int | None = None
    draining: bool = False
    level: int = 1

    def to_plain(self) -> dict[str, Any]:
        """For msgpack."""
        return {name: getattr(self, name) for name in self.__slots__}

    def for_clients(self) -> dict[str, Any]:
        """For JSON: what whoever may read from the node needs to know."""
        return {name: value for name, value in self.to_plain().items() if name != "follow_token"}


class LogReport(NamedTuple):
    """What a replica says of its log while nobody leads.

    Attributes:
        node_id: The replica.
        incarnation: Incarnation of its node; what it said in an earlier one counts no longer.
        last_epoch: Leader epoch of its last record; -1 when it has none.
        log_end: The offset after its last record.
        high_watermark: Records below it are known there to have been committed, whether the log still has them or not.
    """

    node_id: str
    incarnation: int
    last_epoch: int
    log_end: int
    high_watermark: int = 0

    @property
    def reach(self) -> tuple[int, int]:
        """Of two logs the one that reaches further holds every committed record that the other holds."""
        return self.last_epoch, self.log_end


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition of a stream.

    Attributes:
        replicas: Nodes that keep a copy; the first is the preferred leader.
        isr: Those that are in sync.
        leader: The node that sequences and acknowledges.
        leader_epoch: Grows with every change of leader and every restart of one.
        version: Grows with every change of replicas, ISR, leader, epoch or log start.
        log_start: Records below this offset were purged.
        unproven: Members of the ISR that could not prove their log and were taken out, in the order in which they were,
            since an ISR of `min_isr` members was last agreed on.
        lost: Those of them whose log proves nothing: it was not there, had failed, is a copy begun since, or left while
            fewer members could commit.
        reports: What the replicas say of their logs, where no clean member of the ISR is left.
        known_end: Records below it were committed, as one of those replicas knows for certain.
        elected_reach: Last epoch and end of the log that reports elected last, until `min_isr` are in sync again: it
            has every committed record, and so has any that reaches as far.
        committing_epoch: The last leader epoch in which `min_isr` nodes were in sync: records could be committed.
        first_end: Records below it were committed, as a leader said of the first; once, and again after a purge.
        suspicions: (node, time in ns): who told last that the leader is silent.
        elected_ns: When a suspicion last changed the leader, by the clock of the node that proposed it.
        depositions: How often suspicions changed the leader in quick succession.
        unclean_elections: How often a leader was chosen whose log may lack committed records.
        unclean_epoch: The leader epoch that the last of those elections began; 0 when there was none.
        observers: Those replicas that follow without counting: never in the ISR, never leader.
        target: Replicas afterwards while the partition is reassigned; `replicas` has old and new until then.
        target_observers: Observers afterwards while the partition is reassigned.
        origin: Replicas before while the partition is reassigned; they are back when that is cancelled.
        origin_observers: Observers before while the partition is reassigned.
        departed: Nodes that ceased to be replicas in this leader epoch; what they said of themselves may still arrive.
        failed: Replicas whose log failed or was found damaged; none of them counts before it has a new copy.
        renewed: (node, version) of replicas that began a new copy in the node's incarnation, and the version that says
            so; what a node said of its log at an earlier version is about the copy before.
        local_start: The nodes' logs begin here; what is below, from `log_start` on, is in the bucket alone.
        restored_ns: When it was brought back from the bucket, which had it up to `local_start`; 0 when it never was.
        restored_epoch: The leader epoch that it began with then; no leader of the cluster before had it or a later one.
        restored_time: Timestamp of the newest record that the bucket had then, ns: the log's time before its first
            record here; 0 when there was none.
    """

    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader: str | None
    leader_epoch: int
    version: int = 1
    log_start: int = 0
    unproven: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    reports: tuple[LogReport, ...] = ()
    known_end: int = 0
    elected_reach: tuple[int, int] | None = None
    committing_epoch: int = 0
    first_end: int = 0
    suspicions: tuple[tuple[str, int], ...] = ()
    elected_ns: int = 0
    depositions: int = 0
    unclean_elections: int = 0
    unclean_epoch: int = 0
    observers: tuple[str, ...] = ()
    target: tuple[str, ...] | None = None
    target_observers: tuple[str, ...] = ()
    origin: tuple[str, ...] | None = None
    origin_observers: tuple[str, ...] = ()
    departed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    renewed: tuple[tuple[str, int], ...] = ()
    local_start: int = 0
    restored_ns: int = 0
    restored_epoch: int = 0
    restored_time: int = 0

    @property
    def empty_log_start(self) -> int:
        """Where a log of this partition begins that has no record yet."""
        return max(self.log_start, self.local_start)

    @property
    def committed_end(self) -> int:
        """Records below this offset were committed, as far as the metadata know."""
        return max(self.known_end, self.first_end)

    @property
    def voters(self) -> tuple[str, ...]:
        """The replicas that count: all but the observers."""
        return tuple(node for node in self.replicas if node not in self.observers)

    def to_plain(self) -> dict[str, Any]:
        """For JSON and msgpack."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        for name in _NODE_LISTS:
            plain[name] = list(plain[name])
        for name in _RECORD_LISTS:
            plain[name] = [list(record) for record in plain[name]]
        for name in _OPTIONAL_LISTS:
            plain[name] = None if plain[name] is None else list(plain[name])
        return plain

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> PartitionInfo:
        """What `to_plain` wrote."""
        tuples: dict[str, Any] = {name: tuple(given.get(name, ())) for name in _NODE_LISTS}
        tuples["reports"] = tuple(LogReport(*report) for report in given.get("reports", ()))
        tuples |= {name: tuple(map(tuple, given.get(name, ()))) for name in ("suspicions", "renewed")}
        tuples |= {name: tuple(given[name]) for name in _OPTIONAL_LISTS if given.get(name) is not None}
        return cls(**given | tuples)


_NODE_LISTS: Final = (
    "replicas",
    "isr",
    "unproven",
    "lost",
    "observers",
    "target_observers",
    "origin_observers",
    "departed",
    "failed",
)
_RECORD_LISTS: Final = ("reports", "suspicions", "renewed")
_OPTIONAL_LISTS: Final = ("target", "origin", "elected_reach")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream.

    Attributes:
        uuid: 32 hex digits; a stream that is created again under the same name has another.
        config: Configuration of the stream.
        created_ns: When it was created, by the clock of the node that proposed it.
        version: Grows with every change.
        paused: Messages are refused until it is resumed.
        read_only: Messages are refused.
        partitions: Partitions by number.
        gaps: What nodes told of gaps, by number of the partition; a bounded number.
    """

    uuid: str
    config: StreamConfig
    created_ns: int
    version: int = 1
    paused: bool = False
    read_only: bool = False
    partitions: tuple[PartitionInfo, ...] = ()
    gaps: dict[int, tuple[Gap, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def to_plain(self) -> dict[str, Any]:
        """For JSON and msgpack."""
        return {
            "uuid": self.uuid,
            "config": self.config.to_plain(),
            "created_ns": self.created_ns,
            "version": self.version,
            "paused": self.paused,
            "read_only": self.read_only,
            "partitions": [partition.to_plain() for partition in self.partitions],
            "gaps": [[number, [gap.to_plain() for gap in gaps]] for number, gaps in self.gaps.items()],
        }

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> StreamInfo:
        """What `to_plain` wrote."""
        return cls(
            **given
            | {
                "config": StreamConfig.from_plain(given["config"]),
                "partitions": tuple(PartitionInfo.from_plain(partition) for partition in given["partitions"]),
                "gaps": {number: tuple(map(Gap.from_plain, gaps)) for number, gaps in given.get("gaps", ())},
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataState:
    """Everything.

    Attributes:
        revision: Number of commands applied; those within a batch count one by one. It leaps when the streams of the
            system come back from the bucket.
        nodes: Nodes by id.
        streams: Streams by name.
        deleted: UUIDs of the streams deleted last, so that what is left of them on a disk can go.
        outcomes: Outcomes of the commands applied last, by command id, so that one proposed twice is applied once.
        level: What all registered nodes understood at some time; commands of higher levels are refused, and nodes
            that understand less are not registered any more.
        incarnation_floor: The highest incarnation of any node that was removed; a node that comes back under its old
            name gets a higher one, so that nothing its earlier processes sent is taken for its own.
        told: Events that nodes told of themselves by the last entry that told any. They are for whoever sees that
            entry applied, and in no snapshot.
    """

    revision: int = 0
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    streams: dict[str, StreamInfo] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    outcomes: OutcomeTable = field(default_factory=OutcomeTable)
    level: int = 1
    incarnation_floor: int = 0
    told: tuple[Event, ...] = field(default=(), compare=False)

    def to_plain(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "revision": self.revision,
            "nodes": [node.to_plain() for node in self.nodes.values()],
            "streams": [stream.to_plain() for stream in self.streams.values()],
            "deleted": list(self.deleted),
            "outcomes": self.outcomes.to_plain(),
            "level": self.level,
            "incarnation_floor": self.incarnation_floor,
        }

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> MetadataState:
        """What `to_plain` wrote.

        Raises:
            LiftError: it is of a newer liftpy.
        """
        level = given.get("level", 1)
        if level > LEVEL:
            raise LiftError(
                f"the metadata is of level {level}, and this liftpy understands {LEVEL} at most; upgrade this node"
            )
        streams = [StreamInfo.from_plain(stream) for stream in given["streams"]]
        return cls(
            revision=given["revision"],
            nodes={node["node_id"]: NodeInfo(**node) for node in given["nodes"]},
            streams={stream.name: stream for stream in streams},
            deleted=tuple(given["deleted"]),
            outcomes=OutcomeTable.from_plain(given["outcomes"]),
            level=level,
            incarnation_floor=given.get("incarnation_floor", 0),
        )
