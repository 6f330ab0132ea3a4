"""Fetches a stream's partitions from their leaders into a prefetch buffer, and goes on after whatever happens.

One reader per leader; each keeps one fetch on its way while the last one is being taken apart. A connection that
breaks, a leader that moves, a batch that arrives damaged: the readers are set up anew from the positions, which only
ever move past what is in the buffer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from liftpy_client.cluster import is_stale
from liftpy_client.decode import split_body, trim
from liftpy_client.errors import (
    CorruptRecordsError,
    DisconnectedError,
    LogDivergedError,
    NodeUnavailableError,
    NoStreamError,
    OffsetLostError,
    PullError,
    StreamGoneError,
)
from liftpy_client.prefetch import Fetched
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, ErrorCode, FrameError, LiftError
from liftpy_envelope.pull import Api, FetchPartition, FetchRequest, FetchResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.cluster import StreamPlace
    from liftpy_client.consumer import ConsumeOptions
    from liftpy_client.positions import Position
    from liftpy_client.prefetch import PrefetchBuffer
    from liftpy_client.pull_connection import PullConnection
    from liftpy_client.session import Session
    from liftpy_envelope.frames import Response

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)

_BACKOFF_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
_STALL_REPORT_S: Final = 10.0
_EPOCH_QUERY_NONE: Final = -1


class _AgainError(LiftError):
    """Set the readers up anew."""


class Fetcher:
    """See the module.

    Args:
        session: connections and the cluster's metadata.
        place: the stream, as it was when consuming began.
        positions: by partition; moved by the fetcher.
        buffer: takes what is fetched.
        options: of the consumer.
    """

    def __init__(
        self,
        session: Session,
        place: StreamPlace,
        positions: dict[int, Position],
        buffer: PrefetchBuffer,
        options: ConsumeOptions,
    ) -> None:
        self._session = session
        self._place = place
        self._positions = positions
        self._buffer = buffer
        self._options = options
        self._verify = False
        self._progress = 0.0

    async def run(self) -> None:
        """Fetch until every partition has reached its stop, or something can not be mended."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - it is raised again where the consumer waits
            self._buffer.finish(_first(error))
        else:
            self._buffer.finish()

    async def _run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        self._progress = reported = loop.time()
        while any(not position.is_done for position in self._positions.values()):
            before = self._progress
            try:
                await self._read_all()
                continue
            except* (
                _AgainError,
                DisconnectedError,
                OSError,
                TimeoutError,
                FrameError,
                NodeUnavailableError,
            ) as group:
                reason = str(group.exceptions[0]) or type(group.exceptions[0]).__name__
            failures = 0 if self._progress > before else failures + 1
            if loop.time() - max(self._progress, reported) > _STALL_REPORT_S:
                reported = loop.time()
                logger.warning("consuming %s has stalled: %s; still trying", self._place.name, reason)
            delay = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, keeps no secret
            await self._look_up()

    async def _look_up(self) -> None:
        """Ask where the partitions are now."""
        try:
            place = await self._session.cluster.stream(self._place.name, fresh=True)
        except NodeUnavailableError:
            return  # asked again after the next failure
        except NoStreamError:
            raise StreamGoneError(f"stream {self._place.name!r} was deleted while it was being consumed") from None
        if place.uuid != self._place.uuid:
            raise StreamGoneError(
                f"stream {self._place.name!r} was deleted and created again while it was being consumed"
            )
        self._place = place

    async def _read_all(self) -> None:
        by_leader: dict[str, list[int]] = {}
        for partition, position in self._positions.items():
            if not position.is_done:
                leader = self._place.leaders[partition]
                if leader is None:
                    raise ExceptionGroup("", [_AgainError(f"partition {partition} has no leader at the moment")])
                by_leader.setdefault(leader, []).append(partition)
        try:
            async with asyncio.TaskGroup() as group:
                for leader, partitions in by_leader.items():
                    group.create_task(self._read(leader, partitions))
        except* (
            OffsetLostError,
            StreamGoneError,
            LogDivergedError,
            CorruptRecordsError,
            PullError,
        ) as errors:
            raise errors.exceptions[0] from None

    async def _read(self, leader: str, partitions: list[int]) -> None:
        try:
            await self._read_from(leader, partitions)
        except PullError as error:
            if is_stale(error.code):
                raise _AgainError(str(error)) from error
            raise

    async def _read_from(self, leader: str, partitions: list[int]) -> None:
        connection = await self._session.open_pull(leader)
        try:
            await self._check_lineage(connection, partitions)
            wanted = tuple(
                FetchPartition(self._place.key(number), self._positions[number].offset, self._positions[number].epoch)
                for number in partitions
            )
            verify, self._verify = self._verify, False
            fetching = asyncio.ensure_future(self._fetch(connection, wanted, verify=verify))
            left = set(partitions)
            done: set[int] = set()
            try:
                while left:
                    response = await fetching
                    # The next fetch is under way while this one is taken apart, unless the buffer is full.
                    ahead = self._buffer.has_room
                    if ahead:
                        fetching = asyncio.ensure_future(self._fetch(connection, forget=done))
                        done = set()
                    done |= self._take(response) & left
                    left -= done
                    if not ahead and left:
                        await self._buffer.wait_for_room()
                        fetching = asyncio.ensure_future(self._fetch(connection, forget=done))
                        done = set()
            finally:
                fetching.cancel()
                await asyncio.gather(fetching, return_exceptions=True)
        finally:
            connection.close()

    async def _fetch(
        self,
        connection: PullConnection,
        wanted: tuple[FetchPartition, ...] = (),
        *,
        forget: Iterable[int] = (),
        verify: bool = False,
    ) -> Response:
        options = self._options
        forgotten = tuple(self._place.key(number) for number in forget)
        request = FetchRequest(options.fetch_bytes, options.wait_ms, wanted, forgotten, verify=verify)
        async with asyncio.timeout(options.wait_ms / 1000 + options.response_timeout_s):
            return await connection.request(Api.FETCH, request.to_body())

    async def _check_lineage(self, connection: PullConnection, partitions: list[int]) -> None:
        """See that what was read before is what this leader has.

        Raises:
            LogDivergedError: it is not.
        """
        asked = [number for number in partitions if self._positions[number].epoch > _EPOCH_QUERY_NONE]
        if not asked:
            return
        body = [[*self._place.key(number), self._positions[number].epoch] for number in asked]
        async with asyncio.timeout(self._options.response_timeout_s):
            response = await connection.request(Api.EPOCH_END_OFFSET, body)
        for number, row in zip(asked, response.result, strict=True):
            error, _, epoch, end = row[2:]
            position = self._positions[number]
            if not error and (epoch < position.epoch or end < position.offset):
                raise LogDivergedError(
                    f"stream {self._place.name} partition {number}: records up to offset {position.offset} of epoch "
                    f"{position.epoch} were read, but the leader's log left epoch {epoch} at offset {end}"
                )

    def _take(self, response: Response) -> set[int]:
        """Put what a response brought into the buffer; returns the partitions that are done."""
        done = set()
        at = 0
        for result in FetchResult.from_rows(response.result):
            number = result.key.partition
            position = self._positions[number]
            if result.error is not ErrorCode.NONE and not position.is_done:
                self._fail(result, position)
            self._take_partition(response, at, result, position)
            at += result.body_bytes
            if position.is_done:
                done.add(number)
        return done

    def _take_partition(self, response: Response, at: int, result: FetchResult, position: Position) -> None:
        batches = []
        failure: LiftError | None = None
        try:
            for header, body in split_body(response.body, at, result.body_bytes):
                if position.is_done:
                    break
                if header.next_offset > position.offset:
                    batch = trim(header, body, position.offset, position.stop)
                    if batch.last > batch.first:
                        batches.append(batch)
                    stop = position.stop
                    position.offset = header.next_offset if stop is None else min(header.next_offset, stop)
                    position.epoch = header.leader_epoch
        except (BatchCorruptError, BatchTruncatedError) as error:
            failure = error
        if batches:
            self._progress = asyncio.get_running_loop().time()
            self._buffer.put(Fetched(result.key.partition, batches, result.body_bytes))
        if failure is not None:
            # Damaged on the way or on the disk: the node finds out when it is asked to check.
            self._verify = True
            raise _AgainError(f"a damaged batch arrived: {failure}") from failure

    def _fail(self, result: FetchResult, position: Position) -> None:
        """Act on a partition's error.

        Raises:
            LiftError: always, but for an offset that is lost and may be.
        """
        name, number = self._place.name, result.key.partition
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = result.log_start, result.high_watermark
            if not position.is_exact and position.epoch < 0:
                position.offset = start  # found by asking, and gone before anything was read
                raise _AgainError("the stream begins later than it did a moment ago")
            if self._options.on_lost == "error":
                raise OffsetLostError(name, number, position.offset, start, end)
            target = start if self._options.on_lost == "earliest" else end
            logger.warning(
                "stream %s partition %d: offset %d is lost, going on at %d",
                name,
                number,
                position.offset,
                target,
            )
            position.offset, position.epoch = target, -1
            raise _AgainError("the offset was lost")
        if result.error is ErrorCode.PARTITION_OFFLINE:
            raise CorruptRecordsError(f"stream {name} partition {number} is offline on its node: {result.message}")
        if result.error is ErrorCode.UNKNOWN_STREAM:
            raise StreamGoneError(f"stream {name!r} was deleted while it was being consumed")
        raise _AgainError(result.message or result.error.name)


def _first(error: Exception) -> Exception:
    """The first error of a group that is no mere reason to try again: several readers may have failed at once."""
    while isinstance(error, ExceptionGroup):
        error = next((one for one in error.exceptions if not isinstance(one, _AgainError)), error.exceptions[0])
    return error
