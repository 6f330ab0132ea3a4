"""Just enough of the NATS protocol on a raw socket, so that the load generators are not what is measured."""

from __future__ import annotations

import json
import socket

__all__ = ["connect", "ping", "request"]

_CONNECT = {
    "verbose": False, "pedantic": False, "lang": "bench", "version": "1", "headers": True,
    "no_responders": True, "echo": False,
}  # fmt: skip


def connect(port, timeout_s=30.0):
    """A connected socket that has said CONNECT and heard PONG."""
    sock = socket.create_connection(("127.0.0.1", port), timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _until(sock, b"\r\n")
    sock.sendall(b"CONNECT " + json.dumps(_CONNECT).encode() + b"\r\n")
    ping(sock)
    return sock


def _until(sock, end):
    data = b""
    while not data.endswith(end):
        chunk = sock.recv(65536)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        data += chunk
    return data


def ping(sock):
    """Wait until the server has handled everything sent so far."""
    sock.sendall(b"PING\r\n")
    return _until(sock, b"PONG\r\n")


def request(port, subject, body, timeout_s=30.0):
    """One request with a JSON body; its JSON reply.

    Raises:
        TimeoutError: nobody answered for so long.
        ConnectionError: nobody takes such requests, or the server went away.
    """
    payload = b"" if body is None else json.dumps(body).encode()
    with connect(port, timeout_s) as sock:
        sock.sendall(
            b"SUB _INBOX.bench 1\r\nPUB %b _INBOX.bench %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
        )
        data = b""
        while (answer := _answer(data)) is None:
            chunk = sock.recv(1 << 20)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            data += chunk
    if not answer:
        raise ConnectionError(f"nobody answers {subject}")
    return json.loads(answer)


def _answer(data):
    """The payload of the first message; None while it is not whole."""
    while (line_end := data.find(b"\r\n")) >= 0:
        fields = data[:line_end].split(b" ")
        if fields[0] in {b"MSG", b"HMSG"}:
            size = int(fields[-1])
            header = int(fields[-2]) if fields[0] == b"HMSG" else 0
            is_whole = len(data) >= line_end + 4 + size
            return data[line_end + 2 + header : line_end + 2 + size] if is_whole else None
        data = data[line_end + 2 :]
    return None
