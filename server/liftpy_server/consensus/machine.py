"""The metadata as Raft's state machine.

    entry   msgpack [1, revision known to the proposer, command]

Applying never raises for what an entry holds: a bad one has a refusal as its outcome, the same on every node, and the
next one is applied. The one exception is an entry of a newer liftpy, which this node must not guess at: it stops.

A command that was applied before is recognised by its id, among the outcomes that the state remembers. So that a
retry can never find them forgotten, an entry whose proposer knew only a revision older than these outcomes is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgpack

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.unpacking import unpack
from liftpy_server.metadata.commands import COMMAND_BOUNDS, Command, Outcome, apply_command
from liftpy_server.metadata.outcomes import OUTCOMES_MIN
from liftpy_server.metadata.state import MetadataState

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXPIRED", "Machine", "MetadataMachine", "NewerEntryError", "encode_entry"]

_VERSION: Final = 1
_WINDOW_REVISIONS: Final = OUTCOMES_MIN - 2_000
"""Less than the number of outcomes that the state remembers."""

EXPIRED: Final = Outcome(error=ErrorCode.NOT_AVAILABLE, message="the command is too old to tell whether it was applied")


class Machine(Protocol):
    """A state machine, as a voter sees it. None of its methods may raise for what a command holds."""

    def apply(self, command: bytes) -> Any:
        """Apply a committed command. Returns what its proposer is told."""
        ...

    def accepts(self, command: bytes) -> bool:
        """Whether a leader may append this command to the log."""
        ...

    def capture(self) -> Callable[[], Any]:
        """Take hold of the state now. Returns what makes plain values of it later, in any thread."""
        ...

    def restore(self, state: Any) -> None:
        """Replace the state by that of a snapshot."""
        ...


class NewerEntryError(LiftError):
    """The log holds an entry of a newer liftpy; this node has to be upgraded."""


def encode_entry(command: bytes, known_revision: int) -> bytes:
    """An entry with a command, as the module says."""
    return bytes(msgpack.packb([_VERSION, known_revision, command]))


def _decode_entry(entry: bytes) -> tuple[int, Command]:
    """The revision its proposer knew, and the command.

    Raises:
        NewerEntryError: a newer liftpy wrote it.
        ValueError: it is malformed.
    """
    match unpack(entry, COMMAND_BOUNDS):
        case [int(version), *_] if version > _VERSION:
            raise NewerEntryError("the metadata holds entries of a newer liftpy; upgrade this node")
        case [_, int(known_revision), bytes(encoded)]:
            pass
        case _:
            raise ValueError("not an entry")
    try:
        return known_revision, Command.decode(encoded)
    except LiftError as error:
        if error.__cause__ is None:  # it decodes, and is of a newer version
            raise NewerEntryError(str(error)) from error
        raise ValueError(str(error)) from error


class MetadataMachine:
    """Applies commands on the tick thread; the state may be read from any.

    Args:
        on_change: Called after the state changed.
        on_applied: Called before that for each entry: with the state before it, the one after it, and its time. Not
            called where the state comes from a snapshot.
    """

    def __init__(
        self,
        on_change: Callable[[], None],
        on_applied: Callable[[MetadataState, MetadataState, int], None] = lambda _before, _after, _now_ns: None,
    ) -> None:
        self._on_change = on_change
        self._on_applied = on_applied
        self.state = MetadataState()

    def apply(self, command: bytes) -> Outcome:
        """Apply a committed entry.

        Raises:
            NewerEntryError: this node must stop.
        """
        try:
            known_revision, decoded = _decode_entry(command)
        except (ValueError, TypeError, RecursionError) as error:
            return Outcome(error=ErrorCode.INVALID_REQUEST, message=f"malformed entry: {error}")
        is_old = self.state.revision - known_revision > _WINDOW_REVISIONS
        if is_old and decoded.id not in self.state.outcomes:
            return EXPIRED
        try:
            before = self.state
            self.state, outcome = apply_command(before, decoded)
        except MemoryError:
            raise  # says nothing about the command, and may not happen on the other nodes
        except Exception as error:  # noqa: BLE001 - it would happen on every node, and again after every restart
            return Outcome(error=ErrorCode.INTERNAL, message=f"{decoded.op} can not be applied: {error!r}")
        self._on_applied(before, self.state, decoded.now_ns)
        self._on_change()
        return outcome

    def accepts(self, command: bytes) -> bool:
        """Whether the entry is sound."""
        try:
            _decode_entry(command)
        except (LiftError, ValueError, TypeError, RecursionError):
            return False
        return True

    def capture(self) -> Callable[[], Any]:
        """Take hold of the state; it is immutable."""
        return self.state.to_plain

    def restore(self, state: Any) -> None:
        """Replace the state by that of a snapshot."""
        self.state = MetadataState.from_plain(state)
        self._on_change()
