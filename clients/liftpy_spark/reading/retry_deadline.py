"""For how long it is borne that a cluster or a bucket which answered before does not answer now.

A node that is started again, a new leader, a nats-server or a store that is away for a moment: whoever waits goes on as
if nothing had been, and the query does not fail. What never answered is told at once instead, by those who use this:
most often it is somewhere else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from liftpy_spark.errors import BucketError, NatsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.errors import LiftError

__all__ = ["RETRY_S", "RetryDeadline"]

RETRY_S: Final = 60.0
"""For how long nothing may come."""
_PAUSE_S: Final = 0.25


class RetryDeadline:
    """Deadline for retries after a peer that answered before falls silent. Belongs to one thread.

    Args:
        clock: Seconds, never going back.
        sleep: Waits for some seconds.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._since_s = clock()

    def renew(self) -> None:
        """Something came, or is asked for only now."""
        self._since_s = self._clock()

    def wait(self, error: LiftError) -> None:
        """Wait for a moment, before it is tried again.

        Args:
            error: What was said instead of an answer.

        Raises:
            LiftError: the same, when nothing has come for a minute.
        """
        silent_s = self._clock() - self._since_s
        if silent_s < RETRY_S:
            self._sleep(_PAUSE_S)
        elif isinstance(error, (BucketError, NatsError)):
            raise type(error)(f"{error}; it has been so for {silent_s:.0f} s")
        else:
            raise error
