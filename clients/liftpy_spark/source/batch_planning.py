"""What the tasks of a batch read, asked of the nodes. Tasks have no need of it, and do not import it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from liftpy_spark.connections import bucket_address, lift
from liftpy_spark.heads import find_streams, heads, offsets_at_time
from liftpy_spark.reading.planning import BatchTask, plan
from liftpy_spark.source.bounds import assigned, batch_ranges, ends, starts

if TYPE_CHECKING:
    from liftpy_spark.options.source import SourceOptions

__all__ = ["plan_batch"]


def plan_batch(options: SourceOptions) -> list[BatchTask]:
    """All tasks; none where there is nothing to read.

    Raises:
        LiftError: the streams can not be found, or have not what the options ask for.
    """
    connection = lift(options.connection)
    found = assigned(heads(connection, find_streams(connection, options)), options.assign)
    at_time = partial(offsets_at_time, connection)
    assert options.ending is not None, "a batch ends somewhere"
    ranges = batch_ranges(
        starts(options.starting, found, at_time, late_is_latest=options.late_is_latest),
        ends(options.ending, found, at_time),
        found,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    tasks = plan(ranges, tasks_max=options.max_tasks, partitions_min=options.min_partitions)
    bucket = bucket_address(options.connection) if tasks and options.cold else None
    return [BatchTask(task, bucket) for task in tasks]
