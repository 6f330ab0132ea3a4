"""Who is let in of those that know the key, and that operators hear about the others, not too often."""

from __future__ import annotations

import pytest

from liftpy_server.consensus.settings import Voter
from liftpy_server.consensus.wire.admission import PeerRefusedError, check_peer
from liftpy_server.consensus.wire.session import PeerIdentity
from liftpy_server.consensus.wire.transport import Silence

CLUSTER = "c" * 32
OWN = PeerIdentity(CLUSTER, "disk of a", "run of a", 10)
MEMBERS = {"b": Voter("b", "h", 1, "disk of b"), "new": Voter("new", "h", 2)}


def refusal(peer_id, peer, own=OWN, running=None):
    try:
        check_peer(peer_id, peer, own, MEMBERS, running)
    except PeerRefusedError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("peer_id", "peer"),
    [
        ("b", PeerIdentity(CLUSTER, "disk of b", "1", 10)),
        ("b", PeerIdentity("", "disk of b", "1", 1)),  # it does not know its cluster yet
        ("new", PeerIdentity("", "any disk", "1", 1)),  # it is seen for the first time
        ("later", PeerIdentity(CLUSTER, "any disk", "1", 11)),  # it knows of members that this node does not know of
        ("b", PeerIdentity(CLUSTER, "another disk", "1", 11)),  # likewise: that it was removed, and joined again
    ],
)
def test_these_are_let_in(peer_id, peer):
    assert refusal(peer_id, peer) is None


@pytest.mark.parametrize(
    ("peer_id", "peer", "text"),
    [
        ("b", PeerIdentity("d" * 32, "disk of b", "1", 10), "belongs to cluster d"),
        ("b", PeerIdentity(CLUSTER, "another disk", "1", 10), "with another data directory"),
        ("b", PeerIdentity("", "another disk", "1", 1), "with another data directory"),
        ("gone", PeerIdentity(CLUSTER, "any disk", "1", 10), "not a member"),
        ("gone", PeerIdentity("", "any disk", "1", 99), "not a member"),
    ],
)
def test_these_are_not(peer_id, peer, text):
    assert text in refusal(peer_id, peer)


def test_a_second_process_with_a_copy_of_the_data_stays_out():
    peer = PeerIdentity(CLUSTER, "disk of b", "second", 10)
    assert "connected already, by another process" in refusal("b", peer, running="first")
    assert refusal("b", peer, running="second") is None


def test_a_node_that_was_away_since_its_first_minute_takes_the_members_of_now():
    own = PeerIdentity("", "disk of a", "1", 1)
    assert refusal("later", PeerIdentity(CLUSTER, "disk", "1", 11), own) is None
    assert "not a member" in refusal("later", PeerIdentity("", "disk", "1", 11), own)


def test_silence_counts_while_this_node_listens():
    silence = Silence(100.0)
    for now in (100.2, 100.4):
        silence.listened(now)
    silence.heard("b", 100.4)
    silence.listened(100.6)
    assert (silence.silent_s("b"), silence.silent_s("never")) == (pytest.approx(0.2), pytest.approx(0.6))
    silence.listened(160.6)  # this node was stopped for a minute
    assert (silence.silent_s("b"), silence.silent_s("never")) == (pytest.approx(0.2), pytest.approx(0.6))
    silence.heard("b", 160.6)
    silence.listened(160.8)
    assert (silence.silent_s("b"), silence.silent_s("never")) == (pytest.approx(0.2), pytest.approx(0.8))
