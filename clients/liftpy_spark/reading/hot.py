"""Records from the node that leads a partition: what the bucket does not have yet, or all where there is none."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from liftpy_client.consumer.decode import EXTRA_COLUMNS
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import DisconnectedError, NodeUnavailableError, NoStreamError, StreamGoneError
from liftpy_spark.connections import nats_failure
from liftpy_spark.errors import NatsError, NoSuchStreamError, ReadStalledError
from liftpy_spark.heads import heads
from liftpy_spark.options.offsets import StreamReplacedError
from liftpy_spark.reading.cold import Step

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import TracebackType

    from liftpy_client.sync.client import SyncLift
    from liftpy_client.sync.consumer import SyncConsumer
    from liftpy_spark.reading.planning import Range
    from liftpy_spark.reading.projection import Projection
    from liftpy_spark.reading.record_filter import RecordFilter

__all__ = ["read_hot"]

_STALL_S: Final = 60.0
_COMMITTED_S: Final = 15.0  # a new leader has to find out what is committed
_PAUSE_S: Final = 0.2
_TIMES: Final = ("timestamp", "timestamp_ns")
_TIME_US: Final = pa.timestamp("us", "UTC")


def read_hot(
    lift: SyncLift, wanted: Range, projection: Projection, chosen: RecordFilter, *, stall_s: float = _STALL_S
) -> Generator[Step]:
    """The records of a range.

    Args:
        lift: A connection.
        wanted: The range.
        projection: What columns are wanted.
        chosen: Filter that says which records are wanted.
        stall_s: Time for which nothing may come, seconds.

    Raises:
        OffsetLostError: the range begins before the first offset there is.
        StreamReplacedError: the stream is another one by now, or gone.
        NatsError, ReadStalledError: nobody answers.
        LiftError: as from a consumer.
    """
    try:
        consumer = lift.consume_batches(
            wanted.stream,
            start={wanted.partition: wanted.start},
            stop=wanted.end,
            partitions=[wanted.partition],
            subjects=list(chosen.subjects) or None,
            options=ConsumeOptions(extra_columns=tuple(each for each in EXTRA_COLUMNS if each in projection.columns)),
        )
        with consumer:
            _check(lift, wanted, consumer)
            for records in _watched(consumer, wanted, stall_s):
                next_offset = records.column("offset")[-1].as_py() + 1
                yield Step(_shaped(records, wanted, projection, chosen), next_offset)
    except (NoStreamError, NoSuchStreamError, StreamGoneError):
        raise StreamReplacedError(wanted.stream, wanted.uuid, None) from None
    except (NodeUnavailableError, DisconnectedError) as error:
        raise nats_failure(error) from None
    yield Step(None, wanted.end)


def _shaped(
    records: pa.RecordBatch, wanted: Range, projection: Projection, chosen: RecordFilter
) -> pa.RecordBatch | None:
    columns: dict[str, Any] = {
        name: records.column(name) for name in {*projection.columns, *chosen.columns} if name not in _TIMES
    }
    if "timestamp_ns" in projection.columns:
        columns["timestamp_ns"] = records.column("timestamp").cast(pa.int64())
    if "timestamp" in projection.columns:
        columns["timestamp"] = records.column("timestamp").cast(_TIME_US, safe=False)
    if "subject" in columns:
        columns["subject"] = columns["subject"].cast(pa.binary())
    rows = records.num_rows
    mask = chosen.mask(columns)
    if mask is not None and mask.true_count < rows:
        rows = mask.true_count
        columns = {name: array.filter(mask) for name, array in columns.items()}
    return projection.apply(columns, rows, wanted.stream, wanted.partition) if rows else None


def _check(lift: SyncLift, wanted: Range, consumer: SyncConsumer[pa.RecordBatch]) -> None:
    """See that the stream is the one that was planned for, and that all of the range is there.

    What the consumer was told when it began says so mostly; nobody has to be asked again.

    Raises:
        StreamReplacedError: it is another stream.
        NoSuchStreamError: it is gone.
        NatsError: it ends before the range does.
    """
    found = consumer.stream_uuid()
    if found != wanted.uuid:
        raise StreamReplacedError(wanted.stream, wanted.uuid, found)
    if consumer.lag().get(wanted.partition, 0) >= wanted.end - wanted.start:
        return
    until_s = time.monotonic() + _COMMITTED_S
    while True:
        (now,) = heads(lift, [wanted.stream])
        if now.uuid != wanted.uuid:
            raise StreamReplacedError(wanted.stream, wanted.uuid, now.uuid)
        end = now.partitions[wanted.partition].end
        if end >= wanted.end:
            return
        if time.monotonic() >= until_s:
            raise NatsError(
                f"stream {wanted.stream} partition {wanted.partition} ends at {end}; when this was planned it went to "
                f"{wanted.end} at least: an unclean election has lost records, or the cluster was restored from its "
                "bucket; plan anew"
            )
        time.sleep(_PAUSE_S)


def _watched(consumer: SyncConsumer[pa.RecordBatch], wanted: Range, stall_s: float) -> Iterator[pa.RecordBatch]:
    """What a consumer brings.

    Raises:
        ReadStalledError: nothing came for too long.
    """
    with _Watch(consumer, stall_s) as watch:
        batches = iter(consumer)
        while True:
            watch.begin()
            batch = next(batches, None)
            watch.end()
            if batch is None:
                break
            yield batch
    if watch.has_stalled:
        raise ReadStalledError(
            f"stream {wanted.stream} partition {wanted.partition}: nothing came for {stall_s:g} s, though there are "
            f"records up to {wanted.end}: does its leader answer? `liftpy status` shows it"
        )


class _Watch:
    """Closes a consumer that is waited for too long; waiting for whoever takes its records does not count.

    Args:
        consumer: Consumer that is watched.
        stall_s: How long is too long.

    Attributes:
        has_stalled: Whether it did so.
    """

    def __init__(self, consumer: SyncConsumer[pa.RecordBatch], stall_s: float) -> None:
        self._consumer = consumer
        self._stall_s = stall_s
        self._since_s: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liftpy hot watch", daemon=True)
        self.has_stalled = False

    def begin(self) -> None:
        """Something is waited for."""
        self._since_s = time.monotonic()

    def end(self) -> None:
        """It is there."""
        self._since_s = None

    def _run(self) -> None:
        while not self._over.wait(self._stall_s / 10):
            since_s = self._since_s
            if since_s is not None and time.monotonic() - since_s > self._stall_s:
                self.has_stalled = True
                self._consumer.close()
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
