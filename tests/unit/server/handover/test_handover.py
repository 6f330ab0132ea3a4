"""A partition is handed over under load: everything is stored once, in each publisher's order, whatever it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.handover import giving, held, taking
from support.envelopes import batch, envelope
from support.handover_kit import HandoverKit
from support.nats_frames import header_block, msg

SEEDS = range(12)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for module, name in ((taking, "_MARK_INTERVAL_S"), (taking, "_SPREAD_S"), (taking, "SKEW_S"), (giving, "SKEW_S")):
        monkeypatch.setattr(module, name, 0.002)
    for module in (taking, giving):
        monkeypatch.setattr(module, "_LOOK_S", 0.0)


@pytest.fixture
def make(tmp_path):
    made = []

    def make_kit(seed, publish, **settings):
        made.append(HandoverKit(tmp_path / str(len(made)), Random(seed), publish, **settings))
        return made[-1]

    yield make_kit
    for kit in made:
        kit.close()


class Numbered:
    """Messages that are all different: each publisher counts."""

    def __init__(self, kind="plain"):
        self.kind = kind
        self.counts = Counter()

    def __call__(self, rng, publisher):
        number = self.counts[publisher]
        self.counts[publisher] += 1
        value = b"%d %d" % (publisher, number)
        subject = b"orders.%d" % publisher
        kind = rng.choice(["plain", "headers", "id", "envelope", "batch", "idempotent", "reply"])
        kind = self.kind if self.kind != "all" else kind
        match kind:
            case "headers":
                return msg(subject, value, headers=header_block(Trace=str(number)))
            case "id":
                return msg(subject, value, headers=header_block(Nats_Msg_Id=value.decode()))
            case "envelope":
                return msg(subject, envelope(value, key=b"k"))
            case "batch":
                return msg(subject, batch([value, value]))
            case "idempotent":
                producer = {"producer_id": bytes([publisher + 1]) * 16, "producer_sequence": number}
                return msg(subject, batch([value, value], **producer))
            case "reply":
                return msg(subject, value, reply=b"r.%d.%d" % (publisher, number))
            case _:
                return msg(subject, value)


def values(kit):
    return kit.replicas["b"].kit.stored()


def check_plain(kit, numbered):
    stored = values(kit)
    for publisher, count in numbered.counts.items():
        mine = [value for value in stored if value.startswith(b"%d " % publisher)]
        seen = list(dict.fromkeys(mine))
        assert seen == [b"%d %d" % (publisher, number) for number in range(count)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("late", [0, 15])
async def test_plain_messages_are_stored_once_and_in_order(make, seed, late):
    numbered = Numbered()
    kit = make(seed, numbered, late=late)
    assert await kit.hand_over() == []
    assert kit.nodes["b"].took_over == [True]
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


@pytest.mark.parametrize("seed", SEEDS)
async def test_messages_of_every_kind_are_stored_once_and_in_order(make, seed):
    numbered = Numbered("all")
    kit = make(seed, numbered, late=4)
    assert await kit.hand_over() == []
    check_plain(kit, numbered)
    records = sum(2 if b"LPY" in frame.value[:4] and _is_batch(frame.value) else 1 for _, frame in kit.published)
    assert len(values(kit)) == records


def _is_batch(value):
    return value[6] == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_messages_that_are_all_alike_are_counted(make, seed):
    kit = make(seed, lambda _rng, _publisher: msg(b"orders.x", b"tick"))
    assert await kit.hand_over() == []
    assert values(kit) == [b"tick"] * len(kit.published)


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_message_is_acked_once_with_its_offset(make, seed):
    numbered = Numbered("reply")
    kit = make(seed, numbered, late=8)
    assert await kit.hand_over() == []
    acks = [ack for side in kit.replicas.sides.values() for ack in side.kit.offsets()]
    stored = values(kit)
    assert sorted(subject for subject, _ in acks) == sorted(frame.reply for _, frame in kit.published)
    assert all(stored[offset] == subject[2:].replace(b".", b" ") for subject, offset in acks)


@pytest.mark.parametrize("behind", ["a", "b"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_node_that_hears_everything_later_doubles_and_loses_nothing(make, seed, behind):
    numbered = Numbered()
    kit = make(seed, numbered)
    kit.nodes[behind].behind = 300
    assert await kit.hand_over() == []
    assert kit.nodes["b"].took_over == [True]
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


@pytest.mark.parametrize("refusal", ["refuses_take", "refuses_move"])
async def test_a_handover_that_comes_to_nothing_loses_nothing(make, refusal):
    numbered = Numbered()
    kit = make(1, numbered, late=4)
    setattr(kit, refusal, True)
    (left,) = await kit.hand_over()
    assert left["leader"] == "b"
    assert kit.replicas["a"].partition.is_leading
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


async def test_a_leader_that_gets_another_epoch_meanwhile_goes_on_and_loses_nothing(make):
    numbered = Numbered()
    kit = make(1, numbered, late=4)

    async def begin_reassignment(_commands):
        kit.replicas.lead("a", 2)
        return [SimpleNamespace(error=ErrorCode.STALE_EPOCH, message="the leader epoch is 2, not 1")]

    kit.nodes["a"].giving._metadata.propose_many = begin_reassignment
    await kit.hand_over()
    assert kit.replicas["a"].partition.is_leading
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


async def test_too_much_to_hold_at_the_old_leader_ends_it_and_loses_nothing(make):
    numbered = Numbered()
    kit = make(2, numbered)
    kit.nodes["a"].giving._room.left = 50
    assert len(await kit.hand_over()) == 1
    assert kit.replicas["a"].partition.is_leading
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


async def test_too_much_to_hold_at_the_next_leader_ends_it(make):
    numbered = Numbered()
    kit = make(3, numbered)
    kit.nodes["b"].taking._room.left = 500
    assert len(await kit.hand_over()) == 1
    assert kit.replicas["a"].partition.is_leading
    check_plain(kit, numbered)
    assert kit.nodes["b"].taking._room.left == 500


async def test_a_connection_that_was_lost_meanwhile_is_a_gap(make):
    kit = make(4, Numbered())
    propose_many = kit.propose_many

    async def lose(commands):
        kit.nodes["b"].hearing = object()
        return await propose_many(commands)

    kit.nodes["a"].giving._metadata.propose_many = lose
    assert await kit.hand_over() == []
    assert kit.nodes["b"].took_over == [False]
    assert kit.replicas["b"].partition.held is None


async def test_who_is_led_by_nobody_in_the_end_holds_nothing(make, monkeypatch):
    monkeypatch.setattr(taking, "_HELD_S_MAX", 0.001)
    kit = make(5, Numbered())
    kit.refuses_move = True
    await kit.hand_over()
    taken = kit.nodes["b"]
    assert taken.side.partition.held is None
    assert taken.changes == 1
    assert taken.taking._room.left == taking.HELD_BYTES_MAX


async def test_a_node_that_does_not_answer_is_not_waited_for_again(make, monkeypatch):
    monkeypatch.setattr(giving, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(giving, "_AT_ONCE_MAX", 1)
    kit = make(7, Numbered())
    asked = []

    async def never(target, *_):
        asked.append(target)
        await asyncio.Event().wait()

    kit.nodes["a"].giving._ask = never
    (move,) = await kit.hand_over()
    assert len(await kit.nodes["a"].giving.give([move, move | {"version": 2}])) == 2
    assert asked == ["b", "b"]
    assert kit.replicas["a"].partition.held is None


async def test_a_node_that_stops_takes_nothing(make):
    kit = make(6, Numbered())
    kit.nodes["b"].taking.is_closed = True
    assert len(await kit.hand_over()) == 1
    assert not kit.nodes["b"].is_listening


def test_what_is_held_is_bounded_together():
    room = held.HeldBytes(250)
    one, two = held.Held(room), held.Held(room)
    message = msg(b"a", b"x").message
    assert one.add(held.ListRun([message]), 0)
    assert two.add(held.ListRun([message]), 0)
    assert not one.add(held.ListRun([message]), 0)
    assert one.is_full
    assert not two.is_full
    assert room.left == 250 - 101
