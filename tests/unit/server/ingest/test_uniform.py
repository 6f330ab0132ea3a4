"""Frames that are alike are parsed at once, exactly as the plain loop does it; others end the row of them."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.envelope import COOKIE
from liftpy_server.ingest import parser as parser_module
from liftpy_server.ingest.parser import MessageParser
from liftpy_server.ingest.uniform import UNIFORM_FRAMES_MIN, parse_uniform
from liftpy_server.messages.runs import BlockRun
from support.examples import examples
from support.nats_frames import (
    CONTROL_LINES,
    Frame,
    adversarial_values,
    cut,
    encode_all,
    frames,
    gather,
    header_block,
    hear,
    msg,
    reference_parse,
    replies,
    sids,
    tokens,
)

FAKE = msg(b"fake", b"f" * 10, 9, b"r").encode()


def parsed(data, start=0):
    """What is found: messages by subscription, how many, and where it stopped."""
    line_end = data.index(b"\r\n", start)
    fields = data[start:line_end].split(b" ")
    result = parse_uniform(data, start, fields, int(fields[-1]))
    if result is None:
        return {}, 0, start
    messages = {}
    gather(result.runs, messages)
    return messages, result.frames, result.end


def check_prefix(items, data, start=0):
    """What was found is the first frames of the stream, exactly. Returns how many."""
    messages, count, end = parsed(data, start)
    assert reference_parse(encode_all(items[:count])).messages == messages
    assert start + len(encode_all(items[:count])) == end
    return count


def by_lists(chunks):
    with patch.object(parser_module, "_VECTOR_BYTES_MIN", 2**60):
        return hear(MessageParser(), chunks)


def by_loop_and_uniform(chunks):
    """Without the parser for all other frames, which relies on heads that are well-formed."""
    with patch.multiple(parser_module, _VECTOR_BYTES_MIN=0, _VECTOR_FRAME_BYTES_MAX=0):
        return hear(MessageParser(), chunks)


def alike(count, size=128, subject=b"orders.new", sid=1, reply=b"_INBOX.abc.%04d"):
    return [msg(subject, bytes(size), sid, reply % number if b"%" in reply else reply) for number in range(count)]


def of_size(value, size):
    return (value * (size // max(1, len(value)) + 1))[:size] if value else b"x" * size


@st.composite
def uniform_frames(draw, count_max=60):
    """Frames of one size and layout, with other replies, payloads, and maybe subjects."""
    first = draw(st.builds(Frame, tokens, sids, replies, st.none(), st.binary(max_size=200)))
    pool = draw(st.lists(st.one_of(adversarial_values, st.binary(max_size=20)), min_size=1, max_size=5))
    pool = [of_size(value, len(first.value)) for value in pool]
    count = draw(st.integers(UNIFORM_FRAMES_MIN, count_max))
    more_subjects = draw(st.booleans())

    def varied(token, number):
        digits = b"%d" % number
        return (token + digits)[-len(token) :] if token else token

    return [
        Frame(
            varied(first.subject, number) if more_subjects else first.subject,
            first.sid,
            varied(first.reply, number),
            None,
            pool[number % len(pool)],
        )
        for number in range(count)
    ]


@given(uniform_frames(), st.binary(max_size=20))
@examples(250)
def test_all_of_the_frames_at_any_start(items, before):
    assert len(items) == check_prefix(items, before + encode_all(items), len(before))


@given(uniform_frames(), frames, uniform_frames())
@examples(250)
def test_another_frame_ends_the_row(items, other, following):
    stream = [*items, other, *following]
    whole = check_prefix(stream, encode_all(stream))
    assert whole >= len(items) or not whole


@given(
    st.lists(
        st.one_of(
            uniform_frames(30), st.lists(frames, max_size=2), st.lists(st.sampled_from(CONTROL_LINES), max_size=1)
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 10**9), max_size=5),
)
@examples(150)
def test_parser_agrees_with_the_reference_wherever_the_stream_is_cut(pieces, cuts):
    data = encode_all(itertools.chain.from_iterable(pieces))
    with patch.object(parser_module, "_VECTOR_BYTES_MIN", 0):
        actual = hear(MessageParser(), cut(data, [position % (len(data) + 1) for position in cuts]))
    assert reference_parse(data) == actual


@given(
    uniform_frames(40),
    st.lists(
        st.tuples(st.integers(0, 10**9), st.sampled_from([b" ", b"\t", b"\r", b"\n", b"\0", b"\r\n", b"1", b"a", b""])),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 2),
)
@examples(400)
def test_damaged_streams_are_read_as_the_loop_reads_them(items, damages, keep):
    data = bytearray(encode_all(items))
    for position, replacement in damages:
        start = position % len(data)
        data[start : start + (len(replacement) or keep)] = replacement
    assert by_lists([bytes(data)]) == by_loop_and_uniform([bytes(data)])


@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("character", [b" ", b"\t", b"\r", b"\n", b"\0", b"x"])
@pytest.mark.parametrize("number", [1, 7, 40, 99])
def test_damage_in_every_place_of_a_head(place, character, number):
    items = [msg(b"ab", b"v" * 40, 3, b"r")] * 100
    data = bytearray(encode_all(items))
    data[number * len(items[0].encode()) + place] = character[0]
    assert by_lists([bytes(data)]) == by_loop_and_uniform([bytes(data)])


ODD_ONES = {
    "sid": msg(b"orders.new", bytes(128), 2, b"_INBOX.abc.0000"),
    "sid of two digits": msg(b"orders.new", bytes(128), 11, b"_INBOX.abc.0000"),
    "reply of one digit more": msg(b"orders.new", bytes(128), 1, b"_INBOX.abc.00000"),
    "no reply": msg(b"orders.new", bytes(128), 1),
    "subject": msg(b"orders.older", bytes(128), 1, b"_INBOX.abc.0000"),
    "lengths that make up for each other": msg(b"orders.ne", bytes(128), 1, b"_INBOX.abc.00000"),
    "payload for reply": msg(b"orders.new", bytes(129), 1, b"_INBOX.abc.000"),
    "smaller": msg(b"orders.new", bytes(127), 1, b"_INBOX.abc.0000"),
    "size of two digits": msg(b"orders.new", bytes(99), 1, b"_INBOX.abc.0000"),
    "headers": msg(b"orders.new", bytes(100), 1, b"_INBOX.abc.0000", header_block(A="b")),
    "control line": b"PING\r\n",
}


@pytest.mark.parametrize("odd", ODD_ONES.values(), ids=ODD_ONES)
@pytest.mark.parametrize("number", [0, 1, UNIFORM_FRAMES_MIN - 1, UNIFORM_FRAMES_MIN, 50, 99])
def test_every_way_to_differ(odd, number):
    items = alike(100)
    items.insert(number, odd)
    data = encode_all(items)
    if number >= 50:
        assert check_prefix(items, data) == number
    assert reference_parse(data) == hear(MessageParser(), [data])


def test_payload_of_lookalikes_in_the_places_of_frames():
    items = alike(40)
    frame_bytes = len(items[0].encode())
    lookalikes = encode_all(items[:30])
    fillers = (items[0]._replace(value=b"x" * size + lookalikes) for size in range(frame_bytes))
    odd = next(frame for frame in fillers if len(frame.encode()) == frame_bytes + len(lookalikes) + 2)
    stream = [*items, odd, *items]
    assert check_prefix(stream, encode_all(stream)) == 40
    assert reference_parse(encode_all(stream)) == hear(MessageParser(), [encode_all(stream)])


def test_payloads_made_of_frames():
    items = [frame._replace(value=FAKE * 4) for frame in alike(50)]
    assert check_prefix(items, encode_all(items)) == 50


@pytest.mark.parametrize("cut_bytes", range(1, 60, 7))
def test_half_a_frame_at_the_end_is_left(cut_bytes):
    items = alike(50)
    assert check_prefix(items, encode_all(items)[:-cut_bytes]) == 49


@pytest.mark.parametrize("reply", [b"", b"r", b"_INBOX.abc.%04d"])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 9, 10, 100, 1_000])
def test_sizes_with_and_without_replies(size, reply):
    items = alike(32, size, b"s", 7, reply)
    assert check_prefix(items, encode_all(items)) == 32


def test_subjects_of_equal_size():
    items = [msg(b"orders.%03d" % number, b"v", 1, b"r") for number in range(64)]
    assert check_prefix(items, encode_all(items)) == 64


@pytest.mark.parametrize("line", [b"MSG  1 5", b"MSG a 1  5", b"MSG a 1 05", b"MSG a 1 +5", b"MSG \t 1 r\x7f 5"])
def test_odd_lines_are_read_as_the_loop_reads_them(line):
    data = (line + b"\r\nhello\r\n") * 400
    assert by_lists([data]) == by_loop_and_uniform([data])


def test_row_that_is_too_short():
    assert parsed(encode_all(alike(UNIFORM_FRAMES_MIN - 1)))[1] == 0


def test_row_that_is_little_of_the_chunk():
    stream = [*alike(20), *alike(100, size=127)]
    assert parsed(encode_all(stream))[1] == 0, "a run for every few frames is more work than parsing them"


def test_many_short_rows_make_one_run():
    data = encode_all(itertools.chain.from_iterable(alike(20, 60 + number % 2) for number in range(40)))
    runs, _ = MessageParser().feed(data)
    assert [run.count for _, run in runs] == [800]


def test_replies_that_get_another_digit_make_two_runs():
    data = encode_all(msg(b"s", bytes(128), 1, b"_INBOX.x.%d" % number) for number in range(9_800, 10_200))
    runs, _ = MessageParser().feed(data)
    assert [run.count for _, run in runs] == [200, 200]
    assert reference_parse(data) == hear(MessageParser(), [data])


@pytest.mark.parametrize("size", [1_024, 10_000])
def test_large_messages_are_taken_at_once_too(size):
    runs, _ = MessageParser().feed(encode_all(alike(20, size)))
    assert [(1, BlockRun, 20)] == [(sid, type(run), run.count) for sid, run in runs]


@pytest.mark.parametrize("number", [None, 0, 20, 39])
@pytest.mark.parametrize("size", [3, 4, 20])
def test_run_is_plain_unless_a_value_begins_with_the_cookie(size, number):
    items = alike(40, size)
    if number is not None:
        items[number] = items[number]._replace(value=of_size(COOKIE, size))
    data = encode_all(items)
    fields = data[: data.index(b"\r\n")].split(b" ")
    ((_, run),) = parse_uniform(data, 0, fields, size).runs
    assert run.is_plain == (number is None or size < len(COOKIE))
    assert (run.value_bytes, run.message_bytes_max) == (40 * size, size)
