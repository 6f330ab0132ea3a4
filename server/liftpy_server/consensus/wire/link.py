"""A connection to another voter: a non-blocking socket, TLS in memory when there is any, and a session on top.

Used by one thread. What arrives before the peer is known is bounded: by the session's frame limit, and by a limit on
the bytes of a TLS handshake.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import FrameError, FrameTooLargeError
from liftpy_server.consensus.wire.session import NONCE_BYTES, PeerSession

if TYPE_CHECKING:
    from liftpy_server.consensus.settings import TlsFiles
    from liftpy_server.consensus.wire.session import PeerIdentity

__all__ = ["Link", "tls_context"]

_READ_BYTES: Final = 1 << 18
_READ_BYTES_UNKNOWN: Final = 1 << 12
_TLS_HANDSHAKE_BYTES_MAX: Final = 1 << 16


def tls_context(files: TlsFiles, *, is_dialer: bool) -> ssl.SSLContext:
    """Context for mutual TLS: both ends show a certificate of the cluster's authority.

    Raises:
        OSError: a file can not be read, or is no such file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_dialer else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    # Nodes are known by their ids, not by host names. The session says who it wants to be, and that name is looked for
    # in the certificate at both ends (`_check_identity`).
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class Link:
    """One connection, and what is known of the peer at its other end.

    Args:
        sock: Connected, or connecting.
        node_id: Id of this node.
        wanted: The node that was dialed; None when it dialed us.
        key: The cluster key.
        context: Context for TLS.
        identity: Identity of this node.
        now: Monotonic seconds.
        host: The address of who dialed.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        node_id: str,
        wanted: str | None,
        key: bytes | None,
        context: ssl.SSLContext | None,
        identity: PeerIdentity,
        now: float,
        host: str = "",
    ) -> None:
        self.socket = sock
        self.host = host
        self.wanted = wanted
        nonce = os.urandom(NONCE_BYTES)
        self.session = PeerSession(node_id=node_id, wanted=wanted, key=key, nonce=nonce, identity=identity)
        self.opened_at = self.heard_at = self.said_at = now
        self.is_connecting = wanted is not None
        self._out = bytearray()
        self._tls: ssl.SSLObject | None = None
        self._handshake_bytes = 0
        self._is_tls_ready = context is None
        if context is not None:
            self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._tls_in, self._tls_out, server_side=wanted is None)

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._out)

    @property
    def is_ready(self) -> bool:
        """Whether the peer is known."""
        return self.session.is_ready

    def send(self, payload: bytes, now: float) -> None:
        """Send a frame.

        Raises:
            OSError: the connection is gone.
        """
        self.said_at = now
        self._write(self.session.seal(payload))
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes.

        Raises:
            OSError: the connection is gone.
        """
        if self.session.outgoing and self._is_tls_ready:
            data = bytes(self.session.outgoing)
            self.session.outgoing.clear()
            self._write(data)
        if self._tls is not None:
            self._out += self._tls_out.read()
        if self.is_connecting:
            return
        while self._out:
            try:
                sent = self.socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                return
            del self._out[:sent]

    def _write(self, data: bytes) -> None:
        if self._tls is None:
            self._out += data
        else:
            rest = memoryview(data)
            while rest:  # a record at a time
                rest = rest[self._tls.write(rest) :]
            self._out += self._tls_out.read()

    def connected(self) -> None:
        """The socket became writable for the first time.

        Raises:
            OSError: the connection failed.
        """
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self.is_connecting = False
        if self._tls is not None:
            self._advance_tls()
        self.flush()

    def receive(self, now: float) -> list[bytes]:
        """Read what has arrived.

        Returns:
            Payloads.

        Raises:
            OSError: the connection is gone.
            FrameError: the peer must be dropped.
        """
        try:
            data = self.socket.recv(_READ_BYTES if self.is_ready else _READ_BYTES_UNKNOWN)
        except (BlockingIOError, InterruptedError):
            return []
        if not data:
            raise ConnectionResetError("the peer closed the connection")
        self.heard_at = now
        try:
            payloads = self.session.receive(data) if self._tls is None else self._receive_tls(data)
        except FrameError:
            with suppress(OSError):  # that it is dropped is what counts; what it is told may help its operator
                self.flush()
            raise
        self.flush()
        return payloads

    def _receive_tls(self, data: bytes) -> list[bytes]:
        assert self._tls is not None
        self._tls_in.write(data)
        if not self._is_tls_ready:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > _TLS_HANDSHAKE_BYTES_MAX:
                raise FrameTooLargeError("too much for a TLS handshake")
            self._advance_tls()
        payloads: list[bytes] = []
        while self._is_tls_ready:
            try:
                plain = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            if not plain:
                raise ConnectionResetError("the peer closed the connection")
            was_ready = self.is_ready
            payloads += self.session.receive(plain)
            if self.is_ready and not was_ready:
                self._check_identity()
        return payloads

    def _advance_tls(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
            self._is_tls_ready = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._out += self._tls_out.read()  # the alert tells the peer why
            self.is_connecting = False
            self.flush()
            raise

    def _check_identity(self) -> None:
        assert self._tls is not None
        certificate: dict[str, Any] = self._tls.getpeercert() or {}
        names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
        if self.session.peer_id not in names:
            raise FrameError(f"the certificate of {self.session.peer_id!r} is for {sorted(map(str, names))}")

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
