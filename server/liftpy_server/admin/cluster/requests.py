"""The bodies of requests from node to node, and of those about nodes and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from liftpy_envelope.errors import ConfigError, NameInvalidError
from liftpy_envelope.names import check_name
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.requests import LIST_LIMIT_MAX

__all__ = [
    "ClusterRequest",
    "DrainRequest",
    "FollowedRequest",
    "JoinNodeRequest",
    "KnownRequest",
    "NodeInfoRequest",
    "NodeLogsRequest",
    "NodePurgeRequest",
    "NodeStreamsRequest",
    "QuarantineRequest",
    "ReassignRequest",
    "RecoverRequest",
    "RemoveRequest",
    "read_node_purge",
    "read_reassign",
    "read_recover",
]

_REPLICAS_MAX: Final = 7
_OBSERVERS_MAX: Final = 16
_PARTITIONS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStreamsRequest:
    """Streams by uuid, of which a node tells what it knows as the leader of their partitions."""

    uuids: tuple[str, ...]
    brief: bool = False

    def __post_init__(self) -> None:
        if len(self.uuids) > LIST_LIMIT_MAX:
            raise ConfigError("uuids", f"at most {LIST_LIMIT_MAX} at once, not {len(self.uuids)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRequest:
    """A stream, and the revision of the metadata to follow before the answer."""

    uuid: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePurgeRequest:
    """What a leader is to delete: below `offset`, or everything committed, in these partitions."""

    name: str
    uuid: str
    partitions: tuple[int, ...]
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLogsRequest:
    """A stream, of which a node tells what its logs have."""

    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfoRequest:
    """The node wanted; None for the one that answers."""

    node_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRequest:
    """What lies in quarantine: of this stream, by default all; the newest of them."""

    stream: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LIST_LIMIT_MAX:
            raise ConfigError("limit", f"must be between 1 and {LIST_LIMIT_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRequest:
    """A node to remove; `is_own_wish` where it is that node which waits for the answer."""

    node_id: str
    is_own_wish: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRequest:
    """The node that is looked for in the metadata."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """How many partitions of each kind to list, of those that need attention."""

    limit: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.limit <= LIST_LIMIT_MAX:
            raise ConfigError("limit", f"must be between 1 and {LIST_LIMIT_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinNodeRequest:
    """A node that wants to be taken in, and where the others reach its metadata port."""

    node_id: str
    host: str
    port: int

    def __post_init__(self) -> None:
        try:
            check_name(self.node_id)
        except NameInvalidError as error:
            raise ConfigError("node_id", str(error)) from None
        if not self.host:
            raise ConfigError("host", "must name an address that the other nodes can reach")
        if not 0 < self.port < 65_536:
            raise ConfigError("port", f"must be a port between 1 and 65535, not {self.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """A node to empty; with `cancel` it is filled again as usual."""

    node_id: str
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignRequest:
    """Where the replicas of a stream shall be.

    Attributes:
        name: Name of the stream.
        partitions: Partitions by number, the nodes wanted, preferred leader first; None has them chosen.
        replicas: How many copies; None leaves as many as there are.
        observers: How many further replicas that do not count; None leaves as many as there are.
        dry_run: Tell what would move, and move nothing.
        cancel: Leave the replicas that are being moved where they were.
    """

    name: str
    partitions: dict[int, tuple[str, ...]] | None = None
    replicas: int | None = None
    observers: int | None = None
    dry_run: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverRequest:
    """An operator's decision about the leaders of a stream's partitions.

    Attributes:
        name: Name of the stream.
        partition: Number of the partition; by default all that need a decision.
        leader: The node that is to lead; by default the one whose log reaches the furthest.
        give_up: Nodes that are gone for good with what they have.
        accept_data_loss: What is known to be lost by it may be lost.
        dry_run: Tell what each replica has and what it would come to, and decide nothing.
    """

    name: str
    partition: int | None = None
    leader: str | None = None
    give_up: tuple[str, ...] = ()
    accept_data_loss: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.partition is not None and self.partition < 0:
            raise ConfigError("partition", f"must be 0 or more, not {self.partition}")
        if self.leader is not None and self.leader in self.give_up:
            raise ConfigError("leader", f"{self.leader!r:.80} is given up, and can not lead")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReassignHead:
    name: str
    replicas: int | None = None
    observers: int | None = None
    dry_run: bool = False
    cancel: bool = False

    def __post_init__(self) -> None:
        if self.replicas is not None and not 1 <= self.replicas <= _REPLICAS_MAX:
            raise ConfigError("replicas", f"must be between 1 and {_REPLICAS_MAX}, not {self.replicas}")
        if self.observers is not None and not 0 <= self.observers <= _OBSERVERS_MAX:
            raise ConfigError("observers", f"must be between 0 and {_OBSERVERS_MAX}, not {self.observers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodePurgeHead:
    name: str
    uuid: str
    offset: int | None = None


def read_node_purge(body: dict[str, Any]) -> NodePurgeRequest:
    """Read what a node asks a leader to purge.

    Raises:
        ConfigError: it is malformed.
    """
    rest = dict(body)
    numbers = rest.pop("partitions", None)
    head = parse_settings(_NodePurgeHead, rest)
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ConfigError("partitions", "must be a list of numbers of partitions")
    return NodePurgeRequest(name=head.name, uuid=head.uuid, partitions=tuple(numbers), offset=head.offset)


def read_reassign(body: dict[str, Any]) -> ReassignRequest:
    """Read a request to move replicas.

    Raises:
        ConfigError: it is malformed, or asks for nothing.
    """
    rest = dict(body)
    given = rest.pop("partitions", None)
    head = parse_settings(_ReassignHead, rest)
    partitions = None if given is None else _read_partitions(given)
    is_change = partitions is not None or head.replicas is not None or head.observers is not None
    if is_change and head.cancel:
        raise ConfigError("cancel", "ends what is under way; ask for the other change afterwards")
    if not is_change and not head.cancel:
        raise ConfigError("replicas", "say how many, or which nodes under partitions")
    if partitions is not None and head.replicas is not None:
        raise ConfigError("replicas", "the nodes under partitions say how many; leave one of the two out")
    return ReassignRequest(
        name=head.name,
        partitions=partitions,
        replicas=head.replicas,
        observers=head.observers,
        dry_run=head.dry_run,
        cancel=head.cancel,
    )


def read_recover(body: dict[str, Any]) -> tuple[RecoverRequest, dict[int, int]]:
    """Read an operator's decision, and by number the versions of the partitions that it was made for.

    Raises:
        ConfigError: it is malformed.
    """
    rest = dict(body)
    given = rest.pop("versions", None) or {}
    request = parse_settings(RecoverRequest, rest)
    if not isinstance(given, dict) or not all(type(version) is int for version in given.values()):
        raise ConfigError("versions", "must be a table of numbers of partitions, each with its version")
    return request, {_read_number(number): version for number, version in given.items()}


def _read_partitions(given: object) -> dict[int, tuple[str, ...]]:
    if not isinstance(given, dict) or not 0 < len(given) <= _PARTITIONS_MAX:
        raise ConfigError("partitions", "must be a table of numbers of partitions, each with the list of its nodes")
    return {_read_number(number): _read_nodes(number, nodes) for number, nodes in given.items()}


def _read_number(number: str) -> int:
    if not (number.isascii() and number.isdecimal() and int(number[:9]) < _PARTITIONS_MAX and len(number) < 9):
        raise ConfigError("partitions", f"{number!r:.40} is no number of a partition")
    return int(number)


def _read_nodes(number: str, nodes: object) -> tuple[str, ...]:
    if not isinstance(nodes, list) or not nodes or not all(isinstance(node, str) and node for node in nodes):
        raise ConfigError(f"partitions.{number}", "must be a list of nodes, the preferred leader first")
    if len(nodes) > _REPLICAS_MAX + _OBSERVERS_MAX:
        text = f"at most {_REPLICAS_MAX} replicas and {_OBSERVERS_MAX} observers, not {len(nodes)} nodes"
        raise ConfigError(f"partitions.{number}", text)
    if len(set(nodes)) != len(nodes):
        raise ConfigError(f"partitions.{number}", "must name each node once")
    return tuple(nodes)
