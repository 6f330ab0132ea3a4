"""The gaps of a partition on the node that leads it: the one that lasts, and what the metadata has not recorded yet.

Inside, times are elapsed time; only what is written down has wall-clock times, made of how long ago things were. So a
wall clock that is stepped leaves a gap its length, and its end is never before its begin.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from liftpy_server.gaps.gap import CAUSE_CHARS_MAX, Gap, all_told, bounded
from liftpy_server.settings.limits import LOG_REPEAT_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_log.clock import Clock

__all__ = ["LED_ELSEWHERE", "GapKeeper", "PartitionGaps"]

logger = logging.getLogger(__name__)

LED_ELSEWHERE: Final = "another node led the partition before"


class GapCounter(Protocol):
    """Counts the gaps of a stream.

    Attributes:
        gaps: How many have begun.
    """

    gaps: int


class GapKeeper(Protocol):
    """Has gaps written down for good."""

    def new_id(self) -> str:
        """An id that no other gap has."""
        ...

    def changed(self, gaps: PartitionGaps, delay_s: float) -> None:
        """There is something in `gaps.unrecorded()`, to be recorded within this time."""
        ...

    def begun(self, gaps: PartitionGaps, cause: str) -> None:
        """A gap lasts from now on; it is for the log."""
        ...

    def ended(self, gaps: PartitionGaps, cause: str, lasted_s: float) -> None:
        """A gap is over; it is for the log."""
        ...


@dataclass(slots=True)
class _Open:
    """A gap that lasts.

    Attributes:
        gap: Gap as it was written down last.
        since_s: Begin of the gap by this node's clock of elapsed time, seconds.
        is_ahead: Whether it began on another node, whose wall clock is ahead of this one's; its times are by that
            clock.
    """

    gap: Gap
    since_s: float
    is_ahead: bool = False


@dataclass(slots=True)
class _Refusals:
    """Messages that were refused for one reason, and nobody could be told.

    Attributes:
        gap: Gap as it was written down last.
        since_s: When the first of them was refused.
        last_s: When the last of them was.
        messages: How many there are by now.
    """

    gap: Gap
    since_s: float
    last_s: float
    messages: int = 0


class PartitionGaps:
    """The gaps of one partition that this node leads: opened, extended and closed.

    Args:
        stream: UUID of the stream.
        name: Name of the stream.
        number: Number of the partition.
        clock: Clock of the node.
        keeper: Has the gaps written down.
        counter: Counter of the stream.
        created_ns: When the stream was; nothing that was published before is missing.

    Attributes:
        created_s: The same by elapsed time.
    """

    def __init__(
        self,
        stream: str,
        name: str,
        number: int,
        clock: Clock,
        keeper: GapKeeper,
        counter: GapCounter,
        created_ns: int = 0,
    ) -> None:
        self.stream = stream
        self.name = name
        self.number = number
        self._clock = clock
        self._keeper = keeper
        self._counter = counter
        self.created_s = clock.elapsed() - max(0, clock.now_ns() - created_ns) / 1e9
        self._lapse: list[_Open] = []  # of several the first is the one that began here, or was found first
        self._listening_s = self._since_gap_s = clock.elapsed()
        self._missed_s = float("-inf")
        self._led_since_s = self._led_until_s = float("-inf")  # before another node did, where that is not told yet
        self._ends_with_answer = False  # what lasts, as all it lacks is messages that were read and not taken
        self._refusals: dict[str, _Refusals] = {}
        self._grown: set[str] = set()  # reasons of refusals that are not written down
        self._unrecorded: tuple[Gap, ...] = ()

    @property
    def cause(self) -> str | None:
        """Cause of the open gap; None while none is open."""
        return self._lapse[0].gap.cause if self._lapse else None

    @property
    def are_recorded(self) -> bool:
        """Whether no gap lasts, and everybody knows of those that are over."""
        return not (self._lapse or self._unrecorded or self._grown)

    def open(self, since_s: float, cause: str) -> None:
        """Messages may be missing from `since_s` on; a gap that lasts already goes on under its own cause."""
        self._ends_with_answer = False
        first = next((each for each in self._lapse if not each.is_ahead), None)
        if first is None:
            gap = self._begun(since_s, None, cause)
            self._lapse.insert(0, _Open(gap, since_s))
            self._keeper.begun(self, cause)
            self._write(gap)
        elif since_s < first.since_s:
            first.since_s = since_s
            first.gap = self._write_anew(first, until_s=None)

    def close(self) -> None:
        """Nothing is missing from now on."""
        lapse, self._lapse = self._lapse, []
        self._ends_with_answer = False
        self._listening_s = self._clock.elapsed()
        if not lapse:
            return
        for each in lapse:
            self._write_anew(each, until_s=self._listening_s)
        self._since_gap_s = self._listening_s
        first = lapse[0]
        self._keeper.ended(self, first.gap.cause, self._listening_s - first.since_s)

    def missed(self, since_s: float | None, cause: str) -> None:
        """Messages that were read are lost: those of the time since `since_s`, or since the last gap ended.

        A gap, if none lasts, which ends when NATS has answered a question that is asked from now on: so an error that
        meets every message makes one gap, and not one for each.
        """
        ends_with_answer = self._ends_with_answer or not self._lapse
        self.open(self._since_gap_s if since_s is None else since_s, cause)
        self._missed_s, self._ends_with_answer = self._clock.elapsed(), ends_with_answer

    def heard(self, asked_s: float) -> None:
        """NATS has answered a question that was asked at `asked_s`."""
        if self._ends_with_answer and asked_s > self._missed_s:
            self.close()

    def take_over(self, recorded: Iterable[Gap], since_s: float | None, cause: str) -> None:
        """This node leads the partition, and nothing was missing before `since_s`; None where nothing is missing.

        What lasted when the leader before was heard last, as the metadata has it, goes on here.
        """
        ours = {each.gap.id for each in self._lapse}
        self._led_since_s = self._clock.elapsed()
        known = all_told(recorded, self._unrecorded)
        lasting = [gap for gap in known if gap.until_ns is None and gap.id not in ours]
        self._lapse += map(self._of_another, lasting)
        if since_s is None:
            self._listening_s = self._clock.elapsed()  # what its leader before told of, and is recorded late, ends here
        else:
            self.open(since_s, cause)

    def recorded_elsewhere(self, recorded: Iterable[Gap]) -> None:
        """The metadata has these gaps: one that lasts, and that another node told of, ends when this one listens."""
        recorded = tuple(recorded)
        self._go_on({gap.id: gap.until_ns for gap in recorded if gap.until_ns is not None})
        ours = {gap.id for gap in self._unrecorded} | {each.gap.id for each in self._lapse}
        for gap in recorded:
            if gap.until_ns is not None or gap.id in ours:
                continue
            known = self._of_another(gap)
            if self._lapse:
                self._lapse.append(known)
            else:
                self._write_anew(known, until_s=self._listening_s)

    def _go_on(self, ends_ns: dict[str, int]) -> None:
        """What lasts here, and another node has ended that led before, goes on as a gap of its own from there."""
        for each in self._lapse:
            until_ns = ends_ns.get(each.gap.id)
            if until_ns is not None:
                each.since_s = min(self._clock.elapsed(), self._at_s(until_ns))
                each.gap = self._begun(each.since_s, None, each.gap.cause)
                self._write(each.gap)

    def leave(self, *, was_leading: bool = True) -> None:
        """Another node leads: it ends what lasts, when it listens."""
        if was_leading:
            self._led_until_s = self._clock.elapsed()
        self._lapse = []
        self._ends_with_answer = False
        self._settle()
        self._refusals.clear()

    def missed_before(self, since_s: float, cause: str) -> bool:
        """Messages may be missing from `since_s` on, until another node led. Returns whether that is news."""
        since_s, until_s = max(since_s, self._led_since_s), self._led_until_s
        if since_s >= until_s:
            return False
        self._write(self._begun(since_s, self._wall_ns(until_s), cause))
        self._led_until_s = since_s
        return True

    def count_refused(self, reason: str, description: str) -> None:
        """A message was refused, and its publisher could not be told: a gap of known size."""
        now_s = self._clock.elapsed()
        known = self._refusals.get(reason)
        if known is None or now_s - known.last_s >= LOG_REPEAT_S:
            if known is not None and reason in self._grown:
                self._settle()
            known = self._refusals[reason] = _Refusals(
                self._begun(now_s, self._clock.now_ns(), reason, 0), now_s, now_s
            )
            where = f"stream {self.name} partition {self.number}"
            logger.warning("%s refuses messages of publishers that ask for no ack: %s", where, description)
            self._keeper.changed(self, 0.0)
        elif reason not in self._grown:
            self._keeper.changed(self, LOG_REPEAT_S)
        self._grown.add(reason)
        known.messages += 1
        known.last_s = now_s

    def unrecorded(self) -> tuple[Gap, ...]:
        """What the metadata does not know."""
        self._settle()
        return self._unrecorded

    def were_recorded(self, gaps: Iterable[Gap]) -> None:
        """The metadata knows these."""
        known = set(gaps)
        self._unrecorded = tuple(gap for gap in self._unrecorded if gap not in known)

    def _begun(self, since_s: float, until_ns: int | None, cause: str, messages: int | None = None) -> Gap:
        self._counter.gaps += 1
        since_ns = self._wall_ns(since_s) if until_ns is None else min(self._wall_ns(since_s), until_ns)
        return Gap(
            id=self._keeper.new_id(),
            since_ns=since_ns,
            until_ns=until_ns,
            cause=cause[:CAUSE_CHARS_MAX],
            messages=messages,
        )

    def _settle(self) -> None:
        """Write down what the refusals have grown to."""
        now_ns = self._clock.now_ns()
        for reason in self._grown:
            known = self._refusals[reason]
            since_ns = min(known.gap.since_ns, self._wall_ns(known.since_s))
            until_ns = min(now_ns, max(self._wall_ns(known.last_s), since_ns))
            known.gap = replace(
                known.gap,
                version=known.gap.version + 1,
                since_ns=since_ns,
                until_ns=until_ns,
                messages=known.messages,
            )
            self._keep(known.gap)
        self._grown.clear()

    def _of_another(self, gap: Gap) -> _Open:
        """A gap that began on another node. If it seems to begin in the future, now is taken for its begin."""
        return _Open(gap, self._at_s(gap.since_ns), is_ahead=gap.since_ns > self._clock.now_ns())

    def _write_anew(self, known: _Open, *, until_s: float | None) -> Gap:
        since_ns, until_ns = known.gap.since_ns, None
        if not known.is_ahead:
            since_ns = min(since_ns, self._wall_ns(known.since_s))
        if until_s is not None:
            own_ns = since_ns + int((until_s - known.since_s) * 1e9) if known.is_ahead else self._wall_ns(until_s)
            until_ns = max(since_ns, own_ns)
        gap = replace(known.gap, version=known.gap.version + 1, since_ns=since_ns, until_ns=until_ns)
        self._write(gap)
        return gap

    def _write(self, gap: Gap) -> None:
        self._keep(gap)
        self._keeper.changed(self, 0.0)

    def _keep(self, gap: Gap) -> None:
        self._unrecorded = bounded(all_told(self._unrecorded, [gap]))

    def _wall_ns(self, at_s: float) -> int:
        ago_s = max(0.0, self._clock.elapsed() - max(at_s, self.created_s))
        return max(0, self._clock.now_ns() - int(ago_s * 1e9))

    def _at_s(self, wall_ns: int) -> float:
        return self._clock.elapsed() - max(0, self._clock.now_ns() - wall_ns) / 1e9
