"""Who is there in a `tier_world`, and how a node falls asleep in the middle of a job while the others go on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from support.fault_store import Crash, Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_server.tier.jobs.parts.context import Context
    from support.fault_store import FaultStore, Request
    from support.tier_world_log import WorldLog
    from support.tier_world_reading import Reading

__all__ = ["Doing", "Fork", "Job", "Node", "Point", "Trouble"]

NUMBER_MAX = 14
KINDS = (  # between the phases of jobs: kind of the request, and what its key holds
    ("create", "fragments/"),
    ("create", "sets/"),
    ("replace", "ROOT"),
    ("replace", "ROOT"),
    ("get", "ROOT"),
    ("list", "pins/"),
    ("", "GARBAGE"),
    ("", "BOUNDARY"),
    ("delete", ""),
    ("delete", ""),
)
WRITE_FAULTS = (Fault.LOST, Fault.LOST, Fault.NOT_DONE, Fault.LATE, Fault.TWICE, Fault.REFUSED_AFTER)


class Point(NamedTuple):
    """A request of a job: the one with a number, or the first of a kind."""

    number: int
    kind: str = ""
    part: str = ""

    @classmethod
    def chosen(cls, rng: random.Random) -> Point:
        if rng.random() < 0.3:
            return cls(rng.randint(1, NUMBER_MAX))
        return cls(0, *rng.choice(KINDS))

    def is_at(self, number: int, request: Request) -> bool:
        if self.number:
            return number == self.number
        return self.kind in {"", request.kind} and self.part in request.key


@dataclass
class Trouble:
    """What a node meets in its next job; each at most once."""

    crash: Point | None = None
    is_crash_after: bool = False
    sleep: Point | None = None
    fault: Point | None = None
    kind: Fault = Fault.LOST

    @classmethod
    def chosen(cls, rng: random.Random, sleepiness: float, rate: float) -> Trouble:
        trouble = cls()
        if rng.random() < 0.1:
            trouble.crash, trouble.is_crash_after = Point.chosen(rng), rng.random() < 0.5
        if rng.random() < sleepiness:
            trouble.sleep = Point.chosen(rng)
        if rate and rng.random() < 0.15:
            trouble.fault, trouble.kind = Point.chosen(rng), rng.choice(WRITE_FAULTS)
        return trouble


@dataclass
class Job:
    """One call of a job of the tier worker."""

    name: str
    epoch: int | None  # of the leadership in whose name it is done
    ids: set[str] = field(default_factory=set)  # that it gave to objects and commits


class Doing:
    """Something that a node does, in a thread of its own: it runs only while `go` waits for it."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_over = self._is_killed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go(self) -> bool:
        """Let it run until it sleeps or is through. Says whether it is through; raises what it raised."""
        self._turn.release()
        self._back.acquire()
        if self._is_over:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._is_over

    def kill(self) -> None:
        """Its process dies while it sleeps."""
        self._is_killed = True
        if not self._is_over:
            self.go()

    def sleep(self) -> None:
        """Called by what it does."""
        self._back.release()
        self._turn.acquire()
        if self._is_killed:
            raise Crash("while it stood still")

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._act()
        except BaseException as error:
            self._error = error
        finally:
            self._is_over = True
            self._back.release()


@dataclass
class Node:
    """A node with a tier worker, which may think that it still leads."""

    name: str
    store: FaultStore
    context: Context
    record_hash: str  # of a history that it would begin; of the one that there is, once it has claimed
    incarnation: int = 1
    epoch: int = -1
    end: int | None = None  # up to where it thinks the bucket goes; None: it must claim
    trouble: Trouble = field(default_factory=Trouble)
    asked: int = 0
    doing: Doing | None = None  # where it may fall asleep
    is_asleep: bool = False
    overlaps: bool = False  # others did something in the middle of what it does
    compacts: bool = False
    job: Job | None = None


@dataclass
class Fork:
    """A fork, and what it must hold."""

    path: PartitionPath
    log: WorldLog
    reading: Reading
    epoch: int
