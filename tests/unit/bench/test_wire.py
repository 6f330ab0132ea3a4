"""The raw socket's requests."""

from __future__ import annotations

import socket
import threading

import pytest
from bench.wire import request


def serve(answer):
    """A NATS server for one request, which it answers with these bytes, one at a time; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def run():
        with server, server.accept()[0] as peer:
            peer.sendall(b"INFO {}\r\n")
            received = b""
            while b"PING\r\n" not in received:
                received += peer.recv(65536)
            peer.sendall(b"PONG\r\n")
            while b"\r\n{}\r\n" not in received:
                received += peer.recv(65536)
            for number in range(len(answer)):
                peer.sendall(answer[number : number + 1])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return server.getsockname()[1], thread


@pytest.mark.parametrize(
    "answer",
    [
        b'MSG _INBOX.bench 1 7\r\n{"a":1}\r\n',
        b'PING\r\nMSG _INBOX.bench 1 7\r\n{"a":1}\r\n',
        b'HMSG _INBOX.bench 1 12 19\r\nNATS/1.0\r\n\r\n{"a":1}\r\n',
    ],
)
def test_an_answer_comes_in_pieces(answer):
    port, thread = serve(answer)
    assert request(port, "some.thing", {}, timeout_s=10.0) == {"a": 1}
    thread.join(10)


def test_nobody_answers():
    port, thread = serve(b"HMSG _INBOX.bench 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
    with pytest.raises(ConnectionError, match=r"nobody answers some\.thing"):
        request(port, "some.thing", {}, timeout_s=10.0)
    thread.join(10)


def test_the_server_goes_away():
    port, thread = serve(b'MSG _INBOX.bench 1 7\r\n{"a"')
    with pytest.raises(ConnectionError, match="closed"):
        request(port, "some.thing", {}, timeout_s=10.0)
    thread.join(10)
