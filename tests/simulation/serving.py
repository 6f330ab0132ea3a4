"""A node's side towards those who follow it, publish to it, and read from it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowRefusal, FollowResult
from liftpy_server.replication.core import inputs
from simulation.process import Process
from simulation.sessions import HEARTBEAT_US

if TYPE_CHECKING:
    from liftpy_server.replication.core.replica import Replica
    from simulation.clients import Consumer
    from simulation.disk import SimDisk
    from simulation.sessions import Connection
    from simulation.world import World

FETCH_RECORDS_MAX = 8


class Serving(Process):
    """See the module."""

    def __init__(self, world: World, node_id: str, disk: SimDisk) -> None:
        super().__init__()
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.replica: Replica | None = None
        self.answer: FollowResult | FollowEnd | None = None
        self.waiting: deque[tuple[int, int, int]] = deque()  # (offset, epoch, value) of what waits for its ack
        self._parked: dict[Connection, FollowFetch] = {}
        self._parked_nodes: set[str] = set()
        self._heard_us: dict[str, int] = {}

    def step(self, given: inputs.Input) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """The role ends, or begins: fetches that wait are answered as things are now."""
        self.waiting.clear()
        self._parked_nodes.clear()
        parked, self._parked = self._parked, {}
        for connection, request in parked.items():
            self._park_or_answer(connection, request)

    def hang_up(self) -> None:
        """The process ends."""
        self.waiting.clear()
        self._parked_nodes.clear()
        self._parked.clear()
        self._heard_us.clear()

    def heard_followers(self) -> dict[str, float]:
        """When those were heard whose fetches were accepted."""
        return {node: self._heard_us[node] / 1e6 for node in sorted(self._parked_nodes)}

    # -- followers

    def asked(self, connection: Connection, message: FollowFetch | FollowQuestion | None) -> None:
        """A session asks."""
        world = self.world
        self._heard_us[connection.follower] = world.scheduler.now_us
        if message is None:
            world.scheduler.after(HEARTBEAT_US, self.enter, self.run, connection.answer, None)
            return
        self.answer = None
        self._parked.pop(connection, None)
        follower = connection.follower
        if isinstance(message, FollowFetch):
            self.step(inputs.FollowerFetched(node_id=follower, fetch=message))
            self._fetched(connection, message)
        else:
            self.step(inputs.FollowerAsked(node_id=follower, question=message))
            connection.answer(self.answer or message.not_led())

    def _fetched(self, connection: Connection, request: FollowFetch) -> None:
        answer = self.answer
        if isinstance(answer, FollowResult) and not answer.refusal:
            self._parked_nodes.add(connection.follower)
            self._park_or_answer(connection, request)
            return
        self._parked_nodes.discard(connection.follower)
        connection.answer(
            inputs.FetchAnswered(result=answer) if isinstance(answer, FollowResult) else self._news(request)
        )

    def _park_or_answer(self, connection: Connection, request: FollowFetch) -> None:
        news = self._news(request)
        if not news.result.refusal and not news.ranges and news.result.high_watermark <= request.high_watermark:
            self._parked[connection] = request
        else:
            connection.answer(news)

    def _news(self, request: FollowFetch) -> inputs.FetchAnswered:
        """The answer to a fetch that has waited."""
        replica = self.replica
        leader = None if replica is None else replica.leader
        if replica is None or leader is None or leader.view.leader_epoch != request.leader_epoch:
            return inputs.FetchAnswered(result=request.not_led())
        end = min(self.disk.end, request.offset + FETCH_RECORDS_MAX)
        marks = (request.leader_epoch, request.offset, replica.log.high_watermark, replica.log.start)
        return inputs.FetchAnswered(
            result=FollowResult(request.key, FollowRefusal.NONE, request.incarnation, *marks),
            ranges=self.disk.ranges(request.offset, end),
            records=self.disk.read(request.offset, end),
        )

    def _wake(self) -> None:
        parked, self._parked = self._parked, {}
        for connection, request in parked.items():
            self._park_or_answer(connection, request)

    # -- publishers and consumers

    def advanced(self, replica: Replica, offset: int) -> None:
        leader = replica.leader
        epoch = None if leader is None else leader.view.leader_epoch
        self.world.model.advanced(self.node_id, offset, epoch)
        self.world.trace.append((self.world.scheduler.now_us, self.node_id, offset))
        while self.waiting and self.waiting[0][0] < offset:
            acked, acked_epoch, value = self.waiting.popleft()
            self.world.model.acknowledged(value, acked_epoch, acked)
            self.world.first_ack_us.setdefault(acked_epoch, self.world.scheduler.now_us)
        self._wake()

    def published(self, values: tuple[int, ...]) -> None:
        """From NATS."""
        self.enter(self.run, self._ingest, values)

    def _ingest(self, values: tuple[int, ...]) -> None:
        leader = None if self.replica is None else self.replica.leader
        if leader is None or not leader.is_accepting:
            return
        epoch = leader.view.leader_epoch
        base = self.disk.end
        records = [(epoch, value) for value in values]
        self.world.model.appending(self.node_id, records)
        if not self.disk.append(records):
            return
        self.waiting += [(base + number, epoch, value) for number, value in enumerate(values)]
        self.step(inputs.LogAppended(ranges=self.disk.ranges(base, self.disk.end)))
        self._wake()

    def consumed(self, consumer: Consumer, position: int, floor: int, epoch: int) -> None:
        """From a consumer."""
        self.enter(self.run, self._serve, consumer, position, floor, epoch)

    def _serve(self, consumer: Consumer, position: int, floor: int, floor_epoch: int) -> None:
        replica = self.replica
        if replica is None or replica.role is None or position < self.disk.start:
            return
        end = min(replica.log.high_watermark, position + FETCH_RECORDS_MAX)
        records = self.disk.read(position, end) if end > position else []
        leader = replica.leader
        latest = replica.log.high_watermark if leader is not None and leader.is_caught_up else None
        epoch = replica.role.view.leader_epoch
        args = (epoch, position, records, latest, floor, floor_epoch)
        self.world.network.send(self.node_id, "client", consumer.answered, *args)

    def _retain(self, replica: Replica) -> None:
        """Retention: at times a node drops committed records that every consumer has read."""
        if self.world.rng.random() < self.world.retention_chance:
            start = min([replica.log.high_watermark - 5, *(reader.position for reader in self.world.consumers)])
            if start > self.disk.start:
                self.disk.drop_below(start)
                self.step(inputs.StartAdvanced(start=start))
