"""A log with keys on a simulated disk, beside a plain list of all records that were ever appended to it."""

from __future__ import annotations

from typing import NamedTuple

from liftpy_envelope.batch import HEADER_SIZE, compress_body, decode_records, encode_body, read_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import nullable_column, values_column
from liftpy_log.compaction.compact import CompactionConfig, CompactionPlan, compact, plan_compaction
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.files import FileCache
from support.log_model import DIRECTORY, T0

SEED = bytes(range(32))
SUBJECT = b"orders.eu"


class Record(NamedTuple):
    offset: int
    time: int
    epoch: int
    key: bytes | None
    value: bytes | None
    headers: bytes | None
    message_id: bytes | None


def body_with(records, compression=None):
    """A body of (key, value, headers, message id); columns that would be empty are not there."""
    columns, bitmap = [values_column([SUBJECT] * len(records))], Column.SUBJECT
    bits = (Column.KEY, Column.HEADERS, Column.VALUE, Column.MESSAGE_ID)
    for bit, position in zip(bits, (0, 2, 1, 3), strict=True):
        values = [record[position] for record in records]
        if any(value is not None for value in values) or bit == Column.VALUE:
            columns.append(nullable_column(values))
            bitmap |= bit
    body = encode_body(len(records), bitmap, columns)
    return compress_body(body, compression) if compression else body


def batches_of(data):
    """(header, records) of batches that follow on one another."""
    position = 0
    while position < len(data):
        header = read_header(data, position)
        body = data[position + HEADER_SIZE : position + header.length]
        records = decode_records(header, body)
        records.validate(full=True)
        yield header, records
        position += header.length


def records_of(header, records):
    """The records of a batch."""
    count, columns = header.record_count, header.columns

    def column(bit, name, default):
        return records.column(name).to_pylist() if columns & bit else default

    deltas = column(Column.OFFSET_DELTA, "offset_delta", range(count))
    times = column(Column.TIMESTAMP, "timestamp", [header.base_timestamp] * count)
    nothing = [None] * count
    assert records.column("subject").to_pylist() == [SUBJECT] * count
    rows = zip(
        deltas,
        times,
        column(Column.KEY, "key", nothing),
        column(Column.VALUE, "value", nothing),
        column(Column.HEADERS, "headers", nothing),
        column(Column.MESSAGE_ID, "message_id", nothing),
        strict=True,
    )
    found = [Record(header.base_offset + delta, time, header.leader_epoch, *rest) for delta, time, *rest in rows]
    assert all(header.base_offset <= record.offset < header.next_offset for record in found)
    if found:
        assert (found[0].time, found[-1].time) == (header.base_timestamp, header.max_timestamp)
    return found


class KeyedLog:
    """See the module.

    Attributes:
        appended: every record, by offset; what the log shows is a part of it.
    """

    def __init__(self, disk, segment_bytes=1_500, appended=None, **given):
        self.disk = disk
        self.config = LogConfig(segment_bytes=segment_bytes)
        self.appended = list(appended or [])
        self.now = self.appended[-1].time if self.appended else T0
        self.epoch = self.appended[-1].epoch if self.appended else 0
        self.files = FileCache(disk, 4)
        self.log = PartitionLog.open(disk, self.files, DIRECTORY, self.config, **given)

    def found_on(self, disk, **given):
        """The log as a process finds it that starts on this disk."""
        other = KeyedLog(disk, self.config.segment_bytes, self.appended, **given)
        del other.appended[other.log.log_end :]
        other.now, other.epoch = self.now, self.epoch
        return other

    def append(self, *records, compression=None):
        """Append a batch of (key, value, headers, message id), the last two of which may be missing."""
        full = [(*record, None, None)[:4] for record in records]
        base = self.log.log_end
        self.log.append(body_with(full, compression), leader_epoch=self.epoch, timestamp=self.now)
        for offset, (key, value, headers, message_id) in enumerate(full, base):
            self.appended.append(Record(offset, self.now, self.epoch, key, value, headers, message_id))

    def fill(self, batches, keys=5, per_batch=3):
        """Append batches whose keys come round again."""
        for _ in range(batches):
            self.now += 10**9
            base = self.log.log_end
            self.append(*((b"k%d" % (number % keys), b"v%d" % number) for number in range(base, base + per_batch)))
        return self

    def commit(self):
        """Make everything durable."""
        tail, _ = self.log.durability.sync_target()
        self.files.get(tail.segment).sync()
        self.log.durability.mark_synced(tail.next_offset)

    def plan(self, config=None, limit=None, now=None):
        """A plan for all that may be compacted, due or not."""
        config = config or self.compaction()
        limit = self.log.log_end if limit is None else limit
        now = self.now if now is None else now
        plan = plan_compaction(self.log.compaction, limit, now, config)
        if plan is None:
            log = self.log.compaction
            segments = [
                segment
                for segment in log.sealed_segments()
                if segment.next_offset <= limit and segment.max_timestamp <= now - config.min_lag_ns
            ]
            plan = CompactionPlan(log.directory, tuple(segments), log.load_cleaned(), log.cuts, now)
        return plan if plan.segments else None

    def compaction(self, **given):
        usual = {"dedupe_window_ns": 0, "segment_bytes": self.config.segment_bytes, "min_dirty_ratio": 0.0}
        return CompactionConfig(**(usual | given))

    def compact(self, config=None, limit=None, now=None, owner=None, pause=lambda _: None):
        """Run a pass; None when there is nothing to do."""
        config = config or self.compaction()
        plan = self.plan(config, limit, now)
        if plan is None:
            return None
        return compact(self.disk, plan, config, owner or self.log.compaction, seed=SEED, pause=pause)

    def data(self, start=None):
        start = self.log.log_start if start is None else start
        if start == self.log.log_end:
            return b""
        slices = self.log.read(start, self.log.log_end, 2**62)
        assert slices[-1].next_offset == self.log.log_end
        return b"".join(
            self.disk.content(each.segment.path)[each.position : each.position + each.length] for each in slices
        )

    def shown(self, start=None):
        """The records that a reader gets."""
        start = self.log.log_start if start is None else start
        found, offset = [], None
        for header, records in batches_of(self.data(start)):
            assert offset in {None, header.base_offset}, "batches follow on one another"
            offset = header.next_offset
            found += [record for record in records_of(header, records) if record.offset >= start]
        return found

    def check_structure(self):
        """Check what must hold of any log, with holes or without."""
        log = self.log
        shown = self.shown()
        assert all(record == self.appended[record.offset] for record in shown), "a record changed"
        offsets = [record.offset for record in shown]
        assert offsets == sorted(set(offsets))
        assert log.epochs.entries == self.epochs(), "epochs"
        for offset in range(log.log_start, log.log_end, max(1, (log.log_end - log.log_start) // 4)):
            assert self.shown(offset) == [record for record in shown if record.offset >= offset], "a read from there"
        times = sorted({record.time for record in shown})
        for time in times[:: max(1, len(times) // 4)]:
            found = log.offset_at_time(time)
            first = next(record for record in shown if record.time >= time)
            assert found == first.offset or (found == log.log_start and shown[0] == first)
        if times:
            assert log.offset_at_time(times[-1] + 1) is None

    def epochs(self):
        """(epoch, first offset of it that is not below the start of the log)."""
        entries = {}
        for record in self.appended[self.log.log_start : self.log.log_end]:
            entries.setdefault(record.epoch, record.offset)
        return list(entries.items())


def last_of_keys(records):
    """The last record of every key, and all that have none."""
    last = {record.key: record.offset for record in records if record.key is not None}
    return [record for record in records if record.key is None or last[record.key] == record.offset]
