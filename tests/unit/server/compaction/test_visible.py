"""Whatever is appended, compacted, killed and started again: readers get the last record of every key."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from liftpy_client.consumer.decode import split_body, trim
from liftpy_envelope.batch import decode_records
from liftpy_envelope.columns import Column
from liftpy_envelope.pull import FetchPartition, FetchRequest
from liftpy_log.compaction.compact import CompactionConfig, compact, plan_compaction
from liftpy_log.compaction.write import SegmentWriter
from liftpy_log.partition_log import LogConfig
from liftpy_server.pull.session import FetchSession
from support.envelopes import batch
from support.examples import examples
from support.nats_frames import header_block, msg
from support.server_kit import Kit

SETTINGS = {"compact": True, "dedupe_window_s": 0.0}
KEYS = [None, b"a", b"b", b"c", b"dd"]


class KilledError(BaseException):
    """The process ended here."""


class Life:
    """A partition whose process may end at any time, and all that was published to it."""

    def __init__(self, directory, codec):
        self.directory = directory
        self.settings = SETTINGS | {"compression": codec}
        self.published = []
        self.kit = self.started()

    def started(self):
        kit = Kit(self.directory, log=LogConfig(segment_bytes=2_000), **self.settings)
        kit.clock.advance(len(self.published))
        return kit

    def restart(self):
        self.kit.close()
        self.kit = self.started()

    def publish(self, keys, *, as_batch):
        values = [b"%d " % number + bytes(40) for number in range(len(self.published), len(self.published) + len(keys))]
        if as_batch:
            self.kit.receive(msg(b"orders.a", batch(values, keys=keys)))
        else:
            for key, value in zip(keys, values, strict=True):
                headers = None if key is None else header_block(Lift_Key=key.decode())
                self.kit.receive(msg(b"orders.a", value, headers=headers))
        self.published += zip(keys, values, strict=True)
        self.kit.clock.advance(1)
        self.kit.sync()

    def compact(self, killed_after=None):
        """Run a pass; it may be killed when it has read so many times."""
        log = self.kit.log
        config = CompactionConfig(dedupe_window_ns=0, min_dirty_ratio=0.0, segment_bytes=6_000)
        plan = plan_compaction(log.compaction, self.kit.partition.high_watermark, self.kit.clock.now_ns(), config)
        if plan is None:
            return
        left = killed_after

        def pause(_):
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    raise KilledError

        with patch.object(SegmentWriter, "discard", SegmentWriter._close):  # a dead process tidies up nothing
            try:
                compact(self.kit.disk, plan, config, log.compaction, seed=bytes(32), pause=pause)
            except KilledError:
                self.restart()

    def read(self, start, bytes_max):
        """Offset, key and value of what a consumer gets from an offset on."""
        session = FetchSession(lambda _key: self.kit.partition)
        session.apply(FetchRequest(bytes_max, 0, (FetchPartition(self.kit.partition.key, start),), ()))
        end, found = start, []
        while end < self.kit.partition.high_watermark:
            (news,) = session.collect(bytes_max)
            for piece in news.slices:
                data = piece.segment.path.read_bytes()[piece.position : piece.position + piece.length]
                for header, body in split_body(pa.py_buffer(data), 0, piece.length):
                    wanted = trim(header, body, start, None)
                    records = decode_records(header, body)
                    has_key = header.columns & Column.KEY
                    keys = records.column("key").to_pylist() if has_key else [None] * records.num_rows
                    values = records.column("value").to_pylist() if records.num_rows else []
                    deltas = range(records.num_rows)
                    if header.columns & Column.OFFSET_DELTA:
                        deltas = records.column("offset_delta").to_pylist()
                    rows = zip(deltas, keys, values, strict=True)
                    rows = [(header.base_offset + delta, key, value) for delta, key, value in rows]
                    found += rows[wanted.first : wanted.last]
                    end = header.next_offset
        return found

    def check(self, start, bytes_max):
        found = self.read(start, bytes_max)
        everything = [(offset, key, value) for offset, (key, value) in enumerate(self.published)]
        assert set(found) <= set(everything[start:]), "what is there is what was published, where it was"
        assert [row[0] for row in found] == sorted({row[0] for row in found})
        last = {key: offset for offset, key, _ in everything if key is not None}
        needed = {row for row in everything[start:] if row[1] is None or last[row[1]] == row[0]}
        assert needed <= set(found)


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=30), st.booleans()),
    st.tuples(st.just("compact"), st.none() | st.integers(0, 12)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("check"), st.floats(0, 1), st.sampled_from([1, 500, 1_000_000])),
)


@given(st.lists(STEPS, max_size=25), st.sampled_from(["none", "lz4"]))
@examples(60)
def test_readers_get_every_last_record(steps, codec):
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory), codec)
        for name, *arguments in steps:
            if name == "publish":
                life.publish(arguments[0], as_batch=arguments[1])
            elif name == "compact":
                life.compact(*arguments)
            elif name == "restart":
                life.restart()
            else:
                life.check(int(arguments[0] * life.kit.partition.high_watermark), arguments[1])
        life.compact()
        life.check(0, 1_000_000)
        sealed_end = life.kit.log.active.base_offset
        below = [row for row in life.read(0, 1_000_000) if row[0] < sealed_end and row[1] is not None]
        assert len({key for _, key, _ in below}) == len(below), "of every key one record is left"
        life.kit.close()
