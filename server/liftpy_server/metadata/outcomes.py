"""What became of the commands applied last, by command id, so that one proposed twice is applied once.

A table is immutable. To copy tens of thousands of entries for each command would cost more than the command, so they
are kept in generations of the same size, of which only the newest is copied; the oldest is forgotten as a whole. All
generations but the newest are full, so a flat list of the entries says where each begins, and a table read from a
snapshot forgets exactly when every other does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OUTCOMES_MIN", "Outcome", "OutcomeTable"]

_GENERATION: Final = 512
_FULL_GENERATIONS: Final = 64
_MESSAGE_CHARS_MAX: Final = 500

OUTCOMES_MIN: Final = _GENERATION * _FULL_GENERATIONS
"""So many outcomes are remembered at least, counted from the newest back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a command.

    Attributes:
        error: Why it was refused, or `NONE`.
        message: The refusal, for people.
        value: What it answers; msgpack-able.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    value: Any = None

    @classmethod
    def refused(cls, error: ErrorCode, message: str) -> Outcome:
        """A refusal; its message is cut to a length that can be remembered."""
        return cls(error=error, message=message[:_MESSAGE_CHARS_MAX])

    def to_plain(self) -> dict[str, Any]:
        """The outcome as plain values, for the state."""
        return {"error": int(self.error), "message": self.message, "value": self.value}

    @classmethod
    def from_plain(cls, given: dict[str, Any]) -> Outcome:
        """Read what `to_plain` wrote."""
        return cls(error=ErrorCode(given["error"]), message=given["message"], value=given["value"])


class OutcomeTable(Mapping[str, Outcome]):
    """Outcomes by command id, oldest first. Immutable.

    Args:
        entries: Outcomes in the order in which their commands were applied.
    """

    __slots__ = ("_full", "_newest")

    def __init__(self, entries: Iterable[tuple[str, Outcome]] = ()) -> None:
        self._full: tuple[dict[str, Outcome], ...] = ()
        self._newest: dict[str, Outcome] = {}
        self._add(entries)

    def _add(self, entries: Iterable[tuple[str, Outcome]]) -> None:
        for command_id, outcome in entries:
            self._newest[command_id] = outcome
            if len(self._newest) == _GENERATION:
                self._full = (*self._full, self._newest)[-_FULL_GENERATIONS:]
                self._newest = {}

    def with_added(self, added: Mapping[str, Outcome]) -> OutcomeTable:
        """A table that remembers these too. None of them is in this one."""
        table = OutcomeTable()
        table._full = self._full
        table._newest = self._newest.copy()
        table._add(added.items())
        return table

    def __getitem__(self, command_id: str) -> Outcome:
        for generation in (self._newest, *self._full):
            if command_id in generation:
                return generation[command_id]
        raise KeyError(command_id)

    def get(self, command_id: str, default: Any = None) -> Any:
        """The outcome of a command, or `default`."""
        found = self._newest.get(command_id)
        if found is not None:
            return found
        for generation in self._full:
            if command_id in generation:
                return generation[command_id]
        return default

    def __contains__(self, command_id: object) -> bool:
        return command_id in self._newest or any(command_id in generation for generation in self._full)

    def __iter__(self) -> Iterator[str]:
        return chain(*self._full, self._newest)

    def __len__(self) -> int:
        return _GENERATION * len(self._full) + len(self._newest)

    def to_plain(self) -> dict[str, dict[str, Any]]:
        """The outcomes as plain values, for a snapshot; the order of the entries counts."""
        return {
            command_id: outcome.to_plain()
            for generation in (*self._full, self._newest)
            for command_id, outcome in generation.items()
        }

    @classmethod
    def from_plain(cls, given: dict[str, dict[str, Any]]) -> OutcomeTable:
        """Read what `to_plain` wrote."""
        return cls((command_id, Outcome.from_plain(outcome)) for command_id, outcome in given.items())
