"""The cluster as the pages of the console show it: looked at every few seconds, while somebody looks at the pages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from liftpy.cli.group.overview import GroupsLook
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from liftpy.cli.group.overview import GroupsSeen
    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import ClusterDetails, StreamDetails
    from liftpy_client.admin.recovery import QuarantineDetails
    from liftpy_client.admin.tier import TierStatus

__all__ = ["Course", "Snapshot", "Watcher"]

logger = logging.getLogger(__name__)

PERIOD_S: Final = 2.0
POINTS_MAX: Final = 150
COURSES_MAX: Final = 1_000
_IDLE_S: Final = 60.0
_FIRST_S: Final = 10.0
_GROUPS_WAIT_S: Final = 1.0
_LOOK_SHARE: Final = 0.2
"""Of the time, in which the cluster is asked."""


class Course:
    """How a number went, for the newest `POINTS_MAX` looks: pairs of seconds and a value."""

    def __init__(self) -> None:
        self.points: deque[tuple[float, float]] = deque(maxlen=POINTS_MAX)

    def add(self, at_s: float, value: float) -> None:
        """Add the value of a moment."""
        self.points.append((at_s, value))

    @property
    def last(self) -> float | None:
        """The newest value; None when there is none yet."""
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster at one moment.

    Attributes:
        at_s: When, in seconds since the epoch.
        streams: By name; those whose names begin with `__`, too.
        nodes: What each node tells of itself, by id.
        groups: All consumer groups.
        tier: The bucket.
        quarantine: What nodes moved to quarantine.
    """

    at_s: float
    cluster: ClusterDetails
    streams: dict[str, StreamDetails]
    nodes: dict[str, dict[str, Any]]
    groups: GroupsSeen
    tier: TierStatus
    quarantine: QuarantineDetails


@dataclass(slots=True)
class _Courses:
    """Numbers over time, by name. A name that is not seen again is forgotten."""

    by_name: dict[str, Course] = field(default_factory=dict)

    def add(self, at_s: float, values: dict[str, float]) -> None:
        for name in self.by_name.keys() - values.keys():
            del self.by_name[name]
        for name, value in values.items():
            if name in self.by_name or len(self.by_name) < COURSES_MAX:
                self.by_name.setdefault(name, Course()).add(at_s, value)


class Watcher:
    """Looks at the cluster again and again; to be used in an `async with`.

    It asks no more than a fifth of the time, and nothing at all when no page was asked for in the last minute.

    Args:
        lift: Whom to ask.
        clock: Seconds since the epoch.

    Attributes:
        error: Why what is shown is not new; None when it is.
        rate: Messages per second of all streams.
    """

    def __init__(self, lift: Admin, clock: Callable[[], float] = time.time) -> None:
        self._lift = lift
        self._clock = clock
        self._groups = GroupsLook(lift)
        self._rates = _Courses()
        self._lags = _Courses()
        self._cpus = _Courses()
        self._cpu_s: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._counted_s = 0.0
        self._snapshot: Snapshot | None = None
        self._asked_s = time.monotonic()
        self._wanted = asyncio.Event()
        self._looked = asyncio.Event()
        self._one_looks = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.error: str | None = None
        self.rate = Course()

    async def __aenter__(self) -> Self:
        await self._groups.__aenter__()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._groups.__aexit__(kind, error, trace)

    async def snapshot(self) -> Snapshot:
        """The newest look. The first one is waited for.

        Raises:
            LiftError: The cluster has never answered.
        """
        self._asked_s = time.monotonic()
        self._wanted.set()
        if self._snapshot is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), _FIRST_S)
        if self._snapshot is None:
            raise LiftError(self.error or "the cluster has not answered yet; this page tries again")
        return self._snapshot

    async def refresh(self) -> None:
        """Look now, because something was changed."""
        await self._try_to_look()

    def rate_of(self, stream: str) -> Course:
        """Messages per second of a stream."""
        return self._rates.by_name.get(stream) or Course()

    def lag_of(self, group: str) -> Course:
        """By how many offsets a group lags."""
        return self._lags.by_name.get(group) or Course()

    def cpu_of(self, node_id: str) -> Course:
        """Which share of a CPU the process of a node takes."""
        return self._cpus.by_name.get(node_id) or Course()

    async def _watch(self) -> None:
        while True:
            if time.monotonic() - self._asked_s > _IDLE_S:
                self._wanted.clear()
                await self._wanted.wait()
            began_s = time.monotonic()
            await self._try_to_look()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(PERIOD_S, took_s / _LOOK_SHARE))

    async def _try_to_look(self) -> None:
        async with self._one_looks:
            try:
                self._note(await self._look())
                self.error = None
                self._looked.set()
            except (LiftError, OSError) as error:
                self.error = str(error) or type(error).__name__
            except Exception as error:
                # Looking goes on: without it, pages would show old numbers as if they were new.
                logger.exception("looking at the cluster failed")
                self.error = f"looking at the cluster failed ({type(error).__name__})"

    async def _look(self) -> Snapshot:
        cluster, quarantine, tier, nodes = await asyncio.gather(
            self._lift.cluster_info(), self._lift.quarantine(), self._lift.tier_status(), self._lift.nodes()
        )
        streams = {stream.name: stream async for stream in self._lift.streams(internal=True)}
        groups = await self._groups.look(streams.values(), _GROUPS_WAIT_S)
        return Snapshot(
            at_s=self._clock(),
            cluster=cluster,
            streams=streams,
            nodes={node["node_id"]: node for node in nodes},
            groups=groups,
            tier=tier,
            quarantine=quarantine,
        )

    def _note(self, seen: Snapshot) -> None:
        counts = {name: _stored(stream) for name, stream in seen.streams.items()}
        elapsed_s = seen.at_s - self._counted_s
        if self._counts and elapsed_s > 0:
            rates = {
                name: max(0, count - self._counts[name]) / elapsed_s
                for name, count in counts.items()
                if name in self._counts
            }
            self._rates.add(seen.at_s, rates)
            self.rate.add(seen.at_s, sum(rate for name, rate in rates.items() if not name.startswith("__")))
        cpu_s = {node.node_id: node.cpu_s for node in seen.cluster.nodes if node.cpu_s is not None}
        if elapsed_s > 0:
            before = self._cpu_s  # a node that was started again begins at 0
            used_s = {
                name: after - before[name] for name, after in cpu_s.items() if after >= before.get(name, after + 1)
            }
            self._cpus.add(seen.at_s, {name: used / elapsed_s for name, used in used_s.items()})
        self._counts, self._counted_s, self._cpu_s = counts, seen.at_s, cpu_s
        lags = {group.summary.group: float(group.lag) for group in seen.groups.groups if group.lag is not None}
        self._lags.add(seen.at_s, lags)
        self._snapshot = seen


def _stored(stream: StreamDetails) -> int:
    """How many messages the stream has ever had, as far as its leaders tell."""
    return sum(part.high_watermark or 0 for part in stream.partitions)
