"""Proves that what followers and leaders say keeps its place on the wire, and is checked on arrival."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.bodies import pack_body, unpack_body
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
    return FollowFetch(draw(KEYS), *fields, draw(st.integers(0, 1)), draw(NUMBERS), draw(st.integers(0, 1)))


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
RESULTS = st.builds(
    FollowResult, KEYS, REFUSALS, NUMBERS, EPOCHS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, LEAPS, NUMBERS
)
ENDS = st.builds(FollowEnd, KEYS, REFUSALS, NUMBERS, EPOCHS, NUMBERS, EPOCHS, NUMBERS)
WHOLES = st.builds(FollowWhole, NUMBERS, st.lists(st.tuples(KEYS, EPOCHS), max_size=3).map(tuple))
RESPONSES = st.builds(
    FollowResponse, st.lists(RESULTS, max_size=3).map(tuple), st.lists(ENDS, max_size=3).map(tuple), st.none() | WHOLES
)
SAMPLE = FollowRequest(
    "node-2",
    1_000,
    250,
    (FollowFetch(KEY, 5, 7, 9, 6, 8, 4, 2, 1, 11, 0),),
    (FollowQuestion(KEY, 5, 7, 1, 6),),
    (KEY,),
    1,
)
SAMPLE_RESPONSE = FollowResponse(
    (FollowResult(KEY, FollowRefusal.BELOW_START, 5, 7, 9, 4, 10, 0),),
    (FollowEnd(KEY, FollowRefusal.NONE, 5, 7, 1, 6, 9),),
    FollowWhole(1_000, ((KEY, 9), (KEY, -1))),
)


def crossed(value):
    """What arrives at the other side."""
    return unpack_body(type(value), pack_body(value))


def wire(value):
    """What is on the wire, as msgpack has it."""
    return msgpack.unpackb(pack_body(value))


def read(kind, body):
    return unpack_body(kind, msgpack.packb(body))


def test_leaps_are_few():
    response = wire(SAMPLE_RESPONSE)
    for leaps in ([20], [[20]], [[20, -1]], [[20, 5]] * (LEAPS_MAX + 1)):
        response[0][0][9] = leaps
        with pytest.raises(FrameError, match=r"malformed follow response: results\[0\].leaps"):
            read(FollowResponse, response)


def test_the_api_has_its_number():
    assert Api.FOLLOW == 12
    assert API_VERSIONS[Api.FOLLOW] == 1


def test_the_wire_is_the_documented_one():
    key = [UUID, 3]
    fetch = [key, 5, 7, 9, 6, 8, 4, 2, 1, 11, 0]
    assert wire(SAMPLE) == ["node-2", 1_000, 250, [fetch], [[key, 5, 7, 1, 6]], [key], 1]
    results, ends = [[key, 3, 5, 7, 9, 4, 10, 0, 0, [], 0]], [[key, 0, 5, 7, 1, 6, 9]]
    assert wire(SAMPLE_RESPONSE) == [results, ends, [1_000, [[key, 9], [key, -1]]]]
    assert wire(SAMPLE_RESPONSE._replace(whole=None)) == [results, ends, None]
    told = SAMPLE_RESPONSE.results[0]._replace(delete_horizon=11, leaps=((20, 5), (30, 6)), producers_bytes=7)
    assert wire(told)[8:] == [11, [[20, 5], [30, 6]], 7]
    assert list(map(int, FollowRefusal)) == [0, 1, 2, 3, 4]


@given(REQUESTS)
@examples(200)
def test_requests_arrive_as_they_were(request):
    assert crossed(request) == request


@given(RESPONSES)
@examples(200)
def test_responses_arrive_as_they_were(response):
    assert crossed(response) == response


def test_a_refusal_that_a_newer_peer_invented_means_ask_again():
    rows = wire(SAMPLE_RESPONSE)
    rows[0][0][1] = rows[1][0][1] = 99
    response = read(FollowResponse, rows)
    assert response.results[0].refusal is response.ends[0].refusal is FollowRefusal.NOT_LEADER


@pytest.mark.parametrize("place", range(11))
@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, -2, 2**63, b"x", []])
def test_every_field_of_a_fetch_is_checked(place, wrong):
    body = wire(SAMPLE)
    body[3][0][place] = wrong
    with pytest.raises(FrameError):
        read(FollowRequest, body)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, -2, 2**63, b"x", []])
def test_every_field_of_a_question_is_checked(place, wrong):
    body = wire(SAMPLE)
    body[4][0][place] = wrong
    with pytest.raises(FrameError):
        read(FollowRequest, body)


@pytest.mark.parametrize(("rows", "width"), [(0, 9), (1, 7)])
@pytest.mark.parametrize("wrong", [None, "1", 1.0, True, -2, 2**63, b"x", []])
def test_every_field_of_a_result_is_checked(rows, width, wrong):
    for place in range(width):
        if place == 1 and wrong in (-2, 2**63):
            continue  # a refusal that a newer peer invented
        result = wire(SAMPLE_RESPONSE)
        result[rows][0][place] = wrong
        with pytest.raises(FrameError):
            read(FollowResponse, result)


@pytest.mark.parametrize(
    "place_and_value",
    [(0, ""), (0, "no name"), (0, 7), (1, 0), (1, FETCH_BYTES_MAX + 1), (1, True), (2, -1), (2, FETCH_WAIT_MS_MAX + 1)]
    + [(place, wrong) for place in (3, 4, 5) for wrong in (None, {}, [[]], [None], "x")],
)
def test_the_head_of_a_request_is_checked(place_and_value):
    place, value = place_and_value
    body = wire(SAMPLE)
    body[place] = value
    with pytest.raises(FrameError):
        read(FollowRequest, body)


def test_offsets_that_contradict_each_other_are_refused():
    for change in ({"durable_end": 10}, {"high_watermark": 10}):
        wrong = SAMPLE._replace(fetches=(SAMPLE.fetches[0]._replace(**change),))
        with pytest.raises(FrameError):
            crossed(wrong)


def test_more_partitions_than_allowed_are_refused():
    many = SAMPLE._replace(forget=(KEY,) * (FETCH_PARTITIONS_MAX + 1))
    with pytest.raises(FrameError):
        crossed(many)


def test_two_thousand_of_the_longest_rows_fit_a_frame():
    longest = FollowFetch(PartitionKey(UUID, 2**31 - 1), TOP, TOP, TOP, TOP, TOP, TOP, TOP, 1, TOP, 1)
    body = FollowRequest("n" * 128, FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, (longest,) * 2_000)
    assert len(encode_request(1, 12, 1, body)) < REQUEST_FRAME_BYTES_MAX / 4


@pytest.mark.parametrize("sample", [SAMPLE, SAMPLE_RESPONSE])
def test_damage_is_refused_or_means_something_else(sample):
    for data in every_damage(pack_body(sample)):
        attempt(lambda data: unpack_body(type(sample), data), data, FrameError)
