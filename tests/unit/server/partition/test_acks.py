"""Ack frames carry the JSON of `encode_ack` with right byte counts, however they are put together."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.ack import Ack, PublishRefusedError, decode_ack, encode_ack, encode_error_ack
from liftpy_envelope.errors import AckErrorCode
from liftpy_server.messages.packed import PackedColumn
from liftpy_server.partition.acks import AckItem, AckTemplate, ItemAcks, PendingAcks, RangeAcks, publish_frame
from support.examples import examples
from support.nats_frames import tokens
from support.published import Published, published

TEMPLATE = AckTemplate("orders", 3, 7)

offsets = st.one_of(
    st.integers(0, 1_200),
    st.integers(1, 15).flatmap(lambda power: st.integers(10**power - 80, 10**power + 5)).filter(lambda n: n >= 0),
    st.integers(0, 2**62),
)
equal_replies = st.builds(
    lambda count, prefix: [b"%b.%04d" % (prefix, number) for number in range(count)],
    st.integers(1, 130),
    st.sampled_from([b"r", b"_INBOX.abcdefgh"]),
)
mixed_replies = st.lists(st.one_of(st.just(b""), tokens), min_size=1, max_size=130)


def packed(strings, before=(), after=()):
    """A packed column in the middle of a longer one, as a run of a block has it."""
    everything = [*before, *strings, *after]
    edges = np.cumsum([0, *map(len, everything)]).astype(np.int32)
    column = PackedColumn(edges, pa.py_buffer(b"".join(everything)))
    return column.slice(len(before), len(before) + len(strings))


def ack_of(offset, **more):
    return encode_ack(Ack(stream="orders", offset=offset, partition=3, epoch=7, **more))


def expected_acks(base_offset, strings):
    return [Published(reply, ack_of(offset)) for offset, reply in enumerate(strings, base_offset) if reply]


@given(tokens, st.binary(max_size=300))
@examples(50)
def test_publish_frame(subject, payload):
    assert [Published(subject, payload)] == published(publish_frame(subject, payload))


@given(tokens, offsets)
@examples(150)
def test_frame(reply, offset):
    assert [Published(reply, ack_of(offset))] == published(TEMPLATE.frame(reply, offset))


@pytest.mark.parametrize(("partition", "epoch"), [(0, 0), (9, 10), (1023, 2**31 - 1)])
def test_template_of_any_partition_and_epoch(partition, epoch):
    expected = encode_ack(Ack(stream="a-b_C", offset=99, partition=partition, epoch=epoch))
    assert [Published(b"r", expected)] == published(AckTemplate("a-b_C", partition, epoch).frame(b"r", 99))


@given(offsets, st.one_of(equal_replies, mixed_replies))
@examples(200)
def test_range_of_listed_replies(base_offset, strings):
    assert expected_acks(base_offset, strings) == published(RangeAcks(base_offset, strings).encode(TEMPLATE))


@given(offsets, st.one_of(equal_replies, mixed_replies), st.lists(tokens, max_size=3), st.lists(tokens, max_size=3))
@examples(300)
def test_range_of_packed_replies(base_offset, strings, before, after):
    acks = RangeAcks(base_offset, packed(strings, before, after))
    assert expected_acks(base_offset, strings) == published(acks.encode(TEMPLATE))


@pytest.mark.parametrize("make", [list, packed])
@pytest.mark.parametrize("count", [1, 2, 60])
def test_nobody_in_the_range_wants_an_ack(make, count):
    assert published(RangeAcks(5, make([b""] * count)).encode(TEMPLATE)) == []


@given(offsets, equal_replies, st.lists(tokens, max_size=3), st.booleans())
@examples(200)
def test_frames_at_once_are_the_frames_one_by_one(base_offset, strings, before, knows_width):
    column = packed(strings, before)
    frames = TEMPLATE.frames(column._replace(width=len(strings[0])) if knows_width else column, base_offset)
    assert (frames is not None) == (len(strings) >= 16 and base_offset >= 1_000)
    one_by_one = b"".join(TEMPLATE.frame(reply, offset) for offset, reply in enumerate(strings, base_offset))
    assert frames in {None, one_by_one}


@pytest.mark.parametrize("base_offset", [1_000, 9_980, 9_998, 9_999, 10_000, 99_999, 123_459_990, 10**12 - 5])
@pytest.mark.parametrize("count", [16, 20_030])
def test_range_across_many_numbers_with_the_same_first_digits(base_offset, count):
    strings = [b"r.%05d" % number for number in range(count)]
    frames = TEMPLATE.frames(packed(strings), base_offset)
    assert frames == b"".join(TEMPLATE.frame(reply, offset) for offset, reply in enumerate(strings, base_offset))


@pytest.mark.parametrize("power", range(1, 18))
def test_range_across_a_power_of_ten(power):
    strings = [b"reply.%02d" % number for number in range(60)]
    for base_offset in (10**power - 60, 10**power - 30, 10**power - 1, 10**power):
        if base_offset >= 0:
            acks = RangeAcks(base_offset, packed(strings))
            assert expected_acks(base_offset, strings) == published(acks.encode(TEMPLATE))


items = st.builds(
    AckItem,
    tokens,
    offsets,
    st.sampled_from([1, 1, 2, 500]),
    st.booleans(),
    st.one_of(st.none(), st.text(max_size=10).filter(lambda text: text.isprintable()), st.just('"\\\n\u20ac')),
)


@given(st.lists(items, max_size=8))
@examples(150)
def test_items(given_items):
    expected = [
        (
            item.destination,
            Ack(
                stream="orders",
                offset=item.offset,
                partition=3,
                epoch=7,
                count=item.records,
                duplicate=item.duplicate,
                correlation_id=item.correlation_id,
            ),
        )
        for item in given_items
    ]
    frames = published(ItemAcks(given_items).encode(TEMPLATE))
    assert expected == [(frame.subject, decode_ack(frame.payload)) for frame in frames]
    assert [encode_ack(ack) for _, ack in expected] == [frame.payload for frame in frames]


@pytest.mark.parametrize("code", list(AckErrorCode))
def test_item_error(code):
    given_items = [AckItem(b"r1", -1, correlation_id="c"), AckItem(b"r2", -1)]
    expected = [
        Published(b"r1", encode_error_ack(code, "why", "orders", "c")),
        Published(b"r2", encode_error_ack(code, "why", "orders", None)),
    ]
    assert expected == published(ItemAcks(given_items).encode_error(TEMPLATE, code, "why"))


@pytest.mark.parametrize("make", [list, packed])
def test_range_error_goes_to_everyone_who_waits(make):
    acks = RangeAcks(5, make([b"a", b"", b"c"]))
    frames = published(acks.encode_error(TEMPLATE, AckErrorCode.OUTCOME_UNKNOWN, 'a "reason"'))
    assert [frame.subject for frame in frames] == [b"a", b"c"]
    for frame in frames:
        with pytest.raises(PublishRefusedError, match='a "reason"') as refused:
            decode_ack(frame.payload)
        assert (refused.value.code, refused.value.stream) == (AckErrorCode.OUTCOME_UNKNOWN, "orders")
        assert json.loads(frame.payload)["error"]["code"] == 503


class Due:
    """An ack that only has a name."""

    def __init__(self, name):
        self.name = name


def names(due):
    return [owed.name for owed in due]


def test_pending_acks_are_due_in_order():
    pending = PendingAcks()
    for end in (3, 5, 5, 9):
        pending.add(end, Due(end))
    assert names(pending.take(2)) == []
    assert names(pending.take(4)) == [3]
    assert names(pending.take(8)) == [5, 5]
    assert (names(pending.take(9)), len(pending)) == ([9], 0)


def test_pending_ack_of_an_older_record_keeps_its_place():
    pending = PendingAcks()
    pending.add(10, Due("new"))
    pending.add(4, Due("duplicate of an old one"))
    assert names(pending.take(9)) == []
    assert names(pending.take(10)) == ["new", "duplicate of an old one"]


def test_pending_acks_are_taken_all_at_once():
    pending = PendingAcks()
    for end in (3, 5):
        pending.add(end, Due(end))
    assert names(pending.take_all()) == [3, 5]
    assert (names(pending.take(100)), len(pending)) == ([], 0)


@given(st.lists(st.integers(0, 20), max_size=20), st.lists(st.integers(0, 25), max_size=10))
@examples(100)
def test_pending_acks_come_once_and_in_order(ends, commits):
    pending = PendingAcks()
    for number, end in enumerate(ends):
        pending.add(end, Due(number))
    taken = []
    for committed in sorted(commits):
        taken += names(pending.take(committed))
        assert all(ends[number] <= committed for number in taken)
    taken += names(pending.take_all())
    assert list(range(len(ends))) == taken
