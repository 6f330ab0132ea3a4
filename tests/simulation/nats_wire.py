"""TCP between simulated processes: bytes in order, no more under way than the kernel holds, and links that fall silent.

A process that stands still reads nothing, and one that is killed leaves the closing of its connections to the kernel.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from simulation.scheduler import MS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from simulation.scheduler import Scheduler

__all__ = ["NodeTransport", "Socket", "Wires"]

ROOM_BYTES = 64 * 1024  # what the kernels of both ends hold of one direction
READ_BYTES = 16 * 1024
LATENCY_US = 2 * MS


class Wires:
    """All connections.

    Attributes:
        silent: pairs of ends, by name, between which nothing passes, both ways: it arrives when that is over.
        room_bytes: of one direction of a connection.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.silent: set[frozenset[str]] = set()
        self.room_bytes = ROOM_BYTES
        self.scheduler = scheduler
        self._rng = rng
        self._held: list[tuple[Socket, Callable[..., None], tuple[Any, ...]]] = []

    def pair(self, near: str, far: str, enter_near: Callable[..., None], enter_far: Callable[..., None]) -> Socket:
        """A connection that both ends have accepted. Returns the near end."""
        one, other = Socket(self, near, far, enter_near), Socket(self, far, near, enter_far)
        one.peer, other.peer = other, one
        return one

    def latency_us(self) -> int:
        """How long something takes on its way."""
        return 100 + int(self._rng.random() * LATENCY_US)

    def piece(self, size: int) -> int:
        """How much is read at once."""
        return self._rng.randint(1, size) if self._rng.random() < 0.1 else min(size, READ_BYTES)

    def carry(self, target: Socket, act: Callable[..., None], *args: Any) -> None:
        """Something is on its way to a socket, behind what was on its way before."""
        target.due_us = max(target.due_us, self.scheduler.now_us + self.latency_us())
        self.scheduler.after(target.due_us - self.scheduler.now_us, self._arrive, target, act, args)

    def _arrive(self, target: Socket, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if frozenset((target.name, target.far)) in self.silent or any(held[0] is target for held in self._held):
            self._held.append((target, act, args))
        else:
            act(*args)

    def heal(self, pairs: set[frozenset[str]]) -> None:
        """What was held back between these arrives, in order."""
        self.silent -= pairs
        held, self._held = self._held, []
        for target, act, args in held:
            self._arrive(target, act, args)


class Socket:
    """One end of a connection, as the kernel has it.

    Attributes:
        on_data: takes what was read.
        on_end: called once, when the other end has closed, or the connection broke.
        on_room: called when the kernel takes bytes again, after it did not take all of some.
    """

    peer: Socket

    def __init__(self, wires: Wires, name: str, far: str, enter: Callable[..., None]) -> None:
        self.name, self.far = name, far
        self.due_us = 0
        self.on_data: Callable[[bytes], None] = lambda _data: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        self.is_closed = False
        self._wires = wires
        self._enter = enter
        self._unread = bytearray()
        self._has_ended = False  # nothing comes behind what is unread
        self._is_reading = True
        self._is_looking = False
        self._unsettled = 0  # bytes that were sent, and that the other end has not read
        self._wants_room = False

    # -- what the process does

    @property
    def room(self) -> int:
        """How many bytes the kernel takes now."""
        return self._wires.room_bytes - self._unsettled

    def send(self, data: bytes | bytearray) -> int:
        """Returns how many of the bytes the kernel takes."""
        if self.is_closed:
            return len(data)  # nobody will ever read them
        taken = min(len(data), self.room)
        self._wants_room = taken < len(data)
        if taken:
            self._unsettled += taken
            self._wires.carry(self.peer, self.peer._arrived, bytes(data[:taken]))
        return taken

    def pause(self) -> None:
        self._is_reading = False

    def resume(self) -> None:
        self._is_reading = True
        self._look_soon()

    def close(self, *, is_reset: bool = False) -> None:
        """Also what the kernel does for a process that is killed; a reset may overtake what was sent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._unread.clear()
        self._wires.carry(self.peer, self.peer._ended, is_reset)

    # -- what the kernel does

    def _arrived(self, data: bytes) -> None:
        if self.is_closed:
            self._wires.carry(self.peer, self.peer._ended, True)
            return
        self._unread += data
        self._look_soon()

    def _ended(self, is_reset: bool) -> None:
        if self.is_closed or self._has_ended:
            return
        self._has_ended = True
        if is_reset:
            self._unread.clear()
            self._is_reading = True  # a broken connection is told of even to who does not read
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._wires.scheduler.after(0, self._enter, self._look)

    def _look(self) -> None:
        """Within the process, when it has the time."""
        self._is_looking = False
        if self.is_closed or not self._is_reading:
            return
        if self._unread:
            size = self._wires.piece(len(self._unread))
            data = bytes(self._unread[:size])
            del self._unread[:size]
            self._wires.carry(self.peer, self.peer._settled, size)
            self._look_soon()
            self.on_data(data)
        elif self._has_ended:
            self.is_closed = True
            self.on_end()

    def _settled(self, size: int) -> None:
        self._unsettled -= size
        if self._wants_room and not self.is_closed:
            self._wants_room = False
            self._enter(self.on_room)


class NodeTransport(asyncio.Transport):
    """A socket, as an event loop gives it to a protocol."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Socket, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": (socket.far, 4222)})
        self._loop = loop
        self._socket = socket
        self._protocol = protocol
        self._unsent = bytearray()
        self._is_closing = False
        self._is_reading = True
        self._high = 64 * 1024
        self._is_told_to_pause = False
        socket.on_data = protocol.data_received
        socket.on_end = self._ended
        socket.on_room = self._push

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False
        self._socket.pause()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._socket.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        self._unsent += data
        self._push()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def _push(self) -> None:
        del self._unsent[: self._socket.send(self._unsent)]
        if len(self._unsent) > self._high and not self._is_told_to_pause:
            self._is_told_to_pause = True
            self._protocol.pause_writing()
        elif not self._unsent and self._is_told_to_pause:
            self._is_told_to_pause = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent and not self._socket.is_closed:
            self._shut(None)

    def _ended(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._protocol.eof_received()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._socket.pause()
            self._push()

    def abort(self) -> None:
        self._unsent.clear()
        if not self._socket.is_closed:
            self._is_closing = True
            self._shut(None)

    def _shut(self, error: Exception | None) -> None:
        self._socket.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
