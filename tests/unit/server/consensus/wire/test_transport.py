"""Real sockets: who gets in, who does not, and that a bad peer harms no other."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import struct
from contextlib import suppress

import msgpack
import pytest
import trustme

from liftpy_server.consensus.pysyncobj_core import monotonic
from liftpy_server.consensus.settings import RaftSettings, TlsFiles, Voter
from liftpy_server.consensus.wire import transport as transport_module
from liftpy_server.consensus.wire.link import tls_context
from liftpy_server.consensus.wire.session import PeerSession, WrongKeyError
from liftpy_server.consensus.wire.transport import RaftTransport, TransportError
from liftpy_server.listeners.refusals import ListenerRefusals
from support.raft_kit import KEY, free_port, tls_files

MESSAGE = {"type": "response_vote", "term": 3}


class End:
    """A transport, and what its core would be told."""

    def __init__(self, voters, node_id, folder, **settings):
        port = next(voter.port for voter in voters if voter.node_id == node_id)
        given = {"node_id": node_id, "voters": voters, "folder": folder, "bind_port": port}
        self.refusals = ListenerRefusals()
        self.transport = RaftTransport(RaftSettings(**given | settings), self.refusals)
        self.transport.admit({voter.node_id: voter for voter in voters})
        self.connected: set[str] = set()
        self.got: list[tuple[str, object]] = []
        self.transport.on_connected = self.connected.add
        self.transport.on_disconnected = self.connected.discard
        self.transport.on_message = lambda node, message: self.got.append((node, message))

    def send(self, node_id, message=MESSAGE):
        return self.transport.send(node_id, message)


@pytest.fixture
def ends(tmp_path):
    made = []

    def make(names="ab", keys=None, tls=None):
        voters = tuple(Voter(name, "127.0.0.1", free_port()) for name in names)
        for name in names:
            settings = {"tls": tls[name]} if tls else {"cluster_key": (keys or {}).get(name, KEY)}
            made.append(End(voters, name, tmp_path, **settings))
        return made

    yield make
    for end in made:
        end.transport.destroy()


def turn(ends, until, timeout_s=5.0):
    """Poll until it is so. Returns whether it is."""
    deadline = monotonic() + timeout_s
    while monotonic() < deadline:
        for end in ends:
            end.transport.poll(0.005)
        if until():
            return True
    return False


def test_two_voters_talk(ends):
    a, b = ends()
    assert not a.send("b")
    assert turn([a, b], lambda: a.connected == {"b"} and b.connected == {"a"})
    assert a.send("b")
    assert b.send("a", {"type": "timeout_now", "term": 1})
    assert turn([a, b], lambda: a.got and b.got)
    assert (a.got, b.got) == ([("b", {"type": "timeout_now", "term": 1})], [("a", MESSAGE)])


def test_a_connection_that_was_lost_is_told_from_one_that_never_was(ends):
    a, b = ends()
    assert not a.transport.has_lost("b")
    assert turn([a, b], lambda: a.connected and b.connected)
    assert not a.transport.has_lost("b")
    for link in [*b.transport._links.values()]:
        b.transport._drop(link, "the test")
    assert turn([a], lambda: not a.connected)
    assert a.transport.has_lost("b")
    assert turn([a, b], lambda: a.connected and b.connected)
    assert not a.transport.has_lost("b")


@pytest.mark.parametrize("is_tls", [False, True])
def test_large_messages_arrive_whole(ends, tmp_path, is_tls):
    authority = trustme.CA()
    a, b = ends(tls={name: tls_files(tmp_path, authority, name) for name in "ab"} if is_tls else None)
    turn([a, b], lambda: a.connected and b.connected)
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": [os.urandom(3 << 20), True, True]}
    for _ in range(5):
        assert a.send("b", message)
    assert a.transport.backlog_bytes("b") > 0
    assert turn([a, b], lambda: len(b.got) == 5, timeout_s=30)
    assert b.got == [("a", message)] * 5
    assert a.transport.backlog_bytes("b") == 0


def test_a_node_that_stood_still_does_not_blame_the_others(ends, monkeypatch):
    """Its disk took ten seconds, say. What the others said meanwhile waits in its sockets, or was never needed."""
    a, b = ends()
    assert turn([a, b], lambda: a.connected and b.connected)
    b.send("a")
    later = monotonic() + 10
    monkeypatch.setattr(transport_module, "monotonic", lambda: later)
    a.transport.poll(0.1)
    a.transport.poll(0.1)
    assert (a.connected, a.got) == ({"b"}, [("b", MESSAGE)])
    assert a.transport.silence.silent_s("b") < 1


def test_nothing_leaves_before_it_may(ends):
    a, b = ends()
    turn([a, b], lambda: a.connected and b.connected)

    def refuse():
        raise ZeroDivisionError

    a.transport.before_send = refuse
    with pytest.raises(ZeroDivisionError):
        a.send("b")
    assert not turn([a, b], lambda: b.got, timeout_s=0.2)


def test_a_node_with_another_key_does_not_get_in(ends):
    a, b, c = ends("abc", keys={"c": b"x" * 32})
    assert turn([a, b, c], lambda: a.connected == {"b"})
    assert not turn([a, b, c], lambda: c.connected or "c" in a.connected | b.connected, timeout_s=1)


def test_certificates_let_in(ends, tmp_path):
    authority = trustme.CA()
    a, b = ends(tls={name: tls_files(tmp_path, authority, name) for name in "ab"})
    assert turn([a, b], lambda: a.connected == {"b"} and b.connected == {"a"})
    a.send("b")
    assert turn([a, b], lambda: b.got == [("a", MESSAGE)])


@pytest.mark.parametrize("wrong", ["dialer's authority", "dialer's name", "acceptor's name", "acceptor's authority"])
def test_a_wrong_certificate_does_not(ends, tmp_path, wrong):
    authority, other = trustme.CA(), trustme.CA()
    tls = {name: tls_files(tmp_path, authority, name) for name in "ab"}
    name = "b" if wrong.startswith("dialer") else "a"
    if wrong.endswith("name"):
        tls[name] = tls_files(tmp_path, authority, "c", f"{name}-as-c")
    else:
        foreign = tls_files(tmp_path, other, name, f"{name}-foreign")
        tls[name] = TlsFiles(certificate=foreign.certificate, key=foreign.key, authority=tls[name].authority)
    a, b = ends(tls=tls)
    a.send("b")
    turn([a, b], lambda: a.got or b.got, timeout_s=1)
    honest = a if name == "b" else b
    assert honest.connected == set()


def test_without_a_certificate_nobody_gets_in(ends, tmp_path):
    authority = trustme.CA()
    a, _ = ends(tls={name: tls_files(tmp_path, authority, name) for name in "ab"})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    assert tls_context(tls_files(tmp_path, authority, "x"), is_dialer=False).verify_mode is ssl.CERT_REQUIRED
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with socket.create_connection(("127.0.0.1", a.transport.port)) as sock:
        sock.settimeout(0.05)
        refused = False
        for _ in range(100):
            try:
                tls.do_handshake()
                tls.write(b"\x04\0\0\0abcd")
                tls.read(1)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                refused = True
                break
            sock.sendall(outgoing.read())
            a.transport.poll(0.01)
            try:
                incoming.write(sock.recv(65536))
            except TimeoutError:
                continue
            except ConnectionError:
                refused = True
                break
        assert refused
    assert a.connected == set()


def closed_by(end, others, data):
    """Whether a stranger that sends this is thrown out."""
    with socket.create_connection(("127.0.0.1", end.transport.port)) as sock:
        sock.setblocking(False)
        with suppress(BlockingIOError):
            sock.sendall(data[:100_000])

        def is_closed():
            try:
                while sock.recv(65536):
                    pass
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            return True

        return turn([end, *others], is_closed)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        b"\xff" * 1_000_000,
        struct.pack("<I", 1 << 31),
        struct.pack("<I", 512) + os.urandom(512),
        struct.pack("<I", 4) + b"\x80\x04N.",
    ],
    ids=["http", "zeros", "ones", "oversized", "random", "pickle"],
)
def test_garbage_is_thrown_out_and_the_voters_stay(ends, data):
    a, b = ends()
    turn([a, b], lambda: a.connected and b.connected)
    assert closed_by(a, [b], data)
    assert (a.connected, b.connected) == ({"b"}, {"a"})


def known_peer(end, node_id="b", wanted="a", key=KEY):
    """A socket that has passed the handshake, and its session."""
    sock = socket.create_connection(("127.0.0.1", end.transport.port))
    sock.settimeout(0.05)
    session = PeerSession(node_id=node_id, wanted=wanted, key=key, nonce=os.urandom(32))
    for _ in range(50):
        sock.sendall(bytes(session.outgoing))
        session.outgoing.clear()
        if session.is_ready:
            break
        end.transport.poll(0.01)
        try:
            session.receive(sock.recv(4096))
        except TimeoutError:
            continue
    return sock, session


@pytest.mark.parametrize("payload", [b"garbage", bytes(1 << 20), b"\x81\xa4type\xa1x"], ids=["short", "long", "kind"])
def test_a_voter_that_sends_garbage_is_dropped(ends, payload):
    (a,) = ends("a")
    a.transport.admit({name: Voter(name, "127.0.0.1", 1) for name in "ab"})
    sock, session = known_peer(a)
    with sock:
        assert turn([a], lambda: a.connected == {"b"})
        sock.settimeout(5)
        sock.sendall(session.seal(payload))
        assert turn([a], lambda: a.connected == set())
        assert a.got == []


def test_who_knows_the_key_and_does_not_vote_stays_out(ends):
    (a,) = ends("a")
    sock, session = known_peer(a, node_id="z")
    with sock:
        assert session.is_ready
        sock.sendall(session.seal(b""))
        assert not turn([a], lambda: a.connected, timeout_s=0.3)


def test_one_that_does_not_vote_any_more_is_dropped(ends):
    a, b = ends()
    turn([a, b], lambda: a.connected and b.connected)
    a.transport.admit({})
    assert a.connected == set()
    assert not a.send("b")
    assert turn([a, b], lambda: b.connected == set())


def test_of_two_under_one_name_the_one_that_the_cluster_chose_stays(ends):
    (a,) = ends("a")
    a.transport.admit({name: Voter(name, "127.0.0.1", 1) for name in "ab"})
    sock, session = known_peer(a)
    with sock:
        assert turn([a], lambda: a.connected == {"b"})
        a.transport.admit({"a": Voter("a", "127.0.0.1", 1), "b": Voter("b", "127.0.0.1", 1, "another disk")})
        assert a.connected == set()
        sock.settimeout(5)
        (refused,) = [payload for payload in session.receive(sock.recv(4096)) if payload]
        assert "with another data directory" in msgpack.unpackb(refused)["why"]


def test_addresses_that_are_mixed_up_are_told(ends, caplog):
    a, _ = ends()
    with socket.create_connection(("127.0.0.1", a.transport.port)) as sock:
        hello = PeerSession(node_id="x\ny", wanted="c", key=KEY, nonce=os.urandom(32))
        sock.sendall(bytes(hello.outgoing))
        assert turn([a], lambda: "check the addresses" in caplog.text)
    assert "x\ny" not in caplog.text


def test_strangers_that_say_nothing_take_no_place(ends, monkeypatch):
    monkeypatch.setattr(transport_module, "_HANDSHAKE_TIMEOUT_S", 0.2)
    a, b = ends()
    strangers = []
    for _ in range(100):
        strangers.append(socket.create_connection(("127.0.0.1", a.transport.port)))
        a.transport.poll(0)
    assert len(a.transport._unknown) <= 32
    assert turn([a, b], lambda: a.connected == {"b"})
    assert turn([a, b], lambda: not a.transport._unknown)
    for sock in strangers:
        sock.close()


def test_strangers_of_one_address_take_no_place_of_another(ends):
    (a,) = ends("a")
    address = ("127.0.0.1", a.transport.port)
    friend = socket.create_connection(address, source_address=("127.0.0.2", 0))
    a.transport.poll(0.1)
    strangers = [socket.create_connection(address, source_address=("127.0.0.3", 0)) for _ in range(60)]
    assert turn([a], lambda: len(a.transport._unknown) == 32)
    turn([a], lambda: False, timeout_s=0.2)
    friend.settimeout(0.1)
    with pytest.raises(TimeoutError):
        friend.recv(1)
    for sock in (friend, *strangers):
        sock.close()


def test_many_strangers_with_another_key_are_counted_and_told_once(ends, caplog):
    (a,) = ends("a")
    for number in range(100):
        with socket.create_connection(("127.0.0.1", a.transport.port)) as sock:
            hello = PeerSession(node_id=f"stranger-{number}", wanted="a", key=b"x" * 32, nonce=os.urandom(32))
            sock.sendall(bytes(hello.outgoing))
            hello.outgoing.clear()
            assert turn([a], lambda sock=sock: readable(sock))
            with pytest.raises(WrongKeyError):
                hello.receive(sock.recv(1_000))
            sock.sendall(bytes(hello.outgoing))  # it answers all the same
            turn([a], lambda: not a.transport._unknown)
    assert caplog.text.count("does not know the cluster key") == 1
    assert a.refusals.auth_failures["raft"] == 100


def test_strangers_without_a_name_are_told_by_their_address(ends, caplog, monkeypatch):
    a, b = ends()
    assert turn([a, b], lambda: a.connected == {"b"})
    caplog.clear()
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", a.transport.port)) as sock:
            before = a.refusals.malformed["raft"]
            sock.sendall(struct.pack("<I", 5) + b"never")
            assert turn([a, b], lambda before=before: a.refusals.malformed["raft"] > before)
    monkeypatch.setattr(transport_module, "_HANDSHAKE_TIMEOUT_S", 0.05)
    with socket.create_connection(("127.0.0.1", a.transport.port)):
        assert turn([a, b], lambda: a.refusals.auth_failures["raft"])
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (len(lines), a.refusals.malformed["raft"]) == (2, 30)
    assert all(line.startswith("raft: refused 127.0.0.1: ") for line in lines)
    assert "has not proven who it is" in lines[1]
    assert a.connected == {"b"}


def test_the_port_opens_again_when_files_can_be_opened_again(ends, monkeypatch, caplog):
    """And in between it does not turn in circles, nor fill the log."""
    a, b = ends()
    accept, refused = socket.socket.accept, []

    def refuse(sock):
        if len(refused) < 3:
            refused.append(sock)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    stranger = socket.create_connection(("127.0.0.1", a.transport.port))
    for _ in range(20):
        a.transport.poll(0)
    assert len(refused) == 1
    assert turn([a, b], lambda: a.connected == {"b"})
    assert caplog.text.count("Too many open files") == 1
    stranger.close()


def readable(sock):
    return bool(select.select([sock], [], [], 0)[0])


def test_a_restarted_voter_replaces_its_old_connection(ends):
    (a,) = ends("a")
    a.transport.admit({name: Voter(name, "127.0.0.1", 1) for name in "ab"})
    first, _ = known_peer(a)
    assert turn([a], lambda: a.connected == {"b"})
    second, session = known_peer(a)
    with first, second:
        turn([a], lambda: False, timeout_s=0.1)
        assert a.connected == {"b"}
        second.sendall(session.seal(b"\x82\xa4type\xadresponse_vote\xa4term\x03"))
        assert turn([a], lambda: a.got == [("b", MESSAGE)])


def test_only_the_given_address_is_bound(ends):
    (a,) = ends("a")
    assert a.transport._listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", a.transport.port), timeout=1)


def test_a_port_in_use_is_named(ends, tmp_path):
    (a,) = ends("a")
    voters = (Voter("x", "127.0.0.1", a.transport.port),)
    with pytest.raises(TransportError, match=str(a.transport.port)):
        End(voters, "x", tmp_path, cluster_key=KEY)


def test_a_silent_voter_is_given_up_and_an_idle_one_is_not(ends, tmp_path):
    voters = tuple(Voter(name, "127.0.0.1", free_port()) for name in "ab")
    quick = {"cluster_key": KEY, "election_timeout_min_s": 0.1, "heartbeat_s": 0.01}
    a, b = (End(voters, name, tmp_path, **quick) for name in "ab")
    try:
        assert turn([a, b], lambda: a.connected and b.connected)
        links = dict(a.transport._links)
        assert not turn([a, b], lambda: a.transport._links != links, timeout_s=1.0)
        assert turn([a], lambda: a.connected == set(), timeout_s=10.0)
    finally:
        a.transport.destroy()
        b.transport.destroy()
