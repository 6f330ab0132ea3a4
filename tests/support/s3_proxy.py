"""A proxy in front of an S3 server that loses answers after the server has done what it was asked for.

with S3Proxy(server.endpoint) as proxy:
    proxy.lose("drop", count=1)   # the connection ends instead of the next answer to a PUT
    proxy.lose("stall")           # the answer does not come until `release`
    proxy.lose("503")             # something else comes
    proxy.skew(True)              # every request is refused: the clocks differ too much
"""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

__all__ = ["S3Proxy"]

STALL_S_MAX = 30.0
SKEWED = (
    b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is "
    b"too large.</Message></Error>"
)
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
REVOKED = b"<Error><Code>InvalidAccessKeyId</Code><Message>There is no such key.</Message></Error>"
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "expect", "content-length"}


class S3Proxy:
    """See the module.

    Args:
        endpoint: of the server behind it.

    Attributes:
        lost: how many answers were lost.
        revoked: an access key that is refused; "" for none.
        attempts: method and path of every request.
    """

    def __init__(self, endpoint: str) -> None:
        self._behind = urlsplit(endpoint)
        self._ways: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.is_skewed = False
        self.revoked = ""
        self.lost = 0
        self.attempts: list[tuple[str, str]] = []
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def lose(self, way: str, count: int = 1, method: str = "PUT") -> None:
        """What becomes of the next answers to requests of a kind."""
        with self._lock:
            self._ways += [(method, way)] * count

    def skew(self, is_skewed: bool) -> None:
        """Whether the clock of the store is far from that of whoever asks."""
        self.is_skewed = is_skewed

    def release(self) -> None:
        """Answers that were held back are dropped."""
        self._released.set()

    def way_of(self, method: str) -> str:
        """What becomes of this one."""
        with self._lock:
            for at, (wanted, way) in enumerate(self._ways):
                if wanted == method:
                    del self._ways[at]
                    self.lost += 1
                    return way
        return "pass"

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list, bytes]:
        """The answer of the server behind it, which has done by then what it was asked for."""
        connection = http.client.HTTPConnection(self._behind.hostname, self._behind.port, timeout=STALL_S_MAX)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def wait(self) -> None:
        """Until `release`."""
        self._released.wait(STALL_S_MAX)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: S3Proxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kept = {name: text for name, text in self.headers.items() if name.lower() not in HOP_BY_HOP}
        if body or self.command == "PUT":
            kept["Content-Length"] = str(len(body))
        self.owner.attempts.append((self.command, self.path))
        if self.owner.is_skewed:
            self._answer(403, [("Content-Type", "application/xml")], SKEWED, len(SKEWED))
            return
        if self.owner.revoked and f"Credential={self.owner.revoked}/" in self.headers.get("Authorization", ""):
            self._answer(403, [("Content-Type", "application/xml")], REVOKED, len(REVOKED))
            return
        way = self.owner.way_of(self.command)
        if way == "slow down":
            self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN, len(SLOW_DOWN))
            return
        status, headers, answer = self.owner.ask(self.command, self.path, kept, body)
        if way == "stall":
            self.owner.wait()
        if way in {"drop", "stall"}:
            self.close_connection = True
            return
        if way == "half":  # the body breaks off
            self._answer(status, headers, answer, len(answer) // 2)
            self.close_connection = True
            return
        if way.isdecimal():
            status, headers, answer = int(way), [], b""
        self._answer(status, headers, answer, len(answer))

    def _answer(self, status: int, headers: list, body: bytes, sent: int) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, text in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = text
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, text)
        if status != 304:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[:sent])

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815 - as http.server names them

    def log_message(self, *_: object) -> None:
        """Nothing: tests say what they want to know."""
