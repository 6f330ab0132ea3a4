"""What goes into the library's core and what comes out of it, by our names; and that only one module knows its own."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import liftpy_server
from liftpy_server.consensus.pysyncobj_core import Core, Hooks, monotonic
from liftpy_server.consensus.settings import RaftSettings
from liftpy_server.consensus.storage.journal import RaftJournal
from support.raft_kit import KEY, VOTERS
from support.simdisk import ROOT, SimDisk

SETTINGS = RaftSettings(node_id="a", voters=VOTERS, folder=ROOT, cluster_key=KEY)


class Wire:
    """Keeps what is sent, and what was on disk by then."""

    def __init__(self, journal):
        self._journal = journal
        self.sent = []

    def send(self, node, message):
        self._journal.flush()
        self.sent.append((node, message["type"], message.get("term"), self._journal.vote))
        return True

    def poll(self, timeout):
        pass


class Holder:
    """A core, and what it asked for."""

    def __init__(self, others=("b", "c")):
        self.disk = SimDisk()
        self.journal = RaftJournal(ROOT, self.disk, Random(1))
        self.wire = Wire(self.journal)
        self.asked = []
        self.core = Core(SETTINGS, others, self.journal, self.wire, Random(1))
        for node in others:
            self.core.track(node)
        names = ("elected", "leading", "leader_changed", "send_log", "take_proposals", "keep_snapshot")
        hooks = {name: self._hook(name) for name in names}
        self.core.hooks = Hooks(may_stand=lambda: True, apply_committed=self._apply, **hooks)

    def _hook(self, name):
        return lambda: self.asked.append((name, self.core.term, self.journal.last))

    def _apply(self):
        self.asked.append(("apply_committed", self.core.applied_index, self.core.commit_index))
        self.core.applied_index = self.core.commit_index

    def tick(self):
        self.asked.clear()
        self.journal.flush()
        self.core.tick(0)

    def lead(self):
        self.core.election_deadline = 0.0
        self.tick()
        self.core.step("b", {"type": "response_vote", "term": self.core.term})
        assert self.core.is_leader


def test_a_vote_for_itself_is_in_the_journal_when_it_asks_for_those_of_others():
    holder = Holder()
    holder.core.election_deadline = 0.0
    holder.tick()
    assert holder.core.is_candidate
    assert sorted(holder.wire.sent) == [("b", "request_vote", 1, "a"), ("c", "request_vote", 1, "a")]
    again = RaftJournal(ROOT, holder.disk.kill())
    assert (again.term, again.vote) == (1, "a")


def test_a_vote_for_another_is_in_the_journal_when_it_is_given():
    holder = Holder()
    question = {"type": "request_vote", "term": 7, "last_log_index": 9, "last_log_term": 6}
    holder.core.step("b", question)
    holder.core.step("c", question)
    assert (holder.wire.sent, holder.core.term) == ([("b", "response_vote", 7, "b")], 7)
    assert RaftJournal(ROOT, holder.disk.kill()).vote == "b"


def test_who_wins_is_asked_before_and_after_its_no_op():
    holder = Holder()
    holder.core.election_deadline = 0.0
    holder.tick()
    holder.asked.clear()
    holder.core.step("b", {"type": "response_vote", "term": 1})
    assert holder.asked == [("elected", 1, 1), ("send_log", 1, 2), ("leading", 1, 2)]
    assert (holder.core.leader, holder.core.no_op_index, holder.core.match_index("b")) == ("a", 2, 0)


def test_what_a_majority_acknowledges_is_committed_and_handed_out_once():
    holder = Holder()
    holder.lead()
    holder.core.step("c", {"type": "next_node_idx", "reset": False, "next_node_idx": 3, "success": True})
    holder.tick()
    assert holder.asked[0] == ("apply_committed", 1, 2)
    assert (holder.core.match_index("c"), holder.core.next_index("c")) == (2, 3)
    holder.tick()
    assert [name for name, *_ in holder.asked] == ["take_proposals", "keep_snapshot"]


def test_who_does_not_vote_is_not_counted():
    holder = Holder()
    holder.lead()
    holder.core.other_voters = {"b"}
    holder.core.step("c", {"type": "next_node_idx", "reset": False, "next_node_idx": 3, "success": True})
    holder.tick()
    assert holder.core.commit_index == 1
    holder.core.forget("c")
    with pytest.raises(KeyError):
        holder.core.match_index("c")


def test_a_leader_that_hears_of_no_majority_steps_down():
    holder = Holder()
    holder.lead()
    later = monotonic() + 4 * SETTINGS.election_timeout_min_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pysyncobj.syncobj.monotonicTime", lambda: later)
        holder.tick()
    assert (holder.core.is_follower, holder.core.leader) == (True, None)


def test_a_leader_is_followed_and_a_newer_term_has_none_yet():
    holder = Holder()
    before = holder.core.election_deadline
    holder.core.hear_leader("b", 3)
    assert (holder.core.leader, holder.core.term, holder.core.is_follower) == ("b", 3, True)
    assert [name for name, *_ in holder.asked] == ["leader_changed"]
    assert holder.core.election_deadline >= before
    assert (holder.journal.last, holder.core.commit_index) == (1, 1)
    holder.core.enter_term(5)
    assert (holder.core.leader, holder.core.term, holder.journal.term) == (None, 5, 5)


def test_what_is_committed_is_never_taken_back():
    holder = Holder()
    holder.core.commit_to(1)
    holder.core.commit_to(0)
    assert holder.core.commit_index == 1


def test_one_module_knows_the_private_names_of_the_library():
    root = Path(liftpy_server.__file__).parent
    knowing = {path.name for path in root.rglob("*.py") if "_SyncObj__" in path.read_text()}
    assert knowing == {"pysyncobj_core.py"}
    importing = {path.parent.name for path in root.rglob("*.py") if "import pysyncobj" in path.read_text()}
    assert importing == {"consensus"}
