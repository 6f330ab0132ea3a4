"""Objects of which one row group is written by another thread while the rows of the next one come."""

from __future__ import annotations

import io
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from liftpy_bucket.errors import ObjectCorruptError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.merging import Source, merge
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_server.tier.jobs.parts.object_buffer import ObjectBuffer
from support.tier_rows import UUID, plain_records, rows_from, written

PATH = PartitionPath(UUID, 0)
WAIT_S = 10.0
ROWS = [rows_from(plain_records(10, base=base)) for base in range(0, 200, 10)]
GROUP_BYTES = 3_000


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Sink(io.BytesIO):
    """Calls a hook before each write of another thread."""

    def __init__(self, before=lambda: None):
        super().__init__()
        self.owner = threading.get_ident()
        self.before = before

    def write(self, data):
        if threading.get_ident() != self.owner:
            self.before()
        return super().write(data)


def merged(sink, rows, pool, row_group_bytes=GROUP_BYTES):
    source = Source("the log", rows, None)
    options = {"keeps_replies": False, "record_hash": RecordHash.XXH3, "row_group_bytes": row_group_bytes}
    return merge([source], sink, path=PATH, nonce="n", pool=pool, **options)


def test_it_is_the_object_that_one_thread_writes(pool):
    sink = Sink()
    result = merged(sink, ROWS, pool)
    options = {"uuid": PATH.uuid, "partition": PATH.partition, "record_hash": RecordHash.XXH3}
    body, alone = written(ROWS, row_group_bytes=GROUP_BYTES, **options)
    assert sink.getvalue() == body
    assert result == alone


def test_in_memory_it_is_the_object_that_is_written_to_a_file():
    rows = [rows_from(plain_records(500, size=1_000, base=base)) for base in (0, 500)]
    size = {"row_group_bytes": 300_000}
    body, to_file = written(rows, uuid=PATH.uuid, partition=PATH.partition, record_hash=RecordHash.XXH3, **size)
    with mmap.mmap(-1, 2 * len(body)) as memory:
        buffer = ObjectBuffer(memory)
        result = merged(buffer, rows, None, **size)
        with buffer.body() as content:
            assert content == body
        assert result == to_file


def test_rows_are_taken_while_a_row_group_is_written(pool):
    taken, met = threading.Event(), []

    def rows():
        yield from ROWS[:3]  # one row group, and the beginning of the next one
        taken.set()
        yield from ROWS[3:]

    merged(Sink(lambda: met.append(taken.wait(WAIT_S))), rows(), pool)
    assert met
    assert all(met)


def test_nothing_is_written_any_more_when_it_has_failed(pool):
    begun, goes_on = threading.Event(), threading.Event()
    sink = Sink(lambda: (begun.set(), goes_on.wait(WAIT_S)))

    def rows():
        yield from ROWS[:3]
        assert begun.wait(WAIT_S)
        threading.Timer(0.2, goes_on.set).start()
        yield ROWS[0]  # does not follow on those before

    with pytest.raises(ObjectCorruptError, match="do not ascend"):
        merged(sink, rows(), pool)
    assert goes_on.is_set(), "who asked may use the memory for something else now"


def test_a_sink_that_takes_no_more_is_told(pool):
    def fail():
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        merged(Sink(fail), ROWS, pool)


def test_an_object_of_one_row_group_needs_nobody_else(pool):
    def fail():
        raise AssertionError("another thread wrote")

    merged(Sink(fail), ROWS[:1], pool)
