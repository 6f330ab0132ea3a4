"""The parser yields the messages of a naive one and hands back every other line, wherever the stream is cut."""

from __future__ import annotations

import time
from itertools import combinations
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.ingest import parser as parser_module
from liftpy_server.ingest.parser import MessageParser
from liftpy_server.messages.runs import BlockRun, ListRun
from support.examples import examples
from support.nats_frames import (
    CONTROL_LINES,
    at_random,
    cut,
    encode_all,
    frames,
    header_block,
    hear,
    msg,
    plain_frames,
    reference_parse,
    streams,
)

STREAM = [
    msg(b"orders.new", b"hello", 1),
    b"PING\r\n",
    msg(b"a", b"MSG a 1 3\r\nabc\r\n", 12, b"_INBOX.1"),
    msg(b"b", b"", 1),
    msg(b"c", b"with headers", 3, b"r", header_block(Nats_Msg_Id="7")),
    b"-ERR 'Slow Consumer'\r\n",
    msg(b"d", b"\r\n", 3),
]


def reference_and(chunks):
    return reference_parse(b"".join(chunks)), hear(MessageParser(), chunks)


@given(streams)
@examples(200)
def test_stream_in_one_piece(items):
    expected, actual = reference_and([encode_all(items)])
    assert expected == actual


@given(st.lists(st.one_of(frames, st.sampled_from(CONTROL_LINES)), min_size=1, max_size=3))
@examples(100)
def test_stream_cut_at_every_byte(items):
    data = encode_all(items)[:700]
    whole = len(data) == len(encode_all(items))
    expected = hear(MessageParser(), [data])
    assert not whole or reference_parse(data) == expected
    for position in range(len(data) + 1):
        assert expected == hear(MessageParser(), cut(data, [position])), position


def test_stream_cut_at_every_two_bytes():
    data = encode_all(STREAM)
    expected = reference_parse(data)
    for positions in combinations(range(len(data) + 1), 2):
        assert expected == hear(MessageParser(), cut(data, positions)), positions


def test_stream_byte_by_byte():
    data = encode_all(STREAM)
    assert reference_parse(data) == hear(MessageParser(), cut(data, range(len(data))))


@pytest.mark.parametrize("subject", [b"a", b"abc", b"s" * 60, b"s" * 90])
def test_size_is_never_guessed_from_half_of_a_header(subject):
    for size in range(130):
        frame = msg(subject, b"v" * size, 12)
        data = frame.encode()
        for position in range(data.index(b"\r\n") + 3):
            assert ({12: [frame.message]}, b"") == hear(MessageParser(), cut(data, [position])), (size, position)


@given(st.lists(frames, min_size=1, max_size=8), st.integers(0, 2**32), st.lists(st.integers(0, 10**9), max_size=20))
@examples(60)
def test_long_stream_cut_anywhere(pool, seed, cuts):
    data = encode_all(at_random([*pool, *CONTROL_LINES[:2]], 300, seed))
    expected, actual = reference_and(cut(data, [position % (len(data) + 1) for position in cuts]))
    assert expected == actual


@given(
    st.lists(plain_frames.filter(lambda frame: len(frame.value) < 500), min_size=1, max_size=6),
    st.lists(st.one_of(frames, st.sampled_from(CONTROL_LINES)), max_size=3),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 10**9), max_size=6),
)
@examples(100)
def test_vector_path_and_list_path_agree(small, rare, seed, cuts):
    items = [*at_random(small, 150, seed), *rare, *at_random(small, 150, seed + 1)]
    data = encode_all(items)
    chunks = cut(data, [position % (len(data) + 1) for position in cuts])
    with patch.object(parser_module, "_VECTOR_BYTES_MIN", 2**60):
        by_lists = hear(MessageParser(), chunks)
    assert reference_parse(data) == by_lists
    assert by_lists == hear(MessageParser(), chunks)


def test_large_chunk_of_small_messages_takes_the_vector_path():
    items = [msg(b"orders.%d" % number, b"v" * 64, number % 3 + 1, b"reply") for number in range(200)]
    runs, control = MessageParser().feed(encode_all(items))
    assert ([(1, BlockRun), (2, BlockRun), (3, BlockRun)], b"") == ([(sid, type(run)) for sid, run in runs], control)


def test_few_messages_take_the_list_path():
    runs, _ = MessageParser().feed(encode_all([msg(b"a", b"v" * 64)] * 20))
    assert [ListRun] == [type(run) for _, run in runs]


def test_order_is_kept_where_both_paths_meet():
    small = [msg(b"s", b"%d" % number, number % 2 + 1) for number in range(400)]
    items = [small[0], b"PING\r\n", *small[1:200], msg(b"h", b"x", 1, headers=header_block(A="1")), *small[200:]]
    data = encode_all(items)
    expected, actual = reference_and([data])
    assert expected == actual


def test_half_a_message_waits_for_the_rest():
    parser = MessageParser()
    assert parser.feed(b"MSG a 1 5\r\nhe") == ([], b"")
    assert hear(MessageParser(), [b"MSG a 1 5\r\nhello\r\n"]) == hear(parser, [b"llo\r\n"])


def test_reset_forgets_half_a_message():
    parser = MessageParser()
    parser.feed(b"MSG a 1 500\r\nhalf of it")
    parser.reset()
    expected = reference_parse(b"INFO {}\r\nMSG b 2 3\r\nabc\r\n")
    assert expected == hear(parser, [b"INFO {}\r\nMSG b 2 3\r\nabc\r\n"])


@given(streams, st.integers(1, 10**6))
@examples(60)
def test_reset_after_any_cut_leaves_nothing_behind(items, position):
    data = encode_all(items)
    parser = MessageParser()
    parser.feed(data[: position % len(data)])
    parser.reset()
    assert reference_parse(data) == hear(parser, [data])


def test_empty_chunks_are_harmless():
    parser = MessageParser()
    assert parser.feed(b"") == ([], b"")
    assert reference_parse(encode_all(STREAM)) == hear(parser, [b"", encode_all(STREAM), b""])


def test_huge_message_in_many_chunks_is_not_quadratic():
    frame = msg(b"big", b"z" * (16 * 1024 * 1024))
    data = frame.encode()
    chunks = [data[start : start + 2_048] for start in range(0, len(data), 2_048)]
    started = time.process_time()
    actual = hear(MessageParser(), chunks)
    assert {1: [frame.message]} == actual.messages
    assert time.process_time() - started < 2.0  # copying all there is for every chunk takes a minute


def test_long_control_line_in_many_chunks():
    line = b"INFO {%b}\r\n" % (b"x" * 200_000)
    data = line + encode_all(STREAM)
    chunks = [data[start : start + 1_000] for start in range(0, len(data), 1_000)]
    assert reference_parse(data) == hear(MessageParser(), chunks)


MALFORMED = [
    b"\r\n",
    b"MSG\r\n",
    b"MSG a\r\n",
    b"MSG a 1\r\n",
    b"MSG a 1 x\r\n",
    b"MSG a 1 -1\r\n",
    b"MSG a 1 -2\r\n",
    b"MSG a 1 r s 3\r\n",
    b"HMSG\r\n",
    b"HMSG 1\r\n",
    b"HMSG a 1 5\r\n",
    b"HMSG a 1 x 5\r\n",
    b"HMSG a 1 r s 2 5\r\n",
    b"msg a 1 3\r\n",
    b"PUB a 3\r\n",
    b"\xff\xfe\x00garbage\r\n",
]


@pytest.mark.parametrize("line", MALFORMED)
def test_malformed_line_is_handed_back(line):
    good = msg(b"a", b"v")
    for data in (line, good.encode() + line, line + good.encode()):
        expected = {} if data == line else {1: [good.message]}
        for position in range(len(data) + 1):
            assert (expected, line) == hear(MessageParser(), cut(data, [position])), (data, position)


@pytest.mark.parametrize("sid", [b"x", b"-5", b"1.5", b"9" * 5_000])
def test_message_without_a_usable_subscription_is_handed_back(sid):
    data = b"MSG a %b 3\r\nabc\r\n" % sid
    actual = hear(MessageParser(), [data + b"PING\r\n"])
    assert ({}, data + b"PING\r\n") == actual


def test_endless_line_is_handed_back():
    parser = MessageParser()
    handed_back = b"".join(parser.feed(b"x" * 64 * 1024).control for _ in range(20))
    assert len(handed_back) >= 1024 * 1024


@pytest.mark.parametrize(
    "last", [b"MSG abc 5\r\nhello\r\n", b"MSG 0000005\r\nhello\r\n", b"MSG 000000000000 5\r\nhello\r\n"]
)
def test_broken_frame_behind_many_good_ones_is_handed_back(last):
    good = [msg(b"a", b"v" * 30)] * 200
    actual = hear(MessageParser(), [encode_all(good) + last])
    assert ({1: [frame.message for frame in good]}, last) == actual


@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([b"MSG ", b"HMSG ", b" 1 ", b" 5", b"\r\n"])), max_size=30
    )
)
@examples(300)
def test_garbage_never_raises(pieces):
    parser = MessageParser()
    data = b"".join(pieces)
    for chunk in (*pieces, data):
        parser.feed(chunk)


@given(
    st.lists(plain_frames, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10**9), st.binary(max_size=3)), max_size=6),
)
@examples(150)
def test_damaged_stream_never_raises(pool, damages):
    data = bytearray(encode_all(at_random(pool, 200, len(pool))))
    for position, replacement in damages:
        start = position % len(data)
        data[start : start + len(replacement)] = replacement
    hear(MessageParser(), cut(bytes(data), [len(data) // 3]))
    hear(MessageParser(), [bytes(data)])


def test_message_larger_than_any_is_not_waited_for():
    line = b"MSG a 1 99999999999\r\n"
    good = msg(b"a", b"v")
    assert ({1: [good.message]}, line) == hear(MessageParser(), [line, good.encode()])
