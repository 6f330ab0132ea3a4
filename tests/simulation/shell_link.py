"""The connections on which nodes follow each other: both real ends, with the simulated network in place of sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_client.errors import DisconnectedError
from liftpy_envelope.frames import Request, RequestReader, ResponseReader, encode_request
from liftpy_envelope.pull import API_VERSIONS, HelloResult
from liftpy_server.pull.follow_answers import FollowAnswers
from simulation.scheduler import MS
from simulation.sessions import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_envelope.frames import Response
    from liftpy_envelope.pull import Api
    from simulation.shell_node import ShellNode

__all__ = ["FollowConnection"]


class FollowConnection:
    """The follower's end, in place of a `PullConnection`."""

    def __init__(self, follower: ShellNode, leader: ShellNode) -> None:
        world = follower.world
        self.node = HelloResult(leader.node_id, 1, {int(api): top for api, top in API_VERSIONS.items()})
        self.heard_s = world.scheduler.now_us / 1e6
        self.unsent_bytes = 0
        self._world = world
        self._follower, self._leader = follower, leader
        self._run, self._leader_run = follower.run, leader.run
        self._up = Stream(world.network, follower.node_id, leader.node_id)
        self._down = Stream(world.network, leader.node_id, follower.node_id)
        self._reader = ResponseReader()
        self._is_closed = False
        self._last_id = 0
        self._on_response: Callable[[Response], None] | None = None
        self._on_lost: Callable[[Exception], None] | None = None
        self._serving: _Serving | None = None

    def listen(self, on_response: Callable[[Response], None], on_lost: Callable[[Exception], None]) -> None:
        self._on_response, self._on_lost = on_response, on_lost
        self._watch()

    def _watch(self) -> None:
        """A process that ends takes its connections with it, and the other end hears of it."""
        if not self._is_closed:
            self._world.scheduler.after(20 * MS, self._follower.enter, self._run, self._look)

    def _look(self) -> None:
        is_there = self._leader.is_up and self._leader.run == self._leader_run
        path = (self._leader.node_id, self._follower.node_id)
        if is_there or path in self._world.network.cut:
            self._watch()
        else:
            self.lose()

    def lose(self) -> None:
        """The connection broke."""
        if not self._is_closed:
            self._is_closed = True
            if self._on_lost is not None:
                self._on_lost(DisconnectedError("the other end is gone"))

    def post(self, api: Api, body: Any, *, is_answered: bool = True) -> int:
        if self._is_closed:
            raise DisconnectedError("the connection is closed")
        self._last_id += is_answered
        correlation_id = self._last_id if is_answered else 0
        frame = encode_request(correlation_id, int(api), 1, body)
        self._up.send(self._leader.enter, self._leader_run, self._asked, frame)
        return correlation_id

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._up.send(self._leader.enter, self._leader_run, self._hung_up)

    # -- on the leader's node

    def _asked(self, frame: bytes) -> None:
        if self._serving is None:
            self._serving = _Serving(self._leader, self)
        self._serving.feed(frame)

    def _hung_up(self) -> None:
        if self._serving is not None:
            self._serving.close()

    def answer(self, frame: bytes) -> None:
        self._down.send(self._follower.enter, self._run, self._answered, frame)

    def break_off(self) -> None:
        """The leader's end closes the connection."""
        self._down.send(self._follower.enter, self._run, self.lose)

    # -- on the follower's node

    def _answered(self, frame: bytes) -> None:
        if self._is_closed:
            return
        self.heard_s = self._world.scheduler.now_us / 1e6
        while frame:
            room = self._reader.buffer()
            size = min(len(room), len(frame))
            room[:size] = frame[:size]
            frame = frame[size:]
            for response in self._reader.filled(size):
                if self._on_response is not None and not self._is_closed:
                    self._on_response(response)


class _Serving:
    """What a pull connection does around `FollowAnswers`; its sender, too."""

    is_clear = True

    def __init__(self, leader: ShellNode, connection: FollowConnection) -> None:
        self._leader = leader
        self._connection = connection
        self._is_finishing = False
        self._held: list[Request] = []
        self._reader = RequestReader()
        self._reader.admit()
        assert leader.streams is not None
        assert leader.cluster is not None
        assert leader.files is not None
        self._answers = FollowAnswers(
            replicas=leader.streams.lookup_replica,
            heard=leader.cluster.host.heard,
            asked=leader.cluster.host.asked,
            files=leader.files,
            executor=None,  # type: ignore[arg-type] - the loop runs it at once
            sender=self,  # type: ignore[arg-type] - in place of a socket's
            may_send=lambda: not self._is_finishing,
            on_unfinished=self._finish_soon,
            on_failure=self._failed,
        )

    def feed(self, frame: bytes) -> None:
        for request in self._reader.feed(frame):
            self._take(request)

    def _take(self, request: Request) -> None:
        self._held.append(request)
        while self._held and not self._answers.is_unfinished and not self._is_finishing:
            self._answers.take(self._held.pop(0))

    def close(self) -> None:
        self._answers.close()

    def _failed(self) -> None:
        self.close()
        self._connection.break_off()

    def _finish_soon(self) -> None:
        if not self._is_finishing:
            self._is_finishing = True
            self._leader.loop.create_task(self._finish())

    async def _finish(self) -> None:
        try:
            while self._answers.is_unfinished:
                await self._answers.finish()
        except OSError:  # in the middle of an answer, which can not be taken back
            self._failed()
            return
        self._is_finishing = False
        while self._held and not self._answers.is_unfinished:
            self._answers.take(self._held.pop(0))
        self._answers.look()

    # -- the sender

    def send_now(self, parts: Sequence[bytes], size_bytes: int) -> bool:
        del size_bytes
        self._connection.answer(b"".join(parts))
        return True

    async def drain(self, size_bytes: int) -> None:
        pass

    async def send(self, head: bytes, pieces: Sequence[Any] = ()) -> None:
        """Pieces are sent as they are in the file: who follows checks them."""
        parts = [head]
        for piece in pieces:
            if isinstance(piece, bytes):
                parts.append(piece)
            else:
                file, where = piece
                parts.append(file.read(where.position, where.length))
        self._connection.answer(b"".join(parts))
