"""The commands that change the metadata, and how they are applied.

Applying is a pure function: no clock, no randomness, no I/O, and never an exception; a command that can not be
applied has a refusal as its outcome. Time enters as `now_ns`, stamped by the proposer. Every command carries an id,
and one that was applied before answers with its first outcome.

    command   msgpack {"v": level, "id": ..., "op": ..., "now_ns": ..., "args": {...}}
    outcome   {"error": ErrorCode, "message": text, "value": ...}
    batch     op "batch", args {"commands": [[id, op, args], ...]}, value [outcome, ...]

The commands of a batch are applied one after the other at the batch's time, each by itself: refusing one refuses none
of the others, and each is recognised by its own id. The batch as such is not remembered; applied again it finds the
outcomes of its commands.

Every op has a level. `encode` writes it down, and a node that does not know the level stops at `decode`: it must not
guess. So a proposer asks `check_proposable` first, which holds ops back until every registered node knows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack

from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError
from liftpy_envelope.unpacking import Bounds, unpack
from liftpy_server.metadata.changes import Draft, RefusedError
from liftpy_server.metadata.event_commands import EVENT_OPERATIONS
from liftpy_server.metadata.gap_commands import GAP_OPERATIONS
from liftpy_server.metadata.node_commands import NODE_OPERATIONS
from liftpy_server.metadata.outcomes import Outcome
from liftpy_server.metadata.partition_commands import PARTITION_OPERATIONS
from liftpy_server.metadata.reassignment import REASSIGNMENT_OPERATIONS
from liftpy_server.metadata.restore_commands import RESTORE_OPERATIONS
from liftpy_server.metadata.state import LEVEL
from liftpy_server.metadata.stream_commands import STREAM_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.state import MetadataState

__all__ = ["BATCH", "COMMAND_BOUNDS", "Command", "Outcome", "apply_command", "check_proposable"]

BATCH: Final = "batch"

COMMAND_BOUNDS: Final = Bounds(items=2**20, length=50_000, text_bytes=2**20, binary_bytes=2**20, depth=None)
"""Of a command, or a batch of them; an entry bounds their bytes."""

_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    **STREAM_OPERATIONS,
    **NODE_OPERATIONS,
    **PARTITION_OPERATIONS,
    **REASSIGNMENT_OPERATIONS,
    **RESTORE_OPERATIONS,
    **GAP_OPERATIONS,
    **EVENT_OPERATIONS,
}
_LEVELS: Final[dict[str, int]] = dict.fromkeys((*_OPERATIONS, BATCH), 1)
"""The level of each op. One that gains an argument or another meaning becomes a new op of the next level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One change. `op` is one of `_OPERATIONS`, or a batch of them; `args` are its arguments."""

    id: str
    op: str
    now_ns: int
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def level(self) -> int:
        """The level of the metadata that has all its ops."""
        levels = [_LEVELS.get(self.op, 1)]
        if self.op == BATCH:
            levels += (_LEVELS.get(op, 1) for _, op, _ in _batched(self.args))
        return max(levels)

    def encode(self) -> bytes:
        """For the journal and the wire."""
        fields = {"v": self.level, "id": self.id, "op": self.op, "now_ns": self.now_ns, "args": self.args}
        return bytes(msgpack.packb(fields))

    @classmethod
    def decode(cls, data: bytes) -> Command:
        """What `encode` wrote.

        Raises:
            LiftError: the bytes are no command, or one of a newer liftpy.
        """
        try:
            fields = unpack(data, COMMAND_BOUNDS)
            if fields.pop("v") > LEVEL:
                raise LiftError("the metadata holds commands of a newer liftpy; upgrade this node")
            command = cls(**fields)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise LiftError(f"not a metadata command: {error!r}") from error
        kinds = [type(part) for part in (command.id, command.op, command.now_ns, command.args)]
        if kinds != [str, str, int, dict]:
            malformed = ValueError(f"its parts are {', '.join(kind.__name__ for kind in kinds)}")
            raise LiftError(f"not a metadata command: {malformed}") from malformed
        return command


def check_proposable(state: MetadataState, command: Command) -> None:
    """Whether every registered node knows a command.

    Raises:
        RefusedError: one of them would have to stop.
    """
    if command.level > state.level:
        behind = sorted(node.node_id for node in state.nodes.values() if node.level < command.level)
        raise RefusedError(
            ErrorCode.NOT_AVAILABLE,
            f"{command.op}: not before all nodes are upgraded; still to do: {', '.join(behind) or 'the first start'}",
        )


def apply_command(state: MetadataState, command: Command) -> tuple[MetadataState, Outcome]:
    """Apply one command.

    Returns:
        The new state, and the outcome; a refused command changes nothing but the revision and the list of outcomes.
    """
    draft = Draft(state)
    batched = _batched(command.args) if command.op == BATCH else []
    if not batched:
        outcome = _apply(draft, command.id, command.op, command.now_ns, command.args)
    else:
        outcomes = [_apply(draft, given_id, op, command.now_ns, args) for given_id, op, args in batched]
        outcome = Outcome(value=[each.to_plain() for each in outcomes])
    return draft.finish(), outcome


def _batched(args: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The commands of a batch; empty when it is malformed."""
    commands: list[tuple[str, str, dict[str, Any]]] = []
    given = args.get("commands")
    for command in given if isinstance(given, (list, tuple)) and len(args) == 1 else ():
        match command:
            case [str(command_id), str(op), dict(inner)]:
                commands.append((command_id, op, inner))
            case _:
                return []
    return commands


def _apply(draft: Draft, command_id: str, op: str, now_ns: int, args: dict[str, Any]) -> Outcome:
    known = draft.outcome(command_id)
    if known is not None:
        return known
    try:
        if op == BATCH:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "a batch holds a list of [id, op, args], and no further batch"
            )
        operation = _OPERATIONS.get(op)
        if operation is None or _LEVELS[op] > draft.level:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"unknown metadata command {op!r}")
        outcome = Outcome(value=operation(draft, now_ns, **args))
        draft.accept()
    except RefusedError as error:
        outcome = Outcome.refused(error.code, str(error))
    except ConfigError as error:
        outcome = Outcome.refused(ErrorCode.INVALID_CONFIG, str(error))
    except (LiftError, TypeError, LookupError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        outcome = Outcome.refused(ErrorCode.INVALID_REQUEST, f"malformed command {op}: {error!r}")
    if outcome.error:
        draft.discard()
    draft.note(command_id, outcome)
    return outcome
