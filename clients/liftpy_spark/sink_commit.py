"""The commit of a batch on the driver: a decision, its chunks in the stream, a mark that all are in, no leftovers.

Each step may be the last one of a driver, and any number of others may take the same steps later, or at the same time.
The first to create the decision has decided; the rest is the same for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_log.tier.conditional import create_once
from liftpy_log.tier.errors import StoreError, TakenError
from liftpy_spark.sink_applying import apply
from liftpy_spark.sink_decision import Decision
from liftpy_spark.sink_errors import SinkModeError, StagingDamagedError
from liftpy_spark.sink_staging import exists, remove_staged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_log.tier.store import ObjectStore
    from liftpy_spark.sink_decision import Batch, Section
    from liftpy_spark.sink_target import Target

__all__ = ["Committed", "commit", "forget"]

logger = logging.getLogger(__name__)

_DONE: Final = b"all of this batch is in the stream\n"


class Committed(NamedTuple):
    """What a commit did.

    Attributes:
        rows: how many records the batch has.
        published: how many chunks this execution published; 0 where another one had done all of it.
    """

    rows: int
    published: int


async def commit(
    batch: Batch,
    sections: Sequence[Section],
    store: ObjectStore,
    target: Target,
    nonce: str,
    clock: Callable[[], float] = time.monotonic,
) -> Committed:
    """Have all records of a batch in the stream once, whatever was done for it before.

    Args:
        batch: which.
        sections: what the tasks of this execution staged, in order.
        store: of the bucket.
        target: the stream.
        nonce: of this execution.
        clock: seconds.

    Raises:
        CommitUnclearError: what is in the stream can not be told any more.
        StagingDamagedError: a staged object is gone or damaged.
        LiftError: something does not work now; executing the batch again goes on from there.
    """
    if not sections:
        return Committed(0, 0)  # nothing to decide, and an execution that has rows may still decide
    since_s = clock()
    ends = tuple(await target.ends())
    decision = Decision(batch=batch, ends=ends, sections=tuple(sections))
    try:
        await asyncio.to_thread(create_once, store, batch.decision_key, decision.encode(), nonce)
    except TakenError:
        return await _resume(batch, len(ends), store, target, nonce, clock)
    return await _finish(decision, store, target, nonce, clock, since_s)


async def _resume(
    batch: Batch, partition_count: int, store: ObjectStore, target: Target, nonce: str, clock: Callable[[], float]
) -> Committed:
    """Go on with what an earlier execution decided."""
    stored = await asyncio.to_thread(store.get, batch.decision_key)
    decision = Decision.decode(batch, stored.body)
    if len(decision.ends) != partition_count:
        raise SinkModeError(f"{batch}: it was decided for {len(decision.ends)} partitions, not {partition_count}")
    if await asyncio.to_thread(exists, store, batch.done_key):
        await _clear(batch, store)
        return Committed(decision.rows, 0)
    logger.info("%s was interrupted before; looking what of it is in the stream", batch)
    return await _finish(decision, store, target, nonce, clock, None)


async def _finish(
    decision: Decision,
    store: ObjectStore,
    target: Target,
    nonce: str,
    clock: Callable[[], float],
    since_s: float | None,
) -> Committed:
    batch = decision.batch
    try:
        published = await apply(decision, store, target, since_s=since_s, clock=clock)
    except StagingDamagedError:
        # Whoever finishes a batch clears up after it, also while somebody else is still at it.
        if await asyncio.to_thread(exists, store, batch.done_key):
            return Committed(decision.rows, 0)
        raise
    try:
        await asyncio.to_thread(create_once, store, batch.done_key, _DONE, nonce)
    except TakenError:
        logger.info("%s was finished by another execution, too", batch)
    await _clear(batch, store)
    return Committed(decision.rows, published)


async def _clear(batch: Batch, store: ObjectStore) -> None:
    """Delete what was staged. The batch is written, so it does not fail for that: leftovers are collected by age."""
    try:
        await asyncio.to_thread(remove_staged, store, batch)
    except StoreError as error:
        logger.warning("%s is written, but what was staged for it stays in the bucket for now: %s", batch, error)


async def forget(batch: Batch, keep: int, store: ObjectStore) -> None:
    """Delete the decision of the batch `keep` before this one, which is never executed again.

    Raises:
        StoreError: the store does not do it.
    """
    old = batch.number - keep
    if old >= 0:
        # The mark goes last: a decision without it would be one that was interrupted.
        await asyncio.to_thread(store.delete, [batch.commit_key(old, "json")])
        await asyncio.to_thread(store.delete, [batch.commit_key(old, "done")])
