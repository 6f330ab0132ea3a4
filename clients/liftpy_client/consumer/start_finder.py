"""Finds start and stop offsets in the partitions of a stream, by asking their leaders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from liftpy_client.connection.cluster import NobodyAnswersError, is_passing
from liftpy_client.consumer.positions import needs_end, offset_of, position, queries
from liftpy_client.errors import (
    AdminError,
    CorruptRecordsError,
    NodeUnavailableError,
    OffsetLostError,
    PullError,
    UsageError,
)
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.pull import LATEST, Api, OffsetQuery, OffsetsRequest, OffsetsResponse, check_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.consumer.positions import Position, Start, Stop

__all__ = ["StartFinder"]

_START_S: Final = 30.0
_START_PAUSE_S: Final = 0.1


class StartFinder:
    """Finds where a consumer starts and stops.

    Args:
        session: Connections and the cluster's metadata.
        start: Start as the user gave it; checked.
        stop: Stop as the user gave it; checked.
        partitions: Numbers of the partitions; None for all.
        options: Fetch options of the consumer.

    Attributes:
        epochs: The epochs of the leaders that answered, by partition.
    """

    def __init__(
        self,
        session: Session,
        start: Start | Mapping[int, int],
        stop: Stop | None,
        partitions: Sequence[int] | None,
        options: ConsumeOptions,
    ) -> None:
        self._session = session
        self._start = start
        self._stop = stop
        self._partitions = partitions
        self._options = options
        self.epochs: dict[int, int] = {}

    async def find(self, stream: str) -> tuple[StreamPlace, dict[int, Position]]:
        """Where the partitions of a stream are, and where to begin and end in each.

        Raises:
            NoStreamError: there is no such stream.
            UsageError: it has no such partition.
            NodeUnavailableError, PullError: a leader cannot be found or asked.
            OffsetLostError: the start lies beyond the end, and the stop, too.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _START_S
        cluster, place = self._session.cluster, None
        while True:
            try:
                place = await (cluster.stream(stream, fresh=True) if place is None else cluster.latest(stream))
                return place, await self._positions(place)
            except (OSError, TimeoutError, PullError, AdminError, NodeUnavailableError) as error:
                # A new leader may have to be found, and to find out what is committed; a busy node may answer too late.
                is_alone = place is None and isinstance(
                    error, NobodyAnswersError
                )  # nobody waits for what was not started
                if loop.time() >= until_s or is_alone or self._session.nats.is_closed or not _is_passing(error):
                    if isinstance(error, LiftError):
                        raise
                    raise NodeUnavailableError(
                        f"the node that leads {stream} cannot be reached: {str(error) or 'no answer'}"
                    ) from error
            await asyncio.sleep(_START_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries

    def _numbers(self, place: StreamPlace) -> Sequence[int]:
        """The partitions to consume."""
        count = place.config.partitions
        numbers = range(count) if self._partitions is None else tuple(dict.fromkeys(self._partitions))
        for number in (*numbers, *(self._start if isinstance(self._start, Mapping) else ())):
            if number >= count:
                raise UsageError(f"stream {place.name} has partitions 0 to {count - 1}, not {number}")
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
                positions[number] = self._position(place.name, number, answers)
        return positions

    def _position(self, stream: str, number: int, answers: list[int]) -> Position:
        found, reachable = position(self._start, self._stop, number, answers)
        log_start, end = answers[:2]
        if not reachable:
            if self._options.on_lost == "error":
                raise OffsetLostError(stream, number, found.offset, log_start, end)
            found.offset = offset_of(self._options.on_lost, log_start, end)
        return found

    async def _ask(self, place: StreamPlace, leader: str, numbers: list[int]) -> dict[int, list[int]]:
        """The answers of a leader to the questions about its partitions.

        A leader may not know for long how far records are committed: as long as an in-sync replica is away.
        """
        asked = queries(self._start, self._stop)
        wanted = [OffsetQuery(place.key(number), query) for number in numbers for query in asked]
        connection = await self._session.open_pull(leader)
        try:
            async with asyncio.timeout(self._session.options.timeout_s):
                response = await connection.request(Api.LIST_OFFSETS, OffsetsRequest(tuple(wanted)))
        finally:
            connection.close()
        answers: dict[int, list[int]] = {}
        results = unpack_body(OffsetsResponse, response.result).results
        check_answers(wanted, results)
        for result in results:
            number = result.key.partition
            found = answers.setdefault(number, [])
            if result.error is ErrorCode.PARTITION_OFFLINE:
                raise CorruptRecordsError(
                    f"stream {place.name} partition {number} is offline on its node: {result.message}"
                )
            if result.error is ErrorCode.BATCH_CORRUPT:
                raise CorruptRecordsError(result.message)
            is_spared = asked[len(found)] == LATEST and not needs_end(self._start, self._stop)
            if result.error is not ErrorCode.NONE and not (is_spared and result.error is ErrorCode.NOT_AVAILABLE):
                raise PullError(result.error, result.message)
            found.append(result.offset)
            self.epochs[number] = result.epoch
        return answers


def _is_passing(error: Exception) -> bool:
    """Whether asking again may help."""
    return is_passing(error.code) if isinstance(error, (PullError, AdminError)) else True
