"""Publishers that measure how long nothing is acknowledged, and count what is lost of messages that ask for nothing."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import nats

from support.cluster import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nats.aio.msg import Msg

PACE_S = 0.005
PLAIN_PER_PACE = 5
PATIENCE_S = 60.0


class AckedProbe:
    """Publishes one message after the other to some subjects in turn, each once, and notes when its ack comes.

    Args:
        url: of NATS.
        subjects: where to.

    Attributes:
        acked: when each was sent and when acknowledged, and by which partition; monotonic seconds.
    """

    def __init__(self, url: str, subjects: Sequence[str]) -> None:
        self._url = url
        self._subjects = subjects
        self._sent_s: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.acked: list[tuple[float, float, int]] = []

    async def start(self) -> None:
        """Begin."""
        client = self._client = await nats.connect(self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=self._arrived)
        self._tasks.append(asyncio.ensure_future(self._run(inbox)))

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _run(self, inbox: str) -> None:
        while True:
            number = len(self._sent_s)
            self._sent_s.append(time.monotonic())
            subject = self._subjects[number % len(self._subjects)]
            await self._client.publish(subject, b"acked %d" % number, reply=f"{inbox}.{number}")
            await asyncio.sleep(PACE_S)

    async def _arrived(self, message: Msg) -> None:
        ack = json.loads(message.data) if message.data else {}
        if "offset" in ack:
            sent_s = self._sent_s[int(message.subject.rpartition(".")[2])]
            self.acked.append((sent_s, time.monotonic(), ack["partition"]))

    async def back_after(self, kill_s: float, partitions: Iterable[int] = (0,)) -> list[float]:
        """How long after a kill each partition first acknowledged a message that was sent after it, in seconds."""
        missing = set(partitions)
        found: list[float] = []
        looked = 0

        def is_complete() -> bool:
            nonlocal looked
            while looked < len(self.acked):
                sent_s, acked_s, partition = self.acked[looked]
                looked += 1
                if sent_s > kill_s and partition in missing:
                    missing.discard(partition)
                    found.append(acked_s - kill_s)
            return not missing

        await eventually(is_complete, PATIENCE_S, f"{len(missing)} partitions are not back within {PATIENCE_S:g} s")
        return found

    async def partitions(self, count: int) -> set[int]:
        """The partitions that its subjects belong to; waits until each subject had an ack."""
        began = len(self.acked)
        await eventually(lambda: len(self.acked) - began >= count, PATIENCE_S, "acks are missing")
        return {partition for _, _, partition in self.acked[began:]}


class PlainProbe:
    """Publishes about a thousand messages a second that ask for no ack, each with the number of the gap it is near.

    Args:
        url: of NATS.
        subject: where to.

    Attributes:
        sent: how many messages, by the number of the gap.
        gap: the number of the gap that comes.
    """

    def __init__(self, url: str, subject: str) -> None:
        self._url = url
        self._subject = subject
        self._task: asyncio.Task[None] | None = None
        self.sent: dict[int, int] = {}
        self.gap = 0

    async def start(self) -> None:
        """Begin."""
        self._client = await nats.connect(self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End; whatever was sent has reached the server."""
        assert self._task is not None
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        await self._client.flush(10)
        await self._client.close()
        assert isinstance(ended, asyncio.CancelledError), f"nothing was published any more since {ended!r}"

    async def _run(self) -> None:
        while True:
            for _ in range(PLAIN_PER_PACE):
                number = self.sent[self.gap] = self.sent.get(self.gap, 0) + 1
                await self._client.publish(self._subject, b"plain %d %d" % (self.gap, number))
            await asyncio.sleep(PACE_S)

    def missing(self, stored: Iterable[bytes]) -> tuple[dict[int, int], dict[int, int]]:
        """How many of them are not stored, and how many more than once, by the number of the gap."""
        seen: dict[bytes, int] = {}
        for content in stored:
            if content.startswith(b"plain "):
                seen[content] = seen.get(content, 0) + 1
        there = dict.fromkeys(self.sent, 0)
        doubled = dict.fromkeys(self.sent, 0)
        for content, count in seen.items():
            gap = int(content.split()[1])
            there[gap] += 1
            doubled[gap] += count > 1
        return {gap: sent - there[gap] for gap, sent in self.sent.items()}, doubled


class Row(NamedTuple):
    """A line of a table: what was measured, and each measurement, in seconds or messages."""

    name: str
    values: Sequence[float]
    unit: str = "s"

    def __str__(self) -> str:
        digits = 2 if self.unit == "s" else 0
        shown = [f"{value:8.{digits}f}" for value in (min(self.values), median(self.values), max(self.values))]
        return f"{self.name:46} {len(self.values):4} {' '.join(shown)} {self.unit}"


def table(rows: Iterable[Row]) -> str:
    """The lines with a head."""
    return "\n".join([f"{'':46} {'runs':>4} {'min':>8} {'median':>8} {'max':>8}", *map(str, rows)])
