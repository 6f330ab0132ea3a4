"""Writing rows and committing them, in batches and streaming queries alike: what tasks do, and what the driver does."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import WriterCommitMessage

from liftpy_bucket.errors import StagingDirectoryError
from liftpy_envelope.ack import AckPolicy
from liftpy_spark.connections import bucket
from liftpy_spark.sink.accounts import forget
from liftpy_spark.sink.commit import StagedRows, commit
from liftpy_spark.sink.contents import RowTally, total_of
from liftpy_spark.sink.directory import DirectoryPlace
from liftpy_spark.sink.errors import SinkModeError, SinkRowError
from liftpy_spark.sink.link import open_link
from liftpy_spark.sink.place import BucketPlace
from liftpy_spark.sink.rows import flushes
from liftpy_spark.sink.staging import exists, place_of, stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from liftpy_bucket.staging.section import RowChunk, Section
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_spark.sink.decision import SinkBatch
    from liftpy_spark.sink.place import StagingPlace
    from liftpy_spark.sink.plan import SinkPlan
    from liftpy_spark.sink.target import Target

__all__ = ["TaskCommit", "abort_rows", "commit_rows", "publish_rows", "stage_rows"]

_IN_FLIGHT: Final = 16  # chunks of one task
_DECISIONS_KEPT: Final = 1_000  # ten times as many batches as Spark keeps in a checkpoint
_FORGETS_OF_256: Final = 4  # batches of which the application's documents are listed, and old ones deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommit(WriterCommitMessage):
    """What a task did.

    Attributes:
        task: Number of the task among those of the batch.
        batch: Batch that it is of; None where it published right away.
        sections: What it staged, in order.
        contents: What its rows come to.
    """

    task: int
    batch: SinkBatch | None = None
    sections: tuple[Section, ...] = ()
    contents: int = 0


def stage_rows(plan: SinkPlan, batch: SinkBatch, rows: Iterable[pa.RecordBatch], task: int) -> TaskCommit:
    """Stage the rows of a task; where one of them does not fit, or there is no room, nothing of it stays.

    Raises:
        SinkRowError: a row can not become a record.
        StagingDirectoryError: the directory does not take them, or is another one than the driver's.
        StoreError: the bucket does not take them.
    """
    place = _seen_place(plan)
    sections: list[Section] = []
    tally = RowTally(plan.layout.subject)
    try:
        for chunks in flushes(rows, plan.layout, plan.options.staging_bytes, task, tally):
            nonce = uuid4().hex
            sections += stage(place, f"{batch.staging_prefix}{task:05d}-{nonce}.arrows", chunks, nonce)
    except (SinkRowError, StagingDirectoryError):
        place.delete(sorted({section.key for section in sections}))  # no abort knows of a task that failed
        raise
    return TaskCommit(task=task, batch=batch, sections=tuple(sections), contents=tally.total)


def publish_rows(plan: SinkPlan, rows: Iterable[pa.RecordBatch], task: int) -> TaskCommit:
    """Publish the rows of a task right away; a task that runs twice publishes them twice.

    Raises:
        SinkRowError: a row can not become a record.
        LiftError: rows can not be published; some may be.
    """
    producer_id = secrets.token_bytes(16)
    with open_link(plan.options.connection) as link:
        target = link.target(plan.options.stream, plan.uuid, plan.window_s, None)
        published = 0
        for chunks in flushes(rows, plan.layout, plan.options.staging_bytes, task):
            published += link.run(_publish(target, chunks, producer_id, published))
    return TaskCommit(task=task)


async def _publish(target: Target, chunks: Iterable[RowChunk], producer_id: bytes, first: int) -> int:
    """Publish chunks, some at a time; all of them are acknowledged when it returns. Returns how many there were."""
    room = asyncio.Semaphore(_IN_FLIGHT)

    async def publish(number: int, chunk: RowChunk) -> None:
        try:
            await target.publish(chunk, producer_id, number)
        finally:
            room.release()

    tasks = []
    count = 0
    try:
        for number, chunk in enumerate(chunks, first):
            count += 1
            await room.acquire()
            tasks.append(asyncio.create_task(publish(number, chunk)))
            if tasks[0].done():
                tasks.pop(0).result()
        for task in tasks:
            await task
        return count
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def commit_rows(plan: SinkPlan, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Have what the tasks staged in the stream, once.

    Raises:
        LiftError: see `liftpy_spark.sink.commit.commit`.
    """
    written = sorted(_written(messages), key=lambda each: each.task)
    staged = StagedRows(
        tuple(section for each in written for section in each.sections), total_of(each.contents for each in written)
    )
    batches = {each.batch for each in written if each.batch is not None}
    if not batches:
        return  # published right away
    (batch,) = batches
    store = _bucket(plan)
    if not staged.sections and not exists(store, batch.decision_key):
        return
    place, nonce = place_of(store, plan.options.staging_directory), uuid4().hex
    with open_link(plan.options.connection) as link:
        target = link.target(
            batch.stream, batch.uuid, plan.window_s, AckPolicy.ALL, store, leaders_read=plan.options.leaders_read
        )
        link.run(commit(batch, staged, store, place, target, nonce, strict=plan.options.fail_on_mismatch))
    if batch.is_single:
        store.delete([batch.decision_key])  # nobody can name it again
        store.delete([batch.done_key])
    elif batch.producer_id(0)[0] < _FORGETS_OF_256:
        forget(batch, _DECISIONS_KEPT, store, nonce)


def abort_rows(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete what the tasks staged, where it is certain that no decision names it.

    Spark also aborts after a commit that failed, which may have decided: then all tasks have told what they did.

    Raises:
        StoreError: it can not be done.
    """
    if all(message is not None for message in messages):
        return
    keys = sorted({section.key for each in _written(messages) for section in each.sections})
    if keys:
        place_of(_bucket(plan), plan.options.staging_directory).delete(keys)


def _written(messages: Iterable[WriterCommitMessage | None]) -> Iterator[TaskCommit]:
    return (message for message in messages if isinstance(message, TaskCommit))


def _seen_place(plan: SinkPlan) -> StagingPlace:
    """Where a task stages; a directory that is not the one of the driver is refused."""
    directory = plan.options.staging_directory
    if directory is None:
        return BucketPlace(_bucket(plan))
    place = DirectoryPlace(directory)
    place.check_seen(plan.marker, plan.driver)
    return place


def _bucket(plan: SinkPlan) -> ObjectStore:
    store = bucket(plan.options.connection)
    if store is None:
        raise SinkModeError("the nodes had a bucket when this write was planned, and have none now")
    return store
