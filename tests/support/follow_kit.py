"""A leader and a follower of real logs with a real pull server and a link between them, and no replication core.

The leader's partitions answer what a core would say in the simplest case; the follower keeps the bytes that came.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from liftpy_envelope.batch import encode_plain_body
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowRefusal, FollowResult
from liftpy_envelope.pull import PartitionKey
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.disk import OsDisk
from liftpy_log.storage.files import FileCache
from liftpy_server.metadata.state import NodeInfo
from liftpy_server.pull.connection import PullBackend
from liftpy_server.pull.server import PullServer
from liftpy_server.replication.core.inputs import FetchAnswered
from liftpy_server.replication.core.view import ReplicationTimes
from liftpy_server.replication.wire.link import FollowLink
from liftpy_server.settings.config import PullConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UUID = bytes(range(16))
TOKEN = "t0ken"
CLIENT_TOKEN = "for clients"
EPOCH = 7


def key_of(number: int = 0) -> PartitionKey:
    return PartitionKey(UUID, number)


class Replica:
    """The leader's replica of a partition.

    Attributes:
        epoch: in which it leads; None when it does not.
        fetches: all that followers said.
        high_watermark: told to followers.
        stopped: why it was given up, if it was.
        is_whole: it has all that was published.
        told: what followers are told of ordered producers.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.epoch: int | None = EPOCH
        self.fetches: list[FollowFetch] = []
        self.high_watermark = 0
        self.stopped: str | None = None
        self.is_whole = False
        self.told = b""
        self.wakes: dict[Callable[[bool], None], None] = {}

    def append(self, value: bytes, *, epoch: int = EPOCH) -> None:
        self.log.append(encode_plain_body([b"orders"], [value]), leader_epoch=epoch, timestamp=1)
        self.wake(is_urgent=True)

    def commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.wake(is_urgent=False)

    def lead(self, epoch: int | None) -> None:
        self.epoch = epoch
        self.wake(is_urgent=True)

    def wake(self, *, is_urgent: bool) -> None:
        wakes, self.wakes = self.wakes, {}
        for wake in wakes:
            wake(is_urgent)

    def whole_end(self, _asked_s: float) -> int | None:
        return self.log.log_end if self.is_whole else None

    awaits_producers = False

    def told_producers(self, fetch: FollowFetch, end: int) -> bytes:
        assert end >= fetch.offset
        return self.told

    def follower_fetched(self, node_id: str, fetch: FollowFetch) -> FollowResult:
        assert node_id == "follower"
        self.fetches.append(fetch)
        return self.follower_news(fetch)

    def follower_news(self, fetch: FollowFetch) -> FollowResult:
        if self.epoch != fetch.leader_epoch:
            return fetch.not_led()
        refusal = FollowRefusal.BELOW_START if fetch.offset < self.log.log_start else FollowRefusal.NONE
        marks = (fetch.incarnation, fetch.leader_epoch, fetch.offset, self.high_watermark, self.log.log_start)
        return FollowResult(fetch.key, refusal, *marks)

    def follower_asked(self, _node_id: str, question: FollowQuestion) -> FollowEnd:
        epoch, end = self.log.epochs.end_offset(question.last_epoch, self.log.log_end)
        marks = (question.incarnation, EPOCH, question.question, epoch, end)
        return FollowEnd(question.key, FollowRefusal.NONE, *marks)

    def wait_follower(self, wake: Callable[[bool], None], node_id: str) -> None:
        assert node_id == "follower"
        self.wakes[wake] = None

    def stop_waiting_follower(self, wake: Callable[[bool], None]) -> None:
        self.wakes.pop(wake, None)

    def fail(self, reason: str) -> None:
        self.stopped = reason
        self.log.durability.fail(reason)


class Leader:
    """A node with replicas, and a pull server before them."""

    def __init__(self, directory: Path, *, log: LogConfig | None = None, **config: Any) -> None:
        self.disk = OsDisk()
        self.files = FileCache(self.disk, 64)
        self.replicas: dict[PartitionKey, Replica] = {}
        self.heard: list[tuple[str, bool]] = []
        self.asked_s = float("-inf")
        self.executor = ThreadPoolExecutor(1)
        self.server = PullServer(PullConfig(port=0, **config), 100)
        self.config = config
        self._directory = directory
        self._log_config = log

    def add(self, number: int = 0) -> Replica:
        log = PartitionLog.open(self.disk, self.files, self._directory / str(number), self._log_config)
        replica = self.replicas[key_of(number)] = Replica(log)
        return replica

    def data(self, number: int = 0) -> bytes:
        """The bytes of a partition's log."""
        log = self.replicas[key_of(number)].log
        return b"".join(segment.path.read_bytes()[: segment.size] for segment in log.segments)

    async def start(self) -> None:
        await self.server.start(
            PullBackend(
                node_id="leader",
                incarnation=1,
                token=CLIENT_TOKEN,
                follow_token=TOKEN,
                lookup=lambda _: ErrorCode.UNKNOWN_STREAM,
                metadata=lambda: None,
                files=self.files,
                executor=self.executor,
                config=PullConfig(port=0, **self.config),
                replicas=lambda key: self.replicas.get(key, ErrorCode.UNKNOWN_STREAM),
                heard=lambda node_id, hears: self.heard.append((node_id, hears)),
                asked=lambda: (self.asked_s, 2.0),
            )
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        self.executor.shutdown()
        self.files.close()

    def info(self, port: int | None = None) -> NodeInfo:
        return NodeInfo(
            node_id="leader",
            incarnation=1,
            pull_host="127.0.0.1",
            pull_port=port or self.server.port,
            pull_token=CLIENT_TOKEN,
            follow_token=TOKEN,
            pull_tls="tls_cert" in self.config,
        )


class Follower:
    """A link, and of every partition the bytes that came over it.

    Attributes:
        goes_on: fetch again after every answer, as a core does.
        on_answer: called with every answer.
        answers: the last answer of every partition.
        fetched: what came with the last answer to a fetch.
    """

    def __init__(
        self, address: Callable[[], NodeInfo | None], *, leader_timeout_s: float = 1.0, tls: Any = None
    ) -> None:
        self.data: dict[PartitionKey, bytearray] = {}
        self.requests: dict[PartitionKey, FollowFetch] = {}
        self.answers: dict[PartitionKey, FollowResult | FollowEnd] = {}
        self.fetched: dict[PartitionKey, FetchAnswered] = {}
        self.counts: Counter[str] = Counter()
        self.goes_on = True
        self.on_answer: Callable[[PartitionKey, Any], None] = lambda _key, _answer: None
        times = ReplicationTimes(leader_timeout_s=leader_timeout_s)
        self.link = FollowLink("leader", address, self._answered, "follower", 3, times, tls)
        self.link.start()
        self._came = asyncio.Event()

    def fetch(self, number: int = 0, **changed: Any) -> None:
        key = key_of(number)
        before = self.requests.get(key)
        fields: dict[str, Any] = {
            "incarnation": 3,
            "leader_epoch": EPOCH,
            "offset": 0,
            "last_epoch": -1,
            "durable_end": 0,
            "high_watermark": 0,
        }
        if before is not None:
            fields = {name: getattr(before, name) for name in fields}
        self.requests[key] = FollowFetch(key, **fields | changed)
        self.link.fetch(self.requests[key])

    def _answered(self, answers: list[tuple[PartitionKey, FetchAnswered | FollowEnd]]) -> None:
        for key, answer in answers:
            self.answers[key] = answer.result if isinstance(answer, FetchAnswered) else answer
            self.counts["answers"] += 1
            if isinstance(answer, FetchAnswered):
                self.fetched[key] = answer
                if not answer.result.refusal:
                    self._took(key, answer)
            self.on_answer(key, self.answers[key])
        self._came.set()

    def _took(self, key: PartitionKey, fetched: FetchAnswered) -> None:
        request, answer = self.requests[key], fetched.result
        end = answer.offset
        if fetched.ranges:
            assert answer.offset == request.offset, "records came twice"
            assert fetched.ranges[0].base == answer.offset
            self.data.setdefault(key, bytearray()).extend(fetched.records.data)
            end = fetched.ranges[-1].end
            assert fetched.records.headers[-1].next_offset == end
        if self.goes_on:
            committed = max(request.high_watermark, min(end, answer.high_watermark))
            last_epoch = fetched.ranges[-1].epoch if fetched.ranges else request.last_epoch
            self.fetch(key.partition, offset=end, durable_end=end, last_epoch=last_epoch, high_watermark=committed)

    async def until(self, is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait for something that answers bring about."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                self._came.clear()
                await self._came.wait()

    async def until_parked(self, *numbers: int, timeout_s: float = 30.0) -> None:
        """Wait until the leader keeps the last fetches waiting."""
        async with asyncio.timeout(timeout_s):
            while not all(self.link.is_parked(key_of(number)) for number in numbers):
                await asyncio.sleep(0.001)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()


class Wire:
    """Carries bytes between a follower and a leader, counts them, and can be cut or spoil a byte."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.up_bytes = self.down_bytes = self.connections = 0
        self.flip_after: int | None = None
        self._swallowed = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def swallow(self) -> None:
        """From now on carry nothing over the connections there are, and leave them open."""
        self._swallowed = self.connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(self._up(reader, back, number), self._down(there, writer, number))

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.up_bytes += len(data)
                writer.write(data if number > self._swallowed else b"")
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            while data := await reader.read(1 << 16):
                before, self.down_bytes = self.down_bytes, self.down_bytes + len(data)
                if self.flip_after is not None and self.down_bytes > self.flip_after:
                    at = max(0, self.flip_after - before)
                    data = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
                    self.flip_after = None
                writer.write(data if number > self._swallowed else b"")
                await writer.drain()
        except OSError:
            pass
        writer.close()
