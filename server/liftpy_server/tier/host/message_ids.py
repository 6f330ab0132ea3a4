"""The deduplication window of a leader whose log does not reach back as far: the bucket has the rest of it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError
from liftpy_log.ids.dedupe import hash_ids
from liftpy_server.tier.requests import MessageIdsJob

if TYPE_CHECKING:
    from liftpy_log.ids.dedupe import HashedIds
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.worker.port import Worker

__all__ = ["recall_message_ids"]

logger = logging.getLogger(__name__)

_IDS_PER_CALL: Final = 20_000
_TIME_MAX_S: Final = 10.0


async def recall_message_ids(partition: Partition, start: int, worker: Worker) -> None:
    """Let a partition remember ids of messages that are in the bucket alone, as many as its window has room for.

    The newest come first; what is not there after some seconds is given up, and the node's log says so.

    Args:
        partition: Partition that is led here.
        start: Where its history in the bucket begins.
        worker: Reads the bucket.
    """
    name, number = partition.stream.name, partition.number
    try:
        since_ns = _since(partition, start)
        if since_ns is not None:
            async with asyncio.timeout(_TIME_MAX_S):
                await _recall(partition, start, since_ns, worker)
    except (LiftError, OSError) as error:  # a time-out is among them
        why = str(error) or f"it takes more than {_TIME_MAX_S:g} s"
        logger.warning(
            "stream %s partition %d: messages from before its log began may be taken twice, for their ids can not be "
            "read from the bucket: %s",
            *(name, number, why),
        )


def _since(partition: Partition, start: int) -> int | None:
    """The time from which on ids are wanted; None where the log has them all, or none are wanted."""
    dedupe, log = partition.dedupe, partition.log
    if not dedupe.ids_max or log.log_start <= start:
        return None
    since_ns = max(0, partition.log_time.before(partition.now_ns(), dedupe.reach_ns))
    reaches_back = log.log_end > log.log_start and log.offset_at_time(since_ns) != log.log_start
    return None if reaches_back else since_ns


async def _recall(partition: Partition, start: int, since_ns: int, worker: Worker) -> None:
    older: deque[tuple[int, HashedIds, list[int]]] = deque()
    try:
        await _read(partition, start, since_ns, worker, older)
    finally:  # what was read are the newest of them
        partition.dedupe.recall(older)


async def _read(
    partition: Partition, start: int, since_ns: int, worker: Worker, older: deque[tuple[int, HashedIds, list[int]]]
) -> None:
    before, room = partition.log.log_start, partition.dedupe.ids_max - len(partition.dedupe)
    while before > start and room > 0:
        answer = await worker.call(
            MessageIdsJob(
                uuid=partition.key.uuid.hex(),
                partition=partition.number,
                before=before,
                since_ns=since_ns,
                limit=min(_IDS_PER_CALL, room),
            )
        )
        age_time = partition.log_time.age_time
        for time, some in reversed([(time, list(some)) for time, some in groupby(answer.ids, key=itemgetter(0))]):
            _, offsets, keys = zip(*some, strict=True)
            older.appendleft((age_time(time), hash_ids([bytes.fromhex(key) for key in keys]), list(offsets)))
        if not answer.more:
            return
        before = answer.start
        room -= len(answer.ids)
