"""Publishes what a decision says, each chunk once, however often that is begun and interrupted.

Who begins knows that nothing is there yet; who goes on looks at the log of each partition from the recorded end on, and
publishes what is missing. The nodes drop a chunk that they remember, but they do so for a while only. So nobody
publishes on the strength of an old look: before a chunk leaves, the last look is younger than what the nodes remember
is old, or there is another one. That also holds for a driver that was stopped for an hour, and wakes up when another
has done its work.

Where the target says so, leaders read chunks from where they are staged. One that a leader does not read may be in the
stream all the same, if it was only not heard of. So there is a look at the log before it is published.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.staging.source import load_section
from liftpy_spark.sink.errors import CommitUnclearError
from liftpy_spark.sink.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.staging.section import RowChunk
    from liftpy_spark.sink.decision import Decision, Numbered
    from liftpy_spark.sink.place import StagingPlace
    from liftpy_spark.sink.target import Target

__all__ = ["Applied", "apply"]

_PARTITIONS_AT_ONCE: Final = 8
_CHUNKS_IN_FLIGHT: Final = 8  # of one partition


class Applied(NamedTuple):
    """What was done.

    Attributes:
        published: How many chunks were published now.
        ends: By partition, an offset before which all of the batch is.
        epochs: By partition, a leader epoch than which no record before that end has a later one, where it is known.
    """

    published: int
    ends: dict[int, int]
    epochs: dict[int, int]


async def apply(
    decision: Decision,
    place: StagingPlace,
    target: Target,
    *,
    since_s: float | None,
    clock: Callable[[], float],
) -> Applied:
    """Publish what is missing of a batch.

    Args:
        decision: What the batch is made of.
        place: Where its rows are staged.
        target: The stream.
        since_s: When, by `clock`, nothing of the batch was in the stream, at the recorded ends; None where that is not
            known: another execution may have begun.
        clock: Clock in seconds.

    Raises:
        CommitUnclearError: what is in the stream can not be told any more.
        StagingDamagedError: a staged object is gone or damaged.
        LiftError: something can not be read or published; another execution goes on from there.
    """
    ahead = ReadAhead(place, decision.sections)
    room = asyncio.Semaphore(_PARTITIONS_AT_ONCE)

    async def apply_share(partition: int) -> _Share:
        async with room:
            share = _Share(decision, partition, ahead, target, clock)
            await share.apply(since_s)
            return share

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(apply_share(partition)) for partition in decision.partitions()]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    shares = [task.result() for task in tasks]
    return Applied(
        sum(share.published for share in shares),
        {share.partition: share.reached for share in shares},
        {share.partition: share.epoch for share in shares if share.epoch},
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of several failures: they mostly have one cause, and people read one message."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Share:
    """What one partition gets of a batch.

    Attributes:
        partition: Number of the partition.
        published: How many chunks were published.
        reached: An offset before which all is that was found or published.
        epoch: No record before it has a later leader epoch; 0 where nobody knows.
    """

    def __init__(
        self,
        decision: Decision,
        partition: int,
        place: ReadAhead,
        target: Target,
        clock: Callable[[], float],
    ) -> None:
        self._decision = decision
        self.partition = partition
        self.published = 0
        self.reached = decision.ends[partition]
        self.epoch = 0
        self._place = place
        self._target = target
        self._clock = clock
        self._producer_id = decision.batch.producer_id(partition)
        self._end = decision.ends[partition]  # up to here is known what is there
        self._looked_s: float | None = None
        self._looks = 0  # that were begun
        self._last_look = 0  # of them, that is over
        self._there: set[int] = set()
        self._doubt = ""
        self._looking = asyncio.Lock()

    async def apply(self, since_s: float | None) -> None:
        self._looked_s = since_s
        in_flight: set[asyncio.Task[None]] = set()
        loading: set[asyncio.Task[Any]] = set()
        try:
            await self._look_again()  # what is there already need not be loaded
            loads = deque(
                _Load(self._place, numbered, loading)
                for numbered in self._decision.share(self.partition)
                if self._is_wanted(numbered)
            )
            while loads:
                load = loads.popleft()
                for each in (load, *islice(loads, 1)):  # the next one is on its way while this one is published
                    if not self._target.suits(each.section):
                        each.begin()
                for chunk in range(load.section.chunks):
                    if load.first_chunk + chunk in self._there:
                        continue
                    if len(in_flight) >= _CHUNKS_IN_FLIGHT:
                        await _some(in_flight)
                    in_flight.add(asyncio.create_task(self._publish(load, chunk)))
            while in_flight:
                await _some(in_flight)
        finally:
            left = in_flight | loading
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _look_again(self, after: int = 0) -> None:
        """Look at the log, when the last look is too old, or before look `after`; whoever comes meanwhile waits."""
        async with self._looking:
            while (
                self._looked_s is None
                or self._clock() - self._looked_s > self._target.look_age_max_s
                or self._last_look < after
            ):
                began_s = self._clock()
                self._looks += 1
                look = await self._target.look(self.partition, self._end, self._producer_id)
                self._end, self._looked_s, self._last_look = look.end, began_s, self._looks
                self._there |= look.sequences
                if look.sequences:
                    self._reach(look.end, 0)
                self._doubt = self._doubt or look.doubt

    def _reach(self, end: int, epoch: int) -> None:
        if end > self.reached:
            self.reached, self.epoch = end, epoch

    def _check_clear(self, number: int) -> None:
        """See that a chunk that was not found is not there."""
        if self._doubt:
            batch = self._decision.batch
            raise CommitUnclearError(
                f"{batch}: it was interrupted, and whether chunk {number} of partition {self.partition} is in the "
                f"stream can not be told any more: {self._doubt}. Publishing it might double its records, so nothing "
                f"more is published. To go on, compare the stream with the source, create the object "
                f"{batch.done_key} in the bucket to have the batch count as written, or begin with a new checkpoint"
            )

    async def _publish(self, load: _Load, chunk: int) -> None:
        number = load.first_chunk + chunk
        place, look = None, 0
        if await self._target.refers(load.section, chunk):
            if not await self._is_missing(number):
                return
            directory = self._decision.directory
            place = await self._target.refer(load.section, directory, chunk, self._producer_id, number)
            look = self._looks + 1  # what was begun by now may have missed it, and it may be there
        if place is None:
            rows = await load.chunk(chunk)
            if not await self._is_missing(number, look):
                return
            place = await self._target.publish(rows, self._producer_id, number)
        self.published += 1
        self._there.add(number)
        self._reach(place.end, place.epoch)
        if place.start == self._end:
            self._end = place.end  # nobody else wrote in between: there is nothing to look at

    async def _is_missing(self, number: int, after: int = 0) -> bool:
        """Whether a chunk is to be published: by a look at the log that is not too old, and not before look `after`."""
        await self._look_again(after)
        if number in self._there:
            return False
        self._check_clear(number)
        return True

    def _is_wanted(self, numbered: Numbered) -> bool:
        numbers = range(numbered.first_chunk, numbered.first_chunk + numbered.section.chunks)
        return not self._there.issuperset(numbers)


class _Load:
    """The chunks of a section: read when the first of them is wanted.

    Args:
        place: Where they are.
        numbered: The section.
        loading: Tasks that are at it, of this one and of others.
    """

    def __init__(self, place: ReadAhead, numbered: Numbered, loading: set[asyncio.Task[Any]]) -> None:
        self.section, self.first_chunk = numbered
        self._place = place
        self._loading = loading
        self._chunks: asyncio.Task[list[RowChunk]] | None = None

    def begin(self) -> None:
        """Begin to read them."""
        self._begun()

    async def chunk(self, number: int) -> RowChunk:
        """One of them.

        Raises:
            StagingDamagedError, StoreError: as `load_section` has it.
        """
        return (await asyncio.shield(self._begun()))[number]

    def _begun(self) -> asyncio.Task[list[RowChunk]]:
        if self._chunks is None:
            self._chunks = asyncio.create_task(self._read())
            self._loading.add(self._chunks)
            self._chunks.add_done_callback(self._done)
        return self._chunks

    def _done(self, task: asyncio.Task[list[RowChunk]]) -> None:
        self._loading.discard(task)
        if not task.cancelled():
            task.exception()  # seen, if nobody waits for it

    async def _read(self) -> list[RowChunk]:
        return await asyncio.to_thread(lambda: list(load_section(self._place, self.section)))


async def _some(tasks: set[asyncio.Task[None]]) -> None:
    """Wait until one of them is done."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks -= done
    errors = [error for task in done if (error := task.exception()) is not None]
    if errors:
        raise errors[0]
