"""What time it is for one log: the time that decides what is too old to keep, and that new records are stamped with.

It is the time of the newest record, and goes on from there with the monotonic clock, whatever the wall clock does. It
drifts towards the wall clock: it gains at most a thousandth, and where it is ahead it runs at half speed until it is
not. So a wall clock that is wrong, or steps, or is another node's, makes nothing old, and does not get into the log.
A follower goes as slowly as its leader: where a record that it copies is behind its own time, it goes back to that, as
far as half speed explains it.

While a node was down nothing measured the time. The first record after a start has to be stamped with something, so
the log's time then leaps to the wall clock, or to what a leader stamped. What it leapt over may be a day off or a clock
that is wrong: no node can tell. It does not count when a record's age is measured: see `age_time` and `before`. A
leader tells its followers what it knows of leaps, with the records. A run finds those that the run before did not keep:
records that are younger than what it kept, by more than could have passed, for it keeps its time every few seconds.

Pure: clocks are read by the caller. Times are ns since the epoch, and monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.limits import LEAPS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Leap", "LogTime", "LogTimeState"]

_GAIN: Final = 1_000  # one part in so many
_LEAP_NS_MIN: Final = 10**9  # a shorter one is a quick restart
_CLOCK_OFF_NS_MIN: Final = 60 * 10**9  # from here on it is said that the wall clock and the log do not agree


class Leap(NamedTuple):
    """Time that nobody measured.

    Attributes:
        to_ns: The log's time after it; records with this time or a later one came after it.
        amount_ns: How much.
    """

    to_ns: int
    amount_ns: int


class LogTimeState(NamedTuple):
    """What is kept over a restart.

    Attributes:
        ns: The log's time.
        leaps: Leaps, oldest first.
    """

    ns: int
    leaps: tuple[Leap, ...] = ()


class LogTime:
    """The time of one log.

    Args:
        newest_ns: Time of the log's newest record; 0 when it has none.
        now_s: The monotonic clock.
        kept: What an earlier run knew; None when that is not known.
    """

    __slots__ = ("_is_measured", "_leaps", "_ns", "_s", "_sure_ns", "_sure_s")

    def __init__(self, newest_ns: int, now_s: float, kept: LogTimeState | None = None) -> None:
        self._ns = newest_ns if kept is None else max(newest_ns, kept.ns)  # 0: there never was a record
        self._s = now_s
        self._sure_ns, self._sure_s = self._ns, now_s  # when a record, or what was kept, said what time it is
        self._leaps = () if kept is None else kept.leaps
        self._is_measured = not self._ns

    @property
    def leaps(self) -> tuple[Leap, ...]:
        """The known leaps of the clock, oldest first."""
        return self._leaps

    @property
    def leapt_ns(self) -> int:
        """How much time was leapt over in all, as far as that is known."""
        return sum(leap.amount_ns for leap in self._leaps)

    def state(self) -> LogTimeState:
        """What to keep over a restart."""
        return LogTimeState(self._ns, self._leaps)

    def now(self, wall_ns: int, now_s: float) -> int:
        """The log's time; that of the wall clock while the log never had a record."""
        ns = self._ns
        if not ns:
            return wall_ns
        elapsed = max(0, int((now_s - self._s) * 1e9))
        off = wall_ns - ns - elapsed
        self._ns = ns = ns + elapsed + (min(off, elapsed // _GAIN) if off > 0 else max(off, -(elapsed // 2)))
        self._s = max(self._s, now_s)
        return ns

    def stamp(self, wall_ns: int, now_s: float) -> int:
        """The time of a record that this node, as the leader, appends now."""
        ns = self.now(wall_ns, now_s)
        if not self._is_measured or not self._ns:
            to_ns = max(ns, wall_ns)
            self._leap(to_ns, to_ns - ns)
            self._go_on(to_ns, now_s)
        self._sure_ns, self._sure_s = self._ns, self._s
        return self._ns

    def copied(self, after_ns: int, timestamp: int, now_s: float, leaps: Iterable[Leap] = ()) -> None:
        """Records of another leader were appended. Time between them was measured by who led, but for the leaps.

        Args:
            after_ns: Time of the record before them; 0 when there is none.
            timestamp: Timestamp of the newest of them.
            now_s: The monotonic clock.
            leaps: What the leader knows of; which are earlier than these records is known here already.
        """
        for leap in leaps:
            if leap.to_ns > after_ns:
                self._note(leap)
        ns = self._ns + max(0, int((now_s - self._s) * 1e9))
        if self._is_measured:  # no leader is slower than half
            ns = min(ns, self._sure_ns + max(0, int((now_s - self._sure_s) * 1e9)) // 2)
        self._go_on(max(ns, timestamp), now_s)
        self._sure_ns, self._sure_s = self._ns, self._s

    def found(self, timestamp: int) -> None:
        """A record is in the log that came after what was kept, shortly before the run that kept it ended."""
        self._leap(timestamp, timestamp - self._ns)
        self._ns = self._sure_ns = max(self._ns, timestamp)

    def _go_on(self, ns: int, now_s: float) -> None:
        """Go on from another time."""
        self._is_measured = True
        self._ns, self._s = ns, max(self._s, now_s)

    def _leap(self, to_ns: int, leapt: int) -> None:
        """Take note of time that nobody measured, if it is any."""
        if leapt >= _LEAP_NS_MIN and self._ns:
            self._note(Leap(to_ns, leapt))

    def _note(self, leap: Leap) -> None:
        """Of what two runs or two nodes know of the same leap the larger counts."""
        amounts = dict(self._leaps)
        amounts[leap.to_ns] = max(leap.amount_ns, amounts.get(leap.to_ns, 0))
        leaps = tuple(Leap(*known) for known in sorted(amounts.items()))
        if len(leaps) > LEAPS_MAX:  # what lies between the two oldest counts as younger than it may be
            oldest, second, *others = leaps
            leaps = (Leap(second.to_ns, oldest.amount_ns + second.amount_ns), *others)
        self._leaps = leaps

    def age_time(self, ns: int) -> int:
        """A time of the log on a scale without leaps: two records are as far apart on it as time was measured."""
        return ns - sum(leap.amount_ns for leap in self._leaps if leap.to_ns <= ns)

    def before(self, ns: int, age_ns: int) -> int:
        """The time of records that were `age_ns` old when the log's time was `ns`, not counting what was leapt over."""
        at = ns - age_ns
        for leap in reversed(self._leaps):
            if leap.to_ns <= at:
                break
            if leap.to_ns <= ns:
                at -= leap.amount_ns
        return at

    def clock_off_ns(self, wall_ns: int) -> int:
        """How far the wall clock is ahead of the log's time, or behind it; 0 while that is within a minute."""
        off = wall_ns - self._ns if self._ns and self._is_measured else 0
        return off if abs(off) >= _CLOCK_OFF_NS_MIN else 0
