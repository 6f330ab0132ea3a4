"""A voter fed by hand: what it makes of its leader's log, of votes, and of what must never be."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from unittest.mock import patch

import pytest
from pysyncobj import syncobj

from liftpy_server import consensus
from liftpy_server.consensus import leader
from liftpy_server.consensus.follower import RaftBrokenError
from liftpy_server.consensus.membership import Membership, encode_change
from liftpy_server.consensus.proposals import Reason
from liftpy_server.consensus.settings import Voter
from liftpy_server.consensus.storage.journal import RaftJournal
from support.raft_kit import VOTERS, Ours, append, entries


@pytest.fixture
def voter(tmp_path):
    made = Ours(tmp_path)
    yield made
    made.close()


def answer(voter):
    """(next index, success) of the last answer to a leader."""
    message = voter.hand.of_kind("next_node_idx")[-1]
    return message["next_node_idx"], message["success"]


def test_a_follower_follows(voter):
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1), commit=3))
    voter.tick(0)
    assert (answer(voter), voter.applied) == ((6, True), [b"x2", b"x3"])
    voter.hand.deliver("b", append(1, (5, 1), commit=5))
    voter.tick(0)
    assert voter.applied == [b"x2", b"x3", b"x4", b"x5"]


def test_a_conflict_is_cut_off_and_a_gap_is_told(voter):
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 9, 1), commit=3))
    voter.hand.deliver("c", append(2, (5, 1), entries(6, 7, 2)))
    assert (answer(voter), voter.log[4:]) == ((8, True), [(5, 1), (6, 2), (7, 2)])
    voter.hand.deliver("c", append(2, (20, 2), entries(21, 21, 2)))
    assert answer(voter) == (8, False)
    voter.hand.deliver("c", append(3, (7, 3)))
    assert answer(voter) == (6, False)  # a term at a time


def test_only_what_was_verified_is_committed(voter):
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 9, 1)))
    voter.hand.deliver("c", append(2, (4, 1), commit=9))
    assert voter.commit_index == 4


def test_a_committed_entry_is_never_cut_off(voter):
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1), commit=5))
    with pytest.raises(RaftBrokenError, match="another entry 4"):
        voter.hand.deliver("c", append(2, (3, 1), entries(4, 4, 2)))
    with pytest.raises(RaftBrokenError, match="another entry 5"):
        voter.hand.deliver("c", append(2, (5, 2)))


def test_two_leaders_of_a_term_stop_the_node(voter):
    voter.lead()
    with pytest.raises(RaftBrokenError, match="both lead term"):
        voter.hand.deliver("c", append(voter.term, (1, 0)))


def test_entries_from_before_the_log_are_taken_as_known(tmp_path):
    voter = Ours(tmp_path, snapshot_every_entries=5)
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 20, 1), commit=20))
    voter.tick(0)
    voter.write_snapshot()
    assert voter.log[0] == (19, 1)
    voter.hand.deliver("b", append(1, (5, 1), entries(6, 10, 1), commit=20))
    assert answer(voter) == (11, True)
    voter.hand.deliver("b", append(1, (10, 1), entries(11, 25, 1), commit=25))
    voter.tick(0)
    assert (answer(voter), len(voter.applied), voter.log[-1]) == ((26, True), 24, (25, 1))


def test_who_is_no_member_is_not_heard(voter):
    voter.hand.deliver("x", {"type": "pre_vote", "term": 9, "last_log_index": 9, "last_log_term": 9})
    voter.hand.deliver("x", {"type": "request_vote", "term": 9, "last_log_index": 9, "last_log_term": 9})
    voter.hand.deliver("x", {"type": "apply_command", "command": b"\0x", "request_id": 1})
    voter.tick(0)
    assert (voter.term, voter.log, voter.hand.sent) == (0, [(1, 0)], [])


def test_who_is_no_member_is_heard_as_a_leader(voter):
    """It may have been made one by entries that are still to come."""
    voter.hand.connect("x")
    voter.hand.deliver("x", append(9, (1, 0), entries(2, 5, 9), commit=5))
    voter.tick(0)
    assert (voter.term, voter.log[-1], voter.leader_id) == (9, (5, 9), "x")


def test_nothing_is_sent_before_it_is_durable(voter):
    order = []
    flush, send = voter._journal.flush, voter.hand.send
    voter.hand.before_send = lambda: (order.append("flush"), flush())
    with patch.object(voter.hand, "sent", order):
        voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1)))
        send_at = next(position for position, what in enumerate(order) if what != "flush")
    assert order[send_at - 1] == "flush"
    assert voter._journal._durable_last == 5
    assert send == voter.hand.send


def test_a_leader_does_not_count_itself_before_it_is_durable(tmp_path):
    voter = Ours(tmp_path, others=())
    voter.lead()
    with patch.object(RaftJournal, "flush", side_effect=KeyboardInterrupt):
        voter.propose(b"x")
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                voter.tick(0)
    assert voter.applied == []
    voter.close()


def test_proposals_that_wait_share_a_transaction_and_a_message(voter):
    voter.lead()
    acknowledge(voter, "b")
    before, sent = voter._journal.flushes, len(voter.hand.of_kind("append_entries"))
    for number in range(100):
        voter.propose(b"%d" % number)
    voter.tick(0)
    assert voter._journal.flushes == before + 1
    messages = voter.hand.of_kind("append_entries")[sent:]
    assert sum(len(message["entries"]) for message in messages) == 100
    assert len(messages) <= 2


def test_a_vote_counts_once(tmp_path):
    voters = (*VOTERS, Voter("d", "127.0.0.1", 1), Voter("e", "127.0.0.1", 2))
    voter = Ours(tmp_path, others="bcde", voters=voters)
    voter._core.election_deadline = 0
    voter.hand.connect("b")
    voter.tick(0)
    for node in "bc":
        voter.hand.deliver(node, {"type": "pre_vote_response", "term": 1})
    voter._core.election_deadline = 0
    voter.tick(0)
    for _ in range(3):
        voter.hand.deliver("b", {"type": "response_vote", "term": 1})
    assert not voter.is_leader
    voter.hand.deliver("c", {"type": "response_vote", "term": 1})
    assert voter.is_leader


def test_a_node_does_not_stand_before_a_majority_would_vote_for_it(voter):
    voter.hand.connect("b", "c")
    voter._core.election_deadline = 0
    for _ in range(3):
        voter.tick(0)
    assert [message["term"] for message in voter.hand.of_kind("pre_vote")] == [1, 1]
    assert (voter.term, voter.hand.of_kind("request_vote")) == (0, [])
    voter.hand.deliver("x", {"type": "pre_vote_response", "term": 1})
    voter.hand.deliver("b", {"type": "pre_vote_response", "term": 7})
    voter.tick(0)
    assert voter.term == 0


def asks(voter, **fields):
    """Whether a node that asks first is told that it would get this vote."""
    question = {"type": "pre_vote", "term": 9, "last_log_index": 9, "last_log_term": 8} | fields
    before = len(voter.hand.of_kind("pre_vote_response"))
    voter.hand.deliver("c", question)
    return len(voter.hand.of_kind("pre_vote_response")) > before


def test_nobody_is_encouraged_while_there_is_a_leader(voter):
    assert asks(voter)
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1)))
    assert not asks(voter)
    voter._elections._heard_leader_at = 0.0
    assert asks(voter)
    assert asks(voter, term=1)  # it must stand to hear of the newer term
    assert not asks(voter, last_log_term=1, last_log_index=4)
    assert asks(voter, last_log_term=1, last_log_index=5)


def test_who_loses_the_connection_of_the_leader_asks_at_once(voter):
    voter.hand.connect("b", "c")
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1)))
    voter.hand.disconnect("c")
    voter.tick(0)
    assert (asks(voter), voter.hand.of_kind("pre_vote")) == (False, [])
    voter.hand.disconnect("b")
    assert asks(voter)
    voter.tick(0)
    assert [message["term"] for message in voter.hand.of_kind("pre_vote")] == [2, 2]
    assert voter.term == 1
    voter.hand.deliver("c", {"type": "pre_vote_response", "term": 2})
    voter.tick(0)
    assert (voter.term, len(voter.hand.of_kind("request_vote"))) == (2, 2)


def test_who_has_lost_the_leader_gives_way_when_it_is_heard_again(voter):
    voter.hand.connect("b", "c")
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1)))
    voter.hand.disconnect("b")
    voter.hand.deliver("b", append(1, (5, 1)))
    voter.tick(0)
    assert (asks(voter), voter.hand.of_kind("pre_vote")) == (False, [])


def test_who_may_follow_a_leader_asks_in_turn(tmp_path):
    voter = Ours(tmp_path, others="bc", node_id="c")
    voter.hand.connect("a", "b")
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 5, 1)))
    before = syncobj.monotonicTime()
    voter.hand.disconnect("b")
    turn_s = voter._elections._timeout_min_s / 5
    assert before + turn_s <= voter._core.election_deadline <= syncobj.monotonicTime() + turn_s


def test_a_leader_encourages_nobody(voter):
    voter.lead()
    assert not asks(voter)


def test_answers_that_can_not_come_any_more_are_given_up(voter):
    answers = []
    voter.hand.connect("b")
    voter.hand.deliver("b", append(1, (1, 0)))
    voter.propose(b"x", lambda result, reason: answers.append(reason))
    voter.tick(0)
    assert (len(voter.hand.of_kind("apply_command")), answers) == (1, [])
    voter.hand.disconnect(voter.leader_id)
    assert answers == [Reason.LEADER_CHANGED]


def test_a_closed_voter_takes_no_command(tmp_path):
    voter = Ours(tmp_path)
    voter.close()
    answers = []
    voter.propose(b"x", lambda result, reason: answers.append(reason))
    voter.wake()
    assert answers == [Reason.MISSING_LEADER]


def changed(op, name, index):
    return encode_change(op, Voter(name, "127.0.0.1", 1)), index, 1


def test_voters_follow_the_log_forwards_and_backwards():
    membership = Membership(VOTERS)
    membership.record([changed("add", "d", 5), (b"\0x", 6, 1), changed("rem", "a", 7)])
    assert set(membership.voters()) == {"b", "c", "d"}
    assert set(membership.voters(6)) == {"a", "b", "c", "d"}
    membership.truncate(7)
    assert set(membership.voters()) == {"a", "b", "c", "d"}
    membership.compact(6)
    membership.truncate(5)
    assert set(membership.voters()) == {"a", "b", "c", "d"}
    membership.reset(VOTERS, (), 10)
    membership.record([changed("add", "d", 9), (b"\2garbage", 11, 1), changed("rem", "b", 12)])
    assert set(membership.voters()) == {"a", "c"}


def test_a_learner_is_bound_to_its_data_and_votes_later():
    membership = Membership(VOTERS)
    membership.record([changed("learn", "d", 5)])
    assert (set(membership.voters()), set(membership.members().learners)) == (set("abc"), {"d"})
    bound = Voter("d", "127.0.0.1", 1, "first disk")
    membership.record([(encode_change("bind", bound), 6, 1)])
    membership.record([(encode_change("bind", Voter("d", "127.0.0.1", 1, "second disk")), 7, 1)])
    membership.record([(encode_change("set", Voter("d", "elsewhere", 2)), 8, 1), changed("add", "d", 9)])
    voter = membership.voters()["d"]
    assert (voter.host, voter.port, voter.instance) == ("elsewhere", 2, "first disk")
    assert (membership.members().learners, membership.index) == ({}, 9)
    membership.record([changed("rem", "d", 10), changed("learn", "d", 11)])
    assert membership.members().learners["d"].instance == ""


def test_refused_changes():
    membership = Membership(VOTERS)
    five = Membership([*VOTERS, Voter("d", "h", 1), Voter("e", "h", 2)])
    one = Membership(VOTERS[:1])
    assert membership.refusal(changed("add", "d", 0)[0]) is None
    assert five.refusal(changed("learn", "f", 0)[0]) is None
    assert "votes already" in membership.refusal(changed("add", "b", 0)[0])
    assert "a member already" in membership.refusal(changed("learn", "b", 0)[0])
    assert "5 voters" in five.refusal(changed("add", "f", 0)[0])
    assert "the only one" in one.refusal(changed("rem", "a", 0)[0])
    assert "no member" in membership.refusal(changed("rem", "d", 0)[0])
    assert membership.refusal(b"\2garbage") == "malformed"


def test_an_uncommitted_change_counts_also_after_a_restart(tmp_path):
    voter = Ours(tmp_path)
    voter.hand.deliver("b", append(1, (1, 0), [changed("add", "d", 2), changed("rem", "c", 3)]))
    assert voter._core.other_voters == {"b", "d"}
    voter.close()
    voter = Ours(tmp_path)
    assert voter._core.other_voters == {"b", "d"}
    voter.hand.deliver("d", append(2, (2, 1), entries(3, 3, 2)))
    assert voter._core.other_voters == {"b", "c", "d"}
    voter.close()


def test_a_removed_voter_does_not_stand(voter):
    voter.hand.connect("b")
    voter.hand.deliver("b", append(1, (1, 0), [changed("rem", "a", 2)]))
    voter._core.election_deadline = 0
    voter._elections._heard_leader_at = 0
    voter.tick(0)
    assert voter.hand.of_kind("pre_vote") == []


@pytest.mark.parametrize("entry", [b"\x03\x80\x04K\x01.", b"\xff", b"\1more", b"\0" + bytes(1 << 20), b"\2garbage"])
def test_a_leader_takes_no_entry_that_is_none(tmp_path, entry):
    voter = Ours(tmp_path, others=())
    voter.lead()
    answers = []
    voter.submit(entry, lambda result, reason: answers.append(reason))
    voter.tick(0)
    assert (answers, voter.log[-1][0]) == ([Reason.REQUEST_DENIED], 2)
    voter.close()


def test_all_deadlines_are_by_the_clock_of_the_library(monkeypatch):
    """It is not `time.monotonic`, and on machines that have been up for long the two are seconds apart."""
    monkeypatch.setattr(syncobj, "monotonicTime", lambda: 12.5)
    modules = [import_module(found.name) for found in walk_packages(consensus.__path__, f"{consensus.__name__}.")]
    clocks = {module.__name__: module.monotonic for module in modules if callable(getattr(module, "monotonic", None))}
    assert len(clocks) >= 4
    assert {name for name, clock in clocks.items() if clock() != 12.5} == set()


def followed(voter, *changes):
    """Bring changes of members into the log, as a leader's."""
    log = [(encode_change(*change), index, 1) for index, change in enumerate(changes, 2)]
    voter.hand.deliver("b", append(max(1, voter.term), (1, 0), log))
    voter._elections._heard_leader_at = 0.0


def gets_vote(voter):
    before = len(voter.hand.of_kind("response_vote"))
    question = {"type": "request_vote", "term": voter.term + 1, "last_log_index": 99, "last_log_term": 9}
    voter.hand.deliver("c", question)
    return len(voter.hand.of_kind("response_vote")) > before


def test_a_learner_votes_once_it_knows_that_it_is_meant(voter):
    """Who asks may have the entry by which it votes, and need it; its name alone may be one that another disk had."""
    own = replace(VOTERS[0], instance="")
    followed(voter, ("rem", own), ("learn", own))
    assert not asks(voter)
    assert not gets_vote(voter)
    followed(voter, ("rem", own), ("learn", own), ("bind", VOTERS[0]))
    assert not voter._peers.is_voter
    assert asks(voter)
    assert gets_vote(voter)


def test_one_of_its_name_that_had_another_disk_votes_not_and_stands_not(voter):
    own = replace(VOTERS[0], instance="another disk")
    followed(voter, ("rem", own), ("learn", own), ("bind", own), ("add", own))
    assert not asks(voter)
    assert not gets_vote(voter)
    voter._core.election_deadline = 0
    voter.tick(0)
    assert voter.hand.of_kind("pre_vote") == []


def test_a_learner_is_let_vote_when_it_has_the_entries_that_make_it_a_member(voter):
    """Before, it would not vote, and its vote is needed from the moment on when it is added."""
    voter.lead()
    voter.propose(b"x")
    voter.tick(0)
    learner = Voter("d", "127.0.0.1", 9)
    acknowledge(voter, "b")
    voter.submit(encode_change("learn", learner), lambda result, reason: None)
    voter.tick(0)
    voter.hand.connect("d")
    acknowledge(voter, "b")
    bound_at = voter._membership.index
    assert [each.instance for each in voter.learners] == ["disk of d"]
    acknowledge(voter, "d", bound_at - 1)
    assert [each.node_id for each in voter.learners] == ["d"]
    acknowledge(voter, "d", bound_at)
    assert (voter.learners, len(voter.voters)) == ((), 4)


def acknowledge(voter, name, index=None):
    """All of its log, or up to an entry."""
    index = voter._journal.last if index is None else index
    fields = {"next_node_idx": index + 1, "reset": False, "success": True}
    voter.hand.deliver(name, {"type": "next_node_idx", "term": voter.term} | fields)
    for _ in range(3):
        voter.tick(0)


def test_a_leader_of_a_term_that_is_over_is_told_and_steps_down(tmp_path):
    """Who stood in vain has the newer term: without a word it would follow nobody, and nobody would vote for it."""
    (tmp_path / "behind").mkdir()
    behind = Ours(tmp_path / "behind")
    behind.hand.deliver("c", append(7, (1, 0)))
    behind.hand.deliver("b", append(3, (1, 0), entries(2, 5, 3)))
    assert behind.log == [(1, 0)]
    told = behind.hand.of_kind("next_node_idx")[-1]
    assert (told["term"], told["success"]) == (7, False)
    voter = Ours(tmp_path)
    voter.lead()
    voter.hand.deliver("c", told)
    assert (voter.is_leader, voter.term, voter.leader_id) == (False, 7, None)
    for each in (voter, behind):
        each.close()


def test_a_follower_that_must_go_back_is_not_sent_what_comes_after(tmp_path, monkeypatch):
    """Its answers to later messages, "that is all I have", undid its answer to the first, and it went back for ever."""
    monkeypatch.setattr(leader, "_BATCH_BYTES", 1)
    voter = Ours(tmp_path, heartbeat_s=1e-9)
    voter.hand.deliver("c", append(1, (1, 0), entries(2, 9, 1)))
    voter._elections._heard_leader_at = 0.0
    voter.lead()
    fields = {"type": "next_node_idx", "term": voter.term}
    voter.hand.deliver("b", fields | {"next_node_idx": 4, "reset": True, "success": False})
    voter.hand.sent.clear()
    for _ in range(3):
        voter.tick(0)
    assert {message["prevLogIdx"] for message in voter.hand.of_kind("append_entries")} == {3}
    voter.hand.deliver("b", fields | {"next_node_idx": 5, "reset": False, "success": True})
    voter.hand.sent.clear()
    voter.tick(0)
    assert [message["prevLogIdx"] for message in voter.hand.of_kind("append_entries")] == [4, 5, 6, 7, 8, 9]
    voter.close()
