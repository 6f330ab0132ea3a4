"""What `liftpy dev --nodes` keeps between runs: who is in the cluster, at which ports, and its key.

The ports are chosen once, because nodes that were started before look for each other where they were. Nodes that are
added in a later run join the cluster instead of founding it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NODES_MAX", "DevLayout", "NodePlace"]

NODES_MAX: Final = 5
_KEY_BYTES: Final = 32
_PORTS: Final = range(12_000, 32_000)  # below those that outgoing connections get


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node.

    Attributes:
        node_id: Name of the node, and of its directory.
        cluster_port: Where the other nodes reach it.
        founder: Whether it was there when the cluster was first started.
    """

    node_id: str
    cluster_port: int
    founder: bool

    @property
    def peer(self) -> str:
        """How the others name it."""
        return f"{self.node_id}@127.0.0.1:{self.cluster_port}"


@dataclass(frozen=True, slots=True)
class DevLayout:
    """The nodes that are to run.

    Attributes:
        home: The directory of all.
        nodes: Those that are to run.
        founders: The nodes that founded the cluster, whether they are to run or not.
    """

    home: Path
    nodes: tuple[NodePlace, ...]
    founders: tuple[NodePlace, ...]

    @classmethod
    def open(cls, home: Path, count: int) -> DevLayout:
        """Read what was kept, and keep what is new.

        Raises:
            UsageError: so few nodes cannot agree on anything, since the cluster has more.
            LiftError: what was kept cannot be read.
        """
        home = home.absolute()  # the command that starts a node again may be run anywhere
        path = home / "cluster.json"
        known = _read(path)
        if count * 2 <= len(known):
            raise UsageError(
                f"{home} holds a cluster of {len(known)} nodes, which do nothing without a majority: "
                f"start at least {len(known) // 2 + 1} of them with --nodes"
            )
        if count > len(known):
            ports = _free_ports(count - len(known))
            new = [NodePlace(f"node-{len(known) + i + 1}", port, not known) for i, port in enumerate(ports)]
            known = [*known, *new]
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps({"nodes": [asdict(place) for place in known]}, indent=2) + "\n")
            temporary.replace(path)
        _make_key(home / "cluster.key")
        return cls(home, tuple(known[:count]), tuple(place for place in known if place.founder))

    @property
    def key_path(self) -> Path:
        """The secret that the nodes share."""
        return self.home / "cluster.key"

    def data_path(self, place: NodePlace) -> Path:
        """The data directory of a node."""
        return self.home / place.node_id

    def log_path(self, place: NodePlace) -> Path:
        """What a node logs goes there."""
        return self.home / f"{place.node_id}.log"

    @property
    def joining(self) -> list[NodePlace]:
        """Nodes that the others are to take in, as things are on disk now: those without data.

        A founder is one of them when enough other founders have data to have founded the cluster.
        """
        kept = sum(self.data_path(place).exists() for place in self.founders)
        is_founded = kept * 2 > len(self.founders)
        new = [place for place in self.nodes if not self.data_path(place).exists()]
        return [place for place in new if is_founded or not place.founder]

    def flags(self, place: NodePlace, *, joins: bool) -> list[str]:
        """What `liftpy server` is told of the cluster.

        Args:
            place: Place of the node.
            joins: The others are to take it in.
        """
        by_peers = place.founder and not joins
        others = [flag for peer in self.founders for flag in ("--peer", peer.peer)] if by_peers else ["--join"]
        return [
            *("--node-id", place.node_id),
            *("--data-dir", str(self.data_path(place))),
            *("--cluster-host", "127.0.0.1"),
            *("--cluster-port", str(place.cluster_port)),
            *("--cluster-key-file", str(self.key_path)),
            *others,
        ]


def _read(path: Path) -> list[NodePlace]:
    if not path.exists():
        return []
    try:
        nodes: list[dict[str, Any]] = json.loads(path.read_text())["nodes"]
        return [NodePlace(str(node["node_id"]), int(node["cluster_port"]), bool(node["founder"])) for node in nodes]
    except (ValueError, LookupError, TypeError) as error:
        raise LiftError(
            f"{path} does not say which nodes there are ({error}); restore it, or start over with another --data-dir"
        ) from None


def _free_ports(count: int) -> list[int]:
    """Different ports that are free now, and that no outgoing connection takes while a node is down."""
    ports: set[int] = set()
    while len(ports) < count:
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return sorted(ports)


def _make_key(path: Path) -> None:
    """A new secret that only its owner may read, unless there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(_KEY_BYTES) + "\n")
