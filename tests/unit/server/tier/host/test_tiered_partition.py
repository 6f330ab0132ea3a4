"""What of a log is to go to the bucket: never more than is committed, and durable here."""

from __future__ import annotations

import pytest

from liftpy_server.tier.host.tiered_partition import further_objects, moved, sure_end, upload_job
from liftpy_server.tier.requests import FurtherObject, LogSlice, UploadJob
from support.nats_frames import msg


@pytest.fixture
def partition(make_kit):
    """Of two batches, of five records each."""
    kit = make_kit()
    for _ in range(2):
        kit.receive(*[msg(b"orders.a", b"%d" % number, reply=b"r") for number in range(5)])
        kit.sync()
    assert kit.partition.high_watermark == 10
    return kit.partition


@pytest.mark.parametrize("mark", range(11))
def test_a_batch_goes_when_all_of_it_is_committed(partition, mark):
    partition.high_watermark = mark
    assert sure_end(partition) == mark
    told = upload_job(partition, 0, 1 << 20)
    assert (0 if told is None else told.end) == mark // 5 * 5


@pytest.mark.parametrize("synced", range(5, 11))
def test_a_batch_goes_when_all_of_it_is_durable_here(partition, synced):
    partition.log.durability.synced_end = synced
    told = upload_job(partition, 0, 1 << 20)
    assert (told.base, told.end) == (0, synced // 5 * 5)


@pytest.fixture
def behind(make_kit):
    """A partition of forty batches, and the size of one."""
    kit = make_kit()
    for number in range(40):
        kit.receive(*[msg(b"orders.a", b"%d" % (number % 10) * 100, reply=b"r") for _ in range(5)])
        kit.sync()
    assert kit.partition.high_watermark == 200
    return kit.partition, kit.partition.log.size_bytes // 40


@pytest.mark.parametrize(("batches", "objects"), [(2, 15), (8, 4), (13, 2), (14, 1), (20, 1), (21, 0), (40, 0)])
def test_further_objects_are_whole_ones_and_few(behind, batches, objects):
    partition, size = behind
    first = upload_job(partition, 0, batches * size)
    assert first.end == 5 * batches
    further = further_objects(partition, first.end, batches * size)
    assert [each.end for each in further] == [5 * batches * (number + 2) for number in range(objects)]
    lengths = [sum(piece.length for piece in each.slices) for each in further]
    assert lengths == [batches * size] * objects


def test_further_objects_hold_nothing_that_is_not_committed(behind):
    partition, size = behind
    partition.high_watermark = 99
    assert [each.end for each in further_objects(partition, 50, 4 * size)] == [70, 90]
    partition.log.durability.synced_end = 70
    assert [each.end for each in further_objects(partition, 50, 4 * size)] == [70]
    partition.log.durability.synced_end = 73  # within a batch
    assert [each.end for each in further_objects(partition, 65, 1)] == [70]


def test_of_what_was_asked_for_only_what_was_moved_counts():
    a, b, c, d = (LogSlice(path=name, position=0, length=1) for name in "abcd")
    further = (FurtherObject(end=5, slices=(c,)), FurtherObject(end=9, slices=(d,)))
    about = {"uuid": "", "partition": 0, "epoch": 0, "epochs": (), "base": 0, "keeps_replies": False}
    asked = UploadJob(**about, end=3, slices=(a, b), further=further)
    assert moved(asked, 3) == (1, (a, b))
    assert moved(asked, 5) == (2, (a, b, c))
    assert moved(asked, 9) == (3, (a, b, c, d))
