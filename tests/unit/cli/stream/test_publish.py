"""What `liftpy publish` makes of lines, and how it sends many messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy.cli.stream import publish as publishing
from liftpy.cli.stream import sources
from liftpy.cli.stream.printing import json_printer
from liftpy.cli.stream.sources import Draft, json_messages, read_lines, text_messages
from liftpy_client.errors import UsageError
from liftpy_client.message import Message
from liftpy_envelope.ack import Ack


async def each(*items):
    for item in items:
        yield item


async def drafts(source):
    return [draft async for draft in source]


async def test_keys_and_values_of_lines():
    found = await drafts(text_messages(each(b"a:1:2", b":", b"\xff:"), "s", None, b":", None))
    assert found == [Draft("s", b"1:2", b"a"), Draft("s", b"", b""), Draft("s", b"", b"\xff")]
    assert await drafts(text_messages(each(b"a:1"), "s", b"k", None, {"A": "1"})) == [
        Draft("s", b"a:1", b"k", {"A": "1"})
    ]
    with pytest.raises(UsageError, match="line 2: there is no key separator ':'"):
        await drafts(text_messages(each(b"a:1", b"b"), "s", None, b":", None))


@pytest.mark.parametrize("value", [b"text", b"\xff", b"", None])
@pytest.mark.parametrize("key", [b"k", b"\xff", None])
async def test_what_consume_printed_is_published_again(key, value):
    block = b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\nNats-Msg-Id: 7\r\nLift-Key: k\r\nLift-Ack: none\r\n\r\n"
    line = json_printer(Message("orders", 0, 7, 1, "orders.new", key, block, value))
    assert await drafts(json_messages(each(line, b" "), None)) == [
        Draft("orders.new", value, key, {"A": ["1", "2"], "B": "x"})
    ]
    assert (await drafts(json_messages(each(line), "copy")))[0].subject == "copy"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "line 1: "),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "recursion"),
        (b'{"value": "x"}', "subject: missing"),
        (b'{"subject": "s"}', "value: missing"),
        (b'{"subject": "s", "value": 1}', "value: 1 is not text"),
        (b'{"subject": "s", "value_base64": "?"}', "value_base64: "),
        (b'{"subject": "s", "value": "x", "headers": {"A": 1}}', "headers: "),
    ],
)
async def test_a_wrong_line_is_named(line, what):
    with pytest.raises(UsageError, match="line 1") as failure:
        await drafts(json_messages(each(line), None))
    assert what in str(failure.value)


def test_headers_that_are_given_several_times():
    assert publishing._headers(["A:1", "B: x ", "A:2", "A:3"]) == {"A": ["1", "2", "3"], "B": "x"}


class Acking:
    """A client that acknowledges when it is told to."""

    def __init__(self):
        self.sent = []
        self.in_flight = 0
        self.most = 0
        self.failure = None

    async def publish(self, subject, value, **wanted):
        self.sent.append((subject, value, wanted["key"], wanted["headers"]))
        number = len(self.sent)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        if self.failure is not None and number > 5:
            raise self.failure
        return Ack(stream="s", offset=number - 1)


@pytest.fixture
def acking(monkeypatch):
    monkeypatch.setattr(publishing, "Progress", lambda *_, **__: _NoProgress())
    return Acking()


class _NoProgress(SimpleNamespace):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def add_task(self, *_, **__):
        return 0

    def update(self, *_, **__):
        return None


async def test_many_are_in_flight_in_order_and_bounded(acking, monkeypatch):
    monkeypatch.setattr(publishing, "_IN_FLIGHT_MAX", 10)
    given = [Draft("s", b"%d" % number) for number in range(500)]
    shown = await publishing._publish_each(acking, each(*given), None, ack_policy=None, stream=None)
    assert shown["published"] == 500
    assert [value for _, value, _, _ in acking.sent] == [draft.value for draft in given]
    assert 2 <= acking.most <= 10


async def test_a_failure_ends_it_and_says_how_many_were_stored(acking):
    acking.failure = UsageError("no")
    given = [Draft("s", b"x")] * 100_000
    with pytest.raises(UsageError, match="no") as failure:
        await publishing._publish_each(acking, each(*given), None, ack_policy=None, stream=None)
    assert "messages were acknowledged before" in failure.value.__notes__[0]
    assert len(acking.sent) < 3_000
    assert acking.in_flight == 0


async def test_a_tombstone_is_a_plain_message_where_it_has_a_key(acking):
    for key in (b"k", b"\xff", b" k", None):
        await publishing._publish_one(acking, Draft("s", None, key), ack_policy=None, stream=None)
    assert [(value, headers) for _, value, _, headers in acking.sent] == [
        (b"", {"Lift-Tombstone": "true"}), (None, None), (None, None), (None, None),
    ]  # fmt: skip


async def test_what_came_before_a_wrong_line_is_published(acking):
    lines = [b'{"subject": "s", "value": "%d"}' % number for number in range(20)]
    with pytest.raises(UsageError, match="line 21") as failure:
        await publishing._publish_each(acking, json_messages(each(*lines, b"{"), None), None)
    assert len(acking.sent) == 20
    assert acking.in_flight == 0
    assert failure.value.__notes__ == ["20 messages before it were acknowledged"]


async def test_lines_of_any_length_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(b"a\r\n\n" + b"x" * 1_000_000 + b"\nlast")
    with path.open("rb") as file:
        found = [line async for line in read_lines(file.fileno())]
    assert found == [b"a", b"", b"x" * 1_000_000, b"last"]
    monkeypatch.setattr(sources, "_LINE_BYTES_MAX", 900_000)
    with path.open("rb") as file, pytest.raises(UsageError, match="a line is longer than"):
        [line async for line in read_lines(file.fileno())]


def test_without_a_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="the standard input is closed"):
        publishing._stdin()
