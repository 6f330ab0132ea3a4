"""A replica knows up to when its log holds all that was published: as the leader, and as one that may be the next."""

from __future__ import annotations

import pytest

from liftpy_server.gaps.whole import Whole
from support.nats_frames import msg
from support.replica_kit import ReplicaKit


@pytest.fixture
def replicas(tmp_path):
    kit = ReplicaKit(tmp_path)
    kit.lead("a", 1)
    kit.run()
    yield kit
    kit.close()


def publish(side, count):
    side.kit.receive(*(msg(b"orders.a", b"v") for _ in range(count)))


def test_a_leader_is_whole_as_far_as_nats_answered_it(replicas):
    leader = replicas["a"].replica
    publish(replicas["a"], 3)
    assert leader.whole_end(5.0) is None
    leader.partition.heard_s = 5.0
    assert (leader.whole_end(5.0), leader.whole_end(6.0)) == (3, None)
    leader.partition.gaps.open(4.0, "lost")
    assert leader.whole_end(5.0) is None
    leader.partition.gaps.close()
    assert leader.whole_end(5.0) is None, "nobody else knows of the gap yet"
    leader.partition.gaps.were_recorded(leader.partition.gaps.unrecorded())
    assert leader.whole_end(5.0) == 3
    assert replicas["b"].replica.whole_end(5.0) is None


def test_a_deposed_leader_knows_what_it_had(replicas):
    partition = replicas["a"].partition
    publish(replicas["a"], 3)
    partition.heard_s = 5.0
    replicas.lead("b", 2)
    assert (partition.whole.newest(3), partition.heard_s) == (Whole(5.0, 3), None)


def test_what_a_deposed_leader_told_is_not_believed_of_anothers_records(replicas):
    """Two records that b never got were replaced by two others."""
    publish(replicas["a"], 1)
    replicas.run()
    follower = replicas["b"].replica
    assert follower.is_agreed
    for at_s, end in ((5.0, 1), (6.0, 3)):
        follower.partition.whole.note(at_s, end, follower.log.log_end)
    replicas.lead("c", 2)
    publish(replicas["c"], 2)
    replicas.run()
    assert follower.log.log_end == 3
    assert follower.partition.whole.newest(3) == Whole(5.0, 1)


def test_what_is_cut_off_was_never_whole(replicas):
    publish(replicas["a"], 3)
    replicas["a"].kit.sync()
    partition = replicas["a"].partition
    partition.heard_s = 5.0
    replicas.lead("b", 2)
    publish(replicas["b"], 4)
    replicas.run()
    assert partition.log.log_end == 4
    assert partition.whole.newest(4) is None


def test_what_is_cut_off_leaves_what_was_committed(replicas):
    publish(replicas["a"], 1)
    replicas.run()
    replicas["a"].kit.sync()
    replicas.run()
    partition = replicas["a"].partition
    assert partition.high_watermark == 1
    partition.heard_s = 5.0
    partition.note_whole()
    publish(replicas["a"], 2)
    replicas["a"].kit.sync()
    partition.heard_s = 6.0
    replicas.lead("b", 2)
    publish(replicas["b"], 4)
    replicas.run()
    assert partition.log.log_end == 5
    assert partition.whole.newest(5) == Whole(5.0, 1)
