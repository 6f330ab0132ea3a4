"""What the doors of a node refuse: counted by door, and logged at a bounded rate, with the peer.

A door is where others reach the node: `admin` and `node` over NATS, `raft`, `pull` and `http` over TCP.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DOORS", "DoorRefusals"]

logger = logging.getLogger(__name__)

DOORS: Final = ("admin", "node", "raft", "pull", "http")


class DoorRefusals:
    """Counts and logs refused connections. May be used by any thread.

    Args:
        clock_s: Monotonic seconds.

    Attributes:
        auth_failures: How often a peer could not prove that it may do what it asked for, by door.
        malformed: How often a peer sent what can not be read, by door.
        busy: How often a peer was sent away as there were too many, by door.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._warnings = RepeatedWarnings(logger)
        self.auth_failures = dict.fromkeys(DOORS, 0)
        self.malformed = dict.fromkeys(DOORS, 0)
        self.busy = dict.fromkeys(DOORS, 0)

    def auth_failed(self, door: str, peer: str, why: str, *, kind: str = "") -> None:
        """A peer did not prove that it may.

        Args:
            door: One of `DOORS`.
            peer: Address of the peer; where NATS hides it, its subject and reply subject.
            why: What was wrong, and what to do.
            kind: Tells apart what is to be logged apart. It must not be of the peer's choice.
        """
        self.auth_failures[door] += 1
        self._tell(door, "auth", peer, why, kind)

    def was_malformed(self, door: str, peer: str, why: str, *, kind: str = "") -> None:
        """A peer sent what can not be read; arguments as above."""
        self.malformed[door] += 1
        self._tell(door, "malformed", peer, why, kind)

    def was_busy(self, door: str, peer: str, why: str, *, kind: str = "") -> None:
        """A peer was sent away, as there were too many; arguments as above."""
        self.busy[door] += 1
        self._tell(door, "busy", peer, why, kind)

    def _tell(self, door: str, what: str, peer: str, why: str, kind: str) -> None:
        self._warnings.tell(f"{door} {what} {kind}", f"{door}: refused {peer:.200}: {why:.500}", self._clock_s())
