"""Whoever has read what a restored cluster does not have is told where it goes on; who has not goes on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_client.consumer.divergence import check_lineage, leader_epochs
from liftpy_client.consumer.positions import Position
from liftpy_client.errors import LogDivergedError, PullError
from liftpy_envelope.bodies import pack_body
from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.pull import EpochEndResponse, EpochEndResult, PartitionKey

UUID = b"u" * 16
PLACE = SimpleNamespace(name="orders", key=lambda number: PartitionKey(UUID, number))


class Leader:
    """Says of each partition where an epoch ended, and which one that was."""

    def __init__(self, *ends, error=ErrorCode.NONE):
        self.ends = ends
        self.error = error
        self.asked = []

    async def request(self, _api, body):
        self.asked += body.queries
        results = [
            EpochEndResult(PartitionKey(UUID, number), self.error, "", *end) for number, end in enumerate(self.ends)
        ]
        return SimpleNamespace(result=pack_body(EpochEndResponse(tuple(results))))


def positions(*read):
    return {number: Position(offset, None, epoch=epoch) for number, (offset, epoch) in enumerate(read)}


@pytest.mark.parametrize("epoch", [3, -1])  # the leader knows the bucket's history, or not yet
@pytest.mark.parametrize("read_epoch", [3, 4])  # of which the bucket has something, or nothing
async def test_what_was_read_beyond_the_recovery_point_is_lost(epoch, read_epoch):
    leader = Leader((-1, 0), (epoch, 60))
    read = positions((0, 1), (75, read_epoch))
    with pytest.raises(LogDivergedError) as caught:
        await check_lineage(leader, PLACE, read, [0, 1])
    error = caught.value
    assert (error.stream, error.partition, error.position, error.offset, error.epoch) == (
        "orders",
        1,
        75,
        60,
        read_epoch,
    )
    text = str(error)
    assert all(each in text for each in ("orders", "partition 1", "offset 74", "offset 60", "restored from its bucket"))
    assert leader.asked == [((UUID, 0), 1), ((UUID, 1), read_epoch)]


async def test_what_was_read_up_to_the_recovery_point_is_there():
    await check_lineage(Leader((3, 60), (-1, 60)), PLACE, positions((60, 3), (59, 3)), [0, 1])


async def test_a_leader_that_can_not_tell_is_asked_again():
    with pytest.raises(PullError) as caught:
        await check_lineage(Leader((-1, -1), error=ErrorCode.NOT_LEADER), PLACE, positions((60, 3)), [0])
    assert caught.value.code is ErrorCode.NOT_LEADER


async def test_answers_to_other_questions_are_refused():
    with pytest.raises(FrameError, match="2 partitions were asked for"):
        await check_lineage(Leader((3, 60)), PLACE, positions((60, 3), (59, 3)), [0, 1])
    with pytest.raises(FrameError, match="1 partitions were asked for"):
        await leader_epochs(Leader((3, 60), (3, 60)), PLACE, [0])
