"""A subscription's messages reach the partitions they belong to, in order, with the subjects they were published on."""

from __future__ import annotations

import pytest

from liftpy_envelope.partitioner import partition_of
from support.envelopes import batch, envelope
from support.nats_frames import header_block, msg
from support.server_kit import Kit


def many(count, value=b"%d", **options):
    """Messages on many subjects, enough of them for the parser's quick way."""
    return [msg(b"orders.s%d" % (number % 17), value % number, **options) for number in range(count)]


def expected_by_subject(frames, partitions):
    shares = {number: [] for number in range(partitions)}
    for frame in frames:
        shares[partition_of(frame.subject, partitions)].append((frame.subject, frame.value))
    return shares


def stored_pairs(kit):
    return {number: [(record.subject, record.value) for record in kit.records(number)] for number in kit.partitions}


@pytest.mark.parametrize("count", [1, 20, 500])
def test_single_partition_takes_everything(kit, count):
    frames = many(count)
    kit.receive(*frames)
    assert [(frame.subject, frame.value) for frame in frames] == stored_pairs(kit)[0]


@pytest.mark.parametrize("count", [1, 20, 500])
def test_hash_spread_by_subject(make_kit, count):
    kit = make_kit(partitions=4)
    frames = many(count)
    kit.receive(*frames)
    assert expected_by_subject(frames, 4) == stored_pairs(kit)


@pytest.mark.parametrize("subjects", [1, 2, 17, 500])
def test_hash_spread_of_messages_that_are_alike(make_kit, subjects):
    kit = make_kit(partitions=4)
    frames = [msg(b"orders.s%03d" % (n % subjects), b"%04d" % n, reply=b"reply.%03d" % n) for n in range(500)]
    kit.receive(*frames)
    kit.sync()
    assert expected_by_subject(frames, 4) == stored_pairs(kit)
    values = {number: kit.stored(number) for number in range(4)}
    answered = {values[ack["partition"]][ack["offset"]]: reply for reply, ack in kit.acks()}
    assert {frame.value: frame.reply for frame in frames} == answered


def test_hash_spread_by_key(make_kit):
    kit = make_kit(partitions=4)
    keys = [b"customer-%d" % (number % 23) for number in range(100)]
    kit.receive(*(msg(b"orders.a", b"%d" % n, headers=header_block(Lift_Key=k.decode())) for n, k in enumerate(keys)))
    expected = {number: [] for number in range(4)}
    for number, key in enumerate(keys):
        expected[partition_of(key, 4)].append((key, b"%d" % number))
    assert expected == {p: [(record.key, record.value) for record in kit.records(p)] for p in range(4)}


def test_key_of_an_envelope_spreads_too(make_kit):
    kit = make_kit(partitions=3)
    for number in range(30):
        key = b"k%d" % (number % 7)
        kit.receive(msg(b"orders.a", envelope(b"%d" % number, key=key)))
    for partition in range(3):
        assert all(partition == partition_of(record.key, 3) for record in kit.records(partition))
    assert sum(len(kit.records(partition)) for partition in range(3)) == 30


def test_messages_with_and_without_options_keep_their_order_in_a_partition(make_kit):
    kit = make_kit(partitions=3)
    frames = [
        msg(b"orders.s%d" % (n % 5), b"%d" % n, headers=header_block(A="b") if n % 3 == 0 else None) for n in range(60)
    ]
    kit.receive(*frames)
    assert expected_by_subject(frames, 3) == stored_pairs(kit)


def test_batch_goes_whole_to_the_partition_it_names(make_kit):
    kit = make_kit(partitions=4)
    kit.receive(msg(b"orders.a", batch([b"1", b"2"], partition=2)), msg(b"orders.a", batch([b"3"], partition=3)))
    assert (kit.stored(2), kit.stored(3)) == ([b"1", b"2"], [b"3"])


@pytest.mark.parametrize("count", [20, 500])
def test_share_of_other_nodes_is_left_to_them(make_kit, count):
    kit = make_kit(partitions=4, led=[1, 3])
    frames = many(count)
    kit.receive(*frames)
    expected = expected_by_subject(frames, 4)
    assert {1: expected[1], 3: expected[3]} == stored_pairs(kit)
    assert kit.stream.counters.refused.total() == 0


def test_share_of_other_nodes_is_not_refused_by_us(make_kit):
    kit = make_kit(partitions=4, led=[1], message_bytes_max=10)
    kit.receive(*(msg(b"orders.s%d" % n, bytes(11), reply=b"r") for n in range(40)))
    mine = sum(partition_of(b"orders.s%d" % n, 4) == 1 for n in range(40))
    assert mine == len(kit.sent()) == kit.stream.counters.refused["too_large"]


@pytest.mark.parametrize("count", [1, 20, 500])
def test_mapped_partition_stores_subjects_without_their_prefix(make_kit, count):
    kit = make_kit(partitions=3, spread="mapping")
    frames = many(count)
    kit.receive(*(msg(b"lift.1." + frame.subject, frame.value, sid=2) for frame in frames))
    assert {0: [], 1: [(frame.subject, frame.value) for frame in frames], 2: []} == stored_pairs(kit)


def test_mapped_partition_with_two_digits_and_another_prefix(make_kit):
    kit = make_kit(partitions=11, spread="mapping", partition_prefix="shard")
    kit.receive(msg(b"shard.10.orders.x", b"v", sid=11), msg(b"shard.0.orders.y", envelope(b"w"), sid=1))
    assert (stored_pairs(kit)[10], stored_pairs(kit)[0]) == ([(b"orders.x", b"v")], [(b"orders.y", b"w")])


def test_mapped_partition_takes_keyed_messages_where_the_mapping_put_them(make_kit):
    kit = make_kit(partitions=3, spread="mapping")
    kit.receive(*(msg(b"lift.2.orders.a", b"v", sid=3, headers=header_block(Lift_Key=f"k{n}")) for n in range(9)))
    assert [len(kit.records(partition)) for partition in range(3)] == [0, 0, 9]


def test_prefix_is_stripped_from_subjects_beyond_ascii(make_kit):
    kit = make_kit(partitions=2, spread="mapping", subject="\u00fc.>")
    kit.receive(msg("lift.1.\u00fc.\u20ac".encode(), b"v", sid=2))
    assert ["\u00fc.\u20ac".encode()] == [record.subject for record in kit.records(1)]


def test_acks_name_the_partition(make_kit):
    kit = make_kit(partitions=4)
    kit.receive(*many(40, reply=b"r"))
    kit.sync()
    acks = [ack for _, ack in kit.acks()]
    assert len(acks) == 40
    for partition in range(4):
        mine = [ack["offset"] for ack in acks if ack["partition"] == partition]
        assert list(range(len(kit.records(partition)))) == mine


def test_messages_go_to_the_partition_that_is_open_now(tmp_path):
    first, second = Kit(tmp_path / "first"), Kit(tmp_path / "second")
    binding = first.ingest.bindings[1]
    binding.partitions = {0: second.partition}
    first.receive(msg(b"orders.x", b"v"))
    assert (first.partition.log.log_end, second.partition.log.log_end) == (0, 1)
    first.close()
    second.close()
