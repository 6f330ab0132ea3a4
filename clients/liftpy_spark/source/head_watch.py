"""Looks at the ends of the streams that a streaming query reads, again and again, and waits where there is nothing new.

A cluster that can not answer for a moment, while a leader changes or NATS connects again, is asked again until a
deadline; the query then goes on as if nothing had been.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from liftpy_client.errors import AdminError
from liftpy_spark.errors import NatsError
from liftpy_spark.reading.retry_deadline import RetryDeadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from liftpy_client.admin.details import StreamDetails
    from liftpy_spark.heads import StreamHeads

__all__ = ["HeadWatch", "record_bytes"]

_FIRST_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.25
_RECORD_BYTES_GUESS: Final = 1_024


class HeadWatch:
    """Polls the ends of the streams of a streaming query. Belongs to one thread.

    Args:
        ask: What there is now; partitions that nobody knows of at the moment are missing.
        clock: Seconds, never going back.
        sleep: Waits for some seconds.

    Attributes:
        seen: What the last look has found; None before the first one.
    """

    def __init__(
        self,
        ask: Callable[[], list[StreamHeads]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._pause_s = _FIRST_PAUSE_S
        self.seen: list[StreamHeads] | None = None

    def look(self) -> list[StreamHeads]:
        """What there is now.

        Raises:
            NatsError, AdminError: nobody could say for a minute; at the first look of all it is said at once.
        """
        deadline = RetryDeadline(clock=self._clock, sleep=self._sleep)
        while True:
            try:
                self.seen = self._ask()
            except (NatsError, AdminError) as error:
                passes = isinstance(error, NatsError) or error.code.retriable
                if not passes or self.seen is None:
                    raise
                deadline.wait(error)
            else:
                return self.seen

    def look_until(self, is_enough: Callable[[list[StreamHeads]], bool], timeout_s: float) -> list[StreamHeads]:
        """Look until it is enough, at intervals that grow while it is not, or until the time is over.

        Raises as `look` does.
        """
        until_s = self._clock() + timeout_s
        while not is_enough(heads := self.look()):
            left_s = until_s - self._clock()
            if left_s <= 0:
                return heads
            self._sleep(min(self._pause_s, left_s))
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        self._pause_s = _FIRST_PAUSE_S
        return heads


def record_bytes(streams: Iterable[StreamDetails]) -> Mapping[tuple[str, int], int]:
    """The mean size of the records of every partition that its leader has on disk, at least 1, as they stand there."""
    return {
        (stream.name, each.partition): _mean(each.bytes or 0, (each.log_end or 0) - (each.local_start or 0))
        for stream in streams
        for each in stream.partitions
    }


def _mean(size: int, records: int) -> int:
    return max(1, size // records) if records > 0 else _RECORD_BYTES_GUESS
