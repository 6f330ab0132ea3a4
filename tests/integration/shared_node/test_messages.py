"""The way of a message on a real node: plain publishers, acks, consumers from every start to every stop."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import nats
import pyarrow as pa
import pytest
from nats.js.errors import APIError

import liftpy
from liftpy_envelope.headers import encode_header_block
from support.cluster import NodeProcess, eventually, make_nats, quick_options


async def take(consumer, count=None):
    """What a consumer gives, up to `count` messages."""
    taken = []
    async for message in consumer:
        taken.append(message)
        if count is not None and len(taken) == count:
            break
    return taken


async def committed(lift, stream):
    return (await lift.stream_info(stream)).messages


async def test_plain_messages_are_stored_in_order(lift):
    await lift.create_stream("orders", subject="orders.>")
    for number in range(500):
        await lift.nats.publish(f"orders.{number % 7}", b"%d" % number)
    await eventually(lambda: _has(lift, "orders", 500))
    messages = await take(lift.consume("orders", stop="latest"))
    assert [message.value for message in messages] == [b"%d" % number for number in range(500)]
    assert [message.offset for message in messages] == list(range(500))
    assert [message.subject for message in messages] == [f"orders.{number % 7}" for number in range(500)]


async def test_where_epochs_end(lift):
    await lift.create_stream("orders", subject="orders.>", partitions=2)
    place = (await lift.stream_info("orders")).partitions[1]
    for number in range(20):
        await lift.publish("orders.a", b"%d" % number, key=b"%d" % number)
    ends = {each.partition: each.high_watermark for each in (await lift.stream_info("orders")).partitions}
    assert sum(ends.values()) == 20
    assert await lift.epoch_ends("orders", dict.fromkeys(ends, place.leader_epoch)) == ends
    assert await lift.epoch_ends("orders", {1: place.leader_epoch + 7}) == {1: ends[1]}
    assert await lift.epoch_ends("orders", {1: 0}) == {1: 0}, "before all that is there"
    with pytest.raises(liftpy.NoStreamError):
        await lift.epoch_ends("other", {0: 1})


async def _has(lift, stream, count):
    return await committed(lift, stream) >= count


async def test_js_publish_works_unmodified(lift):
    await lift.create_stream("orders", subject="orders.*")
    js = lift.nats.jetstream()
    first = await js.publish("orders.new", b"one")
    second = await js.publish("orders.new", b"two", headers={"Nats-Msg-Id": "2"}, stream="orders")
    again = await js.publish("orders.new", b"two", headers={"Nats-Msg-Id": "2"})
    assert (first.stream, first.seq, second.seq, again.seq, again.duplicate) == ("orders", 1, 2, 2, True)
    with pytest.raises(APIError) as refused:
        await js.publish("orders.new", b"x", stream="other")
    assert refused.value.err_code == 10060
    with pytest.raises(APIError) as refused:
        await js.publish("orders.new", b"x", headers={"Nats-Expected-Last-Sequence": "7"})
    assert refused.value.err_code == 10071
    assert (await js.publish("orders.new", b"x", headers={"Nats-Expected-Last-Sequence": "2"})).seq == 3
    with pytest.raises(APIError) as refused:
        await js.publish("orders.new", b"x", headers={"Nats-Rollup": "all"})
    assert refused.value.err_code == 20005


async def test_publish_with_everything(lift):
    await lift.create_stream("orders", subject="orders.>")
    ack = await lift.publish("orders.a", b"value", key=b"k", headers={"A": "b"}, message_id="m", expected_offset=0)
    assert (ack.stream, ack.offset, ack.partition, ack.count, ack.duplicate) == ("orders", 0, 0, 1, False)
    again = await lift.publish("orders.a", b"value", key=b"k", message_id="m")
    assert (again.offset, again.duplicate) == (0, True)
    tombstone = await lift.publish("orders.a", None, key=b"\x00\r\n")
    with pytest.raises(liftpy.PublishRefusedError, match="wrong last sequence"):
        await lift.publish("orders.a", b"x", expected_offset=77)
    first, second = await take(lift.consume("orders", stop="latest"))
    assert (first.key, first.value, first.headers["A"], first.headers["Lift-Key"]) == (b"k", b"value", "b", "k")
    assert (second.offset, second.key, second.value) == (tombstone.offset, b"\x00\r\n", None)


async def test_starts_and_stops(lift):
    await lift.create_stream("s", subject="s")
    for number in range(10):
        await lift.publish("s", b"%d" % number)
    between = datetime.now(UTC)
    await asyncio.to_thread(lambda: None)
    for number in range(10, 20):
        await lift.publish("s", b"%d" % number)

    async def values(**where):
        return [int(message.value) for message in await take(lift.consume("s", **where))]

    assert await values(start="earliest", stop="latest") == list(range(20))
    assert await values(start="latest", stop="latest") == [19]
    assert await values(start=5, stop=8) == [5, 6, 7]
    assert await values(start=5, stop=5) == []
    assert await values(start=between, stop="latest") == list(range(10, 20))
    assert await values(start="earliest", stop=between) == list(range(10))
    assert await values(start=between - timedelta(days=1), stop=3) == [0, 1, 2]
    assert await values(start={0: 17}, stop="latest") == [17, 18, 19]
    consumer = lift.consume("s", start="new", options=quick_options())
    new = asyncio.ensure_future(take(consumer, 1))
    await eventually(lambda: consumer._places, message="the consumer does not begin")
    await lift.publish("s", b"20")
    assert [int(message.value) for message in await asyncio.wait_for(new, 40)] == [20]


async def test_a_consumer_follows(lift):
    await lift.create_stream("s", subject="s")
    following = asyncio.ensure_future(take(lift.consume("s"), 100))
    for number in range(100):
        await lift.publish("s", b"%d" % number)
    messages = await asyncio.wait_for(following, 40)
    assert [int(message.value) for message in messages] == list(range(100))


async def test_batches_in_arrow(lift):
    await lift.create_stream("s", subject="s.>")
    values = [b"%d" % number for number in range(30_000)]
    keys = [b"k%d" % (number % 10) for number in range(30_000)]
    async with lift.publisher() as publisher:
        await publisher.publish_batch(
            "s.x", {"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())}
        )
    batches = [batch async for batch in lift.consume_batches("s", start=0, stop="latest")]
    table = pa.Table.from_batches(batches)
    assert table.column("offset").to_pylist() == list(range(30_000))
    assert table.column("value").to_pylist() == values
    assert table.column("key").to_pylist() == keys
    assert set(table.column("subject").to_pylist()) == {"s.x"}
    assert table.schema.names == ["offset", "timestamp", "partition", "subject", "key", "headers", "value"]


async def test_publisher_gathers_and_acknowledges(lift):
    await lift.create_stream("s", subject="s.*")
    async with lift.publisher(linger_s=0.02) as publisher:
        acks = [
            await publisher.publish(f"s.{number % 3}", b"%d" % number, key=b"%d" % number) for number in range(3_000)
        ]
        offsets = [(await ack).offset for ack in acks]
    assert sorted(offsets) == list(range(3_000))
    by_offset = {message.offset: message for message in await take(lift.consume("s", stop="latest"))}
    assert [int(by_offset[offset].value) for offset in offsets] == list(range(3_000))
    batches = (await lift.stream_info("s")).raw["counters"]["batches"]
    assert batches < 300


async def test_policies_and_where_acks_go(lift, nats_server):
    await lift.create_stream("reply", subject="a.reply")
    await lift.create_stream("envelope", subject="a.envelope", acks="envelope")
    await lift.create_stream("off", subject="a.off", acks="off")
    await lift.create_stream("none", subject="a.none", ack_policy="none")
    client = await nats.connect(nats_server.url)
    acked = json.loads((await client.request("a.reply", b"x", timeout=30)).data)
    assert acked == {"stream": "reply", "seq": 1, "offset": 0, "partition": 0, "epoch": 1, "count": 1}
    for subject in ("a.envelope", "a.off", "a.none"):
        with pytest.raises(nats.errors.TimeoutError):
            await client.request(subject, b"x", timeout=0.3)
    reply = await client.request("a.none", b"x", timeout=5, headers={"Lift-Ack": "leader", "Lift-Correlation-Id": "c7"})
    assert json.loads(reply.data)["correlation_id"] == "c7"
    assert (await lift.publish("a.envelope", b"y")).stream == "envelope"
    with pytest.raises(liftpy.UsageError, match="sends no acks"):
        await lift.publish("a.off", b"y")
    counts = [await committed(lift, name) for name in ("reply", "envelope", "off", "none")]
    assert counts == [1, 2, 1, 2]
    await client.close()


async def test_overlapping_streams_each_store_and_ack(lift):
    await lift.create_stream("all", subject="x.>")
    await lift.create_stream("some", subject="x.a.*")
    await lift.create_stream("same", subject="x.a.*")
    assert await lift.find_streams("x.a.b") == ["all", "some", "same"]
    acks = [await lift.publish("x.a.b", b"1", stream=name) for name in ("all", "some", "same")]
    assert [ack.stream for ack in acks] == ["all", "some", "same"]
    for name in ("all", "some", "same"):
        values = [message.value for message in await take(lift.consume(name, stop="latest"))]
        assert values == [b"1", b"1", b"1"]


async def test_a_queue_group_shares_a_subject(lift):
    await lift.create_stream("one", subject="q.>", group="workers")
    await lift.create_stream("two", subject="q.>", group="workers")
    for number in range(300):
        await lift.publish("q.x", b"%d" % number)
    found = []
    for name in ("one", "two"):
        found += [int(message.value) for message in await take(lift.consume(name, stop="latest"))]
    assert sorted(found) == list(range(300))
    assert all([await committed(lift, name) for name in ("one", "two")])


async def test_all_values_of_a_header_go_round(lift):
    await lift.create_stream("h", subject="h")
    await lift.publish("h", b"0", headers={"Trace": ["a", "b"], "One": "1"})
    (first,) = await take(lift.consume("h", stop="latest"))
    came = first.headers
    await lift.publish("h", b"1", headers={"Trace": came.get_all("Trace"), "One": came["One"]})
    await lift.publish("h", None, key=b"\x00", headers={"Trace": ["a", "b"], "One": "1"})  # in an envelope
    for envelope in (True, False):
        async with lift.publisher(envelope=envelope) as publisher:
            kept = {name: values for name, values in came.all_values().items() if not name.startswith("Nats-")}
            await publisher.publish("h", b"v", headers=kept)
            block = encode_header_block(kept)
            await publisher.publish_batch("h", {"value": pa.array([b"w"]), "headers": pa.array([block], pa.binary())})
    found = await take(lift.consume("h", stop="latest"))
    blocks = [batch.column("headers").to_pylist() async for batch in lift.consume_batches("h", stop="latest")]
    in_batches = [liftpy.Headers(block) for some in blocks for block in some]
    assert len(found) == len(in_batches) == 7
    for headers in [*(message.headers for message in found), *in_batches]:
        assert (headers["Trace"], headers.get_all("Trace"), headers.get_all("One")) == ("a", ["a", "b"], ["1"])


async def test_headers_are_kept_as_received(lift):
    await lift.create_stream("h", subject="h")
    await lift.nats.publish("h", b"v", headers={"traceparent": "00-abc", "X": " spaced "})
    await eventually(lambda: _has(lift, "h", 1))
    (message,) = await take(lift.consume("h", stop="latest"))
    assert message.header_block.startswith(b"NATS/1.0\r\n")
    assert message.headers["traceparent"] == "00-abc"


async def test_large_and_empty_messages(lift):
    await lift.create_stream("big", subject="big", message_bytes_max=600_000)
    payload = bytes(range(256)) * 2_000
    await lift.publish("big", payload)
    await lift.publish("big", b"")
    with pytest.raises(liftpy.PublishRefusedError, match="over the stream's limit"):
        await lift.publish("big", payload + payload)
    assert [message.value for message in await take(lift.consume("big", stop="latest"))] == [payload, b""]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compression(lift, compression):
    await lift.create_stream("c", subject="c", compression=compression)
    async with lift.publisher() as publisher:
        for _ in range(2_000):
            await publisher.publish("c", b"the same again and again " * 10)
    details = await lift.stream_info("c")
    assert details.bytes < 2_000 * 250 / 4
    assert {message.value for message in await take(lift.consume("c", stop="latest"))} == {
        b"the same again and again " * 10
    }


async def test_partitions_by_hash(lift):
    await lift.create_stream("p", subject="p.>", partitions=4)
    for number in range(200):
        await lift.publish(f"p.{number}", b"%d" % number, key=b"%d" % (number % 20))
    for number in range(100):
        await lift.nats.publish(f"p.plain.{number % 10}", b"%d" % number)
    await eventually(lambda: _has(lift, "p", 300))
    messages = await take(lift.consume("p", stop="latest"))
    assert len(messages) == 300
    by_key: dict = {}
    for message in messages:
        by_key.setdefault(message.key or message.subject, set()).add(message.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert len({message.partition for message in messages}) == 4
    assert {message.partition for message in await take(lift.consume("p", stop="latest", partitions=[2]))} == {2}


async def test_partitions_by_mapping(tmp_path):
    config = 'listen: 127.0.0.1:4222\nmappings = {\n  "orders.>": "lift.{{partition(4)}}.orders.>"\n}\n'
    server = make_nats(tmp_path / "nats", config=config)
    node = NodeProcess(server.url, tmp_path / "node").start()
    try:
        async with liftpy.connect(server.url) as lift:
            await lift.create_stream("orders", subject="orders.>", partitions=4, spread="mapping")
            client = await nats.connect(server.url)
            for number in range(100):
                await client.publish(f"orders.{number}", b"%d" % number)
            await eventually(lambda: _has(lift, "orders", 100))
            messages = await take(lift.consume("orders", stop="latest"))
            assert sorted(int(message.value) for message in messages) == list(range(100))
            assert all(message.subject == f"orders.{int(message.value)}" for message in messages)
            assert len({message.partition for message in messages}) == 4
            await client.close()
    finally:
        node.stop()
        server.stop()


async def test_client_publishes_to_mapped_partitions_itself(lift):
    await lift.create_stream("m", subject="m.>", partitions=3, spread="mapping", partition_prefix="pre")
    acks = [await lift.publish("m.x", b"%d" % number, key=b"key-%d" % number) for number in range(60)]
    assert {ack.partition for ack in acks} == {0, 1, 2}
    async with lift.publisher() as publisher:
        for number in range(60, 120):
            await publisher.publish("m.x", b"%d" % number, key=b"key-%d" % (number - 60))
    messages = await take(lift.consume("m", stop="latest"))
    assert {message.subject for message in messages} == {"m.x"}
    homes: dict = {}
    for message in messages:
        homes.setdefault(message.key, set()).add(message.partition)
    assert len(messages) == 120
    assert all(len(partitions) == 1 for partitions in homes.values())
