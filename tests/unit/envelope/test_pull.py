"""Proves that requests and results of the pull protocol keep their places on the wire, and are checked on arrival."""

import re

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.bodies import pack_body, unpack_body
from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_PARTITIONS_MAX, FETCH_WAIT_MS_MAX
from liftpy_envelope.pull import (
    API_VERSIONS,
    EARLIEST,
    LATEST,
    Api,
    EpochEndQuery,
    EpochEndRequest,
    EpochEndResponse,
    EpochEndResult,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    HelloRequest,
    HelloResult,
    OffsetQuery,
    OffsetResult,
    OffsetsRequest,
    OffsetsResponse,
    PartitionKey,
    check_answers,
)
from support.damage import attempt
from support.examples import examples

UUID = bytes(range(16))
KEY = PartitionKey(UUID, 3)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(-1, 2**31 - 1)
KEYS = st.builds(PartitionKey, st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))
ERRORS = st.sampled_from(ErrorCode)
MESSAGES = st.text(max_size=10)
ENTRIES = st.builds(FetchPartition, KEYS, OFFSETS, EPOCHS, st.integers(-1, 2**63 - 1))
FETCHES = st.builds(
    FetchRequest,
    st.integers(1, FETCH_BYTES_MAX),
    st.integers(0, FETCH_WAIT_MS_MAX),
    st.lists(ENTRIES, max_size=3).map(tuple),
    st.lists(KEYS, max_size=3).map(tuple),
    st.booleans(),
    INT64,
    st.booleans(),
    st.lists(st.sampled_from(("a", "a.*", "b.>", "ä.*.x", ">")), max_size=3).map(tuple),
)
FETCH_RESULTS = st.builds(
    FetchResult, KEYS, ERRORS, MESSAGES, EPOCHS, OFFSETS, OFFSETS, OFFSETS, st.integers(-1, 2**63 - 1), OFFSETS
)
OFFSET_RESULTS = st.builds(OffsetResult, KEYS, ERRORS, MESSAGES, OFFSETS, EPOCHS)
HELLOS = st.builds(HelloRequest, MESSAGES, MESSAGES)
VERSIONS = st.dictionaries(st.integers(0, 100), st.integers(0, 100), max_size=5)
HELLO_RESULTS = st.builds(HelloResult, MESSAGES, INT64, VERSIONS)


def crossed(value):
    """What arrives at the other side."""
    return unpack_body(type(value), pack_body(value))


def wire(value):
    """What is on the wire, as msgpack has it."""
    return msgpack.unpackb(pack_body(value), strict_map_key=False)


def read(kind, body):
    return unpack_body(kind, msgpack.packb(body))


def test_numbers_of_the_apis_are_the_persisted_ones():
    golden = {"HELLO": 0, "METADATA": 1, "FETCH": 2, "LIST_OFFSETS": 3, "EPOCH_END_OFFSET": 4}
    golden |= {"OFFSET_COMMIT": 5, "OFFSET_FETCH": 6, "GROUP_JOIN": 7, "GROUP_HEARTBEAT": 8, "GROUP_LEAVE": 9}
    golden |= {"FIND_COORDINATOR": 10, "FOLLOW": 12}
    assert golden == {api.name: api.value for api in Api}
    assert dict.fromkeys(golden.values(), 1) == API_VERSIONS
    assert (EARLIEST, LATEST) == (-2, -1)


def test_bodies_of_requests_are_stable():
    entry = FetchPartition(KEY, 42, 7, 41)
    fetch = FetchRequest(1_000, 500, (entry,), (PartitionKey(UUID, 4),), True, 9, True, ("a.*", "b.>"))
    assert wire(fetch) == [1_000, 500, [[[UUID, 3], 42, 7, 41]], [[UUID, 4]], True, 9, True, ["a.*", "b.>"]]
    assert wire(HelloRequest("client", "token")) == ["client", "token"]
    assert wire(OffsetsRequest((OffsetQuery(KEY, LATEST),))) == [[[[UUID, 3], -1]]]
    assert wire(EpochEndRequest((EpochEndQuery(KEY, 7),))) == [[[[UUID, 3], 7]]]


def test_results_are_stable():
    fetched = FetchResult(KEY, ErrorCode.NOT_LEADER, "m", 7, 43, 1, 99, 44, 2)
    assert wire(FetchResponse((fetched,))) == [[[[UUID, 3], 6, "m", 7, 43, 1, 99, 44, 2]]]
    assert wire(OffsetsResponse((OffsetResult(KEY, ErrorCode.NONE, "", 42, 7),))) == [[[[UUID, 3], 0, "", 42, 7]]]
    assert wire(EpochEndResponse((EpochEndResult(KEY, ErrorCode.NONE, "", 7, 42),))) == [[[[UUID, 3], 0, "", 7, 42]]]
    assert wire(HelloResult("node", 5, {0: 1, 2: 1})) == ["node", 5, {0: 1, 2: 1}]


BODIES = st.one_of(
    FETCHES,
    HELLOS,
    HELLO_RESULTS,
    st.lists(FETCH_RESULTS, max_size=4).map(lambda results: FetchResponse(tuple(results))),
    st.lists(OFFSET_RESULTS, max_size=4).map(lambda results: OffsetsResponse(tuple(results))),
    st.lists(st.builds(OffsetQuery, KEYS, st.integers(EARLIEST, 2**63 - 1)), max_size=4).map(
        lambda queries: OffsetsRequest(tuple(queries))
    ),
    st.lists(st.builds(EpochEndQuery, KEYS, OFFSETS), max_size=4).map(lambda queries: EpochEndRequest(tuple(queries))),
)


@examples(300)
@given(BODIES)
def test_bodies_arrive_as_they_were(body):
    assert crossed(body) == body


WRONG_KEYS = [
    [UUID[:15], 3],
    [UUID + b"x", 3],
    ["x" * 16, 3],
    [None, 3],
    [UUID, -1],
    [UUID, 2**31],
    [UUID, True],
    [UUID, 1.0],
    [UUID, "3"],
    [UUID, None],
]
FETCH = [1_000, 500, [[[UUID, 3], 42, 7, 41]], [[UUID, 4]], False, -1]
FETCH_ROW = [[UUID, 3], 0, "", 7, 43, 1, 99, -1, 0]
OFFSET_ROW = [[UUID, 3], 0, "", 42, 7]


def changed(row, place, value):
    return [*row[:place], value, *row[place + 1 :]]


NOT_INTEGERS = [None, True, 1.0, "1", b"1", [], 2**63]


@pytest.mark.parametrize("body", [None, 7, "text", {}, [], FETCH[:1], [*FETCH, 0]])
def test_a_fetch_of_another_shape_is_refused(body):
    with pytest.raises(FrameError):
        read(FetchRequest, body)


WRONG_FETCHES = [
    *[(0, value) for value in (*NOT_INTEGERS, 0, -1, FETCH_BYTES_MAX + 1)],
    *[(1, value) for value in (*NOT_INTEGERS, -1, FETCH_WAIT_MS_MAX + 1)],
    *[(2, value) for value in (None, {}, [7], [[]], [FETCH[2][0][:1]], [[*FETCH[2][0], 0]])],
    *[(2, [[key, *FETCH[2][0][1:]]]) for key in WRONG_KEYS],
    *[(2, [changed(FETCH[2][0], place, value)]) for place in (1, 2, 3) for value in NOT_INTEGERS],
    (2, [changed(FETCH[2][0], 1, -1)]),
    (2, [FETCH[2][0]] * (FETCH_PARTITIONS_MAX + 1)),
    *[(3, value) for value in (None, {}, [7], [[]], [[UUID]], [[UUID, 4, 0]])],
    *[(3, [key]) for key in WRONG_KEYS],
    (3, [[UUID, 4]] * (FETCH_PARTITIONS_MAX + 1)),
    *[(4, value) for value in (None, 0, 1, "true")],
    *[(5, value) for value in NOT_INTEGERS],
]


@pytest.mark.parametrize(("place", "value"), WRONG_FETCHES, ids=lambda part: repr(part)[:40])
def test_a_fetch_with_a_wrong_field_is_refused(place, value):
    with pytest.raises(FrameError, match=f"malformed fetch request: {FetchRequest._fields[place]}"):
        read(FetchRequest, changed(FETCH, place, value))


def test_the_field_at_fault_is_named():
    wrong = changed(FETCH, 2, [*FETCH[2], [[UUID, -1], 1]])
    text = re.escape("malformed fetch request: partitions[1].key.partition: Expected `int` >= 0")
    with pytest.raises(FrameError, match=text):
        read(FetchRequest, wrong)


WRONG_SUBJECTS = [None, {}, "a", 7, [7], [b"a"], [None], [""], ["a..b"], [">.a"], ["a b"], ["a" * 4_097], ["a"] * 65]


@pytest.mark.parametrize("subjects", WRONG_SUBJECTS, ids=lambda part: repr(part)[:40])
def test_a_fetch_of_wrong_subjects_is_refused(subjects):
    with pytest.raises(FrameError, match="subjects"):
        read(FetchRequest, [*FETCH, False, subjects])
    assert read(FetchRequest, [*FETCH, False, ["a"] * 64]).subjects == ("a",) * 64


def test_a_fetch_of_as_many_partitions_as_the_limit_is_accepted():
    body = changed(FETCH, 2, FETCH[2] * FETCH_PARTITIONS_MAX)
    assert len(read(FetchRequest, body).partitions) == FETCH_PARTITIONS_MAX


@pytest.mark.parametrize(
    ("kind", "row", "numbers"),
    [
        (FetchResponse, FETCH_ROW, (3, 4, 5, 6, 7, 8)),
        (OffsetsResponse, OFFSET_ROW, (3, 4)),
        (EpochEndResponse, OFFSET_ROW, (3, 4)),
        (OffsetsRequest, [[UUID, 3], -1], (1,)),
        (EpochEndRequest, [[UUID, 3], 7], (1,)),
    ],
)
def test_rows_with_wrong_fields_are_refused(kind, row, numbers):
    assert len(read(kind, [[row]])[0]) == 1
    wrong = [None, 7, {}, "text", [None], [{}], [row[:1]], [[*row, 0]], [row] * (FETCH_PARTITIONS_MAX + 1)]
    wrong += [[[key, *row[1:]]] for key in WRONG_KEYS]
    wrong += [[changed(row, place, value)] for place in numbers for value in NOT_INTEGERS]
    if len(row) > 3:
        wrong += [[changed(row, 2, value)] for value in (None, b"", 7)]
        wrong += [[changed(row, 1, value)] for value in (None, b"", "6", 1.5, True)]
    for rows in wrong:
        with pytest.raises(FrameError):
            read(kind, [rows])


@pytest.mark.parametrize(("place", "value"), [(6, -1), (6, -(2**63)), (7, -2), (8, -1)])
def test_a_fetch_result_with_a_negative_size_is_refused(place, value):
    with pytest.raises(FrameError, match=f"results\\[0\\].{FetchResult._fields[place]}"):
        read(FetchResponse, [[changed(FETCH_ROW, place, value)]])


@pytest.mark.parametrize("timestamp", [EARLIEST - 1, -(2**63)])
def test_an_offset_query_before_time_is_refused(timestamp):
    with pytest.raises(FrameError, match="timestamp"):
        read(OffsetsRequest, [[[[UUID, 3], timestamp]]])


def test_an_epoch_end_query_of_no_epoch_is_refused():
    with pytest.raises(FrameError, match="epoch"):
        read(EpochEndRequest, [[[[UUID, 3], -1]]])


def test_answers_are_about_what_was_asked():
    queries = (OffsetQuery(KEY, 1), OffsetQuery(KEY, 2))
    result = OffsetResult(KEY, ErrorCode.NONE, "", 42, 7)
    check_answers(queries, (result, result))
    for results in ((), (result,), (result, result._replace(key=PartitionKey(UUID, 4)))):
        with pytest.raises(FrameError, match="2 partitions"):
            check_answers(queries, results)


@pytest.mark.parametrize("body", [None, 7, {}, [], ["a"], ["a", "b", "c"], ["a", None], [b"a", "b"], ["a", 7]])
def test_a_wrong_hello_is_refused(body):
    with pytest.raises(FrameError):
        read(HelloRequest, body)


WRONG_VERSIONS = [None, 7, [], "text", {"x": 1}, {-1: 1}, {1.5: 1}, {True: 1}, {1: None}, {1: "7"}, {1: True}, {1: -1}]


@pytest.mark.parametrize("versions", WRONG_VERSIONS, ids=repr)
def test_a_hello_result_with_wrong_versions_is_refused(versions):
    with pytest.raises(FrameError, match="versions"):
        read(HelloResult, ["node", 5, versions])


@pytest.mark.parametrize("result", [None, 7, {}, [], ["node", 5], [7, 5, {}], ["node", "5", {}], ["node", 5, {}, 0]])
def test_a_wrong_hello_result_is_refused(result):
    with pytest.raises(FrameError):
        read(HelloResult, result)


def test_an_error_of_a_newer_peer_counts_as_internal():
    assert [ErrorCode(number) for number in (-1, 9_999, 2**63 - 1)] == [ErrorCode.INTERNAL] * 3
    for number in (-1, 9_999, 2**63 - 1):
        ((result,),) = read(FetchResponse, [[changed(FETCH_ROW, 1, number)]])
        assert result.error is ErrorCode.INTERNAL


KINDS = [
    *(HelloRequest, HelloResult, FetchRequest, FetchResponse, OffsetsRequest, OffsetsResponse),
    *(EpochEndRequest, EpochEndResponse),
]
LEAVES = (
    st.sampled_from((UUID, 3, 0, "", None, True)) | INT64 | st.floats() | st.text(max_size=3) | st.binary(max_size=17)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
ROWS = st.sampled_from((FETCH_ROW, OFFSET_ROW, [[UUID, 3], 7], FETCH, ["node", 5, {}])).flatmap(
    lambda row: st.tuples(*(st.just(item) | ANYTHING for item in row)).map(list)
)


@examples(300)
@given(ANYTHING | ROWS | st.lists(st.lists(ROWS, max_size=3), max_size=1))
def test_whatever_arrives_is_refused_or_read(body):
    for kind in KINDS:
        attempt(lambda body, kind=kind: read(kind, body), body, FrameError)
