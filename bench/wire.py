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


def request(port, subject, body):
    """One request with a JSON body; its JSON reply."""
    sock = connect(port)
    payload = b"" if body is None else json.dumps(body).encode()
    sock.sendall(b"SUB _INBOX.bench 1\r\nPUB %b _INBOX.bench %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
    data = b""
    while True:
        data += sock.recv(1 << 20)
        line_end = data.find(b"\r\n")
        if line_end < 0:
            continue
        fields = data[:line_end].split(b" ")
        if fields[0] not in {b"MSG", b"HMSG"}:
            data = data[line_end + 2 :]
            continue
        size = int(fields[-1])
        header = int(fields[-2]) if fields[0] == b"HMSG" else 0
        if len(data) >= line_end + 4 + size:
            sock.close()
            body = data[line_end + 2 + header : line_end + 2 + size]
            if not body:
                raise ConnectionError(f"nobody answers {subject}")
            return json.loads(body)
