"""The pull port as a hostile network sees it: whoever misbehaves is told so or cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
import struct
import time

import msgpack
import psutil
import pytest

import liftpy
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_PARTITIONS_MAX, FETCH_WAIT_MS_MAX, REQUEST_FRAME_BYTES_MAX
from liftpy_envelope.pull import EARLIEST, LATEST, Api, FetchResponse
from support.bad_days import told
from support.cluster import NodeProcess, eventually
from support.raw_pull import RawPull, decode_answers, frame, pull_token
from support.reading import metric, read_all
from support.segments import fingerprint

HASTY = """
[pull]
hello_timeout_s = 2.0
idle_timeout_s = 3.0
send_timeout_s = 2.0
connections_max = 60
"""
CONNECTIONS_MAX = 60
STRANGERS_MAX = 140  # half of those from everywhere, and some that are being closed
MIB = 1024 * 1024
GARBAGE = {
    "random": random.Random(7).randbytes(3_000),
    "zeros": bytes(3_000),
    "ones": b"\xff" * 3_000,
    "http": b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
    "tls": bytes.fromhex("16030102000100 01fc0303".replace(" ", "")) + bytes(500),
    "nats": b'CONNECT {"verbose":false}\r\nPING\r\n',
    "no request": frame(1, 0, 1, None)[:4] + b"\xc1" * 20,
    "no array": struct.pack("<I", 1) + msgpack.packb(5),
    "too few fields": struct.pack("<I", 2) + msgpack.packb([1]),
    "fields of other types": frame("1", None, 1.5, b""),
    "numbers below zero": frame(-1, -1, -1, None),
    "a deep nest": struct.pack("<I", 2_000) + b"\x91" * 2_000,
    "an array that is not there": struct.pack("<I", 5) + b"\xdd\xff\xff\xff\xff",
    "a length that lies": frame(1, 0, 1, ["test", "x" * 50])[:40] + frame(2, 0, 1, ["test", "x"]) * 3,
    "nothing but a length": struct.pack("<I", 0) * 100,
}


@pytest.fixture(scope="module")
def hasty_node(shared_nats, tmp_path_factory):
    """A node with little patience."""
    process = NodeProcess(shared_nats.url, tmp_path_factory.mktemp("node"), "--http-port", "0", toml=HASTY).start()
    yield process
    process.stop()


@pytest.fixture
async def lift(shared_nats, hasty_node):
    async with liftpy.connect(shared_nats.url, timeout_s=10.0) as client:
        yield client


async def connections(node):
    return int(await metric(node.ready["http_port"], "liftpy_pull_connections"))


class Port:
    """The pull port, a good client's streams behind it, and the way to it.

    Attributes:
        uuid: of the stream `kept`, which has the offsets 100 to 299 in several segments.
        token: what admits a peer.
    """

    def __init__(self, node, lift, uuid, token):
        self.node = node
        self.lift = lift
        self.uuid = uuid
        self.token = token

    async def stranger(self, **options):
        return await RawPull.open(self.node.pull_port, **options)

    async def peer(self, **options):
        """A connection that was admitted."""
        raw = await RawPull.open(self.node.pull_port, **options)
        assert (await raw.hello(self.token)).error == ErrorCode.NONE
        return raw

    def fetch(self, *rows, bytes_max=MIB, wait_ms_max=0, forget=()):
        """A body, of rows `uuid, partition, offset`."""
        entries = [[[uuid, number], offset] for uuid, number, offset in rows]
        return [bytes_max, wait_ms_max, entries, [list(row) for row in forget]]

    async def assert_serves(self, raw):
        """The connection can be used further."""
        answer = await raw.request(Api.FETCH, self.fetch((self.uuid, 0, 290)))
        assert answer.error == ErrorCode.NONE
        assert answer.offsets[-1] == 299


@pytest.fixture
async def port(lift, hasty_node):
    """The port; afterwards a good client is served as before, and every committed record is what it was."""
    if "kept" not in [stream.name async for stream in lift.streams()]:
        await lift.create_stream("kept", subject="kept", segment_bytes=65_536)
        for number in range(300):
            await lift.publish("kept", b"%06d" % number + bytes(1_000))
        await lift.purge_stream("kept", offset=100)
    before = await read_all(lift, "kept")
    files = fingerprint(hasty_node.data)
    uuid = bytes.fromhex((await lift.stream_info("kept")).raw["uuid"])
    yield Port(hasty_node, lift, uuid, await pull_token(lift))
    await eventually(lambda: _few(hasty_node), 40, "connections stay open")
    assert await read_all(lift, "kept") == before
    after = fingerprint(hasty_node.data)
    assert {name: after[name] for name in files} == files
    assert "Traceback" not in hasty_node.log()


async def _few(node):
    return await connections(node) <= 1  # the good client's


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_of_a_stranger(port, name):
    async with await port.stranger() as raw:
        raw.write(GARBAGE[name])
        answers = decode_answers(await raw.rest())
        assert all(answer.error for answer in answers)


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_of_a_peer(port, name):
    async with await port.peer() as raw:
        raw.write(GARBAGE[name])
        raw.writer.write_eof()
        answers = decode_answers(await raw.rest())
        assert all(answer.error and answer.message for answer in answers)


async def test_random_frames_of_a_peer(port):
    """Bodies that are msgpack and nothing else, for every api; each is answered, and the connection goes on."""
    generator = random.Random(11)
    leaves = [
        None,
        True,
        -1,
        0,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        1.5,
        float("nan"),
        "x",
        b"",
        b"x" * 16,
        port.uuid,
        [],
        {},
    ]

    def body(depth=0):
        if depth < 4 and generator.random() < 0.5:
            return [body(depth + 1) for _ in range(generator.randrange(7))]
        return generator.choice(leaves)

    async with await port.peer() as raw:
        for _ in range(300):
            answer = await raw.request(generator.randrange(6), body(), generator.choice([0, 1, 1, 1, 2]))
            assert (
                answer.error in {ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION} or answer.result is not None
            )
        await port.assert_serves(raw)


async def test_stranger_that_says_nothing(port):
    async with await port.stranger() as raw:
        assert await raw.rest() == b""


@pytest.mark.parametrize("begin", [b"\x40", frame(1, 0, 1, ["test", "token"])[:-1]])
async def test_stranger_that_stops_in_a_frame(port, begin):
    async with await port.stranger() as raw:
        raw.write(begin)
        assert await raw.rest() == b""


async def test_stranger_does_not_stay_by_talking(port):
    async with await port.stranger() as raw:
        reading = asyncio.ensure_future(raw.rest(20))
        while not reading.done():
            raw.send(Api.METADATA, None)
            await asyncio.sleep(0.05)
        answers = decode_answers(await reading)
        assert {answer.error for answer in answers} == {ErrorCode.UNAUTHENTICATED}


async def test_peer_that_stops_in_a_frame(port):
    async with await port.peer() as raw:
        raw.write(frame(9, Api.METADATA, 1, None)[:-1])
        assert await raw.rest() == b""


async def test_connection_of_which_only_one_side_closed(port):
    async with await port.peer() as raw:
        raw.send(Api.METADATA, None)
        raw.writer.write_eof()
        (answer,) = decode_answers(await raw.rest())
        assert answer.error == ErrorCode.NONE


@pytest.mark.parametrize("token", ["", "wrong", "x" * 1_000, "\N{SNOWMAN}"])
async def test_wrong_token(port, token):
    async with await port.stranger() as raw:
        answer = await raw.hello(token)
        assert (answer.error, answer.result) == (ErrorCode.UNAUTHENTICATED, None)
        assert "LIFT.API.METADATA" in answer.message
        assert (await raw.request(Api.METADATA, None)).error == ErrorCode.UNAUTHENTICATED
        assert (await raw.hello(port.token)).error == ErrorCode.NONE
        await port.assert_serves(raw)


@pytest.mark.parametrize("body", [None, [], ["test"], ["test", None], ["test", b"x"], [1, "x"], ["test", "x", "y"]])
async def test_malformed_hello(port, body):
    async with await port.stranger() as raw:
        assert (await raw.request(Api.HELLO, body)).error == ErrorCode.INVALID_REQUEST
        assert (await raw.hello(port.token)).error == ErrorCode.NONE


@pytest.mark.parametrize("api", [Api.METADATA, Api.FETCH, Api.LIST_OFFSETS, Api.EPOCH_END_OFFSET])
async def test_nothing_before_hello(port, api):
    async with await port.stranger() as raw:
        assert (await raw.request(api, [])).error == ErrorCode.UNAUTHENTICATED


async def test_frame_over_the_limit(port):
    async with await port.peer() as raw:
        raw.write(struct.pack("<I", REQUEST_FRAME_BYTES_MAX + 1))
        (answer,) = decode_answers(await raw.rest())
        assert answer.error == ErrorCode.FRAME_TOO_LARGE
        assert str(REQUEST_FRAME_BYTES_MAX) in answer.message


async def test_frame_at_the_limit(port):
    padding = b"x" * (REQUEST_FRAME_BYTES_MAX - len(frame(2, Api.FETCH, 1, b"x" * 70_000)) + 4 + 70_000)
    assert len(frame(2, Api.FETCH, 1, padding)) == REQUEST_FRAME_BYTES_MAX + 4
    async with await port.peer() as raw:
        assert (await raw.request(Api.FETCH, padding)).error == ErrorCode.INVALID_REQUEST
        await port.assert_serves(raw)


async def test_large_frame_of_a_stranger(port):
    async with await port.stranger() as raw:
        raw.write(frame(1, Api.HELLO, 1, ["test", "x" * 100_000]))
        answers = decode_answers(await raw.rest())
        assert {answer.error for answer in answers} <= {ErrorCode.FRAME_TOO_LARGE}


@pytest.mark.parametrize("offset", [300 + 1, 10**9, 2**63 - 1, 99, 0])
async def test_fetch_outside_of_the_log(port, offset):
    async with await port.peer() as raw:
        answer = await raw.request(Api.FETCH, port.fetch((port.uuid, 0, offset)))
        (result,) = answer.decoded(FetchResponse).results
        assert (result.key, result.error, result.body_bytes) == ((port.uuid, 0), ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        assert (result.log_start, result.high_watermark) == (100, 300)
        assert str(offset) in result.message
        await port.assert_serves(raw)


async def test_fetch_at_the_end(port):
    async with await port.peer() as raw:
        answer = await raw.request(Api.FETCH, port.fetch((port.uuid, 0, 300)))
        (result,) = answer.decoded(FetchResponse).results
        assert (result.error, result.body_bytes) == (ErrorCode.NONE, 0)


async def test_fetch_of_what_is_not_there(port):
    elsewhere = [(bytes(16), 0), (port.uuid, 1), (port.uuid, 2**31 - 1)]
    async with await port.peer() as raw:
        answer = await raw.request(Api.FETCH, port.fetch(*((*key, 0) for key in elsewhere)))
        assert [row[1] for row in answer.result[0]] == [
            ErrorCode.UNKNOWN_STREAM,
            ErrorCode.NOT_LEADER,
            ErrorCode.NOT_LEADER,
        ]
        for api in (Api.LIST_OFFSETS, Api.EPOCH_END_OFFSET):
            answer = await raw.request(api, [[[key, 0] for key in elsewhere]])
            assert [row[1] for row in answer.result[0]] == [
                ErrorCode.UNKNOWN_STREAM,
                ErrorCode.NOT_LEADER,
                ErrorCode.NOT_LEADER,
            ]
        await port.assert_serves(raw)


async def test_malformed_fetches(port):
    key = [port.uuid, 0]
    row = [key, 0, -1, -1]
    bodies = [
        None,
        [],
        [MIB],
        [MIB, 0, [row], [], 0, -1],
        [MIB, 0, row, [], False, -1],
        [MIB, 0, [row], [], False, -1, False, [], 0],
        *([size, 0, [row]] for size in (0, -1, FETCH_BYTES_MAX + 1, 2**64 - 1, "1", None)),
        *([MIB, wait, [row]] for wait in (-1, FETCH_WAIT_MS_MAX + 1, 1.5, None)),
        *([MIB, 0, [[key, offset, -1, -1]]] for offset in (-1, -5, -(2**63), 2**63, 0.5, None)),
        *([MIB, 0, [[[port.uuid, number], 0, -1, -1]]] for number in (-1, 2**31, None, "0")),
        *([MIB, 0, [[[uuid, 0], 0, -1, -1]]] for uuid in (b"", port.uuid[:-1], port.uuid.hex(), None)),
        [MIB, 0, [row] * (FETCH_PARTITIONS_MAX + 1)],
        [MIB, 0, [], [[port.uuid]]],
    ]
    async with await port.peer() as raw:
        for body in bodies:
            answer = await raw.request(Api.FETCH, body)
            assert (answer.error, answer.result) == (ErrorCode.INVALID_REQUEST, None), body
            assert answer.message
        await port.assert_serves(raw)


async def test_malformed_questions(port):
    key = [port.uuid, 0]
    async with await port.peer() as raw:
        for api in (Api.LIST_OFFSETS, Api.EPOCH_END_OFFSET):
            for row in (None, 5, [key], [key, -3], [key, 2**63], [[b"x", 0], 0]):
                assert (await raw.request(api, [[row]])).error == ErrorCode.INVALID_REQUEST, row
        answer = await raw.request(Api.LIST_OFFSETS, [[[key, where] for where in (EARLIEST, LATEST, 2**63 - 1)]])
        assert [row[3] for row in answer.result[0]] == [100, 300, 300]


@pytest.mark.parametrize(("api", "version"), [(0, 0), (0, 2), (2, 99), (2, 2**62)])
async def test_version_that_is_not_spoken(port, api, version):
    async with await port.peer() as raw:
        answer = await raw.request(api, None, version)
        assert (answer.error, "1 to 1" in answer.message) == (ErrorCode.UNSUPPORTED_VERSION, True)
        await port.assert_serves(raw)


@pytest.mark.parametrize("api", [11, 13, 77, 2**62])
async def test_api_that_is_not_known(port, api):
    async with await port.peer() as raw:
        answer = await raw.request(api, None)
        assert (answer.error, str(api) in answer.message) == (ErrorCode.INVALID_REQUEST, True)
        await port.assert_serves(raw)


async def test_many_partitions_that_are_not_there(port):
    """Neither the answer nor what the session remembers grows without bound."""
    async with await port.peer() as raw:
        for round_number in range(3):
            rows = [(number.to_bytes(15, "big") + bytes((round_number,)), 0, 0) for number in range(10_000)]
            answer = await raw.request(Api.FETCH, port.fetch(*rows))
            assert len(answer.result[0]) == 10_000
            assert {row[1] for row in answer.result[0]} == {ErrorCode.UNKNOWN_STREAM}
        assert (await raw.request(Api.FETCH, port.fetch())).result == [[]]
        await port.assert_serves(raw)


async def test_many_requests_at_once_are_answered_in_order(port):
    async with await port.peer() as raw:
        sent = [raw.send(Api.LIST_OFFSETS, [[[[port.uuid, 0], LATEST]]]) for _ in range(2_000)]
        received = [(await raw.receive()).correlation_id for _ in sent]
        assert received == sent


async def fill(lift, name, mib):
    """A stream with so many MiB."""
    await lift.create_stream(name, subject=name)
    value = bytes(512 * 1024)
    async with lift.publisher() as publisher:
        for _ in range(2 * mib):
            await publisher.publish(name, value)
    return bytes.fromhex((await lift.stream_info(name)).raw["uuid"])


async def test_peers_that_never_read(port):
    """Each asks for far more than sockets hold: it is cut off, and the node keeps none of it in memory."""
    uuid = await fill(port.lift, "large", 32)
    process = psutil.Process(port.node.process.pid)
    request = port.fetch((uuid, 0, 0), bytes_max=32 * MIB)
    before = process.memory_info().rss
    peers = [await port.peer(receive_bytes=4_096) for _ in range(20)]
    try:
        for raw in peers:
            raw.reader._transport.pause_reading()
            for _ in range(40):
                raw.send(Api.FETCH, request)
        most = before
        deadline = time.monotonic() + 60
        while not await _few(port.node):
            most = max(most, process.memory_info().rss)
            assert time.monotonic() < deadline, "peers that do not read are never cut off"
            await asyncio.sleep(0.05)
    finally:
        for raw in peers:
            raw.close()
        await port.lift.delete_stream("large")
    assert most - before < 64 * MIB


async def test_peer_that_reads_slowly_gets_everything(port):
    """As long as it goes on taking something of a response now and then."""
    uuid = await fill(port.lift, "slow", 4)
    async with await port.peer(receive_bytes=65_536) as raw:
        offset, end = 0, 8
        while offset < end:
            answer = await raw.request(Api.FETCH, port.fetch((uuid, 0, offset), bytes_max=MIB))
            assert answer.offsets[0] == offset
            offset = answer.offsets[-1] + 1
            await asyncio.sleep(0.2)
    await port.lift.delete_stream("slow")


async def test_peers_that_leave_in_the_middle(port):
    """Nothing of them stays: neither connections nor open files."""
    uuid = await fill(port.lift, "left", 8)
    process = psutil.Process(port.node.process.pid)
    await eventually(lambda: _few(port.node))
    before = process.num_fds()
    for _ in range(3):
        peers = [await port.peer(receive_bytes=4_096) for _ in range(20)]
        for raw in peers:
            raw.send(Api.FETCH, port.fetch((uuid, 0, 0), bytes_max=8 * MIB))
            raw.send(Api.FETCH, port.fetch((port.uuid, 0, 300), wait_ms_max=60_000))
        await peers[0].reader.read(100)
        for raw in peers:
            raw.close()
    await eventually(lambda: _few(port.node))
    await eventually(lambda: process.num_fds() <= before + 5, message="descriptors stay open")
    await port.lift.delete_stream("left")


async def test_more_strangers_than_are_allowed(port):
    """The oldest is closed for a newer one, so that who says hello at once is served in the midst of them."""
    crowd = [await port.stranger() for _ in range(600)]
    try:
        assert await connections(port.node) <= STRANGERS_MAX
        async with await port.peer() as raw:
            await port.assert_serves(raw)
        for raw in crowd:
            assert await raw.rest(20) == b""
    finally:
        for raw in crowd:
            raw.close()
    await told(port.node, "connections of one address say nothing: the oldest is closed")
    assert port.node.log().count("say nothing") < 5
    assert await metric(port.node.ready["http_port"], "liftpy_busy_refusals_total", listener="pull") >= 300


async def test_more_clients_than_are_allowed(port):
    """The next one is refused in words, and another node of the cluster would be let in."""
    crowd = [await port.peer() for _ in range(CONNECTIONS_MAX)]
    try:
        async with await port.stranger() as raw:
            answer = await raw.hello(port.token)
            assert answer.error == ErrorCode.TOO_MANY_REQUESTS
            assert "raise pull.connections_max" in answer.message
        crowd.pop().close()
        await eventually(lambda: _admitted(port))
    finally:
        for raw in crowd:
            raw.close()
    await eventually(lambda: _few(port.node))


async def _admitted(port):
    async with await port.stranger() as raw:
        return (await raw.hello(port.token)).error == ErrorCode.NONE


async def test_good_client_is_served_in_the_middle_of_it(port):
    """A consumer and a publisher go on while others send garbage."""
    await port.lift.create_stream("busy", subject="busy")
    stop = asyncio.Event()

    async def be_bad(seed):
        generator = random.Random(seed)
        while not stop.is_set():
            async with await (port.peer() if seed % 2 else port.stranger()) as raw:
                raw.write(generator.randbytes(generator.randrange(1, 5_000)))
                await asyncio.sleep(0.02)

    bad = [asyncio.ensure_future(be_bad(seed)) for seed in range(10)]
    try:
        taken = []
        async with asyncio.timeout(40), port.lift.consume("busy") as consumer:
            for number in range(100):
                await port.lift.publish("busy", b"%d" % number)
            async for message in consumer:
                taken.append(int(message.value))
                if len(taken) == 100:
                    break
    finally:
        stop.set()
        await asyncio.gather(*bad)
    assert taken == list(range(100))
    await port.lift.delete_stream("busy")
