"""Publishers that retry until their messages are acked, with ids or without, and consumers that check what they get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.partitioner import partition_of
from liftpy_log.errors import OffsetOutOfRangeError, PartitionOfflineError, SegmentCorruptError
from liftpy_server.pull.sending import check_slice
from simulation.model import ViolationError
from simulation.scheduler import MS
from simulation.shell_model import records_in
from simulation.shell_node import key_of
from support.envelopes import batch
from support.nats_frames import header_block, msg

if TYPE_CHECKING:
    from simulation.shell_node import ShellNode
    from simulation.shell_world import ShellWorld
    from support.nats_frames import Frame

__all__ = ["OrderedShellPublisher", "ShellConsumer", "ShellPublisher"]


AGAIN = 0.3
KEYS = 5


class ShellPublisher:
    """Numbers as messages.

    Args:
        world: where.
        has_ids: messages have ids, and are sent again until they are acked.
        window: how many may wait for their ack.
        has_keys: messages have keys, and some delete theirs.
    """

    def __init__(self, world: ShellWorld, *, has_ids: bool, window: int, has_keys: bool = False) -> None:
        self.waiting: dict[int, int] = {}  # number -> how often it was sent
        self._world = world
        self._has_ids = has_ids
        self._has_keys = has_keys
        self._window = window
        self._last_offsets: dict[int, int] = {}
        self._acked: list[int] = []
        self._keys: dict[int, tuple[str, bool]] = {}  # of messages with keys of their own, and whether they delete them
        world.scheduler.after(600 * MS + world.rng.randrange(200 * MS), self._publish)

    def _publish(self) -> None:
        world = self._world
        world.scheduler.after(int(world.rng.random() * world.publish_every_us * 2) + 1, self._publish)
        if world.is_idle:
            return
        if self._has_ids and self._acked and world.rng.random() < AGAIN:  # it forgot that it was acked
            self.publish_again([world.rng.choice(self._acked)])
        count = min(self._window - len(self.waiting), world.rng.choice((1, 1, 2, 6, 12)))
        if count > 0:
            self.publish(count)

    def publish(self, count: int) -> None:
        """As one chunk."""
        self._publish_all([self._world.new_number(self, has_id=self._has_ids) for _ in range(count)])

    def publish_key(self, key: str, *, deletes: bool = False) -> int:
        """A message with a key of its own, or one that deletes it. Returns its number."""
        number = self._world.new_number(self, has_id=self._has_ids)
        self._keys[number] = key, deletes
        self._publish_all([number])
        return number

    def _publish_all(self, numbers: list[int]) -> None:
        for number in numbers:
            self.waiting[number] = 0
        self._send(numbers)

    def publish_again(self, numbers: list[int]) -> None:
        """As one chunk, whether they are acked or not."""
        world = self._world
        for node in world.nodes.values():
            world.network.send("nats", node.node_id, node.published, numbers)

    def _place(self, number: int) -> tuple[bytes, str | None]:
        """Subject and key of a message."""
        subject = f"{self._world.subjects}.{number % self._world.partitions}".encode()
        if number in self._keys:
            return subject, self._keys[number][0]
        return subject, f"k{number % KEYS}" if self._has_keys else None

    def _deletes(self, number: int) -> bool:
        return self._keys[number][1] if number in self._keys else not number % 4

    def partition(self, number: int) -> int:
        """Which partition a message is for."""
        subject, key = self._place(number)
        return partition_of(subject if key is None else key.encode(), self._world.partitions)

    def frame(self, number: int, sid: int) -> Frame:
        """A message, as the NATS server sends it."""
        (subject, key), reply = self._place(number), b"_INBOX.%d" % number
        headers = {"Nats_Msg_Id": f"m{number}"} if self._has_ids else {}
        value = self._world.value_of(number)
        if key is not None:
            headers["Lift_Key"] = key
            if self._deletes(number):
                headers |= {"Lift_Tombstone": "true", "N": str(number)}
                value = b""
        return msg(subject, value, sid=sid, reply=reply, headers=header_block(**headers) if headers else None)

    def _send(self, numbers: list[int]) -> None:
        world = self._world
        self.publish_again(numbers)
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
        offset, partition = answer["offset"], answer["partition"]
        self._world.models[partition].acknowledged(number, offset, duplicate=bool(answer.get("duplicate")))
        if self.waiting.pop(number, None) is None:
            return
        self._acked.append(number)
        if self._window == 1:
            has_lost = self._world.models[partition].has_lost
            if not has_lost and offset <= self._last_offsets.get(partition, -1):
                raise ViolationError(f"order: {number} is at {offset}, and what was acked before it was sent behind")
            self._last_offsets[partition] = offset


class OrderedShellPublisher(ShellPublisher):
    """An ordered producer: each message waits for the ack of the one before.

    What it publishes again after later messages is a duplicate, whose ack names the newest.
    """

    def __init__(self, world: ShellWorld, producer: int) -> None:
        super().__init__(world, has_ids=True, window=1)
        self._producer_id = bytes([producer + 1]) * 16

    def frame(self, number: int, sid: int) -> Frame:
        """A message, as the NATS server sends it."""
        order = {"producer_id": self._producer_id, "producer_epoch": 1, "producer_sequence": number}
        payload = batch([self._world.value_of(number)], ack_inbox=f"_INBOX.{number}", **order)
        return msg(self._place(number)[0], payload, sid=sid)

    def acked(self, number: int, answer: dict[str, Any]) -> None:
        """What a node answered."""
        if number in self.waiting or not answer.get("duplicate"):
            super().acked(number, answer)


class ShellConsumer:
    """Reads on from its position, and now and then from anywhere, of any node that lets it."""

    def __init__(self, world: ShellWorld, number: int) -> None:
        self.position = 0
        self._number = number
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
        found = node.streams.lookup_readable(key_of(self._number))
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
            self._world.models[self._number].shown(node.node_id, records)
            if records and offset <= self.position <= records[-1][0]:
                self.position = records[-1][0] + 1
