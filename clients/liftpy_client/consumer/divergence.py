"""Whether what a consumer has read is in the history of the log that it goes on with.

Asked at every change of the leader: a leader knows where each epoch ended. If the epoch of the record read last ended
before the consumer's position, or is unknown there, the log took another way: after an unclean election, or after the
cluster was restored from its bucket, which begins leader epochs that the cluster before never had.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftpy_client.errors import AdminError, LogDivergedError, NodeUnavailableError, PullError
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.pull import (
    EARLIEST,
    Api,
    EpochEndQuery,
    EpochEndRequest,
    EpochEndResponse,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    check_answers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.pull_connection import PullConnection
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.positions import Position

__all__ = ["check_lineage", "epoch_ends", "leader_epochs"]

_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 0.2


async def check_lineage(
    connection: PullConnection, place: StreamPlace, positions: dict[int, Position], numbers: Sequence[int]
) -> None:
    """See that what was read of these partitions is in the log of the leader at the other end of the connection.

    What was fetched before this returns may be delivered; the log can only have taken another way after that.

    Raises:
        LogDivergedError: it is not.
        PullError: the node cannot tell, for instance because it leads no more.
    """
    queries = [EpochEndQuery(place.key(number), positions[number].epoch) for number in numbers]
    response = await connection.request(Api.EPOCH_END_OFFSET, EpochEndRequest(tuple(queries)))
    results = unpack_body(EpochEndResponse, response.result).results
    check_answers(queries, results)
    for number, result in zip(numbers, results, strict=True):
        if result.error is not ErrorCode.NONE:
            raise PullError(result.error, result.message)
        read, end = positions[number], result.end_offset
        if end < read.read_end or 0 <= result.epoch < read.epoch:
            raise LogDivergedError(place.name, number, min(end, read.read_end), read.offset, read.epoch)


async def epoch_ends(session: Session, stream: str, epochs: Mapping[int, int]) -> dict[int, int]:
    """Where the logs of partitions left an epoch, or the largest one before it.

    Args:
        session: Connections and the cluster's metadata.
        stream: Name of the stream.
        epochs: Leader epochs by partition.

    Raises:
        NoStreamError: There is no such stream.
        NodeUnavailableError, PullError, AdminError: A leader cannot be found or asked.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _PATIENCE_S
    while True:
        try:
            return await _epoch_ends(session, await session.cluster.stream(stream, fresh=True), epochs)
        except (OSError, TimeoutError, PullError, AdminError, NodeUnavailableError) as error:
            if loop.time() >= until_s or session.nats.is_closed:
                if isinstance(error, LiftError):
                    raise
                text = str(error) or "no answer"
                raise NodeUnavailableError(f"the node that leads {stream} cannot be reached: {text}") from error
        await asyncio.sleep(_PAUSE_S)


async def _epoch_ends(session: Session, place: StreamPlace, epochs: Mapping[int, int]) -> dict[int, int]:
    by_leader: dict[str, list[EpochEndQuery]] = {}
    for number, epoch in epochs.items():
        leader = place.leaders[number]
        if leader is None:
            raise PullError(ErrorCode.NOT_AVAILABLE, f"partition {number} has no leader at the moment")
        by_leader.setdefault(leader, []).append(EpochEndQuery(place.key(number), epoch))
    ends: dict[int, int] = {}
    for leader, queries in by_leader.items():
        connection = await session.open_pull(leader)
        try:
            async with asyncio.timeout(session.options.timeout_s):
                response = await connection.request(Api.EPOCH_END_OFFSET, EpochEndRequest(tuple(queries)))
        finally:
            connection.close()
        results = unpack_body(EpochEndResponse, response.result).results
        check_answers(queries, results)
        for result in results:
            if result.error is not ErrorCode.NONE:
                raise PullError(result.error, result.message)
            ends[result.key.partition] = result.end_offset
    return ends


async def leader_epochs(connection: PullConnection, place: StreamPlace, numbers: Sequence[int]) -> dict[int, int]:
    """The epochs in which the node at the other end leads these partitions.

    Raises:
        PullError: it does not lead one of them.
    """
    queries = [OffsetQuery(place.key(number), EARLIEST) for number in numbers]
    response = await connection.request(Api.LIST_OFFSETS, OffsetsRequest(tuple(queries)))
    results = unpack_body(OffsetsResponse, response.result).results
    check_answers(queries, results)
    epochs = {}
    for result in results:
        if result.error is not ErrorCode.NONE:
            raise PullError(result.error, result.message)
        epochs[result.key.partition] = result.epoch
    return epochs
