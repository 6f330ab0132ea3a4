"""What nobody expected to happen to a replica ends neither the node nor, for ever, the replica."""

from __future__ import annotations

import errno
import os

import pytest

from liftpy_envelope.errors import BatchCorruptError
from liftpy_log.errors import PartitionOfflineError
from liftpy_server.replication.host import local
from support.nats_frames import header_block, msg


def publish(side, number):
    side.kit.receive(msg(b"orders.x", b"v%d" % number, reply=b"r%d" % number))


def with_id(number):
    return msg(b"orders.x", b"v", reply=b"r", headers=header_block(**{"Nats-Msg-Id": f"id-{number}"}))


def breaks(*_args, **_options):
    raise ZeroDivisionError("a bug")


def test_a_follower_goes_on_after_an_error_that_nobody_expected(three, monkeypatch):
    follower = three["b"]
    with monkeypatch.context() as patch:
        patch.setattr(follower.partition, "replicated", breaks)
        publish(three["a"], 0)
        three.run("ab")
        assert follower.partition.log.log_end == 1, "the error came after the log had grown"
    publish(three["a"], 1)
    three.tick(5)
    assert follower.bytes() == three["a"].bytes()
    assert [offset for _, offset in three["a"].kit.offsets()] == [0, 1]


def test_a_replica_that_gave_up_knows_the_ids_of_what_it_had_stored(three, monkeypatch):
    follower = three["b"]
    with monkeypatch.context() as patch:
        patch.setattr(local, "note_batches", breaks)
        three["a"].kit.receive(with_id(1))
        three.run("ab")
        assert follower.partition.log.log_end == 1, "the error came after the log had grown"
    three.tick(5)
    three.lead("b", 2)
    three.run()
    follower.kit.receive(with_id(1))
    three.run()
    assert [(ack["offset"], ack.get("duplicate")) for _, ack in follower.kit.acks()] == [(0, True)]


def test_a_follower_that_fails_again_and_again_tries_again_at_ticks_only(three, monkeypatch):
    monkeypatch.setattr(three["b"].partition, "replicated", breaks)
    publish(three["a"], 0)
    three.run("ab")
    assert three["b"].asked is None


def test_a_replica_that_meets_an_error_as_it_begins_anew_tries_again(three, monkeypatch):
    follower = three["b"]
    with monkeypatch.context() as patch:
        patch.setattr(follower.partition, "replicated", breaks)
        publish(three["a"], 0)
        three.run("ab")
    with monkeypatch.context() as patch:
        patch.setattr(follower.partition, "was_cut", breaks)
        three.tick(1)
    publish(three["a"], 1)
    three.tick(5)
    assert follower.bytes() == three["a"].bytes()
    assert [offset for _, offset in three["a"].kit.offsets()] == [0, 1]


@pytest.mark.parametrize(("code", "is_lasting"), [(errno.EMFILE, False), (errno.ENOMEM, False), (errno.EIO, True)])
def test_ids_that_can_not_be_read_for_a_lack_of_files_are_read_later(three, monkeypatch, code, is_lasting):
    follower, noted = three["b"], []
    follower.partition.note_failure = lambda _why: noted.append(True)
    follower.partition.note_lack = lambda _why: noted.append(False)

    def fails(*_args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local, "note_log", fails)
    three.lead("b", 2)
    three.run()
    assert noted == [is_lasting]


def test_a_node_that_registers_again_goes_on_after_an_error_of_one_replica(three, monkeypatch):
    follower = three["b"]
    with monkeypatch.context() as patch:
        patch.setattr(follower.partition, "was_cut", breaks)
        follower.replica.reset_role()  # the error is not the caller's, who lets the other replicas begin anew, too
        assert follower.replica.core.role is None, "the role of the incarnation before is over"
    publish(three["a"], 0)
    three.tick(5)
    assert follower.bytes() == three["a"].bytes()


def test_a_leader_gives_up_after_an_error_that_nobody_expected_and_may_lead_in_another_epoch(three, monkeypatch):
    leader = three["a"]
    with monkeypatch.context() as patch:
        patch.setattr(leader, "committed", breaks)
        publish(leader, 0)
        three.run()
    assert not leader.partition.is_leading
    leader.kit.sent()
    three.tick(1)
    assert not leader.partition.is_leading, "it may have proposed what the next one of this epoch would not know of"
    three.lead("b", 2)
    three.run()
    three.lead("a", 3)
    three.run()
    publish(leader, 1)
    three.run()
    assert [key for key, _ in leader.kit.offsets()] == [b"r1"]
    assert three["b"].bytes() == three["c"].bytes() == leader.bytes()


def test_a_batch_whose_ids_can_not_be_read_takes_the_follower_offline(three, monkeypatch):
    def is_corrupt(*_args):
        raise BatchCorruptError("told to be")

    monkeypatch.setattr(local, "note_batches", is_corrupt)
    publish(three["a"], 0)
    three.run("ab")
    assert isinstance(three["b"].partition.log.failure, PartitionOfflineError)
    assert three["c"].partition.log.failure is None
