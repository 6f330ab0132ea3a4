"""One end of a connection between voters: bytes in, frames out. No I/O, no clock; the nonce is an argument.

    frame       length u32 | payload | MAC 16 bytes, once both have proven the key
    hello       dialer:    msgpack ["liftpy-raft", version, its node id, the node id it wants, nonce 32, identity]
    challenge   acceptor:  msgpack [version, its node id, nonce 32, proof 32, identity]
    answer      dialer:    proof 32
    identity    [cluster id, instance, run, members index]

A proof is HMAC-SHA256 of a role and of all that was said, under the cluster key, so it is worth nothing on another
connection, in the other direction or between other nodes. The MAC of a frame is made with a key of this connection and
this direction, over a counter and the payload: frames can be neither changed, nor repeated, nor left out. Without a
cluster key (mutual TLS does all this then) proofs and MACs are empty. A dialer that finds the acceptor's proof wrong
still gives its own, so that the acceptor too can tell its operator about the two keys. Before the peer is known, it may
send one frame of 512 bytes, and nothing else is buffered.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

import msgpack

from liftpy_envelope.errors import FrameError, FrameTooLargeError
from liftpy_envelope.unpacking import Bounds, unpack

__all__ = ["FRAME_BYTES_MAX", "NONCE_BYTES", "PeerIdentity", "PeerSession", "WrongKeyError", "WrongNodeError"]

FRAME_BYTES_MAX: Final = 4 << 20
NONCE_BYTES: Final = 32

_MAGIC: Final = "liftpy-raft"
_VERSION: Final = 1
_HANDSHAKE_BYTES_MAX: Final = 512
_BOUNDS: Final = Bounds(items=32, length=8, text_bytes=_HANDSHAKE_BYTES_MAX, binary_bytes=64, depth=2)
_LENGTH: Final = struct.Struct("<I")
_COUNTER: Final = struct.Struct("<Q")
_MAC_BYTES: Final = 16


class WrongKeyError(FrameError):
    """The peer does not know the cluster key of this node."""


class WrongNodeError(FrameError):
    """The peer meant another node than this one, or another node answers than was meant."""


class PeerIdentity(NamedTuple):
    """What one end tells the other about itself, beyond its name.

    Attributes:
        cluster_id: The cluster it belongs to; empty while it does not know.
        instance: Id of its data directory.
        run: This start of its process.
        members_index: How far in the log it knows who the members are.
    """

    cluster_id: str = ""
    instance: str = ""
    run: str = ""
    members_index: int = 0


def _identity(given: object) -> PeerIdentity:
    match given:
        case [str(cluster_id), str(instance), str(run), int(index)]:
            return PeerIdentity(cluster_id, instance, run, index)
        case _:
            raise FrameError("not the identity of a voter")


_NOBODY: Final = PeerIdentity()


class PeerSession:
    """Handshake, framing and authentication of one end of a connection.

    Args:
        node_id: Id of this node.
        wanted: The node that was dialed; None for the end that accepts.
        key: The cluster key; None with mutual TLS.
        nonce: 32 random bytes, never used before.
        identity: Identity of this node.

    Attributes:
        peer: The identity of the other end; proven like its name.
        peer_id: Name of the node at the other end. It is proven when `is_ready`.
        outgoing: Bytes to send; the caller takes them.
    """

    def __init__(
        self,
        *,
        node_id: str,
        wanted: str | None,
        key: bytes | None,
        nonce: bytes,
        identity: PeerIdentity = _NOBODY,
    ) -> None:
        assert len(nonce) == NONCE_BYTES
        self._node_id = node_id
        self._key = key
        self._nonce = nonce
        self._is_dialer = wanted is not None
        self._buffer = bytearray()
        self._transcript = b""
        self._expects = "challenge" if self._is_dialer else "hello"
        self._keys: tuple[bytes, bytes] | None = None  # to send with, to receive with
        self._counts = [0, 0]
        self._identity = identity
        self.peer_id = wanted
        self.peer = PeerIdentity()
        self.is_ready = False
        self.outgoing = bytearray()
        if wanted is not None:
            self._say(msgpack.packb([_MAGIC, _VERSION, node_id, wanted, nonce, identity]))

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes of the peer, split anywhere.

        Returns:
            The payloads of the frames that are whole now.

        Raises:
            FrameError: the peer does not keep to the protocol, or does not know the key; close the connection.
        """
        self._buffer += data
        payloads = []
        while (frame := self._next_frame()) is not None:
            if self.is_ready:
                payloads.append(self._open(frame))
            else:
                self._shake_hands(frame)
        return payloads

    def seal(self, payload: bytes) -> bytes:
        """A payload as a frame."""
        assert self.is_ready
        mac = b"" if self._keys is None else self._mac(0, payload)
        return b"".join((_LENGTH.pack(len(payload) + len(mac)), payload, mac))

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        limit = FRAME_BYTES_MAX if self.is_ready else _HANDSHAKE_BYTES_MAX
        if length > limit:
            raise FrameTooLargeError(f"a frame of {length} bytes; no more than {limit} are accepted")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _open(self, frame: bytes) -> bytes:
        if self._keys is None:
            return frame
        payload, mac = frame[:-_MAC_BYTES], frame[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(1, payload)):
            raise FrameError("a frame was changed on its way")
        return payload

    def _mac(self, direction: int, payload: bytes) -> bytes:
        assert self._keys is not None
        count = _COUNTER.pack(self._counts[direction])
        self._counts[direction] += 1
        return hmac.digest(self._keys[direction], count + payload, hashlib.sha256)[:_MAC_BYTES]

    def _say(self, payload: bytes) -> None:
        self._transcript += payload
        self.outgoing += _LENGTH.pack(len(payload)) + payload

    def _shake_hands(self, frame: bytes) -> None:
        try:
            if self._expects == "hello":
                self._on_hello(frame)
            elif self._expects == "challenge":
                self._on_challenge(frame)
            else:
                self._on_answer(frame)
        except (ValueError, TypeError, RecursionError) as error:
            raise FrameError(f"not the {self._expects} of a voter: {error!r:.200}") from error

    def _on_hello(self, frame: bytes) -> None:
        match unpack(frame, _BOUNDS):
            case [str(magic), 1, str(peer_id), str(wanted), bytes(nonce), identity] if magic == _MAGIC:
                self.peer = _identity(identity)
            case _:
                raise FrameError("not the hello of a voter")
        if len(nonce) != NONCE_BYTES or not peer_id:
            raise FrameError("not the hello of a voter")
        self.peer_id = peer_id
        if wanted != self._node_id or peer_id == self._node_id:
            raise WrongNodeError(
                f"a hello from {peer_id!r:.100} for {wanted!r:.100}, and this is {self._node_id!r}: check the addresses"
            )
        self._transcript += frame + msgpack.packb([self._node_id, self._nonce, self._identity])
        challenge = [_VERSION, self._node_id, self._nonce, self._proof(b"accept"), self._identity]
        self.outgoing += self._framed(msgpack.packb(challenge))
        self._expects = "answer"

    @staticmethod
    def _framed(payload: bytes) -> bytes:
        return _LENGTH.pack(len(payload)) + payload

    def _on_challenge(self, frame: bytes) -> None:
        match unpack(frame, _BOUNDS):
            case [1, str(peer_id), bytes(nonce), bytes(proof), identity] if len(nonce) == NONCE_BYTES:
                self.peer = _identity(identity)
            case _:
                raise FrameError("not the challenge of a voter")
        if peer_id != self.peer_id:
            raise WrongNodeError(f"{self.peer_id!r} was dialed, and {peer_id!r:.100} answers: check the addresses")
        self._transcript += msgpack.packb([peer_id, nonce, self.peer])
        self.outgoing += self._framed(self._proof(b"dial"))
        self._check(proof, b"accept")
        self._be_ready()

    def _on_answer(self, frame: bytes) -> None:
        self._check(frame, b"dial")
        self._be_ready()

    def _proof(self, role: bytes) -> bytes:
        return b"" if self._key is None else hmac.digest(self._key, role + b"\0" + self._transcript, hashlib.sha256)

    def _check(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise WrongKeyError(
                f"{self.peer_id!r} does not know the cluster key of {self._node_id!r}: "
                "all nodes of a cluster need the same cluster.key_file"
            )

    def _be_ready(self) -> None:
        if self._key is not None:
            dialers, acceptors = self._proof(b"frames of the dialer"), self._proof(b"frames of the acceptor")
            self._keys = (dialers, acceptors) if self._is_dialer else (acceptors, dialers)
        self.is_ready = True
