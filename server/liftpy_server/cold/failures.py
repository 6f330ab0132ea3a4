"""What could not be read from the bucket lately, so that nobody asks again at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_server.cold.limits import PAUSE_S_MAX, PAUSE_S_MIN

if TYPE_CHECKING:
    from liftpy_envelope.pull import PartitionKey

__all__ = ["ColdUnavailableError", "Failures"]

_OF_THE_STORE: Final = frozenset({"denied", "foreign", "unavailable", "unfit"})


class ColdUnavailableError(LiftError):
    """What is in the bucket can not be read now; asking again later may help."""

    retriable = True


class _Failure(NamedTuple):
    text: str
    pause_s: float
    until_s: float


class Failures:
    """By partition, and of the bucket as a whole."""

    def __init__(self) -> None:
        self._latest: dict[PartitionKey | None, _Failure] = {}

    def check(self, key: PartitionKey, now_s: float) -> None:
        """See whether a partition may be asked for.

        Raises:
            ColdUnavailableError: it failed a moment ago.
        """
        for place in (None, key):
            failure = self._latest.get(place)
            if failure is not None and now_s < failure.until_s:
                raise ColdUnavailableError(failure.text)

    def failed(self, key: PartitionKey, code: str, message: str, now_s: float) -> ColdUnavailableError:
        """Take note of a failure. Returns what to tell those who wait.

        Args:
            key: of the partition.
            code: of the worker, see `TierWorkError`.
            message: what happened.
            now_s: by the loop's clock.
        """
        place = None if code in _OF_THE_STORE else key
        before = self._latest.get(place)
        pause_s = PAUSE_S_MIN if before is None else min(2 * before.pause_s, PAUSE_S_MAX)
        why = "the bucket is away" if place is None else "the bucket can not give it"
        text = f"what is wanted is in the bucket alone, and {why}: {message}"
        self._latest = {at: old for at, old in self._latest.items() if now_s < old.until_s + PAUSE_S_MAX}
        self._latest[place] = _Failure(text, pause_s, now_s + pause_s)
        return ColdUnavailableError(text)

    def succeeded(self, key: PartitionKey) -> None:
        """The bucket has answered for a partition."""
        self._latest.pop(None, None)
        self._latest.pop(key, None)
