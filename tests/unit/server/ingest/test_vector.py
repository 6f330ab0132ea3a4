"""`parse_block` is exact as far as it goes, whatever stands in payloads, and goes as far as it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.envelope import COOKIE
from liftpy_server.ingest.vector import parse_block
from support.examples import examples
from support.nats_frames import (
    CONTROL_LINES,
    Frame,
    at_random,
    encode_all,
    frames,
    gather,
    header_block,
    long_sids,
    msg,
    plain_frames,
    reference_parse,
    replies,
    sids,
    tame_values,
    tokens,
)

tame_frames = st.builds(Frame, tokens, sids, replies, st.none(), tame_values)
tails = st.one_of(
    st.just(b""),
    st.sampled_from(CONTROL_LINES),
    frames.map(lambda frame: frame.encode()[:-3]),
    st.builds(Frame, tokens, sids, replies, st.just(header_block(A="b")), tame_values).map(Frame.encode),
)


def parsed(data: bytes, start: int = 0):
    """What the block parser finds: messages by subscription, how many, and where it stopped."""
    result = parse_block(data, start)
    if result is None:
        return {}, 0, start
    messages = {}
    gather(result.runs, messages)
    return messages, result.frames, result.end


def check_prefix(items: list[Frame], data: bytes, start: int = 0) -> int:
    """What was found is the first frames of the stream, exactly. Returns how many."""
    messages, count, end = parsed(data, start)
    assert reference_parse(encode_all(items[:count])).messages == messages
    assert start + len(encode_all(items[:count])) == end
    return count


@given(st.lists(tame_frames, min_size=1, max_size=30), tails)
@examples(250)
def test_all_frames_up_to_something_else(items, tail):
    data = b"PONG\r\n" + encode_all(items) + tail
    assert len(items) == check_prefix(items, data, 6)


@given(st.lists(plain_frames, min_size=1, max_size=30), tails)
@examples(250)
def test_exact_as_far_as_it_goes(items, tail):
    check_prefix(items, encode_all(items) + tail)


@given(st.lists(plain_frames, min_size=1, max_size=8), st.integers(0, 2**32), st.binary(max_size=50))
@examples(40)
def test_exact_for_large_blocks_at_any_start(pool, seed, before):
    items = at_random(pool, 400, seed)
    check_prefix(items, before + encode_all(items), len(before))


@given(st.lists(st.builds(Frame, tokens, long_sids, replies, st.none(), tame_values), min_size=1, max_size=12))
@examples(100)
def test_subscription_ids_of_any_length(items):
    check_prefix(items, encode_all(items))


@pytest.mark.parametrize("digits", range(1, 8))
def test_sizes_and_subscription_ids_of_every_number_of_digits(digits):
    low, high = 10 ** (digits - 1), 10**digits - 1
    items = [msg(b"sub", b"v" * low, high), msg(b"s", b"w" * low, low, b"r"), msg(b"s", b"x" * min(high, 2 * low), 1)]
    assert check_prefix(items, encode_all(items)) == 3


def test_sizes_of_eight_digits_are_left_to_the_loop():
    items = [msg(b"first", b"one"), msg(b"a", b"v" * 10**7), msg(b"a", b"three")]
    assert check_prefix(items, encode_all(items)) == 1


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 640])
@pytest.mark.parametrize("reply", [b"", b"r", b"_INBOX.12345678.1"])
def test_equal_frames(size, reply):
    items = [msg(b"subject.%d" % (number % 7), b"x" * size, 5, reply) for number in range(100)]
    assert check_prefix(items, encode_all(items)) == 100


@pytest.mark.parametrize("before", [b"", b"x", b"PING\r\n"])
@pytest.mark.parametrize(
    ("subject", "sid", "reply"), [(b"s", 1, b""), (b"s", 1, b"r"), (b"s", 12, b""), (b"ab", 1, b"")]
)
def test_short_first_head(subject, sid, reply, before):
    items = [msg(subject, b"value" * 4, sid, reply), msg(b"orders", b"v", 2, b"r"), msg(b"s", b"v", 3)]
    assert check_prefix(items, before + encode_all(items), len(before)) == 3


def test_replies_here_and_there():
    items = [msg(b"sub", b"v", 1, b"r%d" % number if number % 3 else b"") for number in range(50)]
    assert check_prefix(items, encode_all(items)) == 50


def test_digits_in_subjects_and_replies_are_no_sizes():
    items = [msg(b"11", b"v", 2, b"3"), msg(b"12345678", b"", 1234567, b"87654321"), msg(b"MSG", b"v", 1, b"MSG")]
    assert check_prefix(items, encode_all(items)) == 3


@pytest.mark.parametrize("kept", range(4))
def test_frames_are_kept_by_subscription_and_in_order(kept):
    items = [msg(b"sub", b"%d" % number, (number * 7) % (kept + 1) + 1) for number in range(64)]
    result = parse_block(encode_all(items), 0)
    assert list(range(1, kept + 2)) == sorted(sid for sid, _ in result.runs)
    assert check_prefix(items, encode_all(items)) == 64


@pytest.mark.parametrize("cut", range(1, 14))
def test_frame_that_is_not_whole_is_left(cut):
    items = [msg(b"sub", b"v" * 20)] * 3
    data = encode_all([*items, msg(b"a", b"v")])[:-cut]
    assert check_prefix(items, data) == 3


@pytest.mark.parametrize(
    "data",
    [
        b"PING\r\nPING\r\nPING\r\n",
        b"MSG a 1 3\r\nab",
        b"MSG a 1 30\r\nabc\r\n",
        b"MSG a 1 x\r\nabc\r\n",
        b"no line feed at all",
    ],
)
def test_nothing_to_parse(data):
    assert parsed(data) == ({}, 0, 0)


def test_payload_made_of_frames_is_one_payload():
    fake = encode_all([msg(b"fake", b"f" * 10, 9)] * 20)
    items = [msg(b"a", fake, 1)]
    check_prefix(items, encode_all(items))
    check_prefix(items * 5, encode_all(items * 5))


def test_first_frame_good_and_the_second_broken():
    data = msg(b"sub", b"abc").encode() + b"MSG b 1 99\r\nabc\r\nMSG c 1 3\r\nabc\r\n"
    assert check_prefix([msg(b"sub", b"abc")], data) == 1


@given(
    st.lists(tame_frames, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 10**9), st.binary(max_size=4)), max_size=4),
)
@examples(300)
def test_damage_never_raises(items, damages):
    first = msg(b"first", b"0" * 20).encode()
    data = bytearray(encode_all(items))
    for position, replacement in damages:
        start = position % len(data)
        data[start : start + len(replacement)] = replacement
    parse_block(first + bytes(data), 0)


@pytest.mark.parametrize("size", range(12))
def test_run_is_plain_unless_a_value_begins_with_the_cookie(size):
    value = (COOKIE + bytes(8))[:size]
    items = [msg(b"sub", b"v" * 20), msg(b"a", value), msg(b"b", b"w" * 20, 2), msg(b"a", b"v" * 20)]
    result = parse_block(encode_all(items), 0)
    assert {1: not value.startswith(COOKIE), 2: True} == {sid: run.is_plain for sid, run in result.runs}
