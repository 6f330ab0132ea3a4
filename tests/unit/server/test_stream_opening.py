"""Where the log of a partition begins that has no record on this node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy_envelope.stream_config import StreamConfig
from liftpy_log.checkpoint import Checkpoint
from liftpy_log.clock import SystemClock
from liftpy_log.data_dir import DataDir
from liftpy_log.disk import OsDisk
from liftpy_log.files import FileCache
from liftpy_server.committing import Load
from liftpy_server.metadata.state import PartitionInfo, StreamInfo
from liftpy_server.stream_opening import StreamOpening
from support.gap_notes import GapNotes
from support.log_batches import headers_of, with_times

CONFIG = StreamConfig(name="orders", subject="orders.>")
UUID = "ab" * 16


@pytest.fixture
def opening(tmp_path):
    disk, data_dir = OsDisk(), DataDir.open(tmp_path / "data", "n1")
    files = FileCache(disk, 16)
    data_dir.streams_directory.mkdir(parents=True, exist_ok=True)
    yield StreamOpening(
        "n1", disk, files, data_dir, Checkpoint(), SystemClock(), None, Load(), lambda _log: None, GapNotes()
    )
    files.close()
    data_dir.close()


def info(*replicas, **marks):
    partition = PartitionInfo(replicas=replicas, isr=replicas, leader=replicas[0], leader_epoch=10_003, **marks)
    return StreamInfo(uuid=UUID, config=CONFIG, created_ns=1, partitions=(partition,))


def opened(opening, stream):
    local = opening.begin(stream)
    opening.open_partition(local, 0)
    return local.partitions[0]


@pytest.mark.parametrize("replicas", [("n1",), ("n2", "n1")], ids=["alone", "follower"])
@pytest.mark.parametrize("is_made_ahead", [False, True])
@pytest.mark.parametrize(
    ("marks", "begins"),
    [({}, 0), ({"log_start": 5, "local_start": 70}, 70), ({"log_start": 90, "local_start": 70}, 90)],
)
def test_an_empty_log_begins_behind_what_is_in_the_bucket_alone(opening, replicas, is_made_ahead, marks, begins):
    stream = info(*replicas, **marks)
    if is_made_ahead:
        opening.make_names([stream])
    partition = opened(opening, stream)
    log = partition.log
    assert (log.failure, log.log_start, log.log_end, partition.high_watermark) == (None, begins, begins, begins)
    assert [segment.base_offset for segment in log.segments] == [begins]
    log.close()


def test_a_log_with_records_stays_as_it_is(opening):
    stream = info("n1", log_start=5, local_start=70)
    first = opened(opening, stream)
    data = with_times(70, [1, 2, 3], epoch=10_003)
    first.log.append_batches(data, headers_of(data))
    first.log.close()
    partition = opened(opening, replace(stream, version=2))
    assert (partition.log.log_start, partition.log.log_end) == (70, 73)
    partition.log.close()
