"""Publishers at the model of nats-server: plain ones, and ones that wait for acks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from simulation.nats_talk import CONNECT
from simulation.scheduler import MS
from simulation.shell_clients import ShellPublisher
from support.raw_nats import hpub, pub

if TYPE_CHECKING:
    from simulation.nats_wire import Socket
    from simulation.nats_world import NatsWorld

__all__ = ["AckedPublisher", "PlainPublisher", "TickPublisher"]


class _Client:
    """A connection that is made again when it ends, to the next server; what is sent while there is none is not."""

    def __init__(self, world: NatsWorld, name: str, first: int) -> None:
        self._world = world
        self._name = name
        self._place = first
        self._socket: Socket | None = None
        self._heard = b""
        self._connect()

    def _connect(self) -> None:
        world = self._world
        names = list(world.nats.all)
        self._place += 1
        self._heard = b""
        self._socket = world.nats.connect(self._name, names[self._place % len(names)], lambda act, *args: act(*args))
        if self._socket is None:
            world.scheduler.after(50 * MS, self._connect)
            return
        self._socket.on_data, self._socket.on_end = self._hear, self._ended
        self._socket.send(CONNECT + b"SUB _INBOX.%b.> 1\r\nPING\r\n" % self._name.encode())

    def _ended(self) -> None:
        self._socket = None
        self._world.scheduler.after(20 * MS, self._connect)

    def send(self, frames: list[bytes]) -> None:
        """Each of them, or nothing of it where the kernel has no room."""
        for frame in frames:
            if self._socket is not None and self._socket.room >= len(frame):
                self._socket.send(frame)

    def _hear(self, data: bytes) -> None:
        self._heard += data
        while True:
            line, found, rest = self._heard.partition(b"\r\n")
            if not found:
                return
            size = 0
            if line.startswith((b"MSG ", b"HMSG ")):
                size = int(line.rpartition(b" ")[2]) + 2
                if len(rest) < size:
                    return
                self._acked(line, rest[: size - 2])
            elif line == b"PING" and self._socket is not None:
                self._socket.send(b"PONG\r\n")
            self._heard = rest[size:]

    def _acked(self, line: bytes, body: bytes) -> None:
        if line.startswith(b"MSG "):  # else nobody listens
            self._world.acked(int(line.split()[1].rpartition(b".")[2]), json.loads(body))


class PlainPublisher:
    """Publishes, and asks for nothing.

    Args:
        world: where.
        number: of this publisher.
        subjects: to choose from.

    Attributes:
        burst: how many are published at once next time, where it is not left to chance.
    """

    def __init__(self, world: NatsWorld, number: int, subjects: list[bytes]) -> None:
        self._world = world
        self._client = _Client(world, f"plain{number}", number)
        self._subjects = subjects
        self.burst = 0
        self._publish()

    def _publish(self) -> None:
        world = self._world
        world.scheduler.after(int(world.rng.random() * world.plain_every_us * 2) + 1, self._publish)
        if world.is_idle:
            return
        count, self.burst = self.burst or world.rng.choice((1, 1, 2, 10)), 0
        frames = [self._frame(world.rng.choice(self._subjects)) for _ in range(count)]
        self._client.send(frames)

    def _frame(self, subject: bytes) -> bytes:
        number = self._world.new_number(self, has_id=False)
        return pub(subject, self._world.value_of(number))


class TickPublisher(PlainPublisher):
    """Publishes the same again and again, so that one message can not be told from the next."""

    def __init__(self, world: NatsWorld, number: int, subjects: list[bytes]) -> None:
        self._ticks: dict[bytes, bytes] = {}
        super().__init__(world, number, subjects)

    def _frame(self, subject: bytes) -> bytes:
        if subject not in self._ticks:
            self._ticks[subject] = super()._frame(subject)
        return self._ticks[subject]


class AckedPublisher(ShellPublisher):
    """As in the simulated shell, through NATS."""

    def __init__(self, world: NatsWorld, *, has_ids: bool, window: int, first: int) -> None:
        self._client = _Client(world, str(first), first)
        self._name = first
        super().__init__(world, has_ids=has_ids, window=window)

    def publish_again(self, numbers: list[int]) -> None:
        frames = []
        for number in numbers:
            frame = self._world.frame(number, 0)
            reply = b"_INBOX.%d.%d" % (self._name, number)
            if frame.headers is None:
                frames.append(pub(frame.subject, frame.value, reply))
            else:
                frames.append(hpub(frame.subject, frame.headers, frame.value, reply))
        self._client.send(frames)
