"""How voters reach each other: TCP on the tick thread, which waits here for messages.

Of two nodes the one with the greater id dials; the other one does so too after a while without a connection, since
the first may not know of it, or not where it is. A newer connection of a process replaces its older one. Messages may
be lost with a connection, and never changed, doubled or reordered on one. Everything before a message is authenticated,
framed and checked field by field; a peer that fails any of it is dropped, logged, and harms no other connection.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import FrameError, LiftError
from liftpy_server.consensus.messages import Message, decode_message, encode_message
from liftpy_server.consensus.pysyncobj_core import monotonic
from liftpy_server.consensus.wire.admission import PeerRefusedError, check_peer
from liftpy_server.consensus.wire.link import Link, tls_context
from liftpy_server.consensus.wire.session import PeerIdentity, WrongKeyError, WrongNodeError
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_server.consensus.settings import RaftSettings, Voter

__all__ = ["RaftTransport", "Silence", "TransportError"]

logger = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT_S: Final = 5.0
_UNKNOWN_MAX: Final = 32
_CHECK_EVERY_S: Final = 0.05
_ACCEPT_AGAIN_S: Final = 0.2
_BACKLOG_BYTES_MAX: Final = 64 << 20
_REFUSED_RETRY_S: Final = 1.0
_WHY_CHARACTERS_MAX: Final = 900
_STALL_S: Final = 0.5


class TransportError(LiftError):
    """The address can not be listened at, or the certificates can not be used."""


class Silence:
    """Seconds since each of the others was heard. Time in which this node itself did not listen does not count.

    Written by one thread, read by any.

    Args:
        now: Monotonic seconds, as everywhere here.
    """

    def __init__(self, now: float) -> None:
        self._since = self._listened = now
        self._heard: dict[str, float] = {}

    def listened(self, now: float) -> None:
        """This node looks at its connections now. If it did not for long, it was stopped itself, or its disk stood."""
        gap = now - self._listened
        if gap > _STALL_S:
            self._since += gap
            self._heard = {node_id: at + gap for node_id, at in self._heard.items()}
        self._listened = now

    def heard(self, node_id: str, now: float) -> None:
        """Something came from a node."""
        self._heard[node_id] = max(now, self._heard.get(node_id, now))

    def silent_s(self, node_id: str) -> float:
        """Seconds of listening without a word of this node, at least since the start."""
        return max(self._listened - self._heard.get(node_id, self._since), 0.0)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), backlog=64)
    listener.setblocking(False)
    return listener


class RaftTransport:
    """The connections of a node with the other members. For one thread; `wake` and `has_lost` may be called from any.

    Args:
        settings: Addresses, key or certificates.
        refusals: Refusals of the node.

    Attributes:
        before_send: Called before anything leaves the node.
        identity: Called for what this node says of itself on a new connection.
        on_message: Called with the name of a node, and a message of it.
        on_connected: Called with the name of a node that has a connection now.
        on_disconnected: Called with the name of a node that has none any more.
        silence: Time for which the others have not been heard.
        port: Where it listens; 0 when it does not.

    Raises:
        TransportError: it can not listen.
    """

    def __init__(self, settings: RaftSettings, refusals: ListenerRefusals | None = None) -> None:
        self._refusals = refusals or ListenerRefusals()
        self._accept_at = 0.0  # when the process could open no more files, the port is closed for a moment
        self._settings = settings
        self._given = {voter.node_id: voter for voter in settings.voters}
        self._admitted: dict[str, Voter] = {}
        self._links: dict[str, Link] = {}  # by node id, authenticated
        self._lost: set[str] = set()  # were connected, and are not
        self._unknown: set[Link] = set()
        self._dials: dict[str, tuple[float, Future[Any] | None]] = {}  # next attempt, and the address being looked up
        self._next_check = 0.0
        self._idle_max_s = 4 * settings.election_timeout_min_s
        self._missing: dict[str, float] = {}  # since when there has been no connection
        self._warnings = RepeatedWarnings(logger)
        self.silence = Silence(monotonic())
        self.before_send: Callable[[], None] = lambda: None
        self.identity: Callable[[], PeerIdentity] = PeerIdentity
        self.on_message: Callable[[str, Message], None] = lambda _node, _message: None
        self.on_connected: Callable[[str], None] = lambda _node: None
        self.on_disconnected: Callable[[str], None] = lambda _node: None
        try:
            self._contexts = {
                dialer: None if settings.tls is None else tls_context(settings.tls, is_dialer=dialer)
                for dialer in (False, True)
            }
            self._listener = None if settings.bind_port is None else _listen(settings.bind_host, settings.bind_port)
        except OSError as error:
            where = f"{settings.bind_host}:{settings.bind_port}"
            raise TransportError(f"the metadata port {where} can not be opened: {error}") from error
        self.port: int = 0 if self._listener is None else self._listener.getsockname()[1]
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector = selectors.DefaultSelector()
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._resolver = ThreadPoolExecutor(1, thread_name_prefix="liftpy-resolver")

    def admit(self, members: Mapping[str, Voter]) -> None:
        """These may connect, and are connected to; the connections of those that were among them and are not end."""
        before = self._admitted
        self._admitted = {node_id: self._address_of(member) for node_id, member in members.items()}
        self._admitted.pop(self._settings.node_id, None)
        for node_id in set(before) - set(self._admitted):
            self._missing.pop(node_id, None)
            if node_id in self._links:
                self._refuse(self._links[node_id], f"{node_id!r} was removed from this cluster")
        for node_id, link in [*self._links.items()]:
            if node_id in self._admitted:  # two may have come under one name, to different nodes: one was chosen
                self._check_instance(node_id, link)

    def _check_instance(self, node_id: str, link: Link) -> None:
        try:
            check_peer(node_id, link.session.peer, self.identity(), self._admitted, None)
        except PeerRefusedError as error:
            self._refuse(link, str(error))

    def _address_of(self, member: Voter) -> Voter:
        given = self._given.get(member.node_id)
        return member if given is None else replace(member, host=given.host, port=given.port)

    def instance_of(self, node: str) -> str:
        """Which data directory the process has that is connected under this name; empty when none is."""
        link = self._links.get(node)
        return "" if link is None else link.session.peer.instance

    def has_lost(self, node_id: str) -> bool:
        """Whether a node was connected, and is not now. From any thread."""
        return node_id in self._lost

    def wake(self) -> None:
        """End the wait in `poll`. From any thread."""
        with suppress(BlockingIOError):  # so full that it will wake
            self._wake_out.send(b"\0")

    def send(self, node: str, message: Message) -> bool:
        """Send a message, after `before_send`. Returns whether it may arrive."""
        link = self._links.get(node)
        if link is None or link.backlog_bytes > _BACKLOG_BYTES_MAX:
            return False
        self.before_send()
        try:
            link.send(encode_message(message), monotonic())
        except OSError as error:
            self._drop(link, error)
            return False
        self._watch(link)
        return True

    def backlog_bytes(self, node: str) -> int:
        """Bytes that wait to be sent to a node."""
        link = self._links.get(node)
        return 0 if link is None else link.backlog_bytes

    def poll(self, timeout: float) -> None:
        """Wait for messages and hand them on."""
        self._check()
        found = self._selector.select(timeout)
        self.silence.listened(monotonic())
        for key, events in found:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_in:
                self._drain()
            elif self._selector.get_map().get(key.fd) is key:  # it may have been dropped in this round
                self._serve(key.data, events)

    def destroy(self) -> None:
        """Close all connections and sockets."""
        self._resolver.shutdown(wait=False, cancel_futures=True)
        for link in [*self._links.values(), *self._unknown]:
            link.close()
        self._selector.close()
        for sock in (self._listener, self._wake_in, self._wake_out):
            if sock is not None:
                sock.close()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            self._refusals.was_busy("raft", "a connection", f"{error}; trying again", kind="accept")
            self._send_stranger_away()
            self._selector.unregister(self._listener)
            self._accept_at = monotonic() + _ACCEPT_AGAIN_S
            return
        if sum(link.wanted is None for link in self._unknown) >= _UNKNOWN_MAX:
            text = f"{_UNKNOWN_MAX} connections have not said who they are: the oldest is closed"
            self._refusals.was_busy("raft", str(address[0]), text)
            self._send_stranger_away()
        self._add(sock, None, str(address[0]))

    def _send_stranger_away(self) -> None:
        """The oldest, of the address of which there are most: a newer one may be a voter's."""
        strangers = [link for link in self._unknown if link.wanted is None]
        if strangers:
            counts = Counter(link.host for link in strangers)
            oldest = min(strangers, key=lambda link: (-counts[link.host], link.opened_at))
            self._drop(oldest, "too many have not said who they are")

    def _add(self, sock: socket.socket, wanted: str | None, host: str = "") -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(
            sock,
            node_id=self._settings.node_id,
            wanted=wanted,
            key=self._settings.cluster_key,
            context=self._contexts[wanted is not None],
            identity=self.identity(),
            now=monotonic(),
            host=host,
        )
        self._unknown.add(link)
        events = selectors.EVENT_READ if wanted is None else selectors.EVENT_WRITE
        self._selector.register(sock, events, link)

    def _serve(self, link: Link, events: int) -> None:
        was_ready = link.is_ready
        try:
            if link.is_connecting:
                link.connected()
            elif events & selectors.EVENT_WRITE:
                link.flush()
            payloads = link.receive(monotonic()) if events & selectors.EVENT_READ else []
            if link.is_ready and not was_ready:
                self._welcome(link)
            messages = self._open(link, payloads)
        except PeerRefusedError as error:
            self._refuse(link, str(error))
            return
        except (OSError, FrameError) as error:
            self._drop(link, error)
            return
        self._watch(link)
        for message in messages:
            if self._links.get(str(link.session.peer_id)) is link:
                self._deliver(str(link.session.peer_id), message)

    def _deliver(self, node: str, message: Message) -> None:
        self.on_message(node, message)

    def _open(self, link: Link, payloads: list[bytes]) -> list[Message]:
        if link.is_ready:
            self.silence.heard(str(link.session.peer_id), link.heard_at)
        messages = [decode_message(payload) for payload in payloads if payload]  # an empty one says: still here
        for message in messages:
            if message["type"] == "refused":
                raise PeerRefusedError(f"{link.session.peer_id!r} refuses this node: {message['why']}")
        return messages

    def _watch(self, link: Link) -> None:
        wants_to_write = link.is_connecting or link.backlog_bytes > 0
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_to_write else 0)
        if self._selector.get_key(link.socket).events != events:
            self._selector.modify(link.socket, events, link)

    def _welcome(self, link: Link) -> None:
        peer_id = str(link.session.peer_id)
        older = self._links.get(peer_id)
        is_alive = self.silence.silent_s(peer_id) < self._idle_max_s / 2
        running = older.session.peer.run if older is not None and is_alive else None
        check_peer(peer_id, link.session.peer, self.identity(), self._admitted, running)
        if older is not None:
            self._drop(older, "it connected again")
        self._unknown.discard(link)
        self._links[peer_id] = link
        self._lost.discard(peer_id)
        self.on_connected(peer_id)

    def _refuse(self, link: Link, why: str) -> None:
        """Tell this node's operator why, and the peer, whose operator may be looking for the reason."""
        peer_id = str(link.session.peer_id)
        if not self._known_as(link):
            self._refusals.auth_failures["raft"] += 1
        self._warnings.tell(
            f"refused {self._known_as(link)}", f"no connection with {peer_id!r:.100}: {why}", monotonic()
        )
        self._dials[peer_id] = (monotonic() + _REFUSED_RETRY_S, None)
        with suppress(OSError):  # it is gone already
            link.send(encode_message({"type": "refused", "why": why[:_WHY_CHARACTERS_MAX]}), monotonic())
        self._drop(link, why, is_told=True)

    def _known_as(self, link: Link) -> str:
        """The name of a member; "" of strangers, however they call themselves: all of them are told as one."""
        peer_id = str(link.session.peer_id)
        return peer_id if peer_id in self._admitted else ""

    def _drop(self, link: Link, why: object, *, is_told: bool = False) -> None:
        # Every attempt at one that is down ends like this.
        log = logger.info if link.is_ready and not is_told else logger.debug
        log("the connection with voter %.100r ends: %s", link.session.peer_id, why)
        is_telling = isinstance(why, WrongKeyError | WrongNodeError | ssl.SSLError)
        if link.wanted is None:
            self._count(link, why, is_unproven=is_telling)
        if link.session.peer_id is not None and (is_telling or (link.is_ready and isinstance(why, FrameError))):
            text = f"no connection with {link.session.peer_id!r:.100}: {why}"
            self._warnings.tell(f"{type(why).__name__} {self._known_as(link)}", text, monotonic())
        self._selector.unregister(link.socket)
        link.close()
        self._unknown.discard(link)
        peer_id = str(link.session.peer_id)
        if self._links.get(peer_id) is link:
            del self._links[peer_id]
            self._lost.add(peer_id)
            self.on_disconnected(peer_id)

    def _count(self, link: Link, why: object, *, is_unproven: bool) -> None:
        """Count a connection that was accepted and ends; log it by its address where no name is known."""
        if is_unproven and link.session.peer_id is None:
            self._refusals.auth_failed("raft", link.host, str(why))
        elif is_unproven:
            self._refusals.auth_failures["raft"] += 1
        elif isinstance(why, FrameError) and not link.is_ready:
            self._refusals.was_malformed("raft", link.host, str(why))
        elif isinstance(why, FrameError):
            self._refusals.malformed["raft"] += 1

    def _check(self) -> None:
        """Dial, say that we are here, and give up silent peers."""
        now = monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY_S
        if self._listener is not None and self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        for node_id, link in [*self._links.items()]:
            if self.silence.silent_s(node_id) > self._idle_max_s:
                self._drop(link, f"silent for {self._idle_max_s} s")
            elif now - link.said_at > self._idle_max_s / 4:
                try:
                    link.send(b"", now)
                    self._watch(link)
                except OSError as error:
                    self._drop(link, error)
        for link in [*self._unknown]:
            if now - link.opened_at > _HANDSHAKE_TIMEOUT_S:
                if link.wanted is None:
                    text = f"it has not proven who it is within {_HANDSHAKE_TIMEOUT_S:g} s"
                    self._refusals.auth_failed("raft", link.host, text, kind="silent")
                self._drop(link, f"no handshake within {_HANDSHAKE_TIMEOUT_S} s")
        self._dial_members(now)

    def _dial_members(self, now: float) -> None:
        dialed = {link.wanted for link in self._unknown}
        for node_id, voter in self._admitted.items():
            if node_id in self._links:
                self._missing.pop(node_id, None)
            elif node_id not in dialed and voter.port:
                missing_s = now - self._missing.setdefault(node_id, now)
                if self._settings.node_id > node_id or missing_s > self._idle_max_s:
                    self._dial(voter, now)

    def _dial(self, voter: Voter, now: float) -> None:
        """Looking up a name may take seconds, so a thread does it; connecting does not block."""
        due, address = self._dials.get(voter.node_id, (0.0, None))
        if address is None:
            if now >= due:
                found = self._resolver.submit(socket.getaddrinfo, voter.host, voter.port, type=socket.SOCK_STREAM)
                self._dials[voter.node_id] = (due, found)
        elif address.done():
            self._dials[voter.node_id] = (now + self._settings.election_timeout_min_s / 4, None)
            try:
                family, kind, protocol, _, target = address.result()[0]
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                sock.connect_ex(target)
            except OSError as error:
                logger.info("voter %s can not be reached: %s", voter.node_id, error)
                return
            self._add(sock, voter.node_id)
