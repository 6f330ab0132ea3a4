"""The handshake and the frames of two voters: proven at both ends, bound to one connection, and bounded before that."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import FrameError, FrameTooLargeError
from liftpy_server.consensus.wire.session import FRAME_BYTES_MAX, NONCE_BYTES, PeerIdentity, PeerSession

KEY = b"k" * 32


def session(node_id, wanted=None, key=KEY, nonce=b"n"):
    return PeerSession(node_id=node_id, wanted=wanted, key=key, nonce=nonce * NONCE_BYTES)


def pair(dialer_key=KEY, acceptor_key=KEY, nonces=(b"1", b"2")):
    return session("b", "a", dialer_key, nonces[0]), session("a", None, acceptor_key, nonces[1])


def said(one):
    data = bytes(one.outgoing)
    one.outgoing.clear()
    return data


def shake(dialer, acceptor):
    """Returns everything the dialer said."""
    hello = said(dialer)
    acceptor.receive(hello)
    dialer.receive(said(acceptor))
    answer = said(dialer)
    acceptor.receive(answer)
    return hello, answer


def framed(payload):
    return struct.pack("<I", len(payload)) + payload


@pytest.mark.parametrize("key", [KEY, None])
def test_both_ends_know_each_other_and_exchange_frames(key):
    dialer, acceptor = pair(key, key)
    shake(dialer, acceptor)
    assert (dialer.is_ready, acceptor.is_ready, dialer.peer_id, acceptor.peer_id) == (True, True, "a", "b")
    assert acceptor.receive(dialer.seal(b"one") + dialer.seal(b"")) == [b"one", b""]
    assert dialer.receive(acceptor.seal(b"two")) == [b"two"]


def test_each_end_learns_what_the_other_says_of_itself():
    mine, theirs = PeerIdentity("c" * 32, "disk", "run", 7), PeerIdentity("", "other disk", "other run", 0)
    dialer = PeerSession(node_id="b", wanted="a", key=KEY, nonce=b"1" * NONCE_BYTES, identity=mine)
    acceptor = PeerSession(node_id="a", wanted=None, key=KEY, nonce=b"2" * NONCE_BYTES, identity=theirs)
    shake(dialer, acceptor)
    assert (dialer.peer, acceptor.peer) == (theirs, mine)


def test_what_an_end_says_of_itself_can_not_be_changed():
    dialer, acceptor = pair()
    hello = msgpack.unpackb(said(dialer)[4:])
    hello[-1][1] = "another disk"
    acceptor.receive(framed(msgpack.packb(hello)))
    with pytest.raises(FrameError, match="does not know the cluster key"):
        dialer.receive(said(acceptor))


def test_split_at_every_byte():
    dialer, acceptor = pair()
    for _ in range(3):
        for source, target in ((dialer, acceptor), (acceptor, dialer)):
            for byte in said(source):
                target.receive(bytes([byte]))
    got = []
    for byte in dialer.seal(b"one") + dialer.seal(b"two"):
        got += acceptor.receive(bytes([byte]))
    assert got == [b"one", b"two"]


def test_a_wrong_key_is_refused_by_both_ends():
    dialer, acceptor = pair(dialer_key=b"x" * 32)
    acceptor.receive(said(dialer))
    with pytest.raises(FrameError, match="does not know the cluster key"):
        dialer.receive(said(acceptor))
    with pytest.raises(FrameError, match="'b' does not know the cluster key of 'a'"):
        acceptor.receive(said(dialer))
    dialer, acceptor = pair()
    acceptor.receive(said(dialer))
    with pytest.raises(FrameError, match="does not know the cluster key"):
        acceptor.receive(framed(bytes(32)))
    assert not acceptor.is_ready


def test_a_recorded_dialer_is_worth_nothing_on_another_connection():
    recorded = shake(*pair())
    acceptor = session("a", nonce=b"3")
    acceptor.receive(recorded[0])
    with pytest.raises(FrameError):
        acceptor.receive(recorded[1])


def test_a_proof_can_not_be_reflected():
    """A stranger hands the challenge of one connection back as its own on another."""
    dialer, acceptor = pair()
    acceptor.receive(said(dialer))
    challenge = said(acceptor)
    proof = msgpack.unpackb(challenge[4:])[3]
    with pytest.raises(FrameError):
        acceptor.receive(framed(proof))


@pytest.mark.parametrize("damage", ["changed", "repeated", "left out", "reflected"])
def test_frames_on_the_way_are_protected(damage):
    dialer, acceptor = pair()
    shake(dialer, acceptor)
    first, second = dialer.seal(b"first"), dialer.seal(b"second")
    given_ = {
        "changed": first[:5] + bytes([first[5] ^ 1]) + first[6:],
        "repeated": first + first,
        "left out": second,
        "reflected": acceptor.seal(b"first"),
    }[damage]
    with pytest.raises(FrameError, match="changed on its way"):
        acceptor.receive(given_)


def test_an_unknown_peer_gets_no_room():
    with pytest.raises(FrameTooLargeError, match="no more than 512"):
        session("a").receive(struct.pack("<I", 513))
    dialer, acceptor = pair()
    shake(dialer, acceptor)
    with pytest.raises(FrameTooLargeError, match=str(FRAME_BYTES_MAX)):
        acceptor.receive(struct.pack("<I", FRAME_BYTES_MAX + 1))


def test_the_wrong_node_answers_or_is_called():
    with pytest.raises(FrameError, match="hello from 'b' for 'c'"):
        session("a").receive(said(session("b", "c")))
    with pytest.raises(FrameError):
        session("a").receive(said(session("a", "a")))
    dialer, impostor = session("b", "a"), session("x")
    impostor._node_id = "a"
    impostor.receive(said(dialer))
    impostor.outgoing[:] = framed(msgpack.packb([1, "x", bytes(32), bytes(32), PeerIdentity()]))
    with pytest.raises(FrameError, match="'a' was dialed, and 'x' answers"):
        dialer.receive(said(impostor))


@given(st.binary(max_size=600), st.booleans())
def test_garbage_is_refused_or_waited_for_and_never_accepted(data, is_dialer):
    one = session("b", "a") if is_dialer else session("a")
    try:
        one.receive(framed(data[:512]))
        one.receive(data)
    except FrameError:
        pass
    assert not one.is_ready
