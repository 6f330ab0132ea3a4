"""Publishers that retry until their messages are acked, with ids or without, and consumers that check what they get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_log.errors import OffsetOutOfRangeError, PartitionOfflineError, SegmentCorruptError
from liftpy_server.pull.sending import check_slice
from simulation.model import ViolationError
from simulation.scheduler import MS
from simulation.shell_model import records_in
from simulation.shell_node import KEY

if TYPE_CHECKING:
    from simulation.shell_node import ShellNode
    from simulation.shell_world import ShellWorld

__all__ = ["ShellConsumer", "ShellPublisher"]


AGAIN = 0.3


class ShellPublisher:
    """Numbers as messages.

    Args:
        world: where.
        has_ids: messages have ids, and are sent again until they are acked.
        window: how many may wait for their ack.
    """

    def __init__(self, world: ShellWorld, *, has_ids: bool, window: int) -> None:
        self.waiting: dict[int, int] = {}  # number -> how often it was sent
        self._world = world
        self._has_ids = has_ids
        self._window = window
        self._last_offset = -1
        self._acked: list[int] = []
        world.scheduler.after(600 * MS + world.rng.randrange(200 * MS), self._publish)

    def _publish(self) -> None:
        world = self._world
        world.scheduler.after(int(world.rng.random() * world.publish_every_us * 2) + 1, self._publish)
        if world.is_idle:
            return
        if self._has_ids and self._acked and world.rng.random() < AGAIN:  # it forgot that it was acked
            self._publish_all([world.rng.choice(self._acked)])
        count = min(self._window - len(self.waiting), world.rng.choice((1, 1, 2, 6)))
        if count <= 0:
            return
        numbers = [world.new_number(self, has_id=self._has_ids) for _ in range(count)]
        for number in numbers:
            self.waiting[number] = 0
        self._send(numbers)

    def _publish_all(self, numbers: list[int]) -> None:
        world = self._world
        for node in world.nodes.values():
            world.network.send("nats", node.node_id, node.published, [(number, self._has_ids) for number in numbers])

    def _send(self, numbers: list[int]) -> None:
        world = self._world
        self._publish_all(numbers)
        for number in numbers:
            self.waiting[number] += 1
            world.scheduler.after(
                300 * MS + int(world.rng.random() * 600 * MS), self._look, number, self.waiting[number]
            )

    def _look(self, number: int, sent: int) -> None:
        if self.waiting.get(number) != sent:
            return
        if self._has_ids:
            self._send([number])
        else:
            del self.waiting[number]  # nobody knows

    def acked(self, number: int, answer: dict[str, Any]) -> None:
        """What a node answered."""
        if "error" in answer:
            return
        offset = answer["offset"]
        self._world.model.acknowledged(number, offset, duplicate=bool(answer.get("duplicate")))
        if self.waiting.pop(number, None) is None:
            return
        self._acked.append(number)
        if self._window == 1:
            if offset <= self._last_offset:
                raise ViolationError(f"order: {number} is at {offset}, and what was acked before it was sent behind")
            self._last_offset = offset


class ShellConsumer:
    """Reads on from its position, and now and then from anywhere, of any node that lets it."""

    def __init__(self, world: ShellWorld) -> None:
        self.position = 0
        self._world = world
        world.scheduler.after(700 * MS, self._poll)

    def _poll(self) -> None:
        world = self._world
        world.scheduler.after(int(world.rng.random() * world.consume_every_us * 2) + 1, self._poll)
        node = world.rng.choice(list(world.nodes.values()))
        offset = self.position if world.rng.random() < 0.7 else world.rng.randint(0, self.position)
        world.network.send("client", node.node_id, node.enter, node.run, self._read, node, offset)

    def _read(self, node: ShellNode, offset: int) -> None:
        """What the pull server does, on the node; and then the client, who checks every batch."""
        if node.streams is None or node.files is None:
            return
        found = node.streams.lookup_readable(KEY)
        if isinstance(found, ErrorCode):
            return
        log = found.log
        if offset > found.high_watermark:
            return
        try:
            slices = log.read(offset, found.high_watermark, 4_000)
        except OffsetOutOfRangeError:
            return
        except (PartitionOfflineError, OSError) as error:
            if log.failure is not None:
                found.fail(str(error))
            return
        for piece in slices:
            try:
                file = node.files.get(piece.segment)
                data = file.read(piece.position, piece.length)
            except OSError:
                return
            try:
                records = records_in(data)
            except LiftError:  # the client asks again, and asks for a check
                try:
                    check_slice(file, piece)
                except (SegmentCorruptError, OSError) as error:
                    self._world.seen["damage named"] += 1
                    found.fail(str(error))
                return
            self._world.model.shown(node.node_id, records)
            if records and records[0][0] <= self.position <= records[-1][0]:
                self.position = records[-1][0] + 1
