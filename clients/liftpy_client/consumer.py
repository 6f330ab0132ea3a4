"""Consuming a stream: from any offset or time, message by message or in Arrow record batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

import pyarrow as pa

from liftpy_client.cluster import is_passing
from liftpy_client.decode import iterate_messages, to_records
from liftpy_client.errors import CorruptRecordsError, NodeUnavailableError, OffsetLostError, PullError, UsageError
from liftpy_client.fetcher import Fetcher
from liftpy_client.positions import check_partitions, check_start, check_stop, position, queries
from liftpy_client.prefetch import PrefetchBuffer
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX
from liftpy_envelope.pull import Api, OffsetResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
    from types import TracebackType

    from liftpy_client.cluster import StreamPlace
    from liftpy_client.message import Message
    from liftpy_client.positions import Position, Start, Stop
    from liftpy_client.prefetch import Fetched
    from liftpy_client.session import Session

__all__ = ["BatchConsumer", "ConsumeOptions", "Consumer"]

_RECORDS_MIN: Final = 4_096
_START_S: Final = 10.0
_START_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """How a consumer fetches.

    Attributes:
        fetch_bytes: about how much a fetch asks for.
        prefetch_bytes: how much is fetched ahead of what is taken.
        wait_ms: how long a fetch waits at the node for the first message. A node that hangs is noticed after a little
            more than that.
        response_timeout_s: how much longer than that until the connection counts as dead.
        on_lost: what to do when the next offset is no longer there.
        read_from: `leader`, or `nearest`: any replica that is in sync, which may show messages a moment later.
        rack: with `nearest`, only replicas in this rack are near; where there is none, the leader is read.
    """

    fetch_bytes: int = 4 * 1024 * 1024
    prefetch_bytes: int = 16 * 1024 * 1024
    wait_ms: int = 1_000
    response_timeout_s: float = 10.0
    on_lost: Literal["error", "earliest", "latest"] = "error"
    read_from: Literal["leader", "nearest"] = "leader"
    rack: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fetch_bytes <= FETCH_BYTES_MAX:
            raise UsageError(f"fetch_bytes must be between 1 and {FETCH_BYTES_MAX}, not {self.fetch_bytes}")
        if self.prefetch_bytes < 1:
            raise UsageError(f"prefetch_bytes must be 1 or more, not {self.prefetch_bytes}")
        if not 0 <= self.wait_ms <= FETCH_WAIT_MS_MAX:
            raise UsageError(f"wait_ms must be between 0 and {FETCH_WAIT_MS_MAX}, not {self.wait_ms}")
        if not 0 < self.response_timeout_s <= 3_600:
            raise UsageError(f"response_timeout_s must be above 0 and up to 3600, not {self.response_timeout_s}")
        if self.on_lost not in {"error", "earliest", "latest"}:
            raise UsageError(f"on_lost: {self.on_lost!r} is not one of error, earliest, latest")
        if self.read_from not in {"leader", "nearest"}:
            raise UsageError(f"read_from: {self.read_from!r} is not one of leader, nearest")
        if self.rack is not None and self.read_from != "nearest":
            raise UsageError("rack: it chooses among replicas, so it needs read_from='nearest'")


class _Consuming:
    """What both kinds of consumer share: where they start and stop, and what fetches for them."""

    def __init__(
        self,
        session: Session,
        stream: str,
        start: Start | Mapping[int, int],
        stop: Stop | None,
        partitions: Sequence[int] | None,
        options: ConsumeOptions,
    ) -> None:
        check_start(start)
        check_stop(stop)
        check_partitions(partitions)
        self._session = session
        self._stream = stream
        self._start = start
        self._stop = stop
        self._partitions = partitions
        self._options = options
        self._buffer: PrefetchBuffer | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def _fetched(self) -> AsyncGenerator[Fetched, None]:
        """What arrives, in order within each partition."""
        if self._buffer is not None:
            raise UsageError("this consumer is being iterated already; make another one")
        buffer = self._buffer = PrefetchBuffer(self._options.prefetch_bytes)
        try:
            place, positions = await self._find_start()
            fetcher = Fetcher(self._session, place, positions, buffer, self._options)
            if self._buffer is buffer:  # not closed meanwhile
                self._fetching = asyncio.create_task(fetcher.run(), name=f"fetch {self._stream}")
            while (item := await buffer.take()) is not None:
                yield item
        finally:
            if self._buffer is buffer:
                await self.close()

    async def close(self) -> None:
        """Stop fetching; whoever iterates comes to an end."""
        buffer, self._buffer = self._buffer, None
        fetching, self._fetching = self._fetching, None
        if buffer is not None:
            buffer.close()
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _find_start(self) -> tuple[StreamPlace, dict[int, Position]]:
        """Where the partitions are, and where to begin and end in each."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _START_S
        place = await self._session.cluster.stream(self._stream, fresh=True)
        while True:
            try:
                return place, await self._positions(place)
            except (OSError, TimeoutError, PullError) as error:
                # A new leader may have to be found, and to find out what is committed.
                passing = not isinstance(error, PullError) or is_passing(error.code)
                if loop.time() >= until_s or not passing:
                    if isinstance(error, PullError):
                        raise
                    raise NodeUnavailableError(
                        f"the node that leads {self._stream} can not be reached: {str(error) or 'no answer'}"
                    ) from error
            await asyncio.sleep(_START_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries
            place = await self._session.cluster.latest(self._stream)

    def _numbers(self, place: StreamPlace) -> Sequence[int]:
        """The partitions to consume."""
        count = place.config.partitions
        numbers = range(count) if self._partitions is None else self._partitions
        for number in (*numbers, *(self._start if isinstance(self._start, Mapping) else ())):
            if number >= count:
                raise UsageError(f"stream {self._stream} has partitions 0 to {count - 1}, not {number}")
        return numbers

    async def _positions(self, place: StreamPlace) -> dict[int, Position]:
        by_leader: dict[str, list[int]] = {}
        for number in self._numbers(place):
            leader = place.leaders[number]
            if leader is None:
                raise PullError(ErrorCode.NOT_AVAILABLE, f"partition {number} has no leader at the moment")
            by_leader.setdefault(leader, []).append(number)
        positions = {}
        for leader, numbers in by_leader.items():
            for number, answers in (await self._ask(place, leader, numbers)).items():
                positions[number] = self._position(number, answers)
        return positions

    def _position(self, number: int, answers: list[int]) -> Position:
        found, reachable = position(self._start, self._stop, number, answers)
        log_start, end = answers[:2]
        if not reachable:
            if self._options.on_lost == "error":
                raise OffsetLostError(self._stream, number, found.offset, log_start, end)
            found.offset = log_start if self._options.on_lost == "earliest" else end
        return found

    async def _ask(self, place: StreamPlace, leader: str, numbers: list[int]) -> dict[int, list[int]]:
        """The answers of a leader to the questions about its partitions."""
        asked = queries(self._start, self._stop)
        body = [[*place.key(number), query] for number in numbers for query in asked]
        connection = await self._session.open_pull(leader)
        try:
            async with asyncio.timeout(self._session.options.timeout_s):
                response = await connection.request(Api.LIST_OFFSETS, body)
        finally:
            connection.close()
        answers: dict[int, list[int]] = {}
        for result in OffsetResult.from_rows(response.result):
            number = result.key.partition
            if result.error is ErrorCode.PARTITION_OFFLINE:
                raise CorruptRecordsError(
                    f"stream {self._stream} partition {number} is offline on its node: {result.message}"
                )
            if result.error is not ErrorCode.NONE:
                raise PullError(result.error, result.message)
            answers.setdefault(number, []).append(result.offset)
        return answers


class Consumer(_Consuming):
    """An asynchronous iterator over messages. In order within a partition; between partitions as they arrive."""

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        stream = self._stream
        fetched = self._fetched()
        try:
            async for partition, batches, _ in fetched:
                for batch in batches:
                    for message in iterate_messages(stream, partition, batch):
                        yield message
        finally:
            await fetched.aclose()


class BatchConsumer(_Consuming):
    """An asynchronous iterator over Arrow record batches of `RECORDS_SCHEMA`, each of one partition."""

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self._records()

    async def _records(self) -> AsyncGenerator[pa.RecordBatch, None]:
        fetched = self._fetched()
        try:
            async for item in fetched:
                for records in _coalesce(item):
                    yield records
        finally:
            await fetched.aclose()


def _coalesce(item: Fetched) -> Iterator[pa.RecordBatch]:
    """The batches of a fetch; runs of small ones are put together, since a batch per message helps nobody."""
    small: list[pa.RecordBatch] = []
    rows = 0
    for batch in item.batches:
        records = to_records(item.partition, batch)
        if records.num_rows < _RECORDS_MIN:
            small.append(records)
            rows += records.num_rows
            if rows < _RECORDS_MIN:
                continue
        if small:
            yield pa.concat_batches(small) if len(small) > 1 else small[0]
            small, rows = [], 0
        if records.num_rows >= _RECORDS_MIN:
            yield records
    if small:
        yield pa.concat_batches(small) if len(small) > 1 else small[0]
