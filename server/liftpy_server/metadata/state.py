"""The replicated state: immutable values, replaced as a whole by every command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from liftpy_envelope.stream_config import StreamConfig

__all__ = ["MetadataState", "NodeInfo", "PartitionInfo", "StreamInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node of the cluster.

    Attributes:
        node_id: its name.
        incarnation: counts its starts.
        pull_host: where consumers and followers reach its pull server.
        pull_port: as above.
        pull_tls: the pull server speaks TLS.
        pull_token: what the pull server admits clients by; told to whoever may ask over NATS.
        rack: replicas are spread over racks.
        expired: its session ended; it leads nothing until it registers again.
    """

    node_id: str
    incarnation: int
    pull_host: str
    pull_port: int
    pull_tls: bool = False
    pull_token: str = field(default="", repr=False)
    rack: str | None = None
    expired: bool = False

    def to_plain(self) -> dict[str, Any]:
        """For JSON and msgpack."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition of a stream.

    Attributes:
        replicas: nodes that keep a copy; the first is the preferred leader.
        isr: those that are in sync.
        leader: the node that sequences and acknowledges.
        leader_epoch: grows with every change of leader and every restart of one.
        version: grows with every change of replicas, ISR, leader, epoch or log start.
        log_start: records below this offset were purged.
        unproven: members of the ISR as it was last agreed on that could not prove their log and were taken out.
        reports: (node, incarnation, last epoch, log end) of those, where no clean member is left.
        suspicions: (node, time in ns): who told last that the leader is silent.
        elected_ns: when a suspicion last changed the leader, by the clock of the node that proposed it.
        depositions: how often suspicions changed the leader in quick succession.
        unclean_elections: how often a leader was chosen whose log may lack committed records.
    """

    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader: str | None
    leader_epoch: int
    version: int = 1
    log_start: int = 0
    unproven: tuple[str, ...] = ()
    reports: tuple[tuple[str, int, int, int], ...] = ()
    suspicions: tuple[tuple[str, int], ...] = ()
    elected_ns: int = 0
    depositions: int = 0
    unclean_elections: int = 0

    def to_plain(self) -> dict[str, Any]:
        """For JSON and msgpack."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "unproven": list(self.unproven),
            "reports": [list(report) for report in self.reports],
            "suspicions": [list(suspicion) for suspicion in self.suspicions],
        }

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> PartitionInfo:
        """What `to_plain` wrote."""
        tuples = {name: tuple(given.get(name, ())) for name in ("replicas", "isr", "unproven")}
        pairs = {name: tuple(map(tuple, given.get(name, ()))) for name in ("reports", "suspicions")}
        return cls(**given | tuples | pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream.

    Attributes:
        uuid: 32 hex digits; a stream that is created again under the same name has another.
        config: its configuration.
        created_ns: when it was created, by the clock of the node that proposed it.
        version: grows with every change.
        paused: messages are refused until it is resumed.
        read_only: messages are refused.
        partitions: by number.
    """

    uuid: str
    config: StreamConfig
    created_ns: int
    version: int = 1
    paused: bool = False
    read_only: bool = False
    partitions: tuple[PartitionInfo, ...] = ()

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
        }

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> StreamInfo:
        """What `to_plain` wrote."""
        return cls(
            **given
            | {
                "config": StreamConfig.from_plain(given["config"]),
                "partitions": tuple(PartitionInfo.from_plain(partition) for partition in given["partitions"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataState:
    """Everything.

    Attributes:
        revision: number of commands applied.
        nodes: by id.
        streams: by name.
        deleted: uuids of the streams deleted last, so that what is left of them on a disk can go.
        outcomes: of the commands applied last, by command id, so that one proposed twice is applied once.
    """

    revision: int = 0
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    streams: dict[str, StreamInfo] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "revision": self.revision,
            "nodes": [node.to_plain() for node in self.nodes.values()],
            "streams": [stream.to_plain() for stream in self.streams.values()],
            "deleted": list(self.deleted),
            "outcomes": self.outcomes,
        }

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> MetadataState:
        """What `to_plain` wrote."""
        streams = [StreamInfo.from_plain(stream) for stream in given["streams"]]
        return cls(
            revision=given["revision"],
            nodes={node["node_id"]: NodeInfo(**node) for node in given["nodes"]},
            streams={stream.name: stream for stream in streams},
            deleted=tuple(given["deleted"]),
            outcomes=given["outcomes"],
        )
