"""The commit of a batch on the driver: a decision, its chunks in the stream, a mark that all are in, no leftovers.

Each step may be the last one of a driver, and any number of others may take the same steps later, or at the same time.
The first to create the decision has decided; the rest is the same for all of them.

What was decided is finished by whoever comes. Whether it is also what the query hands over this time is another
question: where it is not, rows would be left out, and that is an error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import StagingDamagedError, StagingDirectoryError, StoreError, TakenError
from liftpy_bucket.store.conditional import create_once
from liftpy_client.elapsed import ElapsedClock
from liftpy_spark.sink.accounts import Mark, mark_before, mark_of, settled_below
from liftpy_spark.sink.applying import apply
from liftpy_spark.sink.decision import Decision
from liftpy_spark.sink.errors import BatchMismatchError, SinkModeError
from liftpy_spark.sink.staging import exists, place_of, remove_staged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_bucket.staging.section import Section
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_spark.sink.decision import SinkBatch
    from liftpy_spark.sink.place import StagingPlace
    from liftpy_spark.sink.target import Target

__all__ = ["BatchCommit", "StagedRows", "commit"]

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
_OPTION: Final = "failOnMismatch"


class StagedRows(NamedTuple):
    """What the tasks of an execution staged.

    Attributes:
        sections: Sections, in order.
        contents: What the rows come to, see `RowTally`.
    """

    sections: tuple[Section, ...]
    contents: int

    @property
    def rows(self) -> int:
        """How many."""
        return sum(section.rows for section in self.sections)


class BatchCommit(NamedTuple):
    """What a commit did.

    Attributes:
        rows: How many records the batch has.
        published: How many chunks this execution published; 0 where another one had done all of it.
    """

    rows: int
    published: int


async def commit(
    batch: SinkBatch,
    staged: StagedRows,
    store: ObjectStore,
    place: StagingPlace,
    target: Target,
    nonce: str,
    clock: Callable[[], float] | None = None,
    *,
    strict: bool = True,
) -> BatchCommit:
    """Have all records of a batch in the stream once, whatever was done for it before.

    Args:
        batch: Batch to commit.
        staged: What the tasks of this execution staged.
        store: Object store of the bucket, which has the decision.
        place: Where this execution staged; what an earlier one decided may be in another place.
        target: The stream.
        nonce: Nonce of this execution.
        clock: Seconds; by default it also counts those in which the machine sleeps.
        strict: Whether it is an error that the batch, or the stream, is not as it was noted down before.

    Raises:
        BatchMismatchError: it is so; what was decided is in the stream, as far as anybody can do that.
        CommitUnclearError: what is in the stream can not be told any more.
        StagingDamagedError: what was staged for the batch is gone or damaged.
        StagingDirectoryError: what was staged now is not seen from here; nothing is decided.
        LiftError: something does not work now; executing the batch again goes on from there.
    """
    execution = _Execution(batch, store, place, target, nonce, clock or ElapsedClock(), strict=strict)
    return await execution.commit(staged)


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
        *,
        strict: bool,
    ) -> None:
        self._batch = batch
        self._store = store
        self._place = place
        self._target = target
        self._nonce = nonce
        self._clock = clock
        self._strict = strict
        self._reached = Mark({}, {})  # by the batches before

    async def commit(self, staged: StagedRows) -> BatchCommit:
        if not staged.sections and not await self._exists(self._batch.decision_key):
            return BatchCommit(0, 0)
        since_s = self._clock()
        ends, below, before = await asyncio.gather(
            self._target.ends(), self._in_thread(settled_below), self._in_thread(mark_before)
        )
        if not staged.sections:
            # There is nothing to decide. Another execution had rows, and may have been interrupted.
            self._reached = _reached(before, ends, await self._left(before))
            return await self._resume(staged, ends)
        ends = await self._ends_behind(before, ends)
        try:
            await asyncio.to_thread(self._place.check, staged.sections)
        except StagingDirectoryError:
            # Whoever finishes a batch clears up after it, also what was staged for it here.
            if not await self._exists(self._batch.decision_key):
                raise
            return await self._resume(staged, ends)
        if self._batch.number < below:
            return await self._commit_old(staged, ends)
        decision = Decision(
            batch=self._batch,
            ends=tuple(ends),
            sections=staged.sections,
            contents=staged.contents,
            directory=self._place.directory,
        )
        try:
            await self._create(self._batch.decision_key, decision.encode())
        except TakenError:
            return await self._resume(staged, ends)
        is_late = self._clock() - since_s > self._target.look_age_max_s
        if is_late and self._batch.number < await self._in_thread(settled_below):
            # Another one has written the batch, and forgotten it, before this decision was made.
            await asyncio.to_thread(self._store.delete, [self._batch.decision_key])
            return await self._commit_old(staged, ends)
        return await self._finish(decision, self._place, since_s)

    async def _ends_behind(self, before: tuple[int, Mark] | None, ends: Sequence[int]) -> Sequence[int]:
        """The ends, which are not before those of the batches before, unless records are gone."""
        if before is None:
            return ends
        number, mark = before
        waited_s = 0.0
        left = await self._left(before)
        while lost := _lost(mark, ends, left):
            if waited_s < self._target.settle_s:
                await asyncio.sleep(_PAUSE_S)  # a new leader has yet to learn what is committed
                waited_s += _PAUSE_S
                ends = await self._target.ends()
                left = await self._left(before)
                continue
            batch = self._batch
            self._mismatch(
                f"{batch}: what was written up to batch {number} reached {lost}: records are gone. Was the cluster "
                "restored to an earlier state, or the log recovered without its end? Nothing of this batch is written. "
                "To write again what is gone, delete the objects of the batches that lost records, and of all later "
                f"ones, below {batch.commits_prefix} in the bucket, and start from a checkpoint of before them; what "
                "is left of them is doubled then"
            )
            break
        self._reached = _reached(before, ends, left)
        return ends

    async def _left(self, before: tuple[int, Mark] | None) -> Mapping[int, int]:
        """Where the log left the leader epochs of the batches before, by partition."""
        return {} if before is None else await self._target.epoch_ends(before[1].epochs)

    async def _commit_old(self, staged: StagedRows, ends: Sequence[int]) -> BatchCommit:
        """A batch that is too old for a decision to be kept: it counts as written."""
        batch = self._batch
        if await self._exists(batch.decision_key):
            return await self._resume(staged, ends)
        await self._clear(self._place)
        self._mismatch(
            f"{batch} is so old that no account of it is kept, and counts as written; its {staged.rows} rows are not "
            "written. A checkpoint that was rolled back or copied, or an old txnVersion, does that: begin with a new "
            "checkpoint, or with another txnAppId"
        )
        return BatchCommit(0, 0)

    async def _resume(self, staged: StagedRows, ends: Sequence[int]) -> BatchCommit:
        """Go on with what an earlier execution decided."""
        batch = self._batch
        stored = await asyncio.to_thread(self._store.get, batch.decision_key)
        decision = Decision.decode(batch, stored.body)
        if len(decision.ends) != len(ends):
            raise SinkModeError(f"{batch}: it was decided for {len(decision.ends)} partitions, not {len(ends)}")
        is_here = decision.directory == self._place.directory
        place = self._place if is_here else place_of(self._store, decision.directory)
        mark = await self._in_thread(mark_of)
        if mark is None:
            logger.info("%s was interrupted before; looking what of it is in the stream", batch)
            done = await self._finish(decision, place, None)
        else:
            await self._clear(place)
            done = BatchCommit(decision.rows, 0)
        self._check_same(decision, staged)
        if mark is not None:
            await self._check_there(decision, mark, ends)
        return done

    def _check_same(self, decision: Decision, staged: StagedRows) -> None:
        """See that no rows are left out because others were decided."""
        batch = self._batch
        if not staged.sections:
            logger.warning("%s was written with %d rows; this time it has none", batch, decision.rows)
            return
        if decision.rows == staged.rows and decision.contents in {None, staged.contents}:
            return
        self._mismatch(
            f"{batch} is in the stream with {decision.rows} rows, and other ones were to be written for it now, "
            f"{staged.rows} rows, which are not written. Was the checkpoint rolled back or copied, or txnVersion used "
            "twice? Then begin with a new checkpoint, from the first records that are not written yet, or with another "
            "txnAppId. Is the query not deterministic (rand(), uuid(), sums of floating-point numbers)? Then nothing "
            "is missing"
        )

    async def _check_there(self, decision: Decision, mark: Mark, ends: Sequence[int]) -> None:
        """See that the records of a batch that is marked are still those that were written."""
        batch = self._batch
        lost = _lost(mark, ends, await self._target.epoch_ends(mark.epochs))
        for partition in decision.partitions():
            if lost or partition not in mark.ends:
                continue
            start, stop = decision.ends[partition], mark.ends[partition]
            look = await self._target.look(partition, start, batch.producer_id(partition), stop)
            chunks = sum(numbered.section.chunks for numbered in decision.share(partition))
            if not look.doubt and not look.sequences.issuperset(range(chunks)):
                lost = f"offset {stop} of partition {partition}, where other records are now"
        if lost:
            self._mismatch(
                f"{batch} was written up to {lost}: records of it are gone. Was the cluster restored to an earlier "
                f"state? To write them again, delete {batch.decision_key} and {batch.done_key} in the bucket, and "
                "those of later batches, and execute them again; what is left of them is doubled then"
            )

    def _mismatch(self, text: str) -> None:
        if self._strict:
            raise BatchMismatchError(f"{text}. To go on as if all were well, set the option {_OPTION} to false")
        logger.warning("%s; going on, since %s is false", text, _OPTION)

    async def _finish(self, decision: Decision, place: StagingPlace, since_s: float | None) -> BatchCommit:
        batch = self._batch
        try:
            applied = await apply(decision, place, self._target, since_s=since_s, clock=self._clock)
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
            epochs = {number: epoch for number, epoch in self._reached.epochs.items() if number not in applied.ends}
            mark = Mark({**self._reached.ends, **applied.ends}, {**epochs, **applied.epochs})
            await self._create(batch.done_key, mark.encode())
        except TakenError:
            logger.info("%s was finished by another execution, too", batch)
        await self._clear(place)
        return BatchCommit(decision.rows, applied.published)

    async def _clear(self, decided: StagingPlace) -> None:
        """Delete what was staged, here too where something else was decided.

        The batch is written, so it does not fail for that: leftovers are collected by age.
        """
        for place in (decided,) if decided is self._place else (decided, self._place):
            try:
                await asyncio.to_thread(remove_staged, place, self._batch)
            except StoreError as error:
                logger.warning("%s is written, but what was staged for it stays for now: %s", self._batch, error)

    async def _in_thread(self, ask: Callable[[ObjectStore, SinkBatch], Any]) -> Any:
        return await asyncio.to_thread(ask, self._store, self._batch)

    async def _exists(self, key: str) -> bool:
        return await asyncio.to_thread(exists, self._store, key)

    async def _create(self, key: str, body: bytes) -> None:
        await asyncio.to_thread(create_once, self._store, key, body, self._nonce)


def _reached(before: tuple[int, Mark] | None, ends: Sequence[int], left: Mapping[int, int]) -> Mark:
    """How far the batches before reach; what is gone, and was accepted as such, counts no longer."""
    known = Mark({}, {}) if before is None else before[1]
    there = {
        partition: min(end, ends[partition], left.get(partition, end))
        for partition, end in known.ends.items()
        if partition < len(ends)
    }
    whole = {partition for partition, end in there.items() if end == known.ends[partition]}
    return Mark(there, {partition: epoch for partition, epoch in known.epochs.items() if partition in whole})


def _lost(mark: Mark, ends: Sequence[int], left: Mapping[int, int]) -> str:
    """In which partition the log ends before what was written, or has other records there, in words; "" for none.

    Args:
        mark: What was written.
        ends: Where the log of each partition ends now.
        left: Where it left the leader epoch of the mark, by partition; those that are still in it may lack.
    """
    for partition, end in sorted(mark.ends.items()):
        if partition < len(ends) and ends[partition] < end:
            return f"offset {end} of partition {partition}, which ends at {ends[partition]} now"
        if left.get(partition, end) < end:
            return f"offset {end} of partition {partition}, which has other records from {left[partition]} on now"
    return ""
