"""Reads ranges in a Python worker: from the bucket what is there, from the node behind it what is not there yet.

Where the one ends and the other begins is looked up by the worker, at the time it reads: objects are merged and
compacted meanwhile, and records move from the disks to the bucket. What comes out are the records of exactly the range
in any case, in order; but for those that compaction has taken away by then.

A streaming query that keeps up reads what the bucket does not have yet. So its tasks ask the node first, which costs a
fraction of what a look at the bucket does; and as long as it has everything, the bucket is not even opened.

Nodes and a bucket that were reached before, and do not answer now, are waited for: reading goes on behind the last
record that came. Where the store is away and the node still has all of the range on its disks, it is read from there.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftpy_spark.connections import lift, open_bucket
from liftpy_spark.errors import (
    BucketError,
    BucketSilentError,
    BucketUnreachableError,
    DataLossError,
    NatsError,
    NatsSilentError,
    this_place,
)
from liftpy_spark.options.offsets import StreamReplacedError
from liftpy_spark.reading.projection import Projection
from liftpy_spark.reading.record_filter import RecordFilter
from liftpy_spark.reading.retry_deadline import RetryDeadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from liftpy_bucket.reading.version import TierVersion
    from liftpy_client.admin.details import StreamDetails
    from liftpy_envelope.errors import LiftError
    from liftpy_spark.connections import BucketAddress, OpenBucket
    from liftpy_spark.options.connection import ConnectionOptions
    from liftpy_spark.options.source import SourceOptions
    from liftpy_spark.reading.cold import Step
    from liftpy_spark.reading.planning import Range

__all__ = ["ReadCounts", "read_ranges"]

logger = logging.getLogger(__name__)

_LOOKS_MAX: Final = 5  # without any progress


@dataclass(slots=True)
class ReadCounts:
    """What was read, counted.

    Attributes:
        bytes: Bytes that were fetched from the bucket, manifests and footers included.
        requests: Requests that were made to the bucket.
        objects: Number of records of objects that were opened there.
        cold_rows: Number of rows that came from the bucket, and were wanted.
        hot_rows: Number of rows that came from nodes, and were wanted.
    """

    bytes: int = 0
    requests: int = 0
    objects: int = 0
    cold_rows: int = 0
    hot_rows: int = 0


def read_ranges(
    ranges: Sequence[Range],
    options: SourceOptions,
    schema: StructType,
    counts: ReadCounts | None = None,
    *,
    asks_nodes: bool = False,
    address: BucketAddress | None = None,
    deadline: RetryDeadline | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of some ranges, one range after the other, with the columns of a schema.

    Args:
        ranges: What to read.
        options: Options of the source.
        schema: Checked schema.
        counts: What was read is added to it, at the end.
        asks_nodes: Whether a node is asked first if it has everything. It is worth it where that is likely.
        address: Address of the bucket, where that is known.
        deadline: Time for which it may be silent.

    Raises:
        DataLossError: records are gone, and that is to be an error.
        BucketError, NatsError: the bucket, or NATS, can not be reached from here, or not any more for a minute.
        LiftError: something is damaged.
    """
    counts = ReadCounts() if counts is None else counts
    deadline = RetryDeadline() if deadline is None else deadline
    bucket = _Bucket(options, address)
    nodes = _Nodes(options.connection) if asks_nodes and bucket.is_wanted else None
    try:
        for each in ranges:
            yield from _RangeReading(each, options, schema, bucket, nodes, counts, deadline).read()
    finally:
        bucket.add_to(counts)
        logger.info("%d ranges: %s", len(ranges), counts)


class _Bucket:
    """The bucket, which is opened when it is needed first.

    Attributes:
        is_away: Whether its store did not answer.
    """

    def __init__(self, options: SourceOptions, address: BucketAddress | None) -> None:
        self._connection = options.connection if options.cold else None
        self._address = address
        self._opened: OpenBucket | None = None
        self.is_away = False
        self._before = (0, 0)

    def open(self) -> OpenBucket | None:
        """None where there is none, or it is not to be read."""
        if self._opened is None and self._connection is not None:
            self._opened = open_bucket(self._connection, self._address)
            if self._opened is None:
                self._connection = None  # nobody need ask again
            else:
                self._before = _spent(self._opened)
        return self._opened

    @property
    def is_wanted(self) -> bool:
        """Whether there may be one."""
        return self._connection is not None

    @property
    def shown(self) -> str:
        """The range, for messages."""
        return "" if self._opened is None else self._opened.shown

    def add_to(self, counts: ReadCounts) -> None:
        """Count what was read of it."""
        if self._opened is not None:
            after = _spent(self._opened)
            counts.bytes += after[0] - self._before[0]
            counts.requests += after[1] - self._before[1]


def _spent(bucket: OpenBucket) -> tuple[int, int]:
    return bucket.store.bytes_in, sum(bucket.store.counts.values())


class _Nodes:
    """What nodes say of streams; each is asked about once, since it only decides where to look first."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._said: dict[str, StreamDetails | None] = {}

    def have_all(self, wanted: Range, offset: int, *, alone: bool) -> bool:
        """Whether a range is with its node from `offset` on, as far as is known.

        Args:
            wanted: Range to read.
            offset: Offset to read from.
            alone: Whether nothing of that is in the bucket, either.
        """
        if wanted.stream not in self._said:
            self._said[wanted.stream] = self._ask(wanted.stream)
        found = self._said[wanted.stream]
        if found is None or found.uuid.replace("-", "") != wanted.uuid:
            return False
        place = next((each for each in found.partitions if each.partition == wanted.partition), None)
        if place is None or place.local_start is None:
            return False
        return max(place.local_start, (place.tiered_end or 0) if alone else 0) <= offset

    def _ask(self, stream: str) -> StreamDetails | None:
        from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError  # noqa: PLC0415

        try:
            return lift(self._connection).stream_info(stream)
        except (AdminError, DisconnectedError, NatsError, NodeUnavailableError) as error:
            logger.info("stream %s: the bucket is looked at, since no node says more: %s", stream, error)
            return None


class _RangeReading:
    """Reads one range."""

    def __init__(
        self,
        wanted: Range,
        options: SourceOptions,
        schema: StructType,
        bucket: _Bucket,
        nodes: _Nodes | None,
        counts: ReadCounts,
        deadline: RetryDeadline,
    ) -> None:
        self._wanted = wanted
        self._options = options
        self._projection = Projection(schema)
        self._chosen = RecordFilter(options.subject, options.key_equals)
        self._bucket = bucket
        self._counts = counts
        self._nodes = nodes
        self._deadline = deadline
        self._at = wanted.start

    def read(self) -> Iterator[pa.RecordBatch]:
        self._deadline.renew()
        looks = 0
        while self._at < self._wanted.end:
            began = self._at
            try:
                yield from self._read_on()
            except (BucketSilentError, BucketUnreachableError, NatsSilentError) as error:
                if self._goes_without_bucket(error):
                    continue
                if not error.retriable:
                    raise
                self._deadline.wait(error)
                continue
            looks = looks + 1 if self._at == began else 0
            if looks >= _LOOKS_MAX:
                raise BucketError(
                    f"the bucket {self._bucket.shown} does not have the objects that its manifests name: stream "
                    f"{self._wanted.stream} partition {self._wanted.partition} can not be read from offset {began} on "
                    f"(by {this_place()}); `liftpy tier verify` says what is missing"
                )

    def _read_on(self) -> Iterator[pa.RecordBatch]:
        """From where it is on what the bucket has, or else up to where the bucket begins or the range ends."""
        version = None if self._is_all_hot() else self._version()
        if version is not None and version.start <= self._at < version.end:
            yield from self._read_cold(version)
            return
        until = self._wanted.end
        if version is not None and self._at < version.start:
            until = min(until, version.start)
        yield from self._read_hot(until)

    def _is_all_hot(self) -> bool:
        alone = not self._bucket.is_away
        return self._nodes is not None and self._nodes.have_all(self._wanted, self._at, alone=alone)

    def _goes_without_bucket(self, error: BucketError | NatsError) -> bool:
        if self._bucket.is_away or not isinstance(error, BucketError):
            return False
        self._bucket.is_away = True
        if not self._is_all_hot():
            return False
        logger.warning("%s; what the nodes still have is read from there", error)
        return True

    def _version(self) -> TierVersion | None:
        bucket = self._bucket.open()
        if bucket is None:
            return None
        from liftpy_bucket.errors import StoreError  # noqa: PLC0415 (needs packages that only buckets need)
        from liftpy_bucket.layout import PartitionPath  # noqa: PLC0415
        from liftpy_bucket.reading.version import open_version  # noqa: PLC0415

        path = PartitionPath(self._wanted.uuid, self._wanted.partition)
        try:
            return open_version(bucket.store, path, offset=self._at, cache=bucket.cache)
        except StoreError as error:
            raise self._bucket_failure(error) from None

    def _bucket_failure(self, error: LiftError) -> BucketError:
        kind = BucketSilentError if error.retriable else BucketError
        return kind(f"the bucket {self._bucket.shown} can not be read from {this_place()}: {error}")

    def _read_cold(self, version: TierVersion) -> Iterator[pa.RecordBatch]:
        from liftpy_bucket.errors import ObjectMissingError, StoreError  # noqa: PLC0415
        from liftpy_spark.reading.cold import ColdReading  # noqa: PLC0415

        wanted = self._wanted
        reading = ColdReading(wanted.stream, wanted.partition, self._projection, self._chosen)
        steps = reading.read(version, self._at, min(wanted.end, version.end))
        try:
            with closing(steps):
                for batch in self._taken(steps):
                    self._counts.cold_rows += batch.num_rows
                    yield batch
        except ObjectMissingError:
            pass  # merged, compacted or collected meanwhile: a newer version names others
        except StoreError as error:
            raise self._bucket_failure(error) from None
        finally:
            self._counts.objects += reading.objects

    def _read_hot(self, until: int) -> Iterator[pa.RecordBatch]:
        from liftpy_client.errors import OffsetLostError  # noqa: PLC0415 (who reads the bucket alone needs no NATS)
        from liftpy_spark.reading.hot import read_hot  # noqa: PLC0415

        rest = self._wanted._replace(start=self._at, end=until)
        steps = read_hot(lift(self._options.connection), rest, self._projection, self._chosen)
        try:
            with closing(steps):
                for batch in self._taken(steps):
                    self._counts.hot_rows += batch.num_rows
                    yield batch
        except OffsetLostError as error:
            if error.log_start <= self._at:
                raise
            lost_end = min(error.log_start, self._wanted.end)
            self._lose(f"the records from {self._at} to {lost_end} are gone (retention or a purge)")
            self._at = lost_end
        except StreamReplacedError as error:
            self._lose(f"{error}")
            self._at = self._wanted.end

    def _taken(self, steps: Iterator[Step]) -> Iterator[pa.RecordBatch]:
        for batch, next_offset in steps:
            if batch is not None:
                yield batch
            self._at = next_offset
            self._deadline.renew()

    def _lose(self, what: str) -> None:
        text = f"stream {self._wanted.stream} partition {self._wanted.partition}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss to false to go on without them")
        logger.warning("%s: reading goes on without them", text)
