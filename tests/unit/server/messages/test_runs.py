"""Both shapes of a run do what a naive list of messages would do."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.batch import encode_body, encode_plain_body
from liftpy_envelope.columns import Column
from liftpy_envelope.envelope import COOKIE
from liftpy_envelope.headers import PublishOptions
from liftpy_envelope.ipc import values_column
from liftpy_envelope.partitioner import partition_of
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.ingest.vector import parse_block
from liftpy_server.messages.incoming import read_message
from liftpy_server.messages.packed import PackedColumn
from liftpy_server.messages.runs import ListRun, Message
from support.batches import records_of, stamped
from support.examples import examples
from support.nats_frames import Frame, encode_all, header_blocks, replies, tame_values, tokens, values

CONFIG = StreamConfig(name="orders", subject="orders.>")
SHAPES = ["list", "block"]
shapes = st.sampled_from(SHAPES)
subjects = tokens.map(lambda token: b"lift.3." + token)
plain = st.lists(st.builds(Message, subjects, replies, st.none(), tame_values), min_size=1, max_size=20)


def run_of(shape, messages):
    """A run of the given messages, as the parser would make it; a block also holds those of others."""
    if shape == "list":
        return ListRun([tuple(message) for message in messages])
    mine = [Frame(subject, 2, reply, None, value) for subject, reply, _, value in messages]
    others = [Frame(b"others", 1, b"r", None, b"x"), Frame(b"others", 3, b"r", None, b"x")]
    result = parse_block(encode_all([others[0], *mine, others[1]]), 0)
    assert len(messages) + 2 == result.frames
    return dict(result.runs)[2]


def pairs(body):
    return [(record.subject, record.value) for record in records_of(stamped(body))]


@given(shapes, plain)
@examples(150)
def test_messages_and_sizes(shape, messages):
    run = run_of(shape, messages)
    sizes = [len(message.value) for message in messages]
    assert (messages, len(messages), sum(sizes)) == (run.messages(), run.count, run.value_bytes)
    assert max(sizes) <= run.message_bytes_max


@given(shapes, plain, st.integers(0, 10))
@examples(150)
def test_plain_body_has_subjects_without_prefix_and_values(shape, messages, skip):
    body = run_of(shape, messages).plain_body(skip)
    assert [(message.subject[skip:], message.value) for message in messages] == pairs(body)
    assert (Column.SUBJECT | Column.VALUE, len(messages), 0) == (body.columns, body.record_count, body.attributes)


@given(plain)
@examples(60)
def test_both_shapes_give_the_same_bytes(messages):
    bodies = [run_of(shape, messages).plain_body(0) for shape in SHAPES]
    assert b"".join(bodies[0].parts) == b"".join(bodies[1].parts)


@given(shapes, plain)
@examples(100)
def test_replies(shape, messages):
    expected = [message.reply for message in messages]
    found = run_of(shape, messages).replies()
    if not any(expected):
        assert found is None
    elif isinstance(found, PackedColumn):
        assert expected == found.strings(0, len(messages))
    else:
        assert expected == found


@given(shapes, plain, st.integers(1, 5))
@examples(100)
def test_split_by_subject(shape, messages, partitions):
    expected = {}
    for message in messages:
        expected.setdefault(partition_of(message.subject, partitions), []).append(message)
    shares = run_of(shape, messages).split(lambda subject: partition_of(subject, partitions))
    assert len(expected) == len(shares)
    assert expected == {number: share.messages() for number, share in shares}
    for number, share in shares:
        check_share(share, expected[number])


def test_the_plain_share_of_a_run_that_is_not_plain():
    messages = [Message(b"lift.3.a", b"", None, b"x"), Message(b"lift.3.b", b"", None, COOKIE)]
    shares = dict(run_of("block", messages).split(lambda subject: subject[-1] - ord("a")))
    assert not shares[1].is_plain
    for number, share in shares.items():
        check_share(share, [messages[number]])


def check_share(share, messages):
    """A part of a run is a run like any other."""
    assert (len(messages), sum(len(m.value) for m in messages)) == (share.count, share.value_bytes)
    assert not share.is_plain or all(not m.value.startswith(COOKIE) for m in messages)
    assert [(m.subject, m.value) for m in messages] == pairs(share.plain_body(0))
    replies_found = share.replies()
    if replies_found is None:
        assert not any(m.reply for m in messages)
    else:
        strings = replies_found.strings(0, share.count) if isinstance(replies_found, PackedColumn) else replies_found
        assert [m.reply for m in messages] == strings


@given(shapes, plain, st.integers(0, 1_500))
@examples(150)
def test_parts_are_cut_where_a_naive_loop_cuts(shape, messages, bytes_max):
    run = run_of(shape, messages)
    parts = run.parts(bytes_max)
    assert messages == [message for part in parts for message in part.messages()]
    for part in parts:
        check_share(part, part.messages())
        longest = [len(m.value) for m in part.messages()]
        assert part.value_bytes <= bytes_max or sum(size > 0 for size in longest) == 1, "several where one is too much"
    for part, following in itertools.pairwise(parts):
        assert part.value_bytes + len(following.messages()[0].value) > bytes_max, "cut for nothing"


@given(shapes, plain, st.integers(1, 4), st.integers(1, 600), st.integers(0, 7))
@examples(60)
def test_parts_of_shares_and_shares_of_parts(shape, messages, partitions, bytes_max, skip):
    def number_of(subject):
        return partition_of(subject, partitions)

    run = run_of(shape, messages)
    shares_first = {
        number: [pair for part in share.parts(bytes_max) for pair in pairs(part.plain_body(skip))]
        for number, share in run.split(number_of)
    }
    parts_first = {}
    for part in run.parts(bytes_max):
        for number, share in part.split(number_of):
            parts_first.setdefault(number, []).extend(pairs(share.plain_body(skip)))
    assert shares_first == parts_first


@given(
    st.lists(st.builds(Message, tokens, replies, st.one_of(st.none(), header_blocks), values), min_size=1, max_size=6)
)
@examples(150)
def test_list_run_is_plain_without_headers_and_cookies(messages):
    expected = all(m.headers is None and not m.value.startswith(COOKIE) for m in messages)
    run = ListRun([tuple(message) for message in messages])
    assert (expected, messages) == (run.is_plain, run.messages())


id_blocks = st.one_of(
    st.sampled_from([b"7", b"abc", b"", b" 7", b"7\t", b"a: b", b"\xff", b"a\nb", b"a\rb", b"x" * 1_024, b"x" * 1_025]),
    st.binary(max_size=4),
).map(lambda name: b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % name)
other_blocks = st.sampled_from(
    [
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: 1\r\nLift-Key: k\r\n\r\n",
        b"NATS/1.0\r\nLift-Key: k\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id:1\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: 1\r\nX\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: 1\r\nLift-Key: k\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: 12345",
    ]
)


@given(
    st.lists(
        st.tuples(subjects, replies, st.one_of(id_blocks, id_blocks, other_blocks, st.none()), values),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 7),
)
@examples(400)
def test_identified_messages_are_those_with_an_id_and_nothing_else(rows, skip):
    found = ListRun(rows).identified(skip)
    if found is None:
        return
    ids, body = found
    read = [read_message(Message(*row), CONFIG, skip) for row in rows]
    assert [PublishOptions(message_id=message_id) for message_id in ids] == [incoming.options for incoming in read]
    assert [(incoming.subject, incoming.headers, incoming.value, incoming.options.message_id) for incoming in read] == [
        (record.subject, record.headers, record.value, record.message_id) for record in records_of(stamped(body))
    ]


@pytest.mark.parametrize("count", [1, 2, 100])
def test_messages_of_a_usual_client_are_identified(count):
    rows = [(b"lift.1.a", b"r", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number, b"v") for number in range(count)]
    ids, body = ListRun(rows).identified(7)
    assert [(b"a", b"%d" % number) for number in range(count)] == [
        (record.subject, record.message_id) for record in records_of(stamped(body))
    ]
    assert [b"%d" % number for number in range(count)] == ids


def test_single_message_body_is_the_general_one():
    general = encode_body(1, Column.SUBJECT | Column.VALUE, [values_column([b"s"]), values_column([b"v"])])
    assert b"".join(general.parts) == b"".join(encode_plain_body([b"s"], [b"v"]).parts)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_values_empty(shape):
    messages = [Message(b"lift.0.a", b"", None, b"")] * 70
    run = run_of(shape, messages)
    assert (run.value_bytes, len(run.parts(0))) == (0, 1)
    assert pairs(run.plain_body(7)) == [(b"a", b"")] * 70


@pytest.mark.parametrize("shape", SHAPES)
def test_large_run_is_cut_into_parts_of_the_wanted_size(shape):
    messages = [Message(b"lift.0.a", b"", None, bytes(100))] * 1_000
    parts = run_of(shape, messages).parts(1_050)
    assert [part.count for part in parts] == [10] * 100
