"""A gate in front of an S3 server, by which the store goes away, is slow or is full, for as long as a test wants.

with StoreGate(server.endpoint) as gate:
    with gate.being(Weather.HANGS):   # no request reaches the store, and no answer comes
        ...
"""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from support.s3_proxy import S3Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StoreGate", "Weather"]

HANG_S_MAX = 60.0
SLOW_S = 1.0
WRITES = {"PUT", "POST"}
TEXT = "<Error><Code>{}</Code><Message>by the gate</Message></Error>"


class Weather(Enum):
    """How the store is, seen through the gate."""

    FINE = "fine"
    CUT = "cut"  # connections end at once, and nothing reaches the store
    HANGS = "hangs"  # nothing reaches the store, and nothing is answered before the weather changes
    LOSES = "loses"  # the store does everything, and nobody hears of it
    SLOW = "slow"  # every request takes longer
    BUSY = "busy"  # every request is answered with 503
    FULL = "full"  # every write is answered with 507
    QUOTA = "quota"  # every write is answered with 403, as of a quota that is used up


REFUSALS = {
    Weather.BUSY: (503, "SlowDown"),
    Weather.FULL: (507, "InsufficientStorage"),
    Weather.QUOTA: (403, "QuotaExceeded"),
}
UNANSWERED = {Weather.CUT, Weather.HANGS, Weather.LOSES}


class StoreGate(S3Proxy):
    """See the module.

    Args:
        endpoint: of the server behind it.

    Attributes:
        weather: as it is now.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.weather = Weather.FINE
        self._changed = threading.Event()
        self._request = threading.local()
        self._server.handle_error = lambda *_: None  # those who ask are killed in these tests, and hear no answer

    def become(self, weather: Weather) -> None:
        """From now on."""
        self.weather = weather
        changed, self._changed = self._changed, threading.Event()
        changed.set()

    @contextmanager
    def being(self, weather: Weather) -> Iterator[None]:
        """For a while."""
        self.become(weather)
        try:
            yield
        finally:
            self.become(Weather.FINE)

    def release(self) -> None:
        """Answers that were held back are dropped."""
        super().release()
        self.become(Weather.FINE)

    def way_of(self, method: str) -> str:
        """What becomes of this one."""
        self._request.weather, self._request.changed = self.weather, self._changed
        return "drop" if self.weather in UNANSWERED else super().way_of(method)

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list, bytes]:
        """The answer of the server behind it, or of the gate."""
        weather = self._request.weather
        if weather is Weather.HANGS:
            self._request.changed.wait(HANG_S_MAX)
        if weather in {Weather.HANGS, Weather.CUT}:
            return 503, [], b""  # which nobody hears
        if weather is Weather.BUSY or (weather in REFUSALS and method in WRITES):
            status, code = REFUSALS[weather]
            return status, [("Content-Type", "application/xml")], TEXT.format(code).encode()
        if weather is Weather.SLOW:
            time.sleep(SLOW_S)
        try:
            return super().ask(method, path, headers, body)
        except (OSError, http.client.HTTPException):
            return 502, [], b""
