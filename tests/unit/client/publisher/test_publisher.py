"""The publisher against acks that are late, refused, or never come: nothing is lost without a word."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from types import SimpleNamespace

import pyarrow as pa
import pytest
from nats.errors import ConnectionClosedError, MaxPayloadError, OutboundBufferLimitError

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_client.connection.session import Session
from liftpy_client.errors import DisconnectedError, NoStreamError, PublishTimeoutError, UsageError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import BatchDelivery
from liftpy_client.publisher.options import PublisherOptions
from liftpy_client.publisher.outgoing import OutgoingBatch
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.publisher.resender import Resender
from liftpy_client.publisher.routes import find_route
from liftpy_envelope.ack import Ack, AckPolicy, PublishRefusedError, encode_ack, encode_error_ack
from liftpy_envelope.envelope import COOKIE, decode_envelope
from liftpy_envelope.errors import AckErrorCode, HeaderError
from support.cluster import eventually
from support.fake_nats import FakeNats, fake_session, refused, stored


@pytest.fixture
def wire():
    return FakeNats()


def publisher(wire, config=None, **options):
    session = fake_session(wire, **(config or {}))
    inbox = AckInbox(wire)
    made = Publisher(session, inbox, Resender(session, inbox), PublisherOptions(**{"linger_s": 0.001} | options))
    made.cluster = session.cluster
    return made


def envelopes(wire):
    return [decode_envelope(payload) for _, payload in wire.published]


def values(wire):
    return [envelope.arrays[-1].to_pylist() for envelope in envelopes(wire)]


async def test_messages_travel_together_and_each_gets_its_offset(wire):
    async with publisher(wire) as out:
        acks = [await out.publish("s.x", b"%d" % number) for number in range(5)]
    assert values(wire) == [[b"0", b"1", b"2", b"3", b"4"]]
    assert [(await ack).offset for ack in acks] == [0, 1, 2, 3, 4]


async def test_a_full_batch_leaves_before_its_time(wire):
    async with publisher(wire, linger_s=60, batch_bytes=100) as out:
        for _ in range(10):
            await out.publish("s.x", b"x" * 30)
        await eventually(lambda: len(wire.published) == 4)


async def test_a_batch_is_no_larger_than_the_stream_takes(wire):
    async with publisher(wire, {"message_bytes_max": 100}) as out:
        for _ in range(10):
            await out.publish("s.x", b"x" * 30)
        await out.publish_batch("s.x", {"value": pa.array([b"y" * 30] * 10)})
    assert {len(batch) for batch in values(wire)} <= {1, 2}
    assert sum(len(batch) for batch in values(wire)) == 20


async def test_without_an_ack_it_is_sent_again_as_it_was(wire):
    then = stored()
    wire.answer = lambda envelope: then(envelope) if len(wire.published) == 2 else None
    async with publisher(wire, ack_timeout_s=0.02) as out:
        ack = await out.publish("s.x", b"x")
    assert (await ack).offset == 0
    assert len(wire.published) == 2
    assert wire.published[0] == wire.published[1]


async def test_after_a_sleep_nothing_is_sent_again_that_nodes_may_have_forgotten(wire):
    wire.answer = lambda _: None
    now_s = 0.0
    session = fake_session(wire)
    resender = Resender(session, AckInbox(wire), clock=lambda: now_s)
    parcel = OutgoingBatch(await find_route(session.cluster, "s.x", None), None, asyncio.Future(), 0)
    parcel.take(pa.table({"value": pa.array([b"x"], pa.binary())}))
    delivery = BatchDelivery(resender, PublisherOptions(ack_timeout_s=0.02, delivery_timeout_s=20), None, b"p" * 16)
    sending = asyncio.create_task(delivery.deliver(parcel, 0))
    await eventually(lambda: len(wire.published) >= 2)
    now_s = 3_600.0  # the machine sleeps; the event loop's clock does not notice
    with pytest.raises(PublishTimeoutError, match=r"within 20 s \(the machine slept\); it may be stored"):
        await asyncio.wait_for(sending, 5)


async def test_a_late_ack_counts(wire):
    wire.answer = lambda _: None
    out = publisher(wire, ack_timeout_s=0.02)
    ack = await out.publish("s.x", b"x")
    await eventually(lambda: len(wire.published) >= 3)
    envelope = envelopes(wire)[0]
    await wire.give(envelope.options.ack_inbox.decode(), stored()(envelope))
    assert (await asyncio.wait_for(ack, 10)).offset == 0
    await out.close()


async def test_what_may_succeed_later_is_tried_again(wire):
    wire.answer = refused(AckErrorCode.PAUSED, stored())
    async with publisher(wire) as out:
        await out.publish("s.x", b"x")
    first, second = envelopes(wire)
    assert first.producer_sequence == second.producer_sequence
    assert first.options.ack_inbox != second.options.ack_inbox


async def test_a_refusal_for_good_is_told_by_the_ack_and_by_flush(wire):
    wire.answer = refused(AckErrorCode.READ_ONLY, stored())
    out = publisher(wire)
    ack = await out.publish("s.x", b"x")
    with pytest.raises(PublishRefusedError, match="not now"):
        await out.flush()
    with pytest.raises(PublishRefusedError, match="not now"):
        await ack
    await out.publish("s.x", b"y")
    await out.close()
    assert values(wire) == [[b"x"], [b"y"]]


async def test_nothing_in_time(wire):
    wire.answer = lambda _: None
    out = publisher(wire, ack_timeout_s=5, delivery_timeout_s=0.05)
    await out.publish("s.x", b"x")
    with pytest.raises(PublishTimeoutError, match="it may be stored"):
        await asyncio.wait_for(out.close(), 4)


async def test_a_stream_that_is_gone_is_told_long_before_the_delivery_time_is_over(wire):
    wire.answer = lambda _: None
    out = publisher(wire, ack_timeout_s=0.02, delivery_timeout_s=600)
    await out.publish("s.x", b"x")
    out.cluster.config = None
    with pytest.raises(NoStreamError):
        await asyncio.wait_for(out.close(), 10)


async def test_while_the_node_is_away_it_goes_on(wire):
    wire.answer = lambda _: None
    out = publisher(wire, ack_timeout_s=0.02)
    ack = await out.publish("s.x", b"x")
    out.cluster.is_away = True
    await eventually(lambda: len(wire.published) >= 2)
    wire.answer = stored()
    assert (await asyncio.wait_for(ack, 10)).offset == 0
    await out.close()


@pytest.mark.parametrize("away", ["disconnected", "full"])
async def test_while_nats_is_away_nothing_is_sent_and_nothing_lost(wire, away):
    out = publisher(wire)
    wire.is_connected = away != "disconnected"
    wire.refusal = OutboundBufferLimitError() if away == "full" else None
    ack = await out.publish("s.x", b"x")
    flushing = asyncio.ensure_future(out.flush())
    await asyncio.sleep(0.05)
    assert not flushing.done()
    assert wire.published == []
    wire.is_connected, wire.refusal = True, None
    await asyncio.wait_for(flushing, 10)
    assert (await ack).offset == 0
    await out.close()


@pytest.mark.parametrize(
    ("refusal", "kind"), [(MaxPayloadError(), UsageError), (RuntimeError("unheard of"), UsageError)]
)
async def test_whatever_goes_wrong_is_told(wire, refusal, kind):
    wire.refusal = refusal
    out = publisher(wire)
    ack = await out.publish("s.x", b"x")
    with pytest.raises(kind):
        await out.close()
    with pytest.raises(kind):
        await asyncio.wait_for(ack, 10)


async def test_a_closed_connection_is_told(wire):
    wire.is_connected, wire.is_closed, wire.refusal = False, True, ConnectionClosedError()
    out = publisher(wire)
    await out.publish("s.x", b"x")
    with pytest.raises(DisconnectedError):
        await out.close()


@pytest.mark.parametrize("given", [{"value": [b"x"]}, {"value": "x"}, {"value": b"x", "key": "k"}, {"value": 7}])
async def test_values_that_are_no_bytes_are_refused_at_the_call(wire, given):
    async with publisher(wire) as out:
        await out.publish("s.x", b"before")
        with pytest.raises(UsageError, match="must be bytes"):
            await out.publish("s.x", **given)
        await out.publish("s.x", b"after")
    assert values(wire) == [[b"before", b"after"]]


async def test_what_the_caller_may_change_is_copied(wire):
    reused = bytearray(b"one")
    async with publisher(wire) as out:
        await out.publish("s.x", reused, key=memoryview(reused))
        reused[:] = b"two"
        await out.publish("s.x", memoryview(reused))
    assert values(wire) == [[b"one", b"two"]]


_HEADERS = """
Nats-Msg-Id Nats-Expected-Last-Sequence Nats-Expected-Stream Nats-TTL Nats-Rollup
Lift-Key Lift-Ack Lift-Tombstone Lift-Unknown
"""


@pytest.mark.parametrize("name", _HEADERS.split())
async def test_headers_that_a_batch_cannot_honour_are_refused_at_the_call(wire, name):
    async with publisher(wire) as out:
        with pytest.raises(HeaderError, match=name):
            await out.publish("s.x", b"x", headers={"A": "b", name: "1"})
        blocks = pa.array([None, b"NATS/1.0\r\nA: b\r\n" + name.encode() + b": 1\r\n\r\n"])
        with pytest.raises(HeaderError, match=name):
            await out.publish_batch("s.x", {"value": pa.array([b"x", b"y"]), "headers": blocks})
        await out.publish("s.x", b"x", headers={"Nats-Mine": "is stored", "A": "Nats-TTL: 1"})
    assert len(wire.published) == 1


async def test_messages_of_a_partition_keep_their_order_across_subjects(wire):
    async with publisher(wire, {"partitions": 4}) as out:
        for number in range(60):
            await out.publish(f"s.{number % 3}", b"%d" % number, key=b"k%d" % (number % 7))
    of_key = {}
    for envelope in envelopes(wire):
        keys, found = (array.to_pylist() for array in envelope.arrays)
        for key, value in zip(keys, found, strict=True):
            of_key.setdefault(key, []).append(int(value))
    assert sum(map(len, of_key.values())) == 60
    assert all(found == sorted(found) for found in of_key.values())


async def test_messages_of_a_key_keep_their_order_where_a_route_was_forgotten(wire):
    async with publisher(wire, linger_s=60, batch_bytes=100) as out:
        await out.publish("s.a", b"0", key=b"k")
        await out.publish("s.b", b"x", key=b"x")
        await out.publish("s.a", b"1", key=b"k")
        out._routes.pop("s.a")  # as after a batch that has failed
        await out.publish("s.b", b"2" * 100, key=b"k")
    sent = [value[:1] for batch in values(wire) for value in batch]
    assert sorted(sent) == [b"0", b"1", b"2", b"x"]
    assert sent.index(b"0") < sent.index(b"1") < sent.index(b"2")


async def test_nothing_overtakes_a_batch_that_went_to_a_leader_that_died(wire):
    """The first batch dies with its leader, nobody listens to the second, and a new leader does before the third."""
    leader, stored_values = "dies", []

    async def publish(_subject, payload, reply="", headers=None):
        envelope = decode_envelope(payload)
        if leader == "none":
            await wire._arrived(SimpleNamespace(subject=reply, data=b"", headers={"Status": "503"}))
        elif leader == "new":
            stored_values.extend(envelope.arrays[-1].to_pylist())
            await wire.give(envelope.options.ack_inbox.decode(), encode_ack(Ack(stream="s", offset=0, count=1)))
            await wire.give(reply, b'{"stream":"OF_JETSTREAM","seq":7}')

    wire.publish = publish
    async with publisher(wire, linger_s=0) as out:
        for number, leader in enumerate(["dies", "none", "new"]):  # noqa: B007 - `publish` reads it
            await out.publish("s.x", b"%d" % number)
            await asyncio.sleep(0.02)
    assert stored_values == [b"0", b"1", b"2"]


async def test_an_answer_to_the_reply_subject_of_a_batch_is_no_ack(wire):
    async def publish(_subject, _payload, reply="", headers=None):
        await wire.give(reply, b'{"stream":"OF_JETSTREAM","seq":7}')

    wire.publish = publish
    out = publisher(wire, delivery_timeout_s=0.1)
    pending = await out.publish("s.x", b"0")
    with pytest.raises(PublishTimeoutError):
        await pending
    await out.close_within(5.0)


async def test_a_lasting_refusal_reaches_who_publishes(wire, caplog):
    wire.answer = lambda _: encode_error_ack(AckErrorCode.READ_ONLY, "read-only", "s")
    out = publisher(wire)
    await out.publish("s.x", b"x")
    await eventually(lambda: "not delivered" in caplog.text)
    with pytest.raises(PublishRefusedError, match="read-only"):
        await out.publish("s.x", b"y")
    await out.publish("s.x", b"z")  # somebody was told
    with pytest.raises(PublishRefusedError, match="read-only"):
        await out.close()
    assert values(wire) == [[b"x"], [b"z"]]


async def test_who_awaited_the_ack_is_not_told_again_by_the_next_publish(wire):
    wire.answer = refused(AckErrorCode.READ_ONLY, stored())
    out = publisher(wire)
    ack = await out.publish("s.x", b"x")
    with pytest.raises(PublishRefusedError):
        await ack
    assert (await (await out.publish("s.x", b"y"))).offset == 0


@pytest.mark.parametrize("call", ["flush", "close"])
async def test_who_awaited_the_ack_is_not_told_again_by(call, wire):
    wire.answer = refused(AckErrorCode.READ_ONLY, stored())
    out = publisher(wire)
    with pytest.raises(PublishRefusedError):
        await (await out.publish("s.x", b"x"))
    await getattr(out, call)()


async def test_a_failure_is_told_though_one_before_it_was_awaited(wire):
    wire.answer = refused(AckErrorCode.READ_ONLY, refused(AckErrorCode.MALFORMED, stored()))
    out = publisher(wire)
    first = await out.publish("s.x", b"x")
    await out.publish("s.y", b"y")
    with pytest.raises(PublishRefusedError) as told:
        await first
    assert told.value.code == AckErrorCode.READ_ONLY
    with pytest.raises(PublishRefusedError) as told:
        await out.close()
    assert told.value.code == AckErrorCode.MALFORMED
    await out.flush()


async def test_failures_are_told_by_a_callback(wire, caplog):
    told = []

    def tell(error):
        told.append(error)
        raise LookupError("of its own")

    wire.answer = refused(AckErrorCode.READ_ONLY, stored())
    async with publisher(wire, on_error=tell) as out:
        await out.publish("s.x", b"x")
        await eventually(lambda: told)
        await out.publish("s.x", b"y")
    assert [error.code for error in told] == [AckErrorCode.READ_ONLY]
    assert "of its own" in caplog.text
    with pytest.raises(UsageError, match="on_error"):
        publisher(wire, on_error=7)


async def test_a_publish_that_waits_for_a_route_while_the_publisher_closes_is_told(wire):
    out = publisher(wire)
    storing, asked, answered = out.cluster.storing, asyncio.Event(), asyncio.Event()

    async def slow(*args, **kwargs):
        asked.set()
        await answered.wait()
        return await storing(*args, **kwargs)

    out.cluster.storing = slow
    waiting = asyncio.ensure_future(out.publish("s.x", b"x"))
    await asked.wait()
    await out.close()
    answered.set()
    with pytest.raises(UsageError, match="was closed"):
        await waiting
    assert wire.published == []


async def test_without_envelopes_each_message_is_a_plain_one(wire):
    sent = []

    async def publish(subject, payload, reply="", headers=None):
        sent.append((subject, payload, headers))
        await wire.give(reply, encode_ack(Ack(stream="s", offset=len(sent) - 1)))

    wire.publish = publish
    async with publisher(wire, envelope=False) as out:
        ack = await out.publish("s.x", b"x", key=b"k", headers={"A": "b"})
        await out.publish("s.y", None, key=b"k")
        acks = await out.publish_batch("s.x", {"value": pa.array([b"1", b"2"])})
        assert [(await each).offset for each in (ack, *acks)] == [0, 2, 3]
        for wrong in ({"key": b"\x00"}, {"value": COOKIE + b"x"}):
            with pytest.raises(UsageError, match="envelope=False"):
                await out.publish("s.x", **{"value": b"x"} | wrong)
    (_, _, one), (subject, value, gone), *_ = sent
    assert (one["A"], one["Lift-Key"]) == ("b", "k")
    assert (subject, value, gone["Lift-Tombstone"]) == ("s.y", b"", "true")
    assert len({headers["Nats-Msg-Id"] for _, _, headers in sent}) == 4
    with pytest.raises(UsageError, match="envelopes only"):
        await publisher(wire, {"acks": "envelope"}, envelope=False).publish("s.x", b"x")


async def test_publishing_waits_while_too_much_has_no_ack(wire):
    wire.answer = lambda _: None
    out = publisher(wire, linger_s=60, in_flight_bytes=19_000, ack_timeout_s=60)
    for number in range(9):
        await out.publish(f"s.{number}", b"x" * 100)
    waiting = [asyncio.ensure_future(out.publish("s.more", b"x" * 900)) for _ in range(3)]
    await eventually(lambda: len(wire.published) == 9)
    assert not any(task.done() for task in waiting)
    wire.answer = stored()
    for envelope in envelopes(wire):
        await wire.give(envelope.options.ack_inbox.decode(), wire.answer(envelope))
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    await out.close()


async def test_a_message_that_waits_when_the_publisher_closes_is_told(wire):
    wire.answer = lambda _: None
    out = publisher(wire, in_flight_bytes=10)
    await out.publish("s.x", b"x" * 100)
    waiting = asyncio.ensure_future(out.publish("s.x", b"y"))
    await eventually(lambda: wire.published)
    closing = asyncio.ensure_future(out.close())
    await asyncio.sleep(0)
    envelope = envelopes(wire)[0]
    await wire.give(envelope.options.ack_inbox.decode(), stored()(envelope))
    with pytest.raises(UsageError, match="was closed"):
        await asyncio.wait_for(waiting, 10)
    await asyncio.wait_for(closing, 10)
    with pytest.raises(UsageError, match="is closed"):
        await out.publish("s.x", b"z")


async def test_flush_does_not_wait_for_what_comes_after_it(wire):
    wire.answer = lambda _: None
    out = publisher(wire, linger_s=0)
    await out.publish("s.x", b"before")
    flushing = asyncio.ensure_future(out.flush())
    await eventually(lambda: len(wire.published) == 1)
    await out.publish("s.x", b"after")
    await eventually(lambda: len(wire.published) == 2)
    wire.answer = stored()
    first, second = envelopes(wire)
    await wire.give(first.options.ack_inbox.decode(), wire.answer(first))
    await asyncio.wait_for(flushing, 10)
    await wire.give(second.options.ack_inbox.decode(), wire.answer(second))
    await out.close()


async def test_an_interruption_delivers_what_it_can_and_does_not_wait_for_long(wire):
    async def work(out):
        async with out:
            await out.publish("s.x", b"x")
            await asyncio.sleep(600)

    for answer in (stored(), lambda _: None):
        wire.answer = answer
        wire.published.clear()
        task = asyncio.ensure_future(work(publisher(wire, linger_s=30, ack_timeout_s=0.05)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        assert values(wire)[0] == [b"x"]


async def test_a_connection_that_is_closed_sends_what_publishers_have_gathered(wire, caplog):
    out = publisher(wire, linger_s=60)
    session = Session(wire, NatsOptions(), "me")
    session.publishing.add(out)
    pending = await out.publish("s.x", b"x")
    await session.close()
    assert (await pending).offset == 0
    assert not caplog.records
    with pytest.raises(UsageError, match="closed"):
        await out.publish("s.x", b"y")


async def test_a_connection_that_is_closed_says_what_was_not_sent(wire, caplog, monkeypatch):
    monkeypatch.setattr("liftpy_client.connection.session._CLOSING_S_MAX", 0.05)
    wire.answer = lambda _: None
    out = publisher(wire, linger_s=60)
    session = Session(wire, NatsOptions(), "me")
    session.publishing.add(out)
    pending = await out.publish("s.x", b"x" * 100)
    await session.close()
    with pytest.raises(DisconnectedError, match="may be stored or not"):
        await pending
    (record,) = caplog.records
    assert "messages had no ack; they may be stored or not: there was none in 0.05 s" in record.message


async def test_a_publisher_that_nobody_has_is_forgotten(wire):
    session = fake_session(wire)
    session.publishing = weakref.WeakSet()
    out = Publisher(session, AckInbox(wire), None, PublisherOptions())
    assert list(session.publishing) == [out]
    del out
    gc.collect()
    assert not session.publishing


async def test_an_error_of_the_body_is_not_hidden_by_one_of_the_publisher(wire):
    wire.answer = refused(AckErrorCode.READ_ONLY, stored())

    async def work():
        async with publisher(wire) as out:
            await out.publish("s.x", b"x")
            raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body") as raised:
        await work()
    assert "not now" in raised.value.__notes__[0]


async def test_too_large_is_told_before_anything_leaves(wire):
    async with publisher(wire) as out:
        with pytest.raises(UsageError, match="exceeds max_payload of the NATS server"):
            await out.publish("s.x", b"x" * 2**20)
        with pytest.raises(UsageError, match="over what one batch may hold"):
            await out.publish_batch("s.x", {"value": pa.array([b"x", b"x" * 2**20], pa.binary())})
        with pytest.raises(HeaderError):
            await out.publish("s.x", b"x", headers={"A": "b\r\nNats-Msg-Id: c"})
    assert wire.published == []


async def test_whoever_waits_for_acks_asks_for_them(wire):
    async with publisher(wire, {"ack_policy": "none"}) as out:
        await out.publish("s.x", b"x")
    assert envelopes(wire)[0].options.ack_policy is AckPolicy.ALL


@pytest.mark.parametrize(
    "options",
    [{"linger_s": -1}, {"batch_bytes": 0}, {"in_flight_bytes": 0}, {"ack_timeout_s": 0}, {"delivery_timeout_s": -1}],
)
def test_senseless_options(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        PublisherOptions(**options)


async def test_a_time_limit_ends_a_publish_that_nats_holds_up(wire):
    """nats-py swallows cancellations while it waits for a server that does not read."""

    async def stuck(*_args, **_kwargs):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)

    wire.publish = stuck
    out = publisher(wire, delivery_timeout_s=0.05)
    began_s = asyncio.get_running_loop().time()
    ack = await out.publish("s.x", b"x")
    with pytest.raises(PublishTimeoutError, match="may be stored"):
        async with asyncio.timeout(5):
            await ack
    assert asyncio.get_running_loop().time() - began_s < 2
