"""A link to one leader: all that this node follows there goes over one connection, in few requests.

What replicas ask for is gathered and sent once per pass of the event loop. One request is always under way, so that the
leader can answer when it has news, and the link hears of it several times per `leader_timeout_s`. Fetches meanwhile go
as reports, which have no answer of their own; a question goes as a second request, which makes the leader answer the
first at once. The connection is made again whenever it breaks, and told all that is not answered.

Responses are handled in plain calls, except for large ones, between whose parts the event loop gets its turn.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final

from liftpy_client.connection.pull_connection import PullConnection
from liftpy_client.errors import PullError
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import ErrorCode, FrameError, LiftError
from liftpy_envelope.follow import FollowResponse
from liftpy_envelope.limits import FETCH_WAIT_MS_MAX
from liftpy_envelope.pull import Api
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.replication.wire.batches import check_batches, check_producers, fetched
from liftpy_server.replication.wire.book import FollowBook

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import pyarrow as pa

    from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowResult, FollowWhole
    from liftpy_envelope.frames import Response
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.ids.ordered import ToldProducers
    from liftpy_server.metadata.state import NodeInfo
    from liftpy_server.replication.core.inputs import FetchAnswered
    from liftpy_server.replication.core.view import ReplicationTimes

    OnAnswers = Callable[[list[tuple[PartitionKey, FetchAnswered | FollowEnd]]], None]
    Ready = list[tuple[FollowResult | FollowEnd, FetchAnswered | FollowEnd]]

__all__ = ["FollowLink", "LinkError"]

logger = logging.getLogger(__name__)

_RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
_HAND_ON_BYTES: Final = 1024 * 1024  # of batches that replicas append before the event loop gets its turn
_PLAIN_BYTES_MAX: Final = 256 * 1024  # of a response that is handled in one go: some milliseconds at most
_UNSENT_BYTES_MAX: Final = 256 * 1024  # of requests that the leader does not take: then reports wait for a response
_IN_FLIGHT_MAX: Final = 2
_CONNECT_TIMEOUT_S: Final = 1.0
_BACKOFF_MIN_S: Final = 0.05
_BACKOFF_MAX_S: Final = 0.5
_STEADY_S: Final = 1.0  # a connection that lived for so long was a good one
_WAITS_PER_TIMEOUT: Final = 4
_SILENCE_TIMEOUTS: Final = 4  # a connection on which nothing came for so many leader time-outs is given up


class LinkError(LiftError):
    """The leader can not be followed now; the message says why."""

    retriable = True


class FollowLink:
    """Connection to one leader, for all partitions followed there. It lives on the event loop that calls `start`.

    Args:
        leader: The node to follow.
        address: Where it is now; None while nobody knows.
        on_answers: Takes answers; a long response is handed on in several calls.
        node_id: This node.
        incarnation: Incarnation of this node as the link is made, which is for the leader's log; requests carry their
            own.
        times: How patient this node is.
        tls: Verifies leaders whose pull server speaks TLS; by default as the system does.
        hears: Whether this node hears NATS.
        on_whole: Told since when (event loop's clock) logs of the leader have held all that was published before, and
            their ends then.
    """

    def __init__(
        self,
        leader: str,
        address: Callable[[], NodeInfo | None],
        on_answers: OnAnswers,
        node_id: str,
        incarnation: int,
        times: ReplicationTimes,
        tls: ssl.SSLContext | None = None,
        hears: Callable[[], bool] = lambda: False,
        on_whole: Callable[[float, Mapping[PartitionKey, int]], None] = lambda _at_s, _ends: None,
    ) -> None:
        self._leader = leader
        self._address = address
        self._on_answers = on_answers
        self._node_id = node_id
        self._client = f"{node_id}/{incarnation}"
        self._tls = tls
        self._hears = hears
        self._on_whole = on_whole
        self._whole_ends: dict[PartitionKey, int] = {}  # as the leader told them on this connection
        wait_ms_max = max(1, min(int(1_000 * times.leader_timeout_s / _WAITS_PER_TIMEOUT), FETCH_WAIT_MS_MAX))
        self._silence_max_s = _SILENCE_TIMEOUTS * times.leader_timeout_s
        self._book = FollowBook(node_id, _RESPONSE_BYTES_MAX, wait_ms_max)
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._warnings = RepeatedWarnings(logger)
        self._connection: PullConnection | None = None
        self._in_flight: deque[tuple[int, float]] = deque()  # correlation ids in the order of responses, and when sent
        self._large: deque[tuple[Response, float]] = deque()  # of which only as many can be as are in flight
        self._failure: Exception | None = None  # of the connection, or of what came over it
        self._woken = asyncio.Event()  # for what is large, or failed
        self._will_send = False
        self._task: asyncio.Task[None] | None = None

    @property
    def heard_s(self) -> float:
        """When the leader was heard last, by the event loop's clock; at first when the link was made.

        Every part of a response counts: a leader that sends a large one is alive.
        """
        return self._heard_s if self._connection is None else max(self._heard_s, self._connection.heard_s)

    def fetch(self, request: FollowFetch) -> None:
        """Fetch; takes the place of everything asked about the partition before."""
        self._book.put(request)
        self._send_soon()

    def ask(self, question: FollowQuestion) -> None:
        """Ask; takes the place of everything asked about the partition before."""
        self._book.put(question)
        self._send_soon()

    def drop(self, key: PartitionKey) -> None:
        """Ask nothing more about a partition, and hand on no answer."""
        self._book.drop(key)
        self._send_soon()

    def is_parked(self, key: PartitionKey) -> bool:
        """Whether the last fetch of a partition was sent on the connection that is open now, and not answered."""
        return self._connection is not None and self._book.is_parked(key)

    def start(self) -> None:
        """Connect, and stay connected."""
        assert self._task is None, "a link starts once"
        self._task = asyncio.create_task(self._run(), name=f"follow {self._leader}")

    async def close(self) -> None:
        """Leave; no answer is handed on any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff_s = _BACKOFF_MIN_S
        while True:
            began_s = self._loop.time()
            try:
                await self._follow()
            except (LiftError, OSError) as error:
                self._warn(error)
            except Exception as error:  # noqa: BLE001 - a replica that fails must not end the link of all others
                self._warn(error, is_ours=True)
            if self._loop.time() - began_s >= _STEADY_S:
                backoff_s = _BACKOFF_MIN_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    def _warn(self, error: Exception, *, is_ours: bool = False) -> None:
        text = f"can not follow node {self._leader}: {str(error) or type(error).__name__}; trying again"
        self._warnings.tell("", text, self._loop.time(), error=error if is_ours else None)

    async def _follow(self) -> None:
        """Serve one connection until it breaks."""
        connection = await self._connect()
        try:
            if connection.node.node_id != self._leader:
                raise LinkError(f"node {connection.node.node_id} answers at its address")
            self._failure = None
            self._whole_ends.clear()
            connection.listen(self._responded, self._lost)
            self._book.begin()
            self._connection = connection
            self._send()
            while True:
                await self._next_large(connection)
                for _ in self._handling(*self._large[0]):
                    await asyncio.sleep(0)
                self._large.popleft()
                self._send()
        finally:
            self._heard_s = self.heard_s
            self._connection = None
            connection.close()
            self._in_flight.clear()
            self._large.clear()

    async def _connect(self) -> PullConnection:
        node = self._address()
        if node is None:
            raise LinkError("the metadata does not know it")
        if node.pull_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        return await PullConnection.open(
            node.pull_host,
            node.pull_port,
            client=self._client,
            token=node.follow_token,
            tls=self._tls if node.pull_tls else None,
            timeout_s=_CONNECT_TIMEOUT_S,
        )

    def _send_soon(self) -> None:
        if not self._will_send:
            self._will_send = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._will_send = False
        connection, book = self._connection, self._book
        if connection is None:
            return
        book.hears = self._hears()
        try:
            while not self._in_flight or (book.has_questions and len(self._in_flight) < _IN_FLIGHT_MAX):
                sent_s = self._loop.time()
                self._in_flight.append((connection.post(Api.FOLLOW, book.take()), sent_s))
            while book.has_reports and connection.unsent_bytes <= _UNSENT_BYTES_MAX:
                connection.post(Api.FOLLOW, book.take_report(), is_answered=False)
        except LiftError:
            return  # it broke a moment ago; who serves it is told so, and connects again

    def _lost(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._woken.set()

    async def _next_large(self, connection: PullConnection) -> None:
        """Wait for a response that is too large for a plain call, or for the end."""
        while True:
            self._woken.clear()
            if self._failure is not None:
                raise self._failure
            if self._large:
                return
            left_s = connection.heard_s + self._silence_max_s - self._loop.time()
            if left_s <= 0:
                raise LinkError(f"nothing came from it for {self._silence_max_s:g} s")
            try:
                async with asyncio.timeout(left_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _responded(self, response: Response) -> None:
        """A response came, to the request that was sent longest ago."""
        if not self._in_flight or self._in_flight[0][0] != response.correlation_id:
            return
        _, sent_s = self._in_flight.popleft()
        if self._large or response.body.size > _PLAIN_BYTES_MAX:
            self._large.append((response, sent_s))
            self._woken.set()
            self._send_soon()
            return
        self._will_send = True  # below, with all that the replicas ask for
        try:
            for _ in self._handling(response, sent_s):
                pass
        except Exception as error:  # noqa: BLE001 - it is raised where the connection is served
            self._lost(error)
        self._send()

    def _handling(self, response: Response, sent_s: float) -> Generator[None, None, None]:
        """Check a response, and hand it on. Yields where the event loop may have its turn."""
        if response.error != ErrorCode.NONE:
            raise PullError(response.error, response.message)
        answers = unpack_body(FollowResponse, response.result)
        body = response.body
        if sum([result.size_bytes for result in answers.results]) != body.size:
            raise FrameError(f"a response with a body of {body.size} bytes says that it has another size")
        ready: Ready = [(end, end) for end in answers.ends]
        ready_bytes = position = 0
        for result in answers.results:
            size = result.size_bytes
            answer = yield from self._checked(result, body if size == body.size else body.slice(position, size))
            position += size
            if answer is not None:
                ready.append((result, answer))
                ready_bytes += size
            if ready_bytes >= _HAND_ON_BYTES:
                self._hand_on(ready)
                ready, ready_bytes = [], 0
                yield
        self._hand_on(ready, response.correlation_id)
        if answers.whole is not None:
            self._note_whole(answers.whole, sent_s)

    def _note_whole(self, whole: FollowWhole, sent_s: float) -> None:
        """The response was made after its request was sent: so what it says was true that long before, at least."""
        for key, end in whole.ends:
            if end == -1:
                self._whole_ends.pop(key, None)
            else:
                self._whole_ends[key] = end
        self._on_whole(sent_s - whole.ago_ns / 1e9, self._whole_ends)

    def _checked(self, result: FollowResult, data: pa.Buffer) -> Generator[None, None, FetchAnswered | None]:
        """The answer with its batches; None when nobody wants it any more."""
        request = self._book.fetched(result)
        if request is None:
            return None
        last_epoch = request.last_epoch if request.offset == result.offset else -1
        told: ToldProducers | None = None
        try:
            if result.producers_bytes:
                told = check_producers(data.slice(0, result.producers_bytes))
                data = data.slice(result.producers_bytes)
            batches = yield from check_batches(data, result.offset, last_epoch, result.leader_epoch)
        except LiftError as error:
            self._book.damaged(result.key)
            raise LinkError(
                f"it sent a damaged batch of {result.key.uuid.hex()}/{result.key.partition}: {error}"
            ) from error
        return fetched(result, batches._replace(told=told) if told else batches)

    def _hand_on(self, ready: Ready, correlation_id: int | None = None) -> None:
        """Give answers to those who still want them.

        Args:
            ready: What was answered, and what replicas are told of it.
            correlation_id: Correlation id of the response when this is the last of it.
        """
        wanted = [(answered.key, answer) for answered, answer in ready if self._book.answered(answered)]
        if correlation_id is not None:
            self._book.saw(correlation_id)  # what the replicas ask for now, they ask for knowing these answers
        if wanted:
            self._on_answers(wanted)
