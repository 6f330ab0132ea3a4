"""The demonstration's publisher, with leaders that are gone for a while."""

from __future__ import annotations

import asyncio
import json

import pytest

from liftpy.demo import publish
from liftpy.demo.flights import Flight
from liftpy.demo.publish import AckedPublisher, NoAckError, Term

COUNT = 300


class Message:
    def __init__(self, subject, data):
        self.subject = subject
        self.data = data


class Leaders:
    """A NATS connection with one leader for each stream behind it, which stores an id once.

    Args:
        streams: the streams that store everything.
        away: by stream, from which published message to which nobody leads it.
    """

    def __init__(self, streams, away):
        self._away = away
        self._callback = None
        self._published = 0
        self.stored = {stream: {} for stream in streams}
        self.refusing = False

    def new_inbox(self):
        return "inbox"

    async def subscribe(self, subject, cb):
        assert subject == "inbox.*"
        self._callback = cb
        return self

    async def unsubscribe(self):
        self._callback = None

    async def publish(self, subject, payload, reply, headers):
        self._published += 1
        for stream, stored in self.stored.items():
            first, last = self._away.get(stream, (COUNT * 100, 0))
            if first <= self._published < last:
                continue
            answer = {"stream": stream, "epoch": 1 if self._published < first else 2}
            number = headers["Nats-Msg-Id"]
            if self.refusing:
                answer = {"error": {"description": "the disk is full"}}
            elif number in stored:
                answer |= {"duplicate": True, "offset": stored[number]}
            else:
                answer["offset"] = stored[number] = len(stored)
            await self._callback(Message(reply, json.dumps(answer).encode()))
        await self._callback(Message(reply, b""))  # as the server says it when nobody listens


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(publish, "_WINDOW", 20)
    monkeypatch.setattr(publish, "_SILENCE_S", 0.02)
    monkeypatch.setattr(publish, "_PROBE_EVERY_S", 0.001)


async def run(leaders):
    flights = [Flight(f"flights.{number % 7}", b"%d" % number) for number in range(COUNT)]
    told = []
    publisher = AckedPublisher(leaders, flights, lambda _: frozenset(leaders.stored), told.append)
    async with asyncio.timeout(20):
        await publisher.run()
    assert told == sorted(told)
    return publisher


async def test_nothing_happens():
    leaders = Leaders(["a"], {})
    publisher = await run(leaders)
    assert (publisher.acked, publisher.resent, publisher.stored_again, publisher.known) == (COUNT, 0, 0, 0)
    assert publisher.offsets["a"] == {number: number for number in range(COUNT)}
    assert publisher.acks == {Term("a", 1): COUNT}


async def test_a_leader_dies():
    leaders = Leaders(["a"], {"a": (101, 131)})
    publisher = await run(leaders)
    assert list(leaders.stored["a"]) == [str(number) for number in range(COUNT)]  # in their order
    assert publisher.acks == {Term("a", 1): 100, Term("a", 2): COUNT - 100}
    assert (publisher.stored_again, publisher.known) == (20, 0)  # the window
    assert publisher.resent >= 20 + 10
    assert publisher.first_ack_at[Term("a", 2)] > publisher.first_ack_at[Term("a", 1)]


async def test_one_stream_of_two_loses_its_leader():
    leaders = Leaders(["a", "b"], {"b": (101, 131)})
    publisher = await run(leaders)
    for stream in ("a", "b"):
        assert list(leaders.stored[stream]) == [str(number) for number in range(COUNT)]
        assert publisher.offsets[stream] == {number: number for number in range(COUNT)}
    assert publisher.acks[Term("a", 1)] == COUNT
    assert publisher.known == 0  # those that `a` had acknowledged before wait for `b` alone


async def test_both_streams_lose_their_leaders_for_different_times():
    leaders = Leaders(["a", "b"], {"a": (101, 125), "b": (101, 190)})
    await run(leaders)
    for stored in leaders.stored.values():
        assert list(stored) == [str(number) for number in range(COUNT)]


async def test_acks_that_got_lost():
    leaders = Leaders(["a"], {})
    publish_all, lost = leaders.publish, set()

    async def publish_without_ack(subject, payload, reply, headers):
        number = int(headers["Nats-Msg-Id"])
        callback = leaders._callback
        if 50 <= number < 60 and number not in lost:
            lost.add(number)
            leaders._callback = lambda _: asyncio.sleep(0)
        await publish_all(subject, payload, reply, headers)
        leaders._callback = callback

    leaders.publish = publish_without_ack
    publisher = await run(leaders)
    assert (publisher.known, publisher.stored_again) == (10, 0)
    assert publisher.offsets["a"][55] == 55


async def test_giving_up(monkeypatch):
    monkeypatch.setattr(publish, "_GIVE_UP_S", 0.2)
    leaders = Leaders(["a"], {})
    leaders.refusing = True
    with pytest.raises(NoAckError, match=r"no ack of a for 0\.2 s; the last refusal: the disk is full"):
        await run(leaders)


async def test_what_is_sent_again_is_never_more_than_a_window_late():
    """A message gets lost alone: all others are acknowledged, so there is never silence."""
    leaders = Leaders(["a"], {"a": (6, 7)})
    await run(leaders)
    order = list(leaders.stored["a"])
    assert sorted(order, key=int) == [str(number) for number in range(COUNT)]
    assert 5 < order.index("5") < 5 + publish._WINDOW
