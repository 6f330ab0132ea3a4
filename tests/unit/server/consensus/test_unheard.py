"""A node knows for how long it has heard of no leader that a majority follows."""

from __future__ import annotations

import pytest

from liftpy_server.consensus import elections
from liftpy_server.consensus.settings import Voter
from liftpy_server.consensus.wire.transport import Silence
from support.raft_kit import Ours, append


@pytest.fixture
def voter(tmp_path):
    made = Ours(tmp_path)
    made.hand.silence = Silence(0.0)
    yield made
    made.close()


def listens(voter, until_s, *heard):
    """Time passes, and these are heard at its end."""
    for tenths in range(int(voter.hand.silence._listened * 10), int(until_s * 10) + 1):
        voter.hand.silence.listened(tenths / 10)
    for node in heard:
        voter.hand.silence.heard(node, until_s)


def test_a_follower_goes_by_its_leader(voter):
    voter.hand.deliver("b", append(1, (1, 0)))
    listens(voter, 5.0, "b")
    assert voter.unheard_s() == 0
    listens(voter, 8.0, "c")
    assert voter.unheard_s() == 3


def test_who_knows_no_leader_has_not_heard_of_one_since_the_last(voter, monkeypatch):
    monkeypatch.setattr(elections, "monotonic", lambda: 1_000.0)
    assert voter.unheard_s() == 1_000


def test_a_leader_counts_with_those_that_it_hears(voter):
    voter.lead()
    listens(voter, 5.0, "b", "c")
    assert voter.unheard_s() == 0
    listens(voter, 8.0, "c")
    assert voter.unheard_s() == 0
    listens(voter, 10.0)
    assert voter.unheard_s() == 2


def test_two_of_four_others_are_needed(tmp_path):
    names = ("b", "c", "d", "e")
    voters = tuple(Voter(name, "127.0.0.1", 1000 + number, f"disk of {name}") for number, name in enumerate("abcde"))
    voter = Ours(tmp_path, names, voters=voters)
    voter.hand.silence = Silence(0.0)
    voter.lead("bc")
    listens(voter, 5.0, "b", "c")
    listens(voter, 6.0, "d")
    assert voter.unheard_s() == 1
    voter.close()


def test_who_is_alone_is_its_own_majority(tmp_path):
    voter = Ours(tmp_path, ())
    voter.hand.silence = Silence(0.0)
    voter.lead()
    listens(voter, 50.0)
    assert voter.unheard_s() == 0
    voter.close()
