"""What could not be read from the bucket lately, so that nobody asks again at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.reads.limits import HOLE_KNOWN_S, HOLE_S, HOLES_MAX, PAUSE_S_MAX, PAUSE_S_MIN

if TYPE_CHECKING:
    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.tier.requests import Hole

__all__ = ["ColdUnavailableError", "Failures", "HistoryLostError", "HoleError", "is_of_object", "lost_text"]

_OF_AN_OBJECT: Final = frozenset({"corrupt", "missing"})
_OF_THE_STORE: Final = frozenset({"denied", "foreign", "unavailable", "unfit"})


class ColdUnavailableError(LiftError):
    """What is in the bucket can not be read now; asking again later may help."""

    retriable = True


class HistoryLostError(LiftError):
    """A part of the history can not be read, because of an object that is missing or damaged; the message names it."""


class HoleError(TierWorkError):
    """The worker found an object missing or damaged.

    Args:
        hole: What can not be read, and why.
    """

    def __init__(self, hole: Hole) -> None:
        super().__init__(hole.code, hole.message)
        self.start = hole.start
        self.end = hole.end


def is_of_object(error: BaseException) -> bool:
    """Whether an object or manifest is missing or damaged, so that asking again for long does not help."""
    return isinstance(error, TierWorkError) and error.code in _OF_AN_OBJECT


def lost_text(stream: str, partition: int, what: str, why: str, instead: str) -> str:
    """The sentence for people; `what` can not be read, and `instead` is what can be done as things are."""
    return (
        f"stream {stream} partition {partition}: {what} can not be read from the bucket: {why}; look what else is "
        f"wrong with `liftpy tier scrub {stream}`, restore the object, or {instead}"
    )


class _Hole(NamedTuple):
    end: int
    text: str
    until_s: float


class _Failure(NamedTuple):
    text: str
    pause_s: float
    until_s: float


class Failures:
    """Recent failures of reads, by partition, and of the bucket as a whole."""

    def __init__(self) -> None:
        self._latest: dict[PartitionKey | None, _Failure] = {}
        self._holes: dict[tuple[PartitionKey, int], _Hole] = {}

    def check(self, key: PartitionKey, now_s: float) -> None:
        """Check that a partition may be read now.

        Raises:
            ColdUnavailableError: it failed a moment ago.
        """
        for place in (None, key):
            failure = self._latest.get(place)
            if failure is not None and now_s < failure.until_s:
                raise ColdUnavailableError(failure.text)

    def check_hole(self, key: PartitionKey, offset: int, now_s: float) -> None:
        """Check that an offset was not found unreadable a moment ago.

        Raises:
            HistoryLostError: it was.
        """
        hole = self._hole(key, offset)
        if hole is not None and now_s < hole.until_s:
            raise HistoryLostError(hole.text)

    def is_known_hole(self, key: PartitionKey, offset: int, now_s: float) -> bool:
        """Whether an offset could not be read lately, also after another look, and has not been read since."""
        hole = self._hole(key, offset)
        return hole is not None and now_s < hole.until_s + HOLE_KNOWN_S

    def _hole(self, key: PartitionKey, offset: int) -> _Hole | None:
        """The newest that an offset is in."""
        for (place, start), hole in reversed(self._holes.items()):
            if place == key and start <= offset < hole.end:
                return hole
        return None

    def lost(self, key: PartitionKey, start: int, end: int, text: str, now_s: float) -> None:
        """Take note that offsets from `start` up to `end` can not be read, and what to tell those who want them."""
        at = key, start
        self._holes = {
            place: old for place, old in self._holes.items() if place != at and now_s < old.until_s + HOLE_KNOWN_S
        }
        if len(self._holes) >= HOLES_MAX:
            del self._holes[next(iter(self._holes))]
        self._holes[at] = _Hole(end, text, now_s + HOLE_S)

    def failed(self, key: PartitionKey, code: str, message: str, now_s: float) -> ColdUnavailableError:
        """Take note of a failure. Returns what to tell those who wait.

        Args:
            key: Key of the partition.
            code: Code of the worker, see `TierWorkError`.
            message: What happened.
            now_s: Time by the loop's clock, seconds.
        """
        place = None if code in _OF_THE_STORE else key
        before = self._latest.get(place)
        pause_s = PAUSE_S_MIN if before is None else min(2 * before.pause_s, PAUSE_S_MAX)
        why = "the bucket is away" if place is None else "the bucket can not give it"
        text = f"what is wanted is in the bucket alone, and {why}: {message}"
        self._latest = {at: old for at, old in self._latest.items() if now_s < old.until_s + PAUSE_S_MAX}
        self._latest[place] = _Failure(text, pause_s, now_s + pause_s)
        return ColdUnavailableError(text)

    def succeeded(self, key: PartitionKey, start: int, end: int) -> None:
        """The bucket has given a partition's offsets from `start` up to `end`."""
        if self._holes:
            self._holes = {
                (place, first): hole
                for (place, first), hole in self._holes.items()
                if place != key or first >= end or start >= hole.end
            }
        self._latest.pop(None, None)
        self._latest.pop(key, None)
