"""The commands that change the metadata, and how they are applied.

Applying is a pure function: no clock, no randomness, no I/O, and never an exception; a command that can not be
applied has a refusal as its outcome. Time enters as `now_ns`, stamped by the proposer. Every command carries an id,
and one that was applied before answers with its first outcome.

    command   msgpack {"v": 1, "id": ..., "op": ..., "now_ns": ..., "args": {...}}
    outcome   {"error": ErrorCode, "message": text, "value": ...}
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgpack

from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.metadata.changes import RefusedError, find_stream, put_stream
from liftpy_server.metadata.node_commands import NODE_OPERATIONS
from liftpy_server.metadata.partition_commands import PARTITION_OPERATIONS
from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Change

__all__ = ["Command", "Outcome", "apply_command"]

_VERSION: Final = 1
_OUTCOMES_MAX: Final = 10_000
_DELETED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One change. `op` is one of the functions below; `args` are its arguments."""

    id: str
    op: str
    now_ns: int
    args: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """For the journal and the wire."""
        fields = {"v": _VERSION, "id": self.id, "op": self.op, "now_ns": self.now_ns, "args": self.args}
        return bytes(msgpack.packb(fields))

    @classmethod
    def decode(cls, data: bytes) -> Command:
        """What `encode` wrote.

        Raises:
            LiftError: the bytes are no command, or one of a newer liftpy.
        """
        try:
            fields = msgpack.unpackb(data)
            if fields.pop("v") > _VERSION:
                raise LiftError("the metadata holds commands of a newer liftpy; upgrade this node")
            return cls(**fields)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise LiftError(f"not a metadata command: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a command."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    value: Any = None

    def to_plain(self) -> dict[str, Any]:
        """For the state."""
        return {"error": int(self.error), "message": self.message, "value": self.value}

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> Outcome:
        """What `to_plain` wrote."""
        return cls(error=ErrorCode(given["error"]), message=given["message"], value=given["value"])


def apply_command(state: MetadataState, command: Command) -> tuple[MetadataState, Outcome]:
    """Apply one command.

    Returns:
        The new state, and the outcome; a refused command changes nothing but the revision and the list of outcomes.
    """
    known = state.outcomes.get(command.id)
    if known is not None:
        return state, Outcome.from_plain(known)
    try:
        operation = _OPERATIONS.get(command.op)
        if operation is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"unknown metadata command {command.op!r}")
        state, value = operation(state, command.now_ns, **command.args)
        outcome = Outcome(value=value)
    except RefusedError as error:
        outcome = Outcome(error=error.code, message=str(error))
    except ConfigError as error:
        outcome = Outcome(error=ErrorCode.INVALID_CONFIG, message=str(error))
    except (LiftError, TypeError, LookupError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        outcome = Outcome(error=ErrorCode.INVALID_REQUEST, message=f"malformed command {command.op}: {error!r}")
    outcomes = state.outcomes | {command.id: outcome.to_plain()}
    while len(outcomes) > _OUTCOMES_MAX:
        del outcomes[next(iter(outcomes))]
    return replace(state, revision=state.revision + 1, outcomes=outcomes), outcome


def _create_stream(
    state: MetadataState, now: int, *, uuid: str, config: dict[str, Any], assignment: list[list[str]]
) -> Change:
    """Create a stream, or find that it is there with the same settings.

    `assignment` names the replicas of every partition, leader first.
    """
    wanted = StreamConfig.from_plain(config)
    known = state.streams.get(wanted.name)
    if known is not None:
        differences = known.config.differences(wanted)
        if differences:
            raise RefusedError(
                ErrorCode.STREAM_EXISTS,
                f"stream {wanted.name!r} exists with another {', '.join(differences)}",
            )
        return state, {"uuid": known.uuid, "created": False}
    if wanted.replicas > len(state.nodes):
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"replicas: {wanted.replicas} copies need as many nodes; there are {len(state.nodes)}",
        )
    if len(assignment) != wanted.partitions or not all(map(_names_replicas, assignment)):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"stream {wanted.name!r}: the assignment must name the nodes of each of its {wanted.partitions} partitions",
        )
    partitions = tuple(
        PartitionInfo(replicas=tuple(nodes), isr=tuple(nodes), leader=nodes[0], leader_epoch=1) for nodes in assignment
    )
    stream = StreamInfo(uuid=uuid, config=wanted, created_ns=now, partitions=partitions)
    return replace(state, streams=state.streams | {wanted.name: stream}), {"uuid": uuid, "created": True}


def _names_replicas(nodes: object) -> bool:
    return isinstance(nodes, (list, tuple)) and bool(nodes) and all(isinstance(node, str) and node for node in nodes)


def _delete_stream(state: MetadataState, _now: int, *, name: str, uuid: str | None = None) -> Change:
    stream = find_stream(state, name, uuid)
    streams = {other: info for other, info in state.streams.items() if other != name}
    deleted = (*state.deleted, stream.uuid)[-_DELETED_MAX:]
    return replace(state, streams=streams, deleted=deleted), {"uuid": stream.uuid}


def _update_stream(
    state: MetadataState,
    _now: int,
    *,
    name: str,
    changes: dict[str, Any],
    expected_version: int | None = None,
) -> Change:
    stream = find_stream(state, name, None)
    if expected_version is not None and stream.version != expected_version:
        raise RefusedError(
            ErrorCode.CONFLICT, f"stream {name!r} is at version {stream.version}, not {expected_version}"
        )
    config = stream.config.updated(changes)
    if config.replicas != stream.config.replicas:
        raise RefusedError(ErrorCode.INVALID_CONFIG, "replicas: change them by reassigning partitions")
    return put_stream(state, replace(stream, config=config)), {"uuid": stream.uuid}


def _set_stream_state(
    state: MetadataState, _now: int, *, name: str, paused: bool | None = None, read_only: bool | None = None
) -> Change:
    stream = find_stream(state, name, None)
    changed = replace(
        stream,
        paused=stream.paused if paused is None else bool(paused),
        read_only=stream.read_only if read_only is None else bool(read_only),
    )
    return (state if changed == stream else put_stream(state, changed)), {"uuid": stream.uuid}


def _purge_partition(
    state: MetadataState, _now: int, *, name: str, uuid: str, partition: int, log_start: int
) -> Change:
    """Records below `log_start` go; the start of a log never moves back."""
    stream = find_stream(state, name, uuid)
    if not 0 <= partition < len(stream.partitions) or log_start < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"stream {name!r} has no partition {partition}")
    old = stream.partitions[partition]
    moved = replace(old, log_start=max(old.log_start, log_start), version=old.version + 1)
    partitions = (*stream.partitions[:partition], moved, *stream.partitions[partition + 1 :])
    return put_stream(state, replace(stream, partitions=partitions)), {"log_start": moved.log_start}


_OPERATIONS: Final[dict[str, Callable[..., Change]]] = {
    "create_stream": _create_stream,
    "delete_stream": _delete_stream,
    "update_stream": _update_stream,
    "set_stream_state": _set_stream_state,
    "purge_partition": _purge_partition,
    **NODE_OPERATIONS,
    **PARTITION_OPERATIONS,
}
