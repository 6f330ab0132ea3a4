"""Which conditions of a node begin and end: no room on its disk, uploads that are stopped, messages that it refuses.

Pure: looked at every few seconds, so what comes and goes between two looks is no event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Condition", "ConditionWatch", "Refused", "Told"]

_REFUSALS_QUIET_S: Final = 60.0
_WATCHED_MAX: Final = 1_000

_ENDS: Final = {"disk.full": "disk.freed", "upload.stopped": "upload.resumed"}


class Told(NamedTuple):
    """An event that this node tells of itself."""

    kind: str
    stream: str | None = None
    partition: int | None = None
    details: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Condition(NamedTuple):
    """What may last for a while.

    Attributes:
        kind: Kind of the event with which it begins.
        stream: Stream that it is about, if it is about one.
        partition: Partition that it is about, if it is about one.
    """

    kind: str
    stream: str | None = None
    partition: int | None = None


class Refused(NamedTuple):
    """Messages that a stream refused on this node for a reason."""

    stream: str
    reason: str


class _Refusals(NamedTuple):
    since_s: float
    last_s: float
    before: int
    total: int


class ConditionWatch:
    """See the module. At most a thousand refusals are watched at a time."""

    def __init__(self) -> None:
        self._lasting: dict[Condition, float] = {}
        self._counts: dict[Refused, int] = {}
        self._refusals: dict[Refused, _Refusals] = {}

    def look(
        self,
        now_s: float,
        found: Mapping[Condition, dict[str, Any]],
        refused: Mapping[Refused, int],
        numbers: Mapping[str, dict[str, Any]],
        gone: Iterable[Condition] = (),
    ) -> list[Told]:
        """What has begun and ended since the last look.

        Args:
            now_s: Monotonic time, seconds.
            found: The conditions that hold, with details.
            refused: Counts since the node started.
            numbers: Details of what ends, by kind of the event with which it began.
            gone: Conditions that are no matter of this node any more: they end without an event.
        """
        return [*self._ended(now_s, found, numbers, set(gone)), *self._begun(now_s, found), *self._of(now_s, refused)]

    def lasting(self) -> list[Condition]:
        """The conditions that held at the last look."""
        return list(self._lasting)

    def _ended(
        self,
        now_s: float,
        found: Mapping[Condition, dict[str, Any]],
        numbers: Mapping[str, dict[str, Any]],
        gone: set[Condition],
    ) -> Iterator[Told]:
        for condition in [each for each in self._lasting if each not in found]:
            since_s = self._lasting.pop(condition)
            if condition not in gone:
                details = numbers.get(condition.kind, {}) | {"seconds": round(now_s - since_s, 3)}
                yield Told(_ENDS[condition.kind], condition.stream, condition.partition, details)

    def _begun(self, now_s: float, found: Mapping[Condition, dict[str, Any]]) -> Iterator[Told]:
        for condition, details in found.items():
            if condition not in self._lasting and len(self._lasting) < _WATCHED_MAX:
                self._lasting[condition] = now_s
                yield Told(*condition, details)

    def _of(self, now_s: float, refused: Mapping[Refused, int]) -> Iterator[Told]:
        for what, count in refused.items():
            before = self._counts.get(what, 0)
            known = self._refusals.get(what)
            if count > before and known is not None:
                self._refusals[what] = known._replace(last_s=now_s, total=count)
            elif count > before and len(self._refusals) < _WATCHED_MAX:
                self._refusals[what] = _Refusals(now_s, now_s, before, count)
                yield Told("refusals.begun", what.stream, details={"reason": what.reason})
        self._counts = dict(refused)
        for what, known in list(self._refusals.items()):
            if now_s - known.last_s >= _REFUSALS_QUIET_S:
                del self._refusals[what]
                details = {"reason": what.reason, "messages": known.total - known.before}
                seconds = round(known.last_s - known.since_s, 3)
                yield Told("refusals.ended", what.stream, details=details | {"seconds": seconds})
