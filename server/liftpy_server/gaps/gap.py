"""What is written down of a gap, and how a partition keeps a bounded number of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CAUSE_CHARS_MAX", "GAPS_KEPT_MAX", "Gap", "all_told", "bounded"]

GAPS_KEPT_MAX: Final = 20  # of a partition: all nodes keep them in memory
CAUSE_CHARS_MAX: Final = 300
_SEVERAL: Final = "several causes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time during which messages may have been published that are not in a partition.

    Attributes:
        id: Id of its own, in the whole cluster.
        version: Grows whenever a node writes it down anew; two nodes may write down the same one.
        since_ns: Last moment at which nothing was missing.
        until_ns: First moment at which nothing was missing again; None while the gap lasts.
        cause: What happened.
        messages: How many messages are missing; None when nobody can know.
    """

    id: str
    version: int = 1
    since_ns: int
    until_ns: int | None
    cause: str
    messages: int | None = None

    def to_plain(self) -> list[Any]:
        """The gap as msgpack values."""
        return [self.id, self.version, self.since_ns, self.until_ns, self.cause, self.messages]

    @classmethod
    def from_plain(cls, given: list[Any]) -> Gap:
        """Read a gap that `to_plain` wrote.

        Raises:
            ValueError: it is malformed.
        """
        gap_id, version, since_ns, until_ns, cause, messages = given
        numbers = (version, since_ns, 0 if until_ns is None else until_ns, 0 if messages is None else messages)
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError(f"{given!r:.80} is no gap: a number is wrong")
        if type(gap_id) is not str or type(cause) is not str or not 0 < len(gap_id) <= CAUSE_CHARS_MAX:
            raise ValueError(f"{given!r:.80} is no gap: it has no id, or no cause")
        if until_ns is not None and until_ns < since_ns:
            raise ValueError(f"{given!r:.80} is no gap: it ends before it begins")
        return cls(
            id=gap_id,
            version=version,
            since_ns=since_ns,
            until_ns=until_ns,
            cause=cause[:CAUSE_CHARS_MAX],
            messages=messages,
        )

    def shown(self) -> dict[str, Any]:
        """The gap as JSON values."""
        return {name: getattr(self, name) for name in ("since_ns", "until_ns", "cause", "messages")}


def all_told(gaps: Iterable[Gap], more: Iterable[Gap]) -> tuple[Gap, ...]:
    """All of these gaps, each with all that was told of it, in the order in which they came first."""
    known = {gap.id: gap for gap in gaps}
    for gap in more:
        known[gap.id] = _both(known[gap.id], gap) if gap.id in known else gap
    return tuple(known.values())


def _both(one: Gap, other: Gap) -> Gap:
    """What two versions tell.

    A leader and the next one may have written them, neither of which knew of the other's: the gap began when the first
    of them begins and is over when the last of them is. One that is over never lasts again.
    """
    ends = [gap.until_ns for gap in (one, other) if gap.until_ns is not None]
    counts = [gap.messages for gap in (one, other)]
    return replace(
        one,
        version=max(one.version, other.version),
        since_ns=min(one.since_ns, other.since_ns),
        until_ns=max(ends, default=None),
        cause=one.cause if one.cause == other.cause else _SEVERAL,
        messages=None if None in counts else max(count for count in counts if count is not None),
    )


def bounded(gaps: tuple[Gap, ...], count_max: int = GAPS_KEPT_MAX) -> tuple[Gap, ...]:
    """At most so many gaps: of too many those that ended first are joined into one, which covers the time of all."""
    if len(gaps) <= count_max:
        return gaps
    oldest = sorted(gaps, key=lambda gap: (gap.until_ns is None, gap.until_ns or 0))[: len(gaps) - count_max + 1]
    ids = {gap.id for gap in oldest}
    return (_joined(oldest), *(gap for gap in gaps if gap.id not in ids))


def _joined(gaps: list[Gap]) -> Gap:
    """One gap instead of several. It has the id of the last one, of which there may be more to tell."""
    ends = [gap.until_ns for gap in gaps]
    counts = [gap.messages for gap in gaps]
    causes = {gap.cause for gap in gaps}
    return replace(
        gaps[-1],
        since_ns=min(gap.since_ns for gap in gaps),
        until_ns=None if None in ends else max(end for end in ends if end is not None),
        cause=causes.pop() if len(causes) == 1 else _SEVERAL,
        messages=None if None in counts else sum(count for count in counts if count is not None),
    )
