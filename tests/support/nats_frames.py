"""The server's side of the NATS protocol: frames to feed a parser with, and a naive parser to compare it to."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from liftpy_envelope.envelope import COOKIE
from liftpy_server.messages.runs import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy_server.ingest.parser import MessageParser
    from liftpy_server.messages.runs import Run

CONTROL_LINES = (
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b"-ERR 'Slow Consumer'\r\n",
    b'INFO {"server_id":"MSG a 1 3","max_payload":1048576}\r\n',
)
_MSG = re.compile(rb"MSG (\S+) (\d+) (?:(\S+) )?(\d+)")
_HMSG = re.compile(rb"HMSG (\S+) (\d+) (?:(\S+) )?(\d+) (\d+)")


class Frame(NamedTuple):
    """One message as the server sends it; `reply` is empty when there is none."""

    subject: bytes
    sid: int
    reply: bytes
    headers: bytes | None
    value: bytes

    @property
    def message(self) -> Message:
        return Message(self.subject, self.reply, self.headers, self.value)

    def encode(self) -> bytes:
        reply = b" " + self.reply if self.reply else b""
        if self.headers is None:
            return b"MSG %b %d%b %d\r\n%b\r\n" % (self.subject, self.sid, reply, len(self.value), self.value)
        sizes = len(self.headers), len(self.headers) + len(self.value)
        head = b"HMSG %b %d%b %d %d\r\n" % (self.subject, self.sid, reply, *sizes)
        return b"%b%b%b\r\n" % (head, self.headers, self.value)


class Heard(NamedTuple):
    """What a parser made of a stream: messages in order by subscription, and the lines that are none."""

    messages: dict[int, list[Message]]
    control: bytes


def msg(subject: bytes, value: bytes, sid: int = 1, reply: bytes = b"", headers: bytes | None = None) -> Frame:
    """A frame, shortly said."""
    return Frame(subject, sid, reply, headers, value)


def header_block(**headers: str) -> bytes:
    """A NATS header block; underscores in names stand for dashes."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return ("NATS/1.0\r\n" + "".join(lines) + "\r\n").encode()


def encode_all(items: Iterable[Frame | bytes]) -> bytes:
    """A stream of frames and control lines."""
    return b"".join(item.encode() if isinstance(item, Frame) else item for item in items)


def reference_parse(data: bytes) -> Heard:
    """Parse a whole and well-formed stream, line by line."""
    messages: dict[int, list[Message]] = defaultdict(list)
    control = b""
    position = 0
    while position < len(data):
        body = data.index(b"\r\n", position) + 2
        line = data[position : body - 2]
        if found := _MSG.fullmatch(line):
            subject, sid, reply, total = found.groups()
            header_size = None
        elif found := _HMSG.fullmatch(line):
            subject, sid, reply, header_size, total = found.groups()
        else:
            control += data[position:body]
            position = body
            continue
        payload = data[body : body + int(total)]
        assert len(payload) == int(total)
        headers = None if header_size is None else payload[: int(header_size)]
        messages[int(sid)].append(Message(subject, reply or b"", headers, payload[len(headers or b"") :]))
        position = body + int(total) + 2
    return Heard(dict(messages), control)


def hear(parser: MessageParser, chunks: Iterable[bytes]) -> Heard:
    """Feed a parser, and gather what it says."""
    messages: dict[int, list[Message]] = defaultdict(list)
    control = b""
    for chunk in chunks:
        runs, lines = parser.feed(chunk)
        gather(runs, messages)
        control += lines
    return Heard(dict(messages), control)


def gather(runs: Iterable[tuple[int, Run]], messages: dict[int, list[Message]]) -> None:
    """Add the messages of runs to those of their subscription."""
    for sid, run in runs:
        found = run.messages()
        assert len(found) == run.count > 0
        messages.setdefault(sid, []).extend(found)


def cut(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """The stream in pieces; some of them may be empty."""
    edges = [0, *sorted(positions), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def at_random(pool: Sequence[Frame | bytes], count: int, seed: int) -> list[Frame | bytes]:
    """A long stream out of few frames."""
    return random.Random(seed).choices(pool, k=count)


_TOKEN_BYTES = bytes(set(range(33, 127)) | set(range(128, 256)))
tokens = st.one_of(
    st.sampled_from([b"a", b"1", b"12345678", b"MSG", b"HMSG", b"orders.eu", b"_INBOX.x.1", "\u00fc.\u20ac".encode()]),
    st.lists(st.sampled_from(_TOKEN_BYTES), min_size=1, max_size=12).map(bytes),
)
"""Subjects and replies: anything without white space and control characters."""

sids = st.one_of(st.integers(1, 9), st.integers(1, 7).flatmap(lambda digits: st.integers(1, 10**digits - 1)))
long_sids = st.one_of(sids, st.integers(10**7, 10**12))

_FRAGMENTS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"MSG a 1 3\r\n",
        b"\r\nMSG a 1 3\r\nabc\r\n",
        b"MSG ",
        b"\nMSG ",
        b"HMSG a 1 2 3\r\n",
    ),
    *(COOKIE, COOKIE[:2], b"PING\r\n", b"0", b"12 34", b"MSG a 1 0\r\n\r\n", b"\xff", b"7\r\n"),
)
adversarial_values = st.lists(st.sampled_from(_FRAGMENTS), max_size=6).map(b"".join)
values = st.one_of(
    st.binary(max_size=24),
    adversarial_values,
    st.builds(
        lambda unit, size: (unit * size)[:size], st.sampled_from([b"x", b"MSG a 1 3\r\n"]), st.integers(1, 3_000)
    ),
    st.builds(COOKIE.__add__, st.binary(max_size=16)),
)
tame_values = st.one_of(st.binary(max_size=30), st.integers(0, 600).map(bytes)).filter(
    lambda value: b"\nMSG " not in b"\n" + value
)
"""Values that no parser could mistake for the beginning of a frame."""

header_blocks = st.lists(st.sampled_from(["A: b", "X-Long: " + "y" * 40, "Nats-Msg-Id: 7"]), max_size=3).map(
    lambda lines: ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()
)
replies = st.one_of(st.just(b""), tokens)
plain_frames = st.builds(Frame, tokens, sids, replies, st.none(), values)
frames = st.builds(Frame, tokens, long_sids, replies, st.one_of(st.none(), header_blocks), values)
streams = st.lists(st.one_of(frames, frames, st.sampled_from(CONTROL_LINES)), min_size=1, max_size=8)
"""Frames with control lines between them."""
