"""A leader that may have been deposed without hearing of it does not refuse what its successor may store."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import AckErrorCode
from support.nats_frames import msg
from support.replica_kit import ReplicaKit


@pytest.fixture
def make(tmp_path):
    made = []

    def make_kit(nodes: str = "abc", **settings) -> ReplicaKit:
        made.append(ReplicaKit(tmp_path, nodes, **settings))
        made[-1].lead("a", 1)
        made[-1].run()
        return made[-1]

    yield make_kit
    for kit in made:
        kit.close()


def publish(side, *names):
    side.kit.receive(*(msg(b"orders.x", b"v", reply=name) for name in names))
    side.kit.sync()


def lags(kit):
    """Nothing arrives at the others for longer than a leader waits for them."""
    for _ in range(60):
        kit.now_s += 0.2
        kit["a"].replica.tick(0.0)
    assert not kit["a"].partition.is_accepting


def test_it_says_nothing_of_what_it_can_not_commit(make):
    kit = make()
    a = kit["a"]
    publish(a, b"waits")
    a.is_cut_off = True
    lags(kit)
    publish(a, b"new")
    a.kit.outbox.flush()
    assert a.kit.sent() == []
    assert a.kit.stream.counters.refused == {AckErrorCode.NOT_ENOUGH_REPLICAS.name.lower(): 1}
    a.is_cut_off = False
    publish(a, b"later")
    assert a.kit.errors() == [(b"later", AckErrorCode.NOT_ENOUGH_REPLICAS)]


def test_whoever_waits_for_a_commit_on_the_node_itself_is_told_that_the_outcome_is_unknown(make):
    kit, told = make(), []
    publish(kit["a"], b"waits")
    kit["a"].partition.on_committed(1, told.append)
    kit["a"].is_cut_off = True
    lags(kit)
    assert told == ["outcome unknown: fewer replicas than min_isr are in sync"]


def test_nor_of_what_it_alone_has(make):
    kit = make(ack_policy="leader")
    kit["a"].is_cut_off = True
    publish(kit["a"], b"r")
    assert kit["a"].kit.sent() == []
    kit["a"].is_cut_off = False
    publish(kit["a"], b"s")
    assert [reply for reply, _ in kit["a"].kit.offsets()] == [b"s"]


def test_what_is_committed_is_acknowledged(make):
    """Nobody else can have led when every member of the in-sync set had it, in this epoch."""
    kit = make()
    kit["a"].is_cut_off = True
    publish(kit["a"], b"r")
    kit.run()
    assert kit["a"].kit.offsets() == [(b"r", 0)]


def test_the_only_replica_has_no_successor(make):
    kit = make("a")
    kit["a"].is_cut_off = True
    kit["a"].kit.stream.paused = True
    publish(kit["a"], b"r")
    assert kit["a"].kit.errors() == [(b"r", AckErrorCode.PAUSED)]
