"""Proves that what followers and leaders say keeps its place on the wire, and is checked on arrival."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import FrameError
from liftpy_envelope.follow import (
    FollowEnd,
    FollowFetch,
    FollowQuestion,
    FollowRefusal,
    FollowRequest,
    FollowResponse,
    FollowResult,
    FollowWhole,
)
from liftpy_envelope.frames import encode_request
from liftpy_envelope.limits import (
    FETCH_BYTES_MAX,
    FETCH_PARTITIONS_MAX,
    FETCH_WAIT_MS_MAX,
    LEAPS_MAX,
    REQUEST_FRAME_BYTES_MAX,
)
from liftpy_envelope.pull import API_VERSIONS, Api, PartitionKey
from support.damage import attempt, every_damage
from support.examples import examples

UUID = bytes(range(16))
KEY = PartitionKey(UUID, 3)
TOP = 2**63 - 1
NUMBERS = st.integers(0, TOP)
EPOCHS = st.integers(-1, TOP)
KEYS = st.builds(PartitionKey, st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)


@st.composite
def fetches(draw):
    offset = draw(NUMBERS)
    below = st.integers(0, offset)
    fields = (draw(NUMBERS), draw(NUMBERS), offset, draw(EPOCHS), draw(below), draw(below), draw(NUMBERS))
    return FollowFetch(draw(KEYS), *fields, draw(st.integers(0, 1)), draw(NUMBERS))


QUESTIONS = st.builds(FollowQuestion, KEYS, NUMBERS, NUMBERS, NUMBERS, EPOCHS)
REQUESTS = st.builds(
    FollowRequest,
    NAMES,
    st.integers(1, FETCH_BYTES_MAX),
    st.integers(0, FETCH_WAIT_MS_MAX),
    st.lists(fetches(), max_size=3).map(tuple),
    st.lists(QUESTIONS, max_size=3).map(tuple),
    st.lists(KEYS, max_size=3).map(tuple),
    st.integers(0, 1),
)
REFUSALS = st.sampled_from(FollowRefusal)
LEAPS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=LEAPS_MAX).map(tuple)
RESULTS = st.builds(FollowResult, KEYS, REFUSALS, NUMBERS, EPOCHS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, LEAPS)
ENDS = st.builds(FollowEnd, KEYS, REFUSALS, NUMBERS, EPOCHS, NUMBERS, EPOCHS, NUMBERS)
WHOLES = st.builds(FollowWhole, NUMBERS, st.lists(st.tuples(KEYS, EPOCHS), max_size=3).map(tuple))
RESPONSES = st.builds(
    FollowResponse, st.lists(RESULTS, max_size=3).map(tuple), st.lists(ENDS, max_size=3).map(tuple), st.none() | WHOLES
)
SAMPLE = FollowRequest(
    "node-2", 1_000, 250, (FollowFetch(KEY, 5, 7, 9, 6, 8, 4, 2, 1, 11),), (FollowQuestion(KEY, 5, 7, 1, 6),), (KEY,), 1
)
SAMPLE_RESPONSE = FollowResponse(
    (FollowResult(KEY, FollowRefusal.BELOW_START, 5, 7, 9, 4, 10, 0),),
    (FollowEnd(KEY, FollowRefusal.NONE, 5, 7, 1, 6, 9),),
    FollowWhole(1_000, ((KEY, 9), (KEY, -1))),
)


def crossed(value):
    """What arrives at the other side."""
    return msgpack.unpackb(msgpack.packb(value))


def test_where_no_tombstone_is_gone_nothing_is_said_of_it():
    (row,), *_ = SAMPLE_RESPONSE.to_result()
    assert len(row) == 9
    result = SAMPLE_RESPONSE.results[0]._replace(delete_horizon=11)
    told = FollowResponse((result,), ()).to_result()
    assert told[0][0] == [*row, 11]
    assert FollowResponse.from_result(crossed(told)).results == (result,)


def test_leaps_are_told_in_pairs_and_are_few():
    (row,), *_ = SAMPLE_RESPONSE.to_result()
    result = SAMPLE_RESPONSE.results[0]._replace(leaps=((20, 5), (30, 6)))
    assert FollowResponse((result,), ()).to_result()[0][0] == [*row, 0, 20, 5, 30, 6]
    for leaps in ([20], [20, 5, 30], [20, -1], [20, 5] * (LEAPS_MAX + 1)):
        with pytest.raises(FrameError, match="malformed follow result"):
            FollowResponse.from_result([[[*row, 0, *leaps]], []])


def test_the_api_has_its_number():
    assert Api.FOLLOW == 12
    assert API_VERSIONS[Api.FOLLOW] == 1


def test_the_wire_is_the_documented_one():
    fetch = [UUID, 3, 5, 7, 9, 6, 8, 4, 2, 1, 11]
    assert SAMPLE.to_body() == ["node-2", 1_000, 250, [fetch], [[UUID, 3, 5, 7, 1, 6]], [[UUID, 3]], 1]
    results, ends = [[UUID, 3, 3, 5, 7, 9, 4, 10, 0]], [[UUID, 3, 0, 5, 7, 1, 6, 9]]
    assert SAMPLE_RESPONSE.to_result() == [results, ends, [1_000, [[UUID, 3, 9], [UUID, 3, -1]]]]
    assert SAMPLE_RESPONSE._replace(whole=None).to_result() == [results, ends]
    assert list(map(int, FollowRefusal)) == [0, 1, 2, 3, 4]


@given(REQUESTS)
@examples(200)
def test_requests_arrive_as_they_were(request):
    assert FollowRequest.from_body(crossed(request.to_body())) == request


@given(RESPONSES)
@examples(200)
def test_responses_arrive_as_they_were(response):
    assert FollowResponse.from_result(crossed(response.to_result())) == response


def test_a_refusal_that_a_newer_peer_invented_means_ask_again():
    rows = SAMPLE_RESPONSE.to_result()
    rows[0][0][2] = rows[1][0][2] = 99
    response = FollowResponse.from_result(rows)
    assert response.results[0].refusal is response.ends[0].refusal is FollowRefusal.NOT_LEADER


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, -2, 2**63, b"x", []])
def test_every_field_of_a_fetch_is_checked(place, wrong):
    body = SAMPLE.to_body()
    body[3][0][place] = wrong
    with pytest.raises(FrameError):
        FollowRequest.from_body(body)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, -2, 2**63, b"x", []])
def test_every_field_of_a_question_is_checked(place, wrong):
    body = SAMPLE.to_body()
    body[4][0][place] = wrong
    with pytest.raises(FrameError):
        FollowRequest.from_body(body)


@pytest.mark.parametrize(("rows", "width"), [(0, 9), (1, 8)])
@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, -2, 2**63, b"x", []])
def test_every_field_of_a_result_is_checked(rows, width, wrong):
    for place in range(width):
        result = SAMPLE_RESPONSE.to_result()
        result[rows][0][place] = wrong
        with pytest.raises(FrameError):
            FollowResponse.from_result(result)


@pytest.mark.parametrize(
    "place_and_value",
    [(0, ""), (0, "no name"), (0, 7), (1, 0), (1, FETCH_BYTES_MAX + 1), (1, True), (2, -1), (2, FETCH_WAIT_MS_MAX + 1)]
    + [(place, wrong) for place in (3, 4, 5) for wrong in (None, {}, [[]], [None], "x")],
)
def test_the_head_of_a_request_is_checked(place_and_value):
    place, value = place_and_value
    body = SAMPLE.to_body()
    body[place] = value
    with pytest.raises(FrameError):
        FollowRequest.from_body(body)


def test_offsets_that_contradict_each_other_are_refused():
    for change in ({"durable_end": 10}, {"high_watermark": 10}):
        wrong = SAMPLE._replace(fetches=(SAMPLE.fetches[0]._replace(**change),))
        with pytest.raises(FrameError):
            FollowRequest.from_body(wrong.to_body())


def test_more_partitions_than_allowed_are_refused():
    many = SAMPLE._replace(forget=(KEY,) * (FETCH_PARTITIONS_MAX + 1))
    with pytest.raises(FrameError):
        FollowRequest.from_body(many.to_body())


def test_two_thousand_of_the_longest_rows_fit_a_frame():
    longest = FollowFetch(PartitionKey(UUID, 2**31 - 1), TOP, TOP, TOP, TOP, TOP, TOP, TOP, 1, TOP)
    body = FollowRequest("n" * 128, FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, (longest,) * 2_000).to_body()
    assert len(encode_request(1, 12, 1, body)) < REQUEST_FRAME_BYTES_MAX / 4


def unpacked(data):
    """The value in `data`; None when it is none, which the frame around it refuses."""
    try:
        return msgpack.unpackb(data)
    except Exception:
        return None


@pytest.mark.parametrize(
    ("decode", "sample"),
    [(FollowRequest.from_body, SAMPLE.to_body()), (FollowResponse.from_result, SAMPLE_RESPONSE.to_result())],
)
def test_damage_is_refused_or_means_something_else(decode, sample):
    for data in every_damage(msgpack.packb(sample)):
        attempt(lambda data: decode(unpacked(data)), data, FrameError)
