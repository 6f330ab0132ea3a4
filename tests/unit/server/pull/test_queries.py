"""Where offsets and epochs are: of what is committed, and with an error for what is not here or not well."""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.pull import EARLIEST, LATEST
from liftpy_log.errors import PartitionOfflineError
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_server.pull.queries import epoch_ends, offsets
from support.nats_frames import msg
from support.server_kit import NOW_NS, UUID

SECOND = 10**9


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


def ask(kit, *questions):
    return asyncio.run(offsets([[UUID, 0, question] for question in questions], lambda _: kit.partition))


def test_where_offsets_are(filled):
    assert ask(filled, EARLIEST, LATEST) == [[UUID, 0, 0, "", 2, 7], [UUID, 0, 0, "", 10, 7]]


@pytest.mark.parametrize(
    ("after_s", "offset"),
    [(-5, 2), (0, 2), (2, 2), (2.5, 3), (3, 3), (8.999, 9), (9, 9), (9.5, 10), (10, 10), (50, 10)],
)
def test_where_a_time_is(filled, after_s, offset):
    assert [offset] == [row[4] for row in ask(filled, NOW_NS + int(after_s * SECOND))]


def test_first_moment_of_all(filled):
    assert [row[4] for row in ask(filled, 0)] == [2]


def test_times_in_an_empty_partition(kit):
    assert [row[4] for row in ask(kit, EARLIEST, LATEST, NOW_NS)] == [0, 0, 0]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_STREAM, ErrorCode.NOT_LEADER])
def test_partition_that_is_not_here(code):
    ((*_, error, message, offset, epoch),) = asyncio.run(offsets([[UUID, 0, LATEST]], lambda _: code))
    assert (code, True, -1, -1) == (error, bool(message), offset, epoch)
    ((*_, error, message, epoch, end),) = epoch_ends([[UUID, 0, 3]], lambda _: code)
    assert (code, True, -1, -1) == (error, bool(message), epoch, end)


def test_partition_that_is_offline(filled):
    filled.log.durability.fail("told to")
    assert ask(filled, LATEST) == [[UUID, 0, ErrorCode.PARTITION_OFFLINE, "told to", -1, 7]]


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
    rows = epoch_ends([[UUID, 0, epoch] for epoch in (0, 6, 7, 8, 9, 11, 12, 99)], lambda _: kit.partition)
    expected = [(-1, 0), (-1, 0), (7, 3), (7, 3), (9, 5), (9, 5), (12, 9), (12, 9)]
    assert expected == [tuple(row[4:]) for row in rows]


def test_where_epochs_end_of_a_log_that_is_offline(kit):
    kit.receive(msg(b"orders.a", b"v"))
    kit.partition.log = PartitionLog.offline(kit.disk, kit.files, kit.log.directory, PartitionOfflineError("told to"))
    ((*_, error, message, epoch, end),) = epoch_ends([[UUID, 0, 7]], lambda _: kit.partition)
    assert (error, message, epoch, end) == (ErrorCode.PARTITION_OFFLINE, "told to", -1, -1)


@pytest.mark.parametrize("ask_any", [offsets, epoch_ends])
@pytest.mark.parametrize(
    "body", [None, 5, [5], [[UUID, 0]], [[UUID, 0, "x"]], [[b"short", 0, 1]], [[UUID, -1, 1]], [[UUID, 0, -3]]]
)
def test_malformed_question(kit, ask_any, body):
    async def ask_it():
        answer = ask_any(body, lambda _: kit.partition)
        return await answer if asyncio.iscoroutine(answer) else answer

    with pytest.raises(FrameError):
        asyncio.run(ask_it())


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
    rows = await offsets([[UUID, 0, NOW_NS + SECOND]] * 100, lambda _: filled.partition)
    other.cancel()
    assert [row[4] for row in rows] == [2] * 100
    assert len(others) >= 20


@pytest.mark.parametrize(
    ("code", "error", "fails"),
    [(errno.EMFILE, ErrorCode.NOT_AVAILABLE, False), (errno.EIO, ErrorCode.PARTITION_OFFLINE, True)],
)
def test_a_log_that_can_not_be_read_now(filled, monkeypatch, code, error, fails):
    def fail(_timestamp):
        raise OSError(code, "told to")

    monkeypatch.setattr(filled.log, "offset_at_time", fail)
    assert [row[2] for row in ask(filled, NOW_NS)] == [error]
    assert (filled.log.failure is not None) is fails
