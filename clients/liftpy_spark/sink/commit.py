"""The commit of a batch on the driver: a decision, its chunks in the stream, a mark that all are in, no leftovers.

Each step may be the last one of a driver, and any number of others may take the same steps later, or at the same time.
The first to create the decision has decided; the rest is the same for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import StoreError, TakenError
from liftpy_bucket.store.conditional import create_once
from liftpy_spark.sink.applying import apply
from liftpy_spark.sink.decision import Decision
from liftpy_spark.sink.errors import SinkModeError, StagingDamagedError, StagingDirectoryError
from liftpy_spark.sink.staging import exists, place_of, remove_staged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_spark.sink.decision import SinkBatch
    from liftpy_spark.sink.place import StagingPlace
    from liftpy_spark.sink.section import Section
    from liftpy_spark.sink.target import Target

__all__ = ["BatchCommit", "commit", "forget"]

logger = logging.getLogger(__name__)

_DONE: Final = b"all of this batch is in the stream\n"


class BatchCommit(NamedTuple):
    """What a commit did.

    Attributes:
        rows: how many records the batch has.
        published: how many chunks this execution published; 0 where another one had done all of it.
    """

    rows: int
    published: int


async def commit(
    batch: SinkBatch,
    sections: Sequence[Section],
    store: ObjectStore,
    place: StagingPlace,
    target: Target,
    nonce: str,
    clock: Callable[[], float] = time.monotonic,
) -> BatchCommit:
    """Have all records of a batch in the stream once, whatever was done for it before.

    Args:
        batch: which.
        sections: what the tasks of this execution staged, in order.
        store: of the bucket, which has the decision.
        place: where this execution staged; what an earlier one decided may be in another place.
        target: the stream.
        nonce: of this execution.
        clock: seconds.

    Raises:
        CommitUnclearError: what is in the stream can not be told any more.
        StagingDamagedError: what was staged for the batch is gone or damaged.
        StagingDirectoryError: what was staged now is not seen from here; nothing is decided.
        LiftError: something does not work now; executing the batch again goes on from there.
    """
    if not sections:
        return BatchCommit(0, 0)  # nothing to decide, and an execution that has rows may still decide
    return await _Execution(batch, store, place, target, nonce, clock).commit(tuple(sections))


class _Execution:
    """One of perhaps several for a batch; see `commit`."""

    def __init__(
        self,
        batch: SinkBatch,
        store: ObjectStore,
        place: StagingPlace,
        target: Target,
        nonce: str,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._store = store
        self._place = place
        self._target = target
        self._nonce = nonce
        self._clock = clock

    async def commit(self, sections: tuple[Section, ...]) -> BatchCommit:
        since_s = self._clock()
        ends = tuple(await self._target.ends())
        try:
            await asyncio.to_thread(self._place.check, sections)
        except StagingDirectoryError:
            # Whoever finishes a batch clears up after it, also what was staged for it here.
            if not await self._exists(self._batch.decision_key):
                raise
            return await self._resume(len(ends))
        decision = Decision(batch=self._batch, ends=ends, sections=sections, directory=self._place.directory)
        try:
            await self._create(self._batch.decision_key, decision.encode())
        except TakenError:
            return await self._resume(len(ends))
        return await self._finish(decision, self._place, since_s)

    async def _resume(self, partition_count: int) -> BatchCommit:
        """Go on with what an earlier execution decided."""
        batch = self._batch
        stored = await asyncio.to_thread(self._store.get, batch.decision_key)
        decision = Decision.decode(batch, stored.body)
        if len(decision.ends) != partition_count:
            raise SinkModeError(f"{batch}: it was decided for {len(decision.ends)} partitions, not {partition_count}")
        is_here = decision.directory == self._place.directory
        place = self._place if is_here else place_of(self._store, decision.directory)
        if await self._exists(batch.done_key):
            await self._clear(place)
            return BatchCommit(decision.rows, 0)
        logger.info("%s was interrupted before; looking what of it is in the stream", batch)
        return await self._finish(decision, place, None)

    async def _finish(self, decision: Decision, place: StagingPlace, since_s: float | None) -> BatchCommit:
        batch = self._batch
        try:
            published = await apply(decision, place, self._target, since_s=since_s, clock=self._clock)
        except StagingDamagedError as error:
            # Whoever finishes a batch clears up after it, also while somebody else is still at it.
            if await self._exists(batch.done_key):
                return BatchCommit(decision.rows, 0)
            raise StagingDamagedError(
                f"{batch}: {error}. It was decided, and its rows are published from there alone: some may be in the "
                "stream, the rest is not, and nothing is skipped, so nothing more is published. To go on, bring back "
                "what is missing, and execute the batch again; if it is lost, compare the stream with the source, "
                f"create the object {batch.done_key} in the bucket to have the batch count as written, or begin with "
                "a new checkpoint"
            ) from None
        try:
            await self._create(batch.done_key, _DONE)
        except TakenError:
            logger.info("%s was finished by another execution, too", batch)
        await self._clear(place)
        return BatchCommit(decision.rows, published)

    async def _clear(self, decided: StagingPlace) -> None:
        """Delete what was staged, here too where something else was decided.

        The batch is written, so it does not fail for that: leftovers are collected by age.
        """
        for place in (decided,) if decided is self._place else (decided, self._place):
            try:
                await asyncio.to_thread(remove_staged, place, self._batch)
            except StoreError as error:
                logger.warning("%s is written, but what was staged for it stays for now: %s", self._batch, error)

    async def _exists(self, key: str) -> bool:
        return await asyncio.to_thread(exists, self._store, key)

    async def _create(self, key: str, body: bytes) -> None:
        await asyncio.to_thread(create_once, self._store, key, body, self._nonce)


async def forget(batch: SinkBatch, keep: int, store: ObjectStore) -> None:
    """Delete the decision of the batch `keep` before this one, which is never executed again.

    Raises:
        StoreError: the store does not do it.
    """
    old = batch.number - keep
    if old >= 0:
        # The mark goes last: a decision without it would be one that was interrupted.
        await asyncio.to_thread(store.delete, [batch.commit_key(old, "json")])
        await asyncio.to_thread(store.delete, [batch.commit_key(old, "done")])
