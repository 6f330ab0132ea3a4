"""What the listeners of a node refuse: counted by listener, and logged at a bounded rate, with the peer.

A listener is where others reach the node: `admin` and `node` over NATS, `raft`, `pull` and `http` over TCP.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LISTENERS", "ListenerRefusals"]

logger = logging.getLogger(__name__)

LISTENERS: Final = ("admin", "node", "raft", "pull", "http")


class ListenerRefusals:
    """Counts and logs refused connections. May be used by any thread.

    Args:
        clock_s: Monotonic seconds.

    Attributes:
        auth_failures: How often a peer could not prove that it may do what it asked for, by listener.
        malformed: How often a peer sent what can not be read, by listener.
        busy: How often a peer was sent away as there were too many, by listener.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._warnings = RepeatedWarnings(logger)
        self.auth_failures = dict.fromkeys(LISTENERS, 0)
        self.malformed = dict.fromkeys(LISTENERS, 0)
        self.busy = dict.fromkeys(LISTENERS, 0)

    def auth_failed(self, listener: str, peer: str, why: str, *, kind: str = "") -> None:
        """A peer did not prove that it may.

        Args:
            listener: One of `LISTENERS`.
            peer: Address of the peer; where NATS hides it, its subject and reply subject.
            why: What was wrong, and what to do.
            kind: Tells apart what is to be logged apart. It must not be of the peer's choice.
        """
        self.auth_failures[listener] += 1
        self._tell(listener, "auth", peer, why, kind)

    def was_malformed(self, listener: str, peer: str, why: str, *, kind: str = "") -> None:
        """A peer sent what can not be read; arguments as above."""
        self.malformed[listener] += 1
        self._tell(listener, "malformed", peer, why, kind)

    def was_busy(self, listener: str, peer: str, why: str, *, kind: str = "") -> None:
        """A peer was sent away, as there were too many; arguments as above."""
        self.busy[listener] += 1
        self._tell(listener, "busy", peer, why, kind)

    def _tell(self, listener: str, what: str, peer: str, why: str, kind: str) -> None:
        self._warnings.tell(
            f"{listener} {what} {kind}", f"{listener}: refused {peer:.200}: {why:.500}", self._clock_s()
        )
