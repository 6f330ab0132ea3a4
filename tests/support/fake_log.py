"""A cluster of one node inside the test that serves streams out of memory, as far as a consumer can tell."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from liftpy_client.connection.cluster import StreamPlace
from liftpy_client.errors import DisconnectedError, NoStreamError
from liftpy_envelope.batch import encode_body
from liftpy_envelope.bodies import pack_body
from liftpy_envelope.columns import Column
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.ipc import column_buffers
from liftpy_envelope.pull import (
    EARLIEST,
    LATEST,
    Api,
    EpochEndResponse,
    EpochEndResult,
    FetchRequest,
    FetchResponse,
    FetchResult,
    OffsetResult,
    OffsetsResponse,
    PartitionKey,
)
from liftpy_envelope.stream_config import StreamConfig
from support.batches import stamped

SECOND_NS = 10**9
_BITMAP = Column.SUBJECT | Column.VALUE


class FakeLog:
    """One partition: record n has value `n`, subject `s.<n % 3>`, and is n seconds old since the epoch.

    Attributes:
        count: how many records were ever written.
        start: the first that is there.
        skips: where the node finds nothing that is wanted, and where it goes on.
        delete_horizon: as a fetch says it.
    """

    def __init__(self, count: int, per_batch: int) -> None:
        self.count = count
        self.start = 0
        self.skips: dict[int, int] = {}
        self.delete_horizon = 0
        self._per_batch = per_batch

    def read(self, offset: int, batches: int) -> tuple[bytes, int]:
        """Whole batches from that which holds an offset on, and the offset after them."""
        found = b""
        end = offset
        for _ in range(batches):
            if end >= self.count or end in self.skips:
                break
            base = end - end % self._per_batch
            end = min(base + self._per_batch, self.count)
            found += _batch(base, end)
        return found, end


def _batch(base: int, end: int) -> bytes:
    columns = [[b"s.%d" % (number % 3) for number in range(base, end)], [b"%d" % n for n in range(base, end)]]
    arrays = [pa.array(column, pa.binary()) for column in columns]
    body = encode_body(end - base, _BITMAP, [column_buffers(array) for array in arrays])
    return stamped(body, base, base * SECOND_NS)


class FakeLogs:
    """The session of a consumer of such streams.

    Args:
        per_batch: records in a batch.
        batches: of a partition in one answer.
        streams: records in each partition.

    Attributes:
        fetches: what was asked.
        opened: how many connections were.
    """

    def __init__(self, per_batch: int = 10, batches: int = 1, **streams: list[int]) -> None:
        self.logs: dict[PartitionKey, FakeLog] = {}
        self.places: dict[str, StreamPlace] = {}
        self.fetches: list[FetchRequest] = []
        self.opened = 0
        self.batches = batches
        self.grown = asyncio.Event()
        self.options = SimpleNamespace(timeout_s=5.0)
        self.cluster = self
        self.running: set[Any] = set()
        for name, counts in streams.items():
            self.create(name, counts, per_batch)

    def create(self, name: str, counts: list[int], per_batch: int = 10) -> StreamPlace:
        """A stream, in place of one that had its name."""
        uuid = bytes([len(self.logs)]) * 16
        place = StreamPlace(uuid, StreamConfig(name=name, subject=name, partitions=len(counts)), ("n1",) * len(counts))
        self.places[name] = place
        self.logs |= {place.key(number): FakeLog(count, per_batch) for number, count in enumerate(counts)}
        return place

    def log(self, name: str, number: int = 0) -> FakeLog:
        """One partition."""
        return self.logs[self.places[name].key(number)]

    def grow(self, name: str, number: int, count: int) -> None:
        """Write records."""
        self.log(name, number).count += count
        self.grown.set()

    async def confirmed(self, name: str, _patience_s: float) -> StreamPlace:
        return await self.stream(name, fresh=True)

    async def stream(self, name: str, *, fresh: bool = False) -> StreamPlace:
        await asyncio.sleep(0)
        if name not in self.places:
            raise NoStreamError(name)
        return self.places[name]

    latest = stream

    def node(self, _node_id: str) -> None:
        return None

    async def open_pull(self, _node_id: str) -> FakeConnection:
        await asyncio.sleep(0)
        self.opened += 1
        return FakeConnection(self)


class FakeConnection:
    """One connection, and the fetch session on it."""

    def __init__(self, logs: FakeLogs) -> None:
        self.heard_s = 0.0
        self._logs = logs
        self._session: dict[PartitionKey, int] = {}
        self._is_new: set[PartitionKey] = set()
        self._closed = False

    def close(self) -> None:
        self._closed = True

    async def request(self, api: Api, body: Any) -> Any:
        await asyncio.sleep(0)
        if self._closed:
            raise DisconnectedError("closed")
        if api is Api.EPOCH_END_OFFSET:
            ends = [EpochEndResult(query.key, ErrorCode.NONE, "", 1, 10**9) for query in body.queries]
            return SimpleNamespace(result=pack_body(EpochEndResponse(tuple(ends))))
        if api is Api.LIST_OFFSETS:
            offsets = [self._offset(*query) for query in body.queries]
            return SimpleNamespace(result=pack_body(OffsetsResponse(tuple(offsets))))
        return await self._fetch(body)

    def _offset(self, key: PartitionKey, query: int) -> OffsetResult:
        log = self._logs.logs[key]
        offset = {EARLIEST: log.start, LATEST: log.count}.get(query, min(log.count, -(-query // SECOND_NS)))
        return OffsetResult(key, ErrorCode.NONE, "", offset, 1)

    async def _fetch(self, request: FetchRequest) -> Any:
        self._logs.fetches.append(request)
        for key in request.forget:
            self._session.pop(key, None)
        for wanted in request.partitions:
            self._session[wanted.key] = wanted.offset
            self._is_new.add(wanted.key)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_ms_max / 1000
        while not (found := self._collect()) and loop.time() < until_s:
            self._logs.grown.clear()
            try:
                async with asyncio.timeout_at(until_s):
                    await self._logs.grown.wait()
            except TimeoutError:
                break
        self.heard_s = loop.time()
        return SimpleNamespace(
            result=pack_body(FetchResponse(tuple(result for result, _ in found))),
            body=pa.py_buffer(b"".join(data for _, data in found)),
        )

    def _collect(self) -> list[tuple[FetchResult, bytes]]:
        found = []
        for key, offset in list(self._session.items()):
            log = self._logs.logs.get(key)
            if log is None:
                del self._session[key]
                found.append((FetchResult(key, ErrorCode.UNKNOWN_STREAM, "gone", -1, -1, -1, 0), b""))
            elif not log.start <= offset <= log.count:
                del self._session[key]
                lost = ErrorCode.OFFSET_OUT_OF_RANGE
                found.append((FetchResult(key, lost, "lost", 1, log.count, log.start, 0), b""))
            else:
                data, end = log.read(offset, self._logs.batches)
                self._session[key] = log.skips.get(end, end)
                if self._session[key] > offset or key in self._is_new:
                    next_offset = log.skips.get(end, -1)
                    numbers = (log.count, log.start, len(data), next_offset, log.delete_horizon)
                    found.append((FetchResult(key, ErrorCode.NONE, "", 1, *numbers), data))
            self._is_new.discard(key)
        return found
