"""What clients say to a nats-server, for a model of one and for a real one to answer alike."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CONNECT", "DENIED", "MAX_PAYLOAD", "TALKS", "normal"]

CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"lang":"test","version":"1","protocol":1,"headers":true,'
    b'"no_responders":true,"echo":true}\r\n'
)
_QUIET = CONNECT.replace(b'"echo":true', b'"echo":false')
_PLAIN = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
_VERBOSE = CONNECT.replace(b'"verbose":false', b'"verbose":true')
_HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
_MESSAGE = re.compile(rb"H?MSG (\S+) (\d+)((?: \S+)?(?: \d+)?) (\d+)")

# Each step is what one connection says; then whatever any of them was told is looked at.
TALKS: dict[str, Sequence[tuple[str, bytes]]] = {
    "subscriptions, and messages with all they may have": [
        ("a", CONNECT + b"SUB s.> 1\r\nSUB s.* 22\r\nSUB *.x 333\r\nSUB > 4\r\n"),
        ("b", CONNECT + b"PUB s.x 3\r\nabc\r\nPUB s.x r.1 0\r\n\r\n"),
        ("b", b"HPUB s.y.z %d %d\r\n%babc\r\n" % (len(_HEADERS), len(_HEADERS) + 3, _HEADERS)),
        ("b", b"pub s 2\r\nMS\r\nPUB \t t.x \t 4\r\nM\r\nS\r\n"),
        ("a", b"PUB s.x 1\r\n1\r\n"),
    ],
    "who says the same id again keeps the first": [
        ("a", CONNECT + b"SUB a 1\r\nSUB b 1\r\nPUB a 0\r\n\r\nPUB b 0\r\n\r\n")
    ],
    "leaving": [
        ("a", CONNECT + b"SUB s 1\r\nSUB s 2\r\nUNSUB 2 3\r\nSUB s 3\r\nUNSUB 3\r\nUNSUB 9\r\n"),
        ("b", CONNECT + b"PUB s 1\r\n%d\r\n" % 1 + b"PUB s 1\r\n2\r\nPUB s 1\r\n3\r\nPUB s 1\r\n4\r\n"),
        ("a", b"UNSUB 1 2\r\n"),
        ("b", b"PUB s 1\r\n5\r\n"),
    ],
    "a group of one, and a group twice on one connection": [
        ("a", CONNECT + b"SUB s g 1\r\nSUB s h 2\r\nSUB s 3\r\n"),
        ("b", CONNECT + b"PUB s 1\r\n1\r\n"),
    ],
    "no echo": [("a", _QUIET + b"SUB s 1\r\nPUB s 1\r\n1\r\n"), ("b", CONNECT + b"PUB s 1\r\n2\r\n")],
    "nobody answers": [
        ("a", CONNECT + b"SUB r.* 1\r\nPUB nobody r.1 2\r\nhi\r\nPUB nobody 2\r\nhi\r\n"),
        ("b", _PLAIN + b"SUB r.* 1\r\nPUB nobody r.2 2\r\nhi\r\n"),
    ],
    "headers are taken off where they are not known": [
        ("a", _PLAIN + b"SUB s 1\r\n"),
        ("b", CONNECT + b"HPUB s r %d %d\r\n%babc\r\n" % (len(_HEADERS), len(_HEADERS) + 3, _HEADERS)),
    ],
    "who wants to hear of everything": [("a", _VERBOSE + b"SUB s 1\r\nPUB s 1\r\n1\r\nUNSUB 1\r\nPUB s 1\r\n2\r\n")],
    "questions": [("a", CONNECT), ("a", b"PING\r\nPING\r\nPONG\r\n"), ("b", _PLAIN), ("b", b"ping\r\n")],
    "subjects that are none": [("a", CONNECT + b"SUB a..b 1\r\nSUB a.>.b 2\r\nSUB .a 3\r\nSUB a. 4\r\n")],
    "subjects that nobody may have": [
        ("a", CONNECT + b'SUB denied 1\r\nSUB denied g 2\r\nSUB denied q"\\\xc3\xbc 3\r\nSUB allowed 4\r\n'),
        ("a", "SUB den\u200bied 5\r\nSUB den\u00fcied 6\r\nSUB den\U0001f600ied 8\r\n".encode()),
        ("a", b'SUB den"ied 9\r\nSUB den\\ied 10\r\nSUB den\x01ied 11\r\nSUB den\x7fied 12\r\nSUB den\xffied 13\r\n'),
        ("a", "SUB den\u00adied 14\r\nSUB den\ufeffied 15\r\nSUB den\ue000ied 16\r\n".encode()),
    ],
    "too large": [("a", CONNECT + b"SUB s 1\r\n"), ("b", CONNECT + b"PUB s 2000\r\n")],
    "what is no word": [("a", CONNECT + b"SUB s 1\r\n"), ("b", CONNECT + b"HELLO\r\n")],
}
DENIED = (
    *(b"denied", "den\u200bied".encode(), "den\u00fcied".encode(), "den\U0001f600ied".encode()),
    *(b'den"ied', b"den\\ied", b"den\x01ied", b"den\x7fied", b"den\xffied"),
    *("den\u00adied".encode(), "den\ufeffied".encode(), "den\ue000ied".encode()),
)
MAX_PAYLOAD = 1_000


def normal(data: bytes) -> list[bytes]:
    """The frames, without what differs from one server, or one run, to another.

    A message that a connection gets several times is there in the order of the subscriptions' ids.
    """
    frames: list[tuple[bytes, bytes]] = []
    while data:
        line, found, data = data.partition(b"\r\n")
        assert found, "half a line"
        if message := _MESSAGE.fullmatch(line):
            size = int(message[4]) + 2
            body, data = data[:size], data[size:]
            assert body.endswith(b"\r\n"), body
            frames.append((message[1] + message[3] + body, line + b"|" + body))
        elif line.startswith(b"INFO "):
            frames.append((b"", b"INFO " + _normal_info(line[5:])))
        else:
            frames.append((b"", line))
    same = itertools.groupby(frames, key=lambda frame: frame[0])
    return [frame for what, group in same for _, frame in (sorted(group) if what else group)]


def _normal_info(text: bytes) -> bytes:
    info = json.loads(text)
    told = {name: info[name] for name in ("headers", "max_payload", "connect_info", "ldm") if name in info}
    told["addresses"] = len(info.get("connect_urls", ()))
    return json.dumps(told, sort_keys=True).encode()
