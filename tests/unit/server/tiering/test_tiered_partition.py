"""What of a log is to go to the bucket: never more than is committed, and durable here."""

from __future__ import annotations

import pytest

from liftpy_server.tiering.tiered_partition import sure_end, upload_arguments
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
    told = upload_arguments(partition, 0, 1 << 20)
    assert (0 if told is None else told["end"]) == mark // 5 * 5


@pytest.mark.parametrize("synced", range(5, 11))
def test_a_batch_goes_when_all_of_it_is_durable_here(partition, synced):
    partition.log.synced_end = synced
    told = upload_arguments(partition, 0, 1 << 20)
    assert (told["base"], told["end"]) == (0, synced // 5 * 5)
