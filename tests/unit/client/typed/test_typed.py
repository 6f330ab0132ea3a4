"""Typed streams: what codecs make of values, and what becomes of messages that cannot be decoded."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pydantic
import pytest

from liftpy_client.errors import HandlerFailedError, UndecodableError, UsageError
from liftpy_client.message import Message
from liftpy_client.typed import codecs
from liftpy_client.typed.streams import TypedStream
from support.cluster import eventually
from support.process_kit import FakeWorld, Member


@dataclasses.dataclass
class Order:
    number: int
    item: str


class Bill(pydantic.BaseModel):
    number: int
    item: str


class FakeProto:
    """As protoc makes them."""

    def __init__(self, data=b""):
        self.data = data

    def SerializeToString(self):  # noqa: N802
        return self.data

    @classmethod
    def FromString(cls, data):  # noqa: N802
        if data == b"bad":
            raise ValueError("wire type")
        return cls(data)


def order_schema():
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "number", "type": "long"}, {"name": "item", "type": "string"}],
    }


def test_json_without_a_type():
    codec = codecs.json()
    assert codec.encode({"item": "pizza ä"}) == '{"item":"pizza ä"}'.encode()
    assert codec.decode(b'{"a":[1]}') == {"a": [1]}


def test_json_of_a_pydantic_model():
    codec = codecs.json(Bill)
    assert codec.decode(codec.encode(Bill(number=1, item="pizza"))) == Bill(number=1, item="pizza")
    with pytest.raises(pydantic.ValidationError):
        codec.decode(b'{"number":"x"}')


@pytest.mark.parametrize("codec", [codecs.json, codecs.msgpack])
def test_msgspec(codec):
    orders = codec(Order)
    assert orders.decode(orders.encode(Order(1, "pizza"))) == Order(1, "pizza")
    with pytest.raises(msgspec.DecodeError):
        orders.decode(b"\xc1")


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(UsageError, match=r"needs fastavro: pip install 'liftpy\[avro\]'"):
        codecs.avro({"type": "string"})


def test_protobuf():
    codec = codecs.protobuf(FakeProto)
    assert codec.decode(codec.encode(FakeProto(b"x"))).data == b"x"
    with pytest.raises(UsageError, match="not a class that protoc made"):
        codecs.protobuf(Order)


def test_protobuf_of_the_library():
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")
    codec = codecs.protobuf(wrappers.StringValue)
    assert codec.decode(codec.encode(wrappers.StringValue(value="x"))).value == "x"


def test_avro():
    pytest.importorskip("fastavro")
    codec = codecs.avro(order_schema())
    order = {"number": 1, "item": "pizza"}
    assert codec.decode(codec.encode(order)) == order
    with pytest.raises(ValueError, match="left after"):
        codec.decode(codec.encode(order) + b"x")


class FakeLift:
    """What a typed stream asks of `Lift`: messages of which one cannot be decoded."""

    def __init__(self, *values):
        self.values = values
        self.published = []

    async def publish(self, subject, value, **more):
        self.published.append((subject, value, more))

    def consume(self, stream, **where):
        assert (stream, where) == ("orders", {"start": 3})
        return self._messages()

    async def _messages(self):
        for offset, value in enumerate(self.values):
            yield Message("orders", 0, offset, 0, "orders.new", None, None, value)


async def test_publishing():
    lift = FakeLift()
    orders = TypedStream(lift, "orders", codecs.json(Bill), "raise")
    await orders.publish("orders.new", Bill(number=1, item="x"), key=b"1")
    await orders.publish("orders.new", None, key=b"1")
    more = {"stream": "orders", "key": b"1"}
    assert lift.published == [("orders.new", b'{"number":1,"item":"x"}', more), ("orders.new", None, more)]


async def test_consuming_raises_or_skips_what_cannot_be_decoded():
    lift = FakeLift(b"1", b"{", None, b"4")
    found = [each.data async for each in TypedStream(lift, "orders", codecs.json(), "skip").consume(start=3)]
    assert found == [1, None, 4]
    messages = aiter(TypedStream(lift, "orders", codecs.json(), "raise").consume(start=3))
    assert (await anext(messages)).data == 1
    with pytest.raises(UndecodableError, match="stream orders partition 0 offset 1: the value cannot be decoded"):
        await anext(messages)
    with pytest.raises(UsageError, match="a consumer writes no dead letters"):
        TypedStream(lift, "orders", codecs.json(), "dead_letter").consume()


class Evens:
    """Decodes even numbers."""

    def encode(self, value):
        return b"%d" % value

    def decode(self, data):
        if int(data) % 2:
            raise ValueError("odd")
        return int(data)


class WorldLift:
    """`process` against a world."""

    def __init__(self, world):
        self._world = world
        self.member = None

    async def process(self, _stream, handle, **how):
        self.member = Member(self._world, handle, **how)
        await self.member.task


@pytest.mark.parametrize("is_plain", [False, True])
async def test_what_cannot_be_decoded_is_a_dead_letter_at_once(is_plain):
    world, handled = FakeWorld([20]), []

    async def handle(typed):
        handled.append(typed.data)

    lift = WorldLift(world)
    orders = TypedStream(lift, "orders", Evens(), "dead_letter")
    work = asyncio.create_task(
        orders.process((lambda typed: handled.append(typed.data)) if is_plain else handle, dead_letter="dead.s")
    )
    await eventually(lambda: len(world.letters) == len(handled) == 10)
    await lift.member.end()
    await work
    assert sorted(handled) == list(range(0, 20, 2))
    assert {letter.headers["Dead-Letter-Attempts"] for letter in world.letters.values()} == {"1"}
    assert all("odd" in letter.headers["Dead-Letter-Cause"] for letter in world.letters.values())


async def test_what_cannot_be_decoded_ends_the_process():
    orders = TypedStream(WorldLift(FakeWorld([20])), "orders", Evens(), "raise")
    with pytest.raises(HandlerFailedError) as caught:
        await orders.process(print)
    assert isinstance(caught.value.__cause__, UndecodableError)
    assert caught.value.attempts == 1


@pytest.mark.parametrize(
    ("choice", "how", "text"),
    [
        ("dead_letter", {}, "pass dead_letter='...'"),
        ("raise", {"dead_letter": "x"}, "with dead_letter='...' nothing is raised"),
        ("skip", {"batch": 1}, "record batches are not decoded"),
    ],
)
async def test_what_does_not_fit_is_refused(choice, how, text):
    with pytest.raises(UsageError, match=text):
        await TypedStream(FakeLift(), "orders", Evens(), choice).process(print, **how)
    with pytest.raises(UsageError, match="is not one of raise, skip, dead_letter"):
        TypedStream(None, "orders", Evens(), "drop")
