"""Two nodes between which a partition is handed over, real but for NATS and the metadata, and publishers that go on.

What is published reaches each node that listens in an order of its own, in which only each publisher's messages keep
theirs, in chunks that end anywhere. The seed decides all but when coroutines get their turn.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import ErrorCode
from liftpy_server.handover.giving import Giving
from liftpy_server.handover.held import Holding
from liftpy_server.handover.taking import Taking
from liftpy_server.ingest.marks import MARK_SUBJECT, Marks
from support.nats_frames import msg
from support.replica_kit import ReplicaKit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from support.nats_frames import Frame
    from support.replica_kit import Side

__all__ = ["HandoverKit"]

MARKS_SID = 99


class _Stream:
    refusal = None
    bindings = ()


class _Node:
    """One node's handover, on the partition of a `Side`."""

    def __init__(self, name: str, side: Side, kit: HandoverKit) -> None:
        self.name, self.side, self._kit = name, side, kit
        self.is_listening = False
        self.behind = 0  # by how many messages it hears everything later
        self.waiting: list[tuple[int, int, bytes]] = []  # when, in which order, what
        self.changes = 0
        self.marks = Marks()
        side.kit.ingest.marks = self.marks
        side.kit.ingest.bindings[MARKS_SID] = self.marks
        self.hearing: object = object()
        self.misses: str | None = None
        self.refused: Exception | None = None
        self.is_changing = False  # from one NATS server to another
        partition = side.partition
        stream = _Stream()
        streams: Any = SimpleNamespace(
            by_key={partition.key: partition},
            by_uuid={partition.stream.uuid: stream},
            lookup_replica=lambda _key: side.replica,
            listening=SimpleNamespace(bind=self._bind, change=self._change),
            whole_until_s=lambda _partition: self.whole_until_s,
        )
        ingest: Any = self
        metadata: Any = SimpleNamespace(state=SimpleNamespace(streams={}), propose_many=kit.propose_many)
        self.whole_until_s = side.kit.clock.elapsed()
        holding = Holding(streams, ingest, self.marks, side.kit.clock, side.kit.outbox.flush)
        self.room = holding.room
        self.giving = Giving(holding, kit.ask, metadata)
        self.taking = Taking(holding, kit.publish_mark)
        side.leadership_changed = self._leadership_changed
        self.took_over: list[bool] = []

    def refusal(self, _bindings: Any) -> Exception | None:
        """Why the NATS server does not let it listen."""
        return self.refused

    async def _bind(self, _streams: list[Any]) -> None:
        self.is_listening = True

    def _change(self, _stream: Any) -> None:
        self.changes += 1

    def _leadership_changed(self, replica: Any) -> None:
        if replica.partition.is_leading:
            self.took_over.append(self.taking.took_over(replica))

    def hear(self, until: int) -> None:
        """What has come by now, cut where the seed says."""
        rng = self._kit.rng
        due = sorted(each for each in self.waiting if each[0] <= until)
        self.waiting = [each for each in self.waiting if each[0] > until]
        data = b"".join(frame for _, _, frame in due)
        while data:
            size = rng.randint(1, max(1, len(data)))
            self.side.kit.ingest.receive(data[:size])
            data = data[size:]


class HandoverKit:
    """See the module.

    Args:
        directory: for the logs.
        rng: decides.
        publish: makes the frame of a publisher's next message.
        late: by how many messages of others one may be overtaken on its way to one of the nodes.
    """

    def __init__(
        self,
        directory: Path,
        rng: Random,
        publish: Callable[[Random, int], Frame],
        *,
        late: int = 0,
        publishers: int = 3,
        **settings: Any,
    ) -> None:
        self.rng = rng
        self.replicas = ReplicaKit(directory, "ab", **settings)
        self.replicas.lead("a", 1)
        self.replicas.run()
        self._publish, self._late, self._publishers = publish, late, publishers
        self._moment = 0
        self._not_before: dict[tuple[str, int], int] = {}
        self.nodes = {name: _Node(name, self.replicas[name], self) for name in "ab"}
        self.nodes["a"].is_listening = True
        self.published: list[tuple[int, Frame]] = []
        self.refuses_take = False
        self.refuses_move = False
        self.is_published = True

    def _route(self, publisher: int, frame: Frame) -> None:
        self._moment += 1
        for node in self.nodes.values():
            if node.is_listening or frame.sid == MARKS_SID:
                at = self._moment + self.rng.randint(0, self._late)
                at = self._not_before[node.name, publisher] = max(at, self._not_before.get((node.name, publisher), 0))
                node.waiting.append((at, self._moment, frame.encode()))

    async def publish_mark(self, _subject: str, data: bytes) -> None:
        after = self._moment + 2 * self._late  # as publishers go on between two marks
        while self._moment < after:
            await asyncio.sleep(0)
        self._route(-1, msg(MARK_SUBJECT.encode(), data, sid=MARKS_SID))

    async def ask(self, target: str, endpoint: str, body: dict[str, Any], _timeout_s: float) -> dict[str, Any]:
        taking = self.nodes[target].taking
        answer = {"HANDOVER.LISTEN": taking.listen, "HANDOVER.TAKE": taking.take}[endpoint]
        if endpoint == "HANDOVER.TAKE" and self.refuses_take:
            return {"partitions": []}
        return json.loads(json.dumps(await answer(json.loads(json.dumps(body)))))

    async def propose_many(self, commands: list[tuple[str, str | None, dict[str, Any]]]) -> list[Any]:
        ((_, _, move),) = commands
        if self.refuses_move:
            return [SimpleNamespace(error=ErrorCode.CONFLICT, message="refused")]
        self.replicas.lead(move["leader"], move["leader_epoch"] + 1)
        return [SimpleNamespace(error=ErrorCode.NONE, message="")]

    async def _go_on(self) -> None:
        """Publishers publish, nodes hear, followers follow."""
        while self.is_published:
            for _ in range(self.rng.randint(1, 20)):
                publisher = self.rng.randrange(self._publishers)
                frame = self._publish(self.rng, publisher)
                self.published.append((publisher, frame))
                self._route(publisher, frame)
            for node in self.nodes.values():
                node.hear(self._moment - node.behind)
            self.replicas.run()
            await asyncio.sleep(0)

    def move(self) -> dict[str, Any]:
        """Of the lead, from `a` to `b`."""
        partition = self.replicas["a"].partition
        stream = partition.stream
        move = {"name": stream.name, "uuid": stream.uuid, "partition": partition.number, "leader": "b"}
        return move | {"leader_epoch": 1, "version": 1}

    async def hand_over(self) -> list[Any]:
        """From `a` to `b`, under load. Returns what is left of the moves."""
        flood = asyncio.create_task(self._go_on())
        await asyncio.sleep(0.01)
        left = await self.nodes["a"].giving.give([self.move()])
        await asyncio.sleep(0.01)
        self.is_published = False
        await flood
        for node in self.nodes.values():
            node.hear(self._moment + self._late)
        self.replicas.run()
        return left

    def close(self) -> None:
        self.replicas.close()
