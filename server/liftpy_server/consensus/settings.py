"""What a voter is told at start. Validated once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["COMMAND_BYTES_MAX", "VOTERS_MAX", "RaftSettings", "TlsFiles", "Voter"]

VOTERS_MAX: Final = 5
COMMAND_BYTES_MAX: Final = 256 * 1024
_CLUSTER_KEY_BYTES_MIN: Final = 32


@dataclass(frozen=True, slots=True, order=True)
class Voter:
    """A member of the metadata quorum.

    Attributes:
        node_id: Name of the voter; it never changes, and is what its certificate must carry.
        host: Where the others reach it.
        port: Port of the voter; 0 while it does not listen.
        instance: Id of its data directory, once that is known to the cluster; a directory that is made again has
            another. Two of the same name, host and port are equal, whatever it is.
    """

    node_id: str
    host: str
    port: int
    instance: str = field(default="", compare=False)

    def to_plain(self) -> list[str | int]:
        """The fields as msgpack and JSON values."""
        known = [self.instance] if self.instance else []
        return [self.node_id, self.host, self.port, *known]

    @classmethod
    def from_plain(cls, given: object) -> Voter:
        """Read fields that `to_plain` wrote.

        Raises:
            ValueError: it is something else.
        """
        match given:
            case [str(node_id), str(host), int(port), *rest] if node_id and host and 0 <= port < 65_536:
                match rest:
                    case []:
                        return cls(node_id, host, port)
                    case [str(instance)]:
                        return cls(node_id, host, port, instance)
                raise ValueError(f"not a voter: {given!r:.100}")
            case _:
                raise ValueError(f"not a voter: {given!r:.100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for mutual TLS. The certificate names the node's id as a DNS name."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Settings of one voter.

    Attributes:
        node_id: Id of this node.
        voters: Voters when the cluster is first started, this node among them; later starts go by the journal, and take
            only addresses from here. A node that joins is given those that vote already.
        folder: Where journal and snapshot are kept.
        cluster_id: Id of the cluster to join; empty where a new one is started, and at later starts.
        bind_host: The address to listen at; no other is bound.
        bind_port: Port to bind; None for a cluster of one that does not listen.
        cluster_key: Shared secret, at least 32 bytes; not needed with `tls`.
        tls: Certificates for mutual TLS.
        election_timeout_min_s: A follower that hears no leader for a random time between this and twice this stands
            for election.
        heartbeat_s: How often a leader speaks.
        propose_timeout_s: Time without an answer after which the outcome of a command is unknown, seconds.
        snapshot_every_entries: Length of the log at which a snapshot replaces it.
    """

    node_id: str
    voters: tuple[Voter, ...]
    folder: Path
    cluster_id: str = ""
    bind_host: str = "127.0.0.1"
    bind_port: int | None = 0
    cluster_key: bytes | None = field(default=None, repr=False)
    tls: TlsFiles | None = None
    election_timeout_min_s: float = 0.5
    heartbeat_s: float = 0.1
    propose_timeout_s: float = 10.0
    snapshot_every_entries: int = 10_000

    def __post_init__(self) -> None:
        ids = [voter.node_id for voter in self.voters]
        if self.node_id not in ids and not self.cluster_id:
            raise ConfigError("voters", f"this node, {self.node_id!r}, is not among them")
        if len(set(ids)) != len(ids) or len(ids) > VOTERS_MAX:
            raise ConfigError("voters", f"one to {VOTERS_MAX} different nodes")
        if self.cluster_key is None and self.tls is None and len(ids) > 1:
            raise ConfigError("cluster_key", "several voters need a cluster key or certificates")
        if self.cluster_key is not None and len(self.cluster_key) < _CLUSTER_KEY_BYTES_MIN:
            raise ConfigError("cluster_key", f"at least {_CLUSTER_KEY_BYTES_MIN} bytes")
        if self.election_timeout_min_s <= 3 * self.heartbeat_s or self.heartbeat_s <= 0:
            raise ConfigError("heartbeat_s", "less than a third of the shortest election timeout, and more than 0")
        if self.propose_timeout_s <= 0 or self.snapshot_every_entries < 2:
            raise ConfigError("propose_timeout_s", "more than 0 s, and a snapshot of no less than 2 entries")
