"""Messages that no client of ours would send: each is answered or counted, and everything around it is stored."""

from __future__ import annotations

import random

import msgpack
import pyarrow as pa
import pytest

from liftpy_envelope.envelope import COOKIE
from liftpy_envelope.errors import AckErrorCode
from support.damage import HOSTILE_NUMBERS, truncations
from support.envelopes import CHANCE, MALFORMED, PRODUCER, batch, envelope, idempotent, sealed, sealed_fields
from support.raw_nats import RawNats, block, hpub, pub
from support.reading import gaps, read_all, stored, values

SEALED_HEAD_BYTES = 12
UNSUPPORTED = [
    b"Nats-Rollup: all",
    b"Nats-TTL: 5s",
    b"Nats-Incr: +1",
    b"Nats-Schedule: @every 1s",
    b"Nats-Batch-Id: x",
    b"Nats-Expected-Last-Msg-Id: x",
    b"Nats-Expected-Last-Subject-Sequence: 5",
    b"Nats-Required-Api-Level: 9",
    b"Lift-Colour: red",
]
NO_OFFSETS = [b"-5", b"-1", b"", b"abc", b"1.5", b"1e3", b"+1", b"0x10", b"1 2", b"9" * 400, b"9223372036854775807"]
STRANGE_BLOCKS = {
    "no version": b"NUTS/9.9\r\nA: b\r\n\r\n",
    "a status": b"NATS/1.0 503 No Responders\r\n\r\n",
    "no end": b"NATS/1.0\r\nA: b",
    "no colon": b"NATS/1.0\r\nA b\r\n\r\n",
    "no name": b"NATS/1.0\r\n: b\r\n\r\n",
    "only line feeds": b"NATS/1.0\nNats-Msg-Id: x\nA: b\n\n",
    "zero bytes": b"NATS/1.0\r\nA\0: \0\r\n\r\n",
    "no text": b"NATS/1.0\r\nA: \xff\xfe\xfd\r\n\xff: b\r\n\r\n",
    "a key that is no text": b"NATS/1.0\r\nLift-Key: \xff\0\xfe\r\n\r\n",
    "many": block(*(b"Nats-Trace-%d: x" % number for number in range(2_000))),
    "the same name often": block(*[b"Lift-Key: x"] * 2_000),
    "a long line": block(b"A: " + b"x" * 100_000),
}


@pytest.fixture
def lift(shared_lift):
    return shared_lift


@pytest.fixture
async def raw(shared_nats):
    async with await RawNats.open(shared_nats.port) as connection:
        yield connection


async def refused(lift, name):
    """How many messages were refused, by reason."""
    return (await lift.stream_info(name)).raw["counters"]["refused"]


def assert_refusal(answer, code, name):
    """A clear answer on one line."""
    assert answer["error"]["err_code"] == code, answer
    assert answer["error"]["code"] == code.http_status
    description = answer["error"]["description"]
    assert description.isprintable()
    assert 5 < len(description) < 300
    assert answer["stream"] == name


async def assert_each_refused(raw, lift, name, frames, code):
    """Frames made from (subject, reply): with a reply each is answered, without one counted; neighbours are stored."""
    subject = name.encode()
    replies = []
    for number, make in enumerate(frames):
        replies.append(raw.reply())
        raw.write(pub(subject, b"before %d" % number) + make(subject, replies[-1]) + pub(subject, b"after %d" % number))
    for reply in replies:
        assert_refusal(await raw.answer(reply), code, name)
    await stored(lift, name, 2 * len(frames))
    assert await values(lift, name) == [b"%b %d" % (w, n) for n in range(len(frames)) for w in (b"before", b"after")]
    assert await refused(lift, name) == {code.name.lower(): len(frames)}
    assert await gaps(lift, name) == []

    for make in frames:
        raw.write(make(subject, b""))
    assert (await raw.ask(subject, b"the end"))["offset"] == 2 * len(frames)
    assert await refused(lift, name) == {code.name.lower(): 2 * len(frames)}
    assert sum(gap["messages"] for gap in await gaps(lift, name)) == len(frames)


def payloads(contents):
    return [lambda subject, reply, content=content: pub(subject, content, reply) for content in contents]


def headers(lines):
    return [lambda subject, reply, line=line: hpub(subject, block(line), b"v", reply) for line in lines]


async def test_malformed_envelopes(raw, lift, name):
    await lift.create_stream(name, subject=name)
    await assert_each_refused(raw, lift, name, payloads(MALFORMED.values()), AckErrorCode.MALFORMED)


async def test_envelopes_that_lie(raw, lift, name):
    records = batch([b"1", b"2", b"3"])[SEALED_HEAD_BYTES:]
    unpacker = msgpack.Unpacker(max_buffer_size=len(records))
    unpacker.feed(records)
    fields, arrow = unpacker.unpack(), records[unpacker.tell() :]
    lies = [
        *(
            sealed(msgpack.packb(fields | {"count": count}) + arrow, kind=1)
            for count in (0, 1, 2, 4, -1, 2**31, 2**63, "3")
        ),
        sealed(msgpack.packb({"count": 3}), kind=1),
        sealed(msgpack.packb({"count": 3}) + arrow * 2, kind=1),
        sealed(b"\xdf\xff\xff\xff\xff"),
        sealed(b"\x81\xa5value\xc6\xff\xff\xff\xff"),
        sealed(b"\x91" * 100_000),
        sealed_fields(value=b"v", ack_inbox="x" * 5_000),
        sealed_fields(value=b"v", ack_inbox="answers.1 0\r\n\r\nPUB elsewhere 0\r\n\r\n"),
        sealed_fields(value=b"v", headers={"A": "b\r\nC: d"}),
        sealed_fields(value=b"v", correlation_id="x" * 5_000),
        sealed_fields(value=b"v", msg_id="x" * 5_000),
        sealed_fields(value=b"v", expected_offset=2**63),
    ]
    await lift.create_stream(name, subject=name)
    await assert_each_refused(raw, lift, name, payloads(lies), AckErrorCode.MALFORMED)


async def test_records_in_other_forms(raw, lift, name):
    def around(arrow, count):
        return sealed(msgpack.packb({"count": count}) + arrow, kind=1)

    def message(columns, **options):
        table = pa.record_batch(columns)
        return around(bytes(table.serialize()), table.num_rows)

    values_of = pa.array([b"1", b"2"], pa.binary())
    squeezed = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(squeezed, pa.schema([("value", pa.binary())]), options=options) as writer:
        writer.write_batch(pa.record_batch({"value": pa.array([bytes(1_000_000)] * 20, pa.binary())}))
    stream = bytes(squeezed.getvalue())
    reader = pa.ipc.MessageReader.open_stream(stream)
    reader.read_next_message()
    compressed = bytes(reader.read_next_message().serialize())
    forms = [
        message({"value": values_of, "colour": values_of}),
        message({"value": pa.array([1, 2])}),
        around(stream, 20),
        around(compressed, 20),
        around(bytes(pa.schema([("value", pa.binary())]).serialize()), 1),
        around(b"ARROW1\0\0" + bytes(500), 2),
    ]
    await lift.create_stream(name, subject=name)
    await assert_each_refused(raw, lift, name, payloads(forms), AckErrorCode.MALFORMED)


async def test_damaged_records(raw, lift, name):
    """Whatever is changed in an Arrow body, it is refused or stored as records that can be read back."""
    await lift.create_stream(name, subject=name)
    body = batch([b"%d" % number * 5 for number in range(20)], keys=[b"k"] * 20)[SEALED_HEAD_BYTES:]
    generator = random.Random(5)
    damaged = [truncated for truncated in truncations(body, 1) if len(truncated) % 7 == 0]
    for _ in range(700):
        position = generator.randrange(len(body))
        hostile = generator.choice([*HOSTILE_NUMBERS, generator.randbytes(1)])
        damaged.append((body[:position] + hostile + body[position + len(hostile) :])[: len(body)])
    replies = []
    for content in damaged:
        replies.append(raw.reply())
        raw.write(pub(name.encode(), sealed(content, kind=1), replies[-1]))
    records = 0
    for reply in replies:
        answer = await raw.answer(reply)
        if "error" in answer:
            assert_refusal(answer, AckErrorCode.MALFORMED, name)
        else:
            records += answer["count"]
    await raw.ask(name.encode(), b"the end")
    messages = await read_all(lift, name)
    assert [message.offset for message in messages] == list(range(records + 1))
    assert messages[-1].value == b"the end"


async def test_cookie_by_chance(raw, lift, name):
    """It is nobody's mistake: stored as it is, and counted."""
    await lift.create_stream(name, subject=name)
    generator = random.Random(3)
    contents = [*CHANCE.values(), *(COOKIE + generator.randbytes(size) for size in range(100))]
    contents += [idempotent([b"v"] * 3, 1)[:size] for size in range(4, 8)]
    for offset, content in enumerate(contents):
        assert (await raw.ask(name.encode(), content))["offset"] == offset
    assert await values(lift, name) == contents
    counters = (await lift.stream_info(name)).raw["counters"]
    assert (counters["lookalikes"], counters["refused"]) == (len(contents), {})


async def test_headers_that_ask_for_what_liftpy_does_not_do(raw, lift, name):
    """An error for whoever can be told; whoever can not keeps the message."""
    subject = name.encode()
    await lift.create_stream(name, subject=name)
    for line in UNSUPPORTED:
        answer = await raw.ask_with(subject, block(line), b"asked")
        assert_refusal(answer, AckErrorCode.UNSUPPORTED, name)
        assert line.partition(b":")[0].decode() in answer["error"]["description"]
    for line in UNSUPPORTED:
        raw.write(hpub(subject, block(line), b"told"))
    assert (await raw.ask(subject, b"the end"))["offset"] == len(UNSUPPORTED)
    messages = await read_all(lift, name)
    assert [message.value for message in messages] == [b"told"] * len(UNSUPPORTED) + [b"the end"]
    assert [message.header_block for message in messages[:-1]] == [block(line) for line in UNSUPPORTED]
    counters = (await lift.stream_info(name)).raw["counters"]
    assert counters["unsupported_stored"] == len(UNSUPPORTED)


@pytest.mark.parametrize("header", [b"Lift-Expected-Offset", b"Nats-Expected-Last-Sequence"])
async def test_expected_offsets_that_are_none(raw, lift, name, header):
    await lift.create_stream(name, subject=name)
    lines = [b"%b: %b" % (header, value) for value in NO_OFFSETS]
    await assert_each_refused(raw, lift, name, headers(lines), AckErrorCode.MALFORMED)


async def test_expected_offsets_that_are_wrong(raw, lift, name):
    await lift.create_stream(name, subject=name)
    lines = [b"Lift-Expected-Offset: 9223372036854775806", b"Nats-Expected-Last-Sequence: 77"]
    await assert_each_refused(raw, lift, name, headers(lines), AckErrorCode.WRONG_EXPECTED_OFFSET)


async def test_headers_with_values_that_can_not_be(raw, lift, name):
    await lift.create_stream(name, subject=name)
    lines = [
        b"Lift-Ack: maybe",
        b"Lift-Ack: \xff",
        b"Lift-Ack:",
        b"Nats-Msg-Id: " + b"x" * 1_025,
        b"Lift-Correlation-Id: " + b"x" * 1_025,
    ]
    await assert_each_refused(raw, lift, name, headers(lines), AckErrorCode.MALFORMED)


async def test_another_stream_expected(raw, lift, name):
    await lift.create_stream(name, subject=name)
    lines = [b"Nats-Expected-Stream: other", b"Nats-Expected-Stream: \xff", b"Nats-Expected-Stream:"]
    await assert_each_refused(raw, lift, name, headers(lines), AckErrorCode.WRONG_STREAM)


async def test_strange_header_blocks_are_stored_as_they_came(raw, lift, name):
    subject = name.encode()
    await lift.create_stream(name, subject=name)
    for offset, content in enumerate(STRANGE_BLOCKS.values()):
        assert (await raw.ask_with(subject, content, b"v%d" % offset))["offset"] == offset
    messages = await read_all(lift, name)
    assert [message.value for message in messages] == [b"v%d" % offset for offset in range(len(STRANGE_BLOCKS))]
    assert [message.header_block for message in messages] == list(STRANGE_BLOCKS.values())
    for message in messages:
        assert message.headers is not None


async def test_oversized_payloads(raw, lift, name):
    await lift.create_stream(name, subject=name, message_bytes_max=1_000)
    contents = [bytes(1_001), bytes(900_000), envelope(bytes(1_001)), batch([bytes(600)] * 2)]
    await assert_each_refused(raw, lift, name, payloads(contents), AckErrorCode.TOO_LARGE)


async def test_payload_over_the_limit_of_nats(shared_nats, raw, lift, name):
    """The NATS server throws the publisher out; the stream does not notice."""
    await lift.create_stream(name, subject=name)
    async with await RawNats.open(shared_nats.port) as bad:
        bad.write(pub(name.encode(), bytes(9 * 1024 * 1024)))
        await bad.closed()
        assert "Maximum Payload" in "".join(bad.errors)
    assert (await raw.ask(name.encode(), b"v"))["offset"] == 0


async def test_batch_that_would_grow_beyond_all_bounds(raw, lift, name):
    """Each record is stored with its subject: a long one makes a small payload a huge batch."""
    await lift.create_stream(name, subject=f"{name}.*")
    subject = f"{name}.{'s' * 3_000}".encode()
    answer = await raw.ask(subject, batch([b""] * 50_000))
    assert_refusal(answer, AckErrorCode.TOO_LARGE, name)
    assert (await raw.ask(subject, batch([b""] * 100)))["count"] == 100
    assert await values(lift, name) == [b""] * 100


async def test_subjects_of_thousands_of_tokens(shared_nats, raw, lift, name):
    await lift.create_stream(name, subject=f"{name}.>")
    long = f"{name}{'.t' * 1_800}".encode()
    assert (await raw.ask(long, b"v"))["offset"] == 0
    async with await RawNats.open(shared_nats.port) as bad:
        bad.write(pub(f"{name}{'.t' * 10_000}".encode(), b"v"))
        await bad.closed()
        assert bad.errors
    assert (await raw.ask(long, b"w"))["offset"] == 1
    assert [message.subject for message in await read_all(lift, name)] == [long.decode()] * 2


@pytest.mark.parametrize("tail", [b"\xff\xfe", "\N{SNOWMAN}".encode(), b"\x01\x7f", b'"\\', b"{}%s"])
async def test_subjects_that_are_no_plain_text(raw, lift, name, tail):
    await lift.create_stream(name, subject=f"{name}.>")
    assert (await raw.ask(name.encode() + b"." + tail, b"v"))["offset"] == 0
    (message,) = await read_all(lift, name)
    assert message.value == b"v"
    assert message.subject == f"{name}." + tail.decode("utf-8", "replace")


async def test_replies_that_come_back(raw, lift, name):
    """An ack that goes to the stream itself is a message like any other, and asks for nothing."""
    subject = name.encode()
    await lift.create_stream(name, subject=name)
    raw.write(pub(subject, b"v", reply=subject))
    await stored(lift, name, 2)
    await raw.ask(subject, b"the end")
    found = await values(lift, name)
    assert (found[0], found[2:]) == (b"v", [b"the end"])
    assert b'"offset":0' in found[1]


async def test_producer_that_sends_the_same_again(raw, lift, name):
    subject = name.encode()
    await lift.create_stream(name, subject=name)
    for sequence in (0, 5, 2**63 - 1):
        content = idempotent([b"1", b"2"], sequence)
        first, again = await raw.ask(subject, content), await raw.ask(subject, content)
        assert (again["offset"], again.get("duplicate")) == (first["offset"], True)
    assert await values(lift, name) == [b"1", b"2"] * 3
    answer = await raw.ask(subject, sealed_fields(1, count=1, producer_id=PRODUCER, producer_sequence=-1))
    assert_refusal(answer, AckErrorCode.MALFORMED, name)
