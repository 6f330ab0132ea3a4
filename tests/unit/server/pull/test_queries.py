"""Where offsets and epochs are: of what is committed, and with an error for what is not here or not well."""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import (
    EARLIEST,
    LATEST,
    EpochEndQuery,
    EpochEndRequest,
    OffsetQuery,
    OffsetsRequest,
    PartitionKey,
)
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_server.pull.queries import epoch_ends, offsets
from support.nats_frames import msg
from support.server_kit import NOW_NS, UUID

SECOND = 10**9
KEY = PartitionKey(UUID, 0)


@pytest.fixture
def filled(make_kit):
    """Ten committed records, one a second, of which the first two were purged, and two more to come."""
    kit = make_kit(log=LogConfig(segment_bytes=500))
    for _ in range(10):
        kit.receive(msg(b"orders.a", b"v"))
        kit.clock.advance(1)
    kit.sync()
    kit.log.purge(2)
    kit.log.config = LogConfig()
    kit.receive(msg(b"orders.a", b"v"), msg(b"orders.a", b"v"))
    return kit


def about(*questions):
    return OffsetsRequest(tuple(OffsetQuery(KEY, question) for question in questions))


def ends(*epochs):
    return EpochEndRequest(tuple(EpochEndQuery(KEY, epoch) for epoch in epochs))


def ask(kit, *questions):
    return asyncio.run(offsets(about(*questions), lambda _: kit.partition)).results


def test_where_offsets_are(filled):
    assert ask(filled, EARLIEST, LATEST) == ((KEY, 0, "", 2, 7), (KEY, 0, "", 10, 7))


@pytest.mark.parametrize(
    ("after_s", "offset"),
    [(-5, 2), (0, 2), (2, 2), (2.5, 3), (3, 3), (8.999, 9), (9, 9), (9.5, 10), (10, 10), (50, 10)],
)
def test_where_a_time_is(filled, after_s, offset):
    assert [offset] == [row.offset for row in ask(filled, NOW_NS + int(after_s * SECOND))]


def test_first_moment_of_all(filled):
    assert [row.offset for row in ask(filled, 0)] == [2]


def test_times_in_an_empty_partition(kit):
    assert [row.offset for row in ask(kit, EARLIEST, LATEST, NOW_NS)] == [0, 0, 0]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_STREAM, ErrorCode.NOT_LEADER])
def test_partition_that_is_not_here(code):
    ((*_, error, message, offset, epoch),) = asyncio.run(offsets(about(LATEST), lambda _: code)).results
    assert (code, True, -1, -1) == (error, bool(message), offset, epoch)
    ((*_, error, message, epoch, end),) = epoch_ends(ends(3), lambda _: code).results
    assert (code, True, -1, -1) == (error, bool(message), epoch, end)


def test_partition_that_is_offline(filled):
    filled.log.durability.fail("told to")
    assert ask(filled, LATEST) == ((KEY, ErrorCode.PARTITION_OFFLINE, "told to", -1, 7),)


def test_damage_met_on_the_way(filled):
    for segment in filled.log.segments:
        segment._index = None
        for path in segment.path.parent.glob(f"{segment.path.stem}.*"):
            path.write_bytes(bytes(path.stat().st_size))
    ((*_, error, message, offset, _),) = ask(filled, NOW_NS + 5 * SECOND)
    assert (error, "damaged" in message, offset) == (ErrorCode.PARTITION_OFFLINE, True, -1)
    assert filled.log.failure is not None


def test_where_epochs_end(kit):
    for epoch, count in ((7, 3), (9, 2), (12, 4)):
        kit.partition.lead(epoch)
        kit.receive(*[msg(b"orders.a", b"v")] * count)
    rows = epoch_ends(ends(0, 6, 7, 8, 9, 11, 12, 99), lambda _: kit.partition).results
    expected = [(-1, 0), (-1, 0), (7, 3), (7, 3), (9, 5), (9, 5), (12, 9), (12, 9)]
    assert expected == [row[3:] for row in rows]


def test_where_epochs_end_of_a_log_that_is_offline(kit):
    kit.receive(msg(b"orders.a", b"v"))
    kit.partition.log = PartitionLog.offline(kit.disk, kit.files, kit.log.directory, PartitionOfflineError("told to"))
    ((*_, error, message, epoch, end),) = epoch_ends(ends(7), lambda _: kit.partition).results
    assert (error, message, epoch, end) == (ErrorCode.PARTITION_OFFLINE, "told to", -1, -1)


async def test_many_questions_leave_the_event_loop_to_others(filled, monkeypatch):
    """Ten thousand times looked up in a row held up a node's heartbeats and acks for seconds."""
    look, others = filled.log.offset_at_time, []

    def look_slowly(timestamp):
        time.sleep(0.002)
        return look(timestamp)

    monkeypatch.setattr(filled.log, "offset_at_time", look_slowly)

    async def do_something_else():
        while True:
            others.append(time.monotonic())
            await asyncio.sleep(0)

    other = asyncio.create_task(do_something_else())
    found = await offsets(about(*[NOW_NS + SECOND] * 100), lambda _: filled.partition)
    other.cancel()
    assert [result.offset for result in found.results] == [2] * 100
    assert len(others) >= 20


@pytest.mark.parametrize(
    ("code", "error", "fails"),
    [(errno.EMFILE, ErrorCode.NOT_AVAILABLE, False), (errno.EIO, ErrorCode.PARTITION_OFFLINE, True)],
)
def test_a_log_that_can_not_be_read_now(filled, monkeypatch, code, error, fails):
    def fail(_timestamp):
        raise OSError(code, "told to")

    monkeypatch.setattr(filled.log, "offset_at_time", fail)
    assert [row.error for row in ask(filled, NOW_NS)] == [error]
    assert (filled.log.failure is not None) is fails
