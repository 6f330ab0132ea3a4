"""What a node is told of its cluster: the `[cluster]` table of its settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import describe

__all__ = ["PEERS_MAX", "ClusterConfig", "Peer"]

PEERS_MAX: Final = 5
_KEY_BYTES_MIN: Final = 32


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that keeps the cluster's metadata.

    Attributes:
        node_id: Id of the node.
        host: Where the others reach its metadata port.
        port: Port of the peer.
    """

    node_id: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Peer:
        """`node-1@host:port`, with an IPv6 address in brackets.

        Raises:
            ConfigError: it is something else.
        """
        node_id, at, address = text.partition("@")
        host, colon, port = address.rpartition(":")
        if not (node_id and at and host and colon and port.isdecimal() and 0 < int(port) < 65_536):
            raise ConfigError("cluster.peers", f"{describe(text)} is not of the form node-1@host:port")
        return cls(node_id, host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.node_id}@{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How the nodes of a cluster find, know and mistrust each other.

    Attributes:
        host: Address on which this node listens for the metadata of the others.
        port: Port for the metadata of other nodes; None for a node that stays alone and does not listen.
        advertise_host: Address that the others are told, where it differs from `host`.
        peers: All nodes of a new cluster, this one among them, each `node-1@host:port`; nodes that have started once
            go by what their data directory says.
        join: This node is new, and the running cluster that it finds over NATS shall take it in.
        key_file: File with the secret that the nodes of the cluster share; at least 32 bytes.
        tls_cert: Certificate for mutual TLS between the nodes, besides the secret; it carries the node's id as a DNS
            name.
        tls_key: Key of the certificate.
        tls_ca: Authority of the other nodes' certificates.
        leader_timeout_s: A leader that is silent for so long is deposed, and a node loses its leaderships.
        replica_lag_max_s: A follower that is further behind leaves the in-sync replica set.
        preferred_return_s: The preferred replica leads again after it was in sync for so long.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    advertise_host: str | None = None
    peers: tuple[str, ...] = ()
    join: bool = False
    key_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    leader_timeout_s: float = 1.0
    replica_lag_max_s: float = 10.0
    preferred_return_s: float = 10.0

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65_536:
            raise ConfigError("cluster.port", f"must be a port between 0 and 65535, not {self.port}")
        for name, low, high in (
            ("leader_timeout_s", 0.2, 600),
            ("replica_lag_max_s", 0.5, 3_600),
            ("preferred_return_s", 0, 86_400),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"cluster.{name}", f"must be between {low} and {high}, not {getattr(self, name)}")
        self._check_identity()

    def _check_identity(self) -> None:
        ids = [peer.node_id for peer in self.parsed_peers]
        if len(ids) > PEERS_MAX:
            raise ConfigError("cluster.peers", f"at most {PEERS_MAX} nodes, not {len(ids)}; further ones join")
        for node_id in ids:
            if ids.count(node_id) > 1:
                raise ConfigError("cluster.peers", f"{node_id!r} stands there more than once")
        if self.join and self.peers:
            raise ConfigError(
                "cluster.join", "a node that joins gets its peers from the cluster; leave cluster.peers out"
            )
        if len({self.tls_cert is None, self.tls_key is None, self.tls_ca is None}) > 1:
            raise ConfigError("cluster.tls_cert", "tls_cert, tls_key and tls_ca belong together")
        if (self.join or len(ids) > 1) and self.port is None:
            raise ConfigError("cluster.port", "a node of a cluster of several needs a port for the others")
        if self.port is not None and self.key_file is None:
            raise ConfigError(
                "cluster.key_file",
                "nodes that listen for others need a secret, also where they have certificates: what they ask each "
                "other over NATS is proven by it; openssl rand -hex 32 makes one, the same for all nodes",
            )
        if self.host in {"0.0.0.0", "::"} and self.advertise_host is None:  # noqa: S104 - refused, not bound
            raise ConfigError("cluster.advertise_host", f"others can not connect to {self.host}: name an address")

    @property
    def parsed_peers(self) -> tuple[Peer, ...]:
        """The peers, taken apart."""
        return tuple(Peer.parse(text) for text in self.peers)

    @property
    def reachable_host(self) -> str:
        """The address that the others are told."""
        return self.advertise_host or self.host

    def read_key(self) -> bytes | None:
        """The secret of the cluster; None without a key file.

        Raises:
            ConfigError: the file can not be read, or holds too little.
        """
        if self.key_file is None:
            return None
        path = Path(self.key_file).expanduser()
        try:
            key = path.read_bytes().strip()
        except OSError as error:
            raise ConfigError("cluster.key_file", f"{path} can not be read: {error.strerror}") from error
        if len(key) < _KEY_BYTES_MIN:
            raise ConfigError(
                "cluster.key_file",
                f"{path} holds {len(key)} bytes, and fewer than {_KEY_BYTES_MIN}: openssl rand -hex 32 makes a secret",
            )
        return key

    @property
    def tls_paths(self) -> tuple[Path, Path, Path] | None:
        """Certificate, key and authority; None without them."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        certificate, key, authority = (Path(name).expanduser() for name in (self.tls_cert, self.tls_key, self.tls_ca))
        return certificate, key, authority

    def check_certificates(self) -> None:
        """Look whether the certificates can be used.

        Raises:
            ConfigError: they can not, and which.
        """
        if self.tls_paths is None:
            return
        certificate, key, authority = self.tls_paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            raise ConfigError("cluster.tls_cert", f"{certificate} with {key} can not be used: {error}") from error
        try:
            context.load_verify_locations(authority)
        except OSError as error:
            raise ConfigError("cluster.tls_ca", f"{authority} can not be used: {error}") from error
