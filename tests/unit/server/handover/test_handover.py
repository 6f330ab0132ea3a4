"""A partition is handed over under load: everything is stored once, in each publisher's order, whatever it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pytest

from liftpy_envelope.envelope import StagedSection, decode_envelope, encode_batch, encode_staged
from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.pull import PartitionKey
from liftpy_log.errors import SegmentCorruptError
from liftpy_server.handover import giving, handover, held, taking
from liftpy_server.handover.handover import Handover
from liftpy_server.messages.incoming import with_batch
from liftpy_server.requests.errors import AdminError
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


SECTION = StagedSection("spark/staging/somewhere", 0, 100, 1, 0)


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
            case "staged":
                producer = {"producer_id": bytes([publisher + 1]) * 16, "producer_sequence": number}
                return msg(subject, encode_staged(SECTION, 0, stream="orders", ack_inbox="r", **producer))
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


class ReadsLater:
    """What reads staged batches of a partition from the bucket: in a while."""

    def __init__(self, partition, clock, rng):
        self.partition, self.clock, self.rng = partition, clock, rng
        self.waiting = []
        partition.staged = self

    def take(self, partition, message):
        assert partition is self.partition
        self.waiting.append(message)

    def read(self, count):
        for message in self.waiting[:count]:
            values = pa.array(
                [b"%d %d" % (message.staged.producer_id[0], message.staged.producer_sequence)] * 2, pa.binary()
            )
            rows = decode_envelope(encode_batch({"value": values}))
            if self.partition.is_leading:
                self.partition.append_incoming([with_batch(message, rows, self.partition.stream.config)], 1)
                self.partition.end_pass()
        del self.waiting[:count]


@pytest.mark.parametrize("seed", SEEDS)
async def test_batches_that_are_staged_in_the_bucket_are_stored_once(make, seed):
    """Some are being read when the lead is handed over: they are published again, as nobody acknowledged them."""
    numbered = Numbered("staged")
    kit = make(seed, numbered, late=4)
    readers = [ReadsLater(side.partition, side.kit.clock, Random(seed)) for side in kit.replicas.sides.values()]
    run = kit.replicas.run

    def read_and_run():
        for reader in readers:
            reader.read(reader.rng.randint(0, 12))
        run()

    kit.replicas.run = read_and_run
    assert await kit.hand_over() == []
    for reader in readers:
        reader.read(len(reader.waiting))
    found = Counter(values(kit))
    assert set(found.values()) == {2}, "as batches of two"
    assert len(found) > len(kit.published) / 2
    for _, frame in kit.published:
        kit.nodes["b"].side.kit.ingest.receive(frame.encode())
    readers[1].read(len(kit.published))
    assert Counter(values(kit)) == {
        b"%d %d" % (publisher + 1, number): 2 for publisher, count in numbered.counts.items() for number in range(count)
    }


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


@pytest.mark.parametrize(("node", "room_bytes"), [("a", 50), ("b", 500)])
async def test_too_much_to_hold_at_either_node_ends_it_and_loses_nothing(make, node, room_bytes):
    numbered = Numbered()
    kit = make(2, numbered)
    kit.nodes[node].room.left = room_bytes
    assert len(await kit.hand_over()) == 1
    assert kit.replicas["a"].partition.is_leading
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)
    assert kit.nodes[node].room.left == room_bytes


def failing(error, after=0):
    """A method that does what it did so many times, and then raises."""
    calls = iter(range(1 << 30))

    def fails(usual):
        def call(*args):
            if next(calls) >= after:
                raise error
            return usual(*args)

        return call

    return fails


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("error", [OSError("no"), pa.ArrowInvalid("no"), LiftError("no")])
async def test_what_the_next_leader_can_not_append_is_a_gap(make, error, after):
    kit = make(1, Numbered(), late=4)
    partition, node = kit.replicas["b"].partition, kit.nodes["b"]
    node.whole_until_s = partition.gaps._clock.elapsed() - 7.0
    fails, lead = failing(error, after), partition.lead

    def led(epoch):
        partition.append = fails(partition.append)
        lead(epoch)
        kit.is_published = False

    partition.lead = led
    assert await kit.hand_over() == []
    assert node.took_over == [True]
    assert partition.held is None
    assert node.room.left == held.HELD_BYTES_MAX
    (gap,) = partition.gaps.unrecorded()
    assert (gap.since_ns, gap.until_ns) == (node.side.kit.clock.now_ns() - 7 * 10**9, None)
    assert "no" in gap.cause
    assert partition.log.failure is None


@pytest.mark.parametrize("after", [0, 30])
async def test_what_the_next_leader_can_not_take_while_it_holds_leaves_the_lead_where_it_is(make, after):
    """Nor does it tell of a gap: the leader has those messages, and would end that gap before they came."""
    numbered = Numbered()
    kit = make(1, numbered, late=4)
    partition = kit.replicas["b"].partition
    partition.append = failing(OSError("no"), after)(partition.append)
    assert len(await kit.hand_over()) == 1
    assert kit.replicas["a"].partition.is_leading
    assert partition.gaps.unrecorded() == ()
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


async def test_what_is_dropped_before_the_next_leader_appends_is_a_gap(make):
    kit = make(1, Numbered(), late=4)
    partition, lead = kit.replicas["b"].partition, kit.replicas["b"].partition.lead

    def fill():
        kit.nodes["b"].room.left = 0
        assert not partition.held.add(held.ListRun([msg(b"orders.x", b"held").message]), 0)

    def led(epoch):
        lead(epoch)
        asyncio.get_running_loop().call_soon(fill)
        kit.is_published = False

    partition.lead = led
    assert await kit.hand_over() == []
    assert kit.nodes["b"].took_over == [True]
    (gap,) = partition.gaps.unrecorded()
    assert "too much was published" in gap.cause


async def test_the_next_leader_knows_up_to_when_it_has_everything(make):
    """Where it can not take what comes next, before NATS has answered it, its gap begins there."""
    kit = make(1, Numbered())
    kit.nodes["b"].whole_until_s = 995.0
    assert await kit.hand_over() == []
    assert kit.replicas["b"].partition.heard_s == 995.0


async def test_what_the_next_leader_can_not_tell_apart_from_what_is_stored_is_a_gap(make):
    kit = make(1, Numbered())
    partition = kit.replicas["b"].partition
    partition.log.batches = failing(SegmentCorruptError("0.log", 3, "no"))(None)
    assert await kit.hand_over() == []
    assert partition.held is None
    assert "no" in partition.log.failure.args[0]
    assert any("no" in gap.cause for gap in partition.gaps.unrecorded())


def hold(kits, monkeypatch):
    """Let one node hand over a partition of each kit, and hear a message for each while it holds; then it goes on."""
    giver = kits[0].nodes["a"].giving
    for kit in kits:
        partition = kit.replicas["a"].partition
        monkeypatch.setitem(giver._holding.streams.by_key, partition.key, partition)

    async def ask(_target, endpoint, body, _timeout_s):
        if endpoint == "HANDOVER.LISTEN":
            return {"tokens": [], "partitions": [row[:2] for row in body["partitions"]], "why": ""}
        for kit in kits:
            kit.replicas["a"].partition.append(held.ListRun([msg(b"orders.x", b"held").message]), 0, 0)
        raise AdminError(ErrorCode.NOT_AVAILABLE, "no")

    giver._ask = ask
    return giver.give([kit.move() for kit in kits])


async def test_what_one_partition_can_not_append_again_leaves_no_other_held(make, monkeypatch):
    kits = [make(1, Numbered(), partitions=2, led=[number]) for number in (0, 1)]
    broken, other = (kit.replicas["a"].partition for kit in kits)
    fails = failing(OSError("no"), after=1)
    broken.append = fails(broken.append)
    broken.heard_s = broken.gaps._clock.elapsed() - 7.0
    assert len(await hold(kits, monkeypatch)) == 2
    assert (broken.held, other.held) == (None, None)
    assert kits[1].replicas["a"].kit.stored(1) == [b"held"]
    (gap,) = broken.gaps.unrecorded()
    assert gap.since_ns == kits[0].replicas["a"].kit.clock.now_ns() - 7 * 10**9
    assert other.gaps.unrecorded() == ()


async def test_what_a_leader_holds_is_not_whole_when_nats_answers(make, monkeypatch):
    """It is not in the log: who leads next without having heard it begins its gap before."""
    (kit,) = kits = [make(1, Numbered())]
    side = kit.replicas["a"]
    heard = []

    def hear(usual):
        def call(*args):
            usual(*args)
            side.kit.ingest.bindings[1].heard(side.kit.clock.elapsed())
            heard.append((side.replica.whole_end(side.kit.clock.elapsed()), side.partition.heard_s))

        return call

    side.partition.heard_s = 5.0
    side.partition.append = hear(side.partition.append)
    await hold(kits, monkeypatch)
    assert heard[0] == (None, 5.0), "while it holds"
    assert heard[-1] == (1, side.kit.clock.elapsed()), "after it has appended that"


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


@pytest.mark.parametrize("when", ["LISTEN", "TAKE"])
async def test_a_subscription_that_is_taken_away_meanwhile_is_not_whole(make, when):
    kit = make(4, Numbered())
    ask = kit.nodes["a"].giving._ask

    async def refuse(target, endpoint, body, timeout_s):
        answer = await ask(target, endpoint, body, timeout_s)
        if endpoint == f"HANDOVER.{when}":
            kit.replicas["b"].kit.ingest.bindings[1].open_gap(0.0, "the NATS server refuses a subscription")
        return answer

    kit.nodes["a"].giving._ask = refuse
    left = await kit.hand_over()
    assert (len(left), kit.nodes["b"].took_over) == {"LISTEN": (1, []), "TAKE": (0, [False])}[when]
    assert kit.replicas["b"].partition.gaps.unrecorded() == ()


async def test_a_node_whose_subscription_was_taken_away_before_takes_nothing(make):
    """It leads another partition of the stream, so it subscribes to nothing new, and nothing new is refused."""
    numbered = Numbered()
    kit = make(4, numbered)
    kit.nodes["b"].refused = LiftError("the NATS server refuses a subscription")
    assert len(await kit.hand_over()) == 1
    check_plain(kit, numbered)


async def test_a_node_that_misses_messages_takes_nothing(make):
    kit = make(4, Numbered())
    kit.nodes["b"].misses = "a route between NATS servers was lost"
    assert len(await kit.hand_over()) == 1
    assert kit.replicas["a"].partition.is_leading
    assert not kit.nodes["b"].is_listening


async def test_messages_that_the_next_leader_misses_meanwhile_are_a_gap(make):
    kit = make(4, Numbered())
    propose_many = kit.propose_many

    async def miss(commands):
        kit.nodes["b"].misses = "a route between NATS servers was lost"
        return await propose_many(commands)

    kit.nodes["a"].giving._metadata.propose_many = miss
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
    assert taken.room.left == held.HELD_BYTES_MAX


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


@pytest.mark.parametrize(
    ("leader", "words"), [("b", "handed over the lead of 1"), ("c", "1 partitions that were to be")]
)
async def test_who_leads_in_the_end_is_told(monkeypatch, caplog, leader, words):
    """A leader that starves may be deposed while it hands over, and then another one leads."""
    uuid, key = "ab" * 16, PartitionKey(bytes.fromhex("ab" * 16), 0)
    config = SimpleNamespace(is_internal=False, group=None)
    partition = SimpleNamespace(is_leading=True, epoch=3, stream=SimpleNamespace(config=config))
    known = SimpleNamespace(uuid=uuid, partitions=[SimpleNamespace(leader=leader)])
    metadata = SimpleNamespace(state=SimpleNamespace(streams={"s": known}))
    gives = giving.Giving(SimpleNamespace(streams=SimpleNamespace(by_key={key: partition})), None, metadata)

    async def give(_target, _moves):
        partition.is_leading = False
        return ""

    monkeypatch.setattr(gives, "_give_some", give)
    caplog.set_level("INFO")
    assert await gives.give([{"uuid": uuid, "partition": 0, "leader": "b", "leader_epoch": 3, "version": 1}]) == []
    (line,) = caplog.messages
    assert words in line


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
    assert one.is_broken
    assert not two.is_broken
    assert room.left == 250 - 101


@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_node_that_changes_its_nats_server_hands_over_and_takes_nothing(make, node, monkeypatch):
    monkeypatch.setattr(held, "_STEADY_TIMEOUT_S", 0.02)
    numbered = Numbered()
    kit = make(8, numbered)
    kit.nodes[node].is_changing = True
    assert len(await kit.hand_over()) == 1
    assert not kit.nodes["b"].is_listening
    assert kit.replicas["a"].partition.held is None
    check_plain(kit, numbered)


@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_handover_waits_for_a_change_of_nats_servers(make, node):
    numbered = Numbered()
    kit = make(9, numbered)
    changing = kit.nodes[node]
    changing.is_changing = True

    def stand_still():
        assert all(each.partition.held is None for each in kit.replicas.sides.values())
        changing.is_changing = False

    asyncio.get_running_loop().call_later(0.05, stand_still)
    assert await kit.hand_over() == []
    check_plain(kit, numbered)
    assert len(values(kit)) == len(kit.published)


async def fills_up(partition, publishing):
    """The disk of a leader is full, and is not, by turns."""
    while publishing():
        partition.storage_full = partition.is_leading and not partition.storage_full
        await asyncio.sleep(0)
    partition.storage_full = False


def told(kit):
    """What publishers were told: those whose message is stored, and those whose message is not."""
    acks = [ack for side in kit.replicas.sides.values() for ack in side.kit.acks()]
    stored = [subject for subject, ack in acks if "error" not in ack]
    return stored, [subject for subject, ack in acks if "error" in ack]


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_a_leader_refuses_its_successor_does_not_store(make, monkeypatch, seed):
    monkeypatch.setattr(giving, "_REFUSED_MAX", 1_000_000)
    kit = make(seed, Numbered("reply"), late=4)
    filling = asyncio.create_task(fills_up(kit.replicas["a"].partition, lambda: kit.is_published))
    assert await kit.hand_over() == []
    await filling
    stored, refused = told(kit)
    assert kit.nodes["b"].took_over == [True]
    assert len(refused) > 10
    assert sorted(stored + refused) == sorted(frame.reply for _, frame in kit.published)
    assert sorted(values(kit)) == sorted(subject[2:].replace(b".", b" ") for subject in stored)


async def test_a_leader_that_refuses_too_much_does_not_hand_over(make, monkeypatch):
    monkeypatch.setattr(giving, "_REFUSED_MAX", 5)
    kit = make(12, Numbered("reply"), late=4)
    filling = asyncio.create_task(fills_up(kit.replicas["a"].partition, lambda: kit.is_published))
    assert len(await kit.hand_over()) == 1
    await filling
    stored, refused = told(kit)
    assert sorted(stored + refused) == sorted(frame.reply for _, frame in kit.published)
    assert kit.replicas["a"].partition.on_refused is None


def handover_of(kit, name):
    """What a node knows of handovers, around the two sides of the kit."""
    node = kit.nodes[name]
    made = object.__new__(Handover)
    made._giving, made._taking = node.giving, node.taking
    return made


async def test_a_change_of_nats_servers_waits_for_the_handovers_in_hand(make):
    kit = make(10, Numbered())
    propose_many = kit.propose_many
    ended = []

    async def propose(commands):
        ended.extend(asyncio.create_task(handover_of(kit, name)._ended()) for name in "ab")
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in ended)
        return await propose_many(commands)

    kit.nodes["a"].giving._metadata.propose_many = propose
    assert await kit.hand_over() == []
    await asyncio.wait_for(asyncio.gather(*ended), 5)
    assert kit.nodes["b"].took_over == [True]


async def test_a_handover_that_takes_too_long_is_called_off_for_a_change_of_nats_servers(make, monkeypatch):
    monkeypatch.setattr(handover, "_END_TIMEOUT_S", 0.02)
    kit = make(11, Numbered())
    propose_many = kit.propose_many

    async def propose(commands):
        await handover_of(kit, "b")._ended()
        return await propose_many(commands)

    kit.nodes["a"].giving._metadata.propose_many = propose
    assert await kit.hand_over() == []
    assert kit.nodes["b"].took_over == [False], "its gap is told"
    assert kit.replicas["b"].partition.held is None
