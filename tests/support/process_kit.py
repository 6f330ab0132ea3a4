"""`Lift.process` against coordinators and logs in this process: kills of members, and handlers that misbehave."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import DisconnectedError, PublishTimeoutError
from liftpy_client.group.offsets import committed
from liftpy_client.group.options import GroupOptions
from liftpy_client.processing.options import ProcessOptions, Retry
from liftpy_client.processing.process import Process
from liftpy_client.tracing.interceptors import Interceptors
from liftpy_envelope.pull import Api
from support.fake_groups import FakeGroups
from support.fake_log import FakeLogs

_OF_LOGS = {Api.FETCH, Api.EPOCH_END_OFFSET, Api.LIST_OFFSETS}


class FakeWorld(FakeGroups):
    """A group's coordinator, the stream `s` that it reads, and a stream of dead letters.

    Attributes:
        letters: dead letters by message id.
        listed: names of the streams that exist, for those who look for a pattern.
        unsure: how many of the next dead letters are stored without an ack.
    """

    def __init__(self, counts: list[int], per_batch: int = 7) -> None:
        super().__init__(len(counts))
        self.logs = FakeLogs(per_batch)
        self.logs.create("s", counts, per_batch)
        for number in range(len(counts)):
            self.logs.logs[self.place.key(number)] = self.logs.logs[self.logs.places["s"].key(number)]
        self.counts = counts
        self.letters: dict[str, Any] = {}
        self.unsure = 0
        self.listed = ["s"]

    async def request(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """As `Cluster`."""
        if endpoint == "STREAM.LIST":
            return {"total": len(self.listed), "streams": [{"name": name} for name in self.listed]}
        return await super().request(endpoint, body)

    async def publish(self, subject: str, value: Any, *, key: Any, headers: Any, message_id: str) -> None:
        """As `Lift.publish`, for dead letters."""
        await asyncio.sleep(0)
        self.letters.setdefault(message_id, SimpleNamespace(subject=subject, value=value, key=key, headers=headers))
        if self.unsure:
            self.unsure -= 1
            raise PublishTimeoutError("no ack")

    async def committed(self) -> dict[int, int]:
        """By partition."""
        return {number: row.offset for number, row in (await committed(self, "g", "s")).items()}


class Line:
    """The connections of one member, which a kill cuts. It is the member's session."""

    def __init__(self, world: FakeWorld) -> None:
        self.running: set[Any] = set()
        self._world = world
        self.name = "test"
        self.options = world.options
        self.nats = world.nats
        self.cluster = world
        self.is_cut = False

    async def open_pull(self, node_id: str) -> Any:
        if self.is_cut:
            raise DisconnectedError("cut")
        logs = await self._world.logs.open_pull(node_id)
        return _Connection(self, await self._world.open_pull(node_id), logs)


class _Connection:
    def __init__(self, line: Line, groups: Any, logs: Any) -> None:
        self._line = line
        self._groups = groups
        self._logs = logs
        self.node = groups.node

    @property
    def heard_s(self) -> float:
        return self._logs.heard_s

    def close(self) -> None:
        self._groups.close()
        self._logs.close()

    async def request(self, api: Api, body: Any) -> Any:
        if self._line.is_cut:
            raise DisconnectedError("cut")
        return await (self._logs if api in _OF_LOGS else self._groups).request(api, body)


class Trial:
    """What handlers did in a world, checked as they do it.

    Attributes:
        handled: how often each message was handled, by partition and offset.
        poison: messages whose handlers always raise.
        trouble: the share of calls that raise, and of those that hang.
    """

    def __init__(self, world: FakeWorld, seed: int = 0) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.handled: dict[tuple[int, int], int] = {}
        self.poison: set[tuple[int, int]] = set()
        self.trouble = (0.0, 0.0)
        self.busy: dict[Any, Any] = {}
        self.calls = 0
        self.pause_s = 0.0

    def is_done(self, partition: int, offset: int) -> bool:
        """Whether a message was handled, or is a dead letter."""
        return (partition, offset) in self.handled or any(
            (letter.headers["Dead-Letter-Partition"], letter.headers["Dead-Letter-Offset"])
            == (str(partition), str(offset))
            for letter in self.world.letters.values()
        )

    async def handle(self, message: Any) -> None:
        """Handle a message whose lane is its partition and subject."""
        lane, place = (message.partition, message.subject), (message.partition, message.offset)
        assert lane not in self.busy, f"{place} beside {self.busy[lane]}"
        assert message.offset < 3 or self.is_done(message.partition, message.offset - 3), f"{place} before its time"
        self.busy[lane] = place
        self.calls += 1
        try:
            await asyncio.sleep(self.pause_s * self.random.random())
            chance = self.random.random()
            if place in self.poison or chance < self.trouble[0]:
                raise ValueError(f"no {place}")
            if chance < sum(self.trouble):
                await asyncio.Event().wait()
        finally:
            del self.busy[lane]
        self.handled[place] = self.handled.get(place, 0) + 1

    @property
    def places(self) -> set[tuple[int, int]]:
        """All messages of the stream."""
        return {(number, offset) for number, count in enumerate(self.world.counts) for offset in range(count)}


class Member:
    """One process of the group, in a task."""

    def __init__(self, world: FakeWorld, handle: Any, **options: Any) -> None:
        self.line = Line(world)
        group = {"session_timeout_s": 1.0, "rebalance_timeout_s": 3.0, "commit_interval_s": 0.02}
        group |= options.pop("group_options", {})
        self.line.interceptors = Interceptors(options.pop("interceptors", ()))
        told = {"by": "subject", "concurrency": 8, "retry": Retry(4, (0.001, 0.004)), "shutdown_timeout_s": 5.0}
        self.process = Process(
            self.line,
            world.publish,
            options.pop("streams", ("s",)),
            "g",
            handle,
            ProcessOptions(**(told | options)),
            ConsumeOptions(wait_ms=20),
            GroupOptions(**group),
        )
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self.process.run(self.stop))

    @property
    def member_id(self) -> str:
        return self.process._member.member_id

    @property
    def partitions(self) -> list[int]:
        return sorted(key.partition for key in self.process._member.owned)

    async def end(self) -> None:
        """Stop it, and wait."""
        self.stop.set()
        async with asyncio.timeout(20):
            await self.task

    async def kill(self) -> None:
        """End it without a word to anybody."""
        self.line.is_cut = True
        self.process._schedule.stop()
        self.process._schedule.cut(self.process._schedule.partitions)
        await self.process._workers.close()
        self.process._membership._options = GroupOptions(commit_interval_s=None)
        self.process._membership.commits.finished = dict
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=20)
        assert self.task.done()
