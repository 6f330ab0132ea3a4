"""Proves that requests and results of the pull protocol keep their places on the wire, and are checked on arrival."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_PARTITIONS_MAX, FETCH_WAIT_MS_MAX
from liftpy_envelope.pull import (
    API_VERSIONS,
    EARLIEST,
    LATEST,
    Api,
    EpochEndQuery,
    EpochEndResult,
    FetchPartition,
    FetchRequest,
    FetchResult,
    HelloRequest,
    HelloResult,
    OffsetQuery,
    OffsetResult,
    PartitionKey,
    error_code,
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
    return msgpack.unpackb(msgpack.packb(value))


def test_numbers_of_the_apis_are_the_persisted_ones():
    golden = {"HELLO": 0, "METADATA": 1, "FETCH": 2, "LIST_OFFSETS": 3, "EPOCH_END_OFFSET": 4}
    golden |= {"OFFSET_COMMIT": 5, "OFFSET_FETCH": 6, "GROUP_JOIN": 7, "GROUP_HEARTBEAT": 8, "GROUP_LEAVE": 9}
    golden |= {"FIND_COORDINATOR": 10, "FOLLOW": 12}
    assert golden == {api.name: api.value for api in Api}
    assert dict.fromkeys(golden.values(), 1) | {2: 3} == API_VERSIONS
    assert (EARLIEST, LATEST) == (-2, -1)


def test_bodies_of_requests_are_stable():
    entry = FetchPartition(KEY, 42, 7, 41)
    fetch = FetchRequest(1_000, 500, (entry,), (PartitionKey(UUID, 4),), True, 9)
    version_1 = [1_000, 500, [[UUID, 3, 42, 7, 41]], [[UUID, 4]], True, 9]
    assert fetch.to_body(1) == version_1
    assert fetch.to_body(2) == [*version_1, False]
    assert fetch.to_body() == fetch.to_body(3) == [*version_1, False, []]
    assert FetchRequest.from_body(version_1) == fetch
    assert FetchRequest(1, 0, any_replica=True, subjects=("a.*",)).to_body(2) == [1, 0, [], [], False, -1, True]
    assert FetchRequest(1, 0, subjects=("a.*", "b.>")).to_body() == [1, 0, [], [], False, -1, False, ["a.*", "b.>"]]
    assert FetchRequest.from_body([1, 0, [], [], False, -1, True, ["a"]]).subjects == ("a",)
    assert FetchRequest.from_body([1, 0, [], [], False, -1, True]).subjects == ()
    assert FetchRequest.from_body([1, 0, [], [], False, -1, True]).any_replica
    assert HelloRequest("client", "token") == HelloRequest.from_body(["client", "token"])
    assert [OffsetQuery(KEY, LATEST)] == OffsetQuery.from_body([[UUID, 3, -1]])
    assert [EpochEndQuery(KEY, 7)] == EpochEndQuery.from_body([[UUID, 3, 7]])


def test_rows_of_results_are_stable():
    old, new = [UUID, 3, 6, "m", 7, 43, 1, 99], [UUID, 3, 6, "m", 7, 43, 1, 99, 44, 2]
    fetched = FetchResult(KEY, ErrorCode.NOT_LEADER, "m", 7, 43, 1, 99, 44, 2)
    assert [fetched.to_row(version) for version in (1, 2, 3)] == [old, old, new]
    assert [fetched] == FetchResult.from_rows([new])
    assert [fetched._replace(next_offset=-1, delete_horizon=0)] == FetchResult.from_rows([old])
    assert OffsetResult(KEY, ErrorCode.NONE, "", 42, 7).to_row() == [UUID, 3, 0, "", 42, 7]
    assert EpochEndResult(KEY, ErrorCode.NONE, "", 7, 42).to_row() == [UUID, 3, 0, "", 7, 42]
    assert HelloResult("node", 5, {Api.HELLO: 1, Api.FETCH: 1}).to_result() == ["node", 5, [[0, 1], [2, 1]]]


@examples(100)
@given(FETCHES)
def test_fetch_round_trip(fetch):
    assert fetch == FetchRequest.from_body(crossed(fetch.to_body()))
    second = fetch._replace(subjects=())
    assert second == FetchRequest.from_body(crossed(fetch.to_body(2)))
    assert second._replace(any_replica=False) == FetchRequest.from_body(crossed(fetch.to_body(1)))


@examples(100)
@given(st.lists(FETCH_RESULTS, max_size=4))
def test_fetch_result_round_trip(results):
    assert results == FetchResult.from_rows(crossed([result.to_row(3) for result in results]))
    older = [result._replace(next_offset=-1, delete_horizon=0) for result in results]
    assert older == FetchResult.from_rows(crossed([result.to_row(2) for result in results]))


@examples(100)
@given(st.lists(OFFSET_RESULTS, max_size=4))
def test_offset_result_round_trip(results):
    assert results == OffsetResult.from_rows(crossed([result.to_row() for result in results]))


@examples(50)
@given(HELLOS, HELLO_RESULTS)
def test_hello_round_trip(hello, result):
    assert hello == HelloRequest.from_body(crossed(list(hello)))
    assert result == HelloResult.from_result(crossed(result.to_result()))


@examples(50)
@given(st.lists(st.builds(OffsetQuery, KEYS, st.integers(EARLIEST, 2**63 - 1)), max_size=4))
def test_offset_query_round_trip(queries):
    assert queries == OffsetQuery.from_body(crossed([[*query.key, query.timestamp] for query in queries]))


@examples(50)
@given(st.lists(st.builds(EpochEndQuery, KEYS, st.integers(0, 2**31 - 1)), max_size=4))
def test_epoch_end_query_round_trip(queries):
    assert queries == EpochEndQuery.from_body(crossed([[*query.key, query.epoch] for query in queries]))


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
FETCH = [1_000, 500, [[UUID, 3, 42, 7, 41]], [[UUID, 4]], False, -1]
FETCH_ROW = [UUID, 3, 0, "", 7, 43, 1, 99]
OFFSET_ROW = [UUID, 3, 0, "", 42, 7]


def changed(row, place, value):
    return [*row[:place], value, *row[place + 1 :]]


NOT_INTEGERS = [None, True, 1.0, "1", b"1", [], 2**63, -(2**63) - 1]


@pytest.mark.parametrize("body", [None, 7, "text", {}, [], FETCH[:5], [*FETCH, 0], tuple(FETCH)])
def test_a_fetch_of_another_shape_is_refused(body):
    with pytest.raises(FrameError):
        FetchRequest.from_body(body)


WRONG_FETCHES = [
    *[(0, value) for value in (*NOT_INTEGERS, 0, -1, FETCH_BYTES_MAX + 1)],
    *[(1, value) for value in (*NOT_INTEGERS, -1, FETCH_WAIT_MS_MAX + 1)],
    *[(2, value) for value in (None, {}, [7], [[]], [FETCH[2][0][:4]], [[*FETCH[2][0], 0]])],
    *[(2, [key + FETCH[2][0][2:]]) for key in WRONG_KEYS],
    *[(2, [changed(FETCH[2][0], place, value)]) for place in (2, 3, 4) for value in NOT_INTEGERS],
    (2, [changed(FETCH[2][0], 2, -1)]),
    (2, [FETCH[2][0]] * (FETCH_PARTITIONS_MAX + 1)),
    *[(3, value) for value in (None, {}, [7], [[]], [[UUID]], [[UUID, 4, 0]])],
    *[(3, [key]) for key in WRONG_KEYS],
    (3, [[UUID, 4]] * (FETCH_PARTITIONS_MAX + 1)),
    *[(4, value) for value in (None, 0, 1, "true")],
    *[(5, value) for value in NOT_INTEGERS],
]


@pytest.mark.parametrize(("place", "value"), WRONG_FETCHES, ids=lambda part: repr(part)[:40])
def test_a_fetch_with_a_wrong_field_is_refused(place, value):
    with pytest.raises(FrameError):
        FetchRequest.from_body(changed(FETCH, place, value))


WRONG_SUBJECTS = [None, {}, "a", 7, [7], [b"a"], [None], [""], ["a..b"], [">.a"], ["a b"], ["a" * 4_097], ["a"] * 65]


@pytest.mark.parametrize("subjects", WRONG_SUBJECTS, ids=lambda part: repr(part)[:40])
def test_a_fetch_of_wrong_subjects_is_refused(subjects):
    with pytest.raises(FrameError, match="subjects"):
        FetchRequest.from_body([*FETCH, False, subjects])
    assert FetchRequest.from_body([*FETCH, False, ["a"] * 64]).subjects == ("a",) * 64


def test_a_fetch_of_as_many_partitions_as_the_limit_is_accepted():
    body = changed(FETCH, 2, FETCH[2] * FETCH_PARTITIONS_MAX)
    assert len(FetchRequest.from_body(body).partitions) == FETCH_PARTITIONS_MAX


@pytest.mark.parametrize(
    ("read", "row", "numbers"),
    [
        (FetchResult.from_rows, FETCH_ROW, (2, 4, 5, 6, 7)),
        (FetchResult.from_rows, [*FETCH_ROW, -1, 0], (2, 4, 5, 6, 7, 8, 9)),
        (OffsetResult.from_rows, OFFSET_ROW, (2, 4, 5)),
        (OffsetQuery.from_body, [UUID, 3, -1], (2,)),
        (EpochEndQuery.from_body, [UUID, 3, 7], (2,)),
    ],
    ids=["fetch result", "fetch result 3", "offset result", "offset query", "epoch end query"],
)
def test_rows_with_wrong_fields_are_refused(read, row, numbers):
    assert len(read([row])) == 1
    wrong = [None, 7, {}, "text", [None], [{}], [row[:-1]], [[*row, 0]], [row] * (FETCH_PARTITIONS_MAX + 1)]
    wrong += [[key + row[2:]] for key in WRONG_KEYS]
    wrong += [[changed(row, place, value)] for place in numbers for value in NOT_INTEGERS]
    if len(row) > 3:
        wrong += [[changed(row, 3, value)] for value in (None, b"", 7)]
    for rows in wrong:
        with pytest.raises(FrameError):
            read(rows)


@pytest.mark.parametrize("size", [-1, -(2**63)])
def test_a_fetch_result_with_a_negative_size_is_refused(size):
    with pytest.raises(FrameError):
        FetchResult.from_rows([changed(FETCH_ROW, 7, size)])
    for place in (8, 9):
        with pytest.raises(FrameError):
            FetchResult.from_rows([changed([*FETCH_ROW, 44, 2], place, size - 1)])


@pytest.mark.parametrize("timestamp", [EARLIEST - 1, -(2**63)])
def test_an_offset_query_before_time_is_refused(timestamp):
    with pytest.raises(FrameError):
        OffsetQuery.from_body([[UUID, 3, timestamp]])


def test_an_epoch_end_query_of_no_epoch_is_refused():
    with pytest.raises(FrameError):
        EpochEndQuery.from_body([[UUID, 3, -1]])


@pytest.mark.parametrize("body", [None, 7, {}, [], ["a"], ["a", "b", "c"], ["a", None], [b"a", "b"], ["a", 7]])
def test_a_wrong_hello_is_refused(body):
    with pytest.raises(FrameError):
        HelloRequest.from_body(body)


WRONG_VERSIONS = [
    *[None, 7, {}, "text", [7], [[]], [[1]], [[1, 2, 3]]],
    *[[[value, 1]] for value in (None, "x", "7", 1.5, True, b"1", [], float("nan"), float("inf"))],
    *[[[1, value]] for value in (None, "x", "7", 1.5, True, b"1", [], float("nan"), float("inf"))],
]


@pytest.mark.parametrize("versions", WRONG_VERSIONS, ids=repr)
def test_a_hello_result_with_wrong_versions_is_refused(versions):
    with pytest.raises(FrameError):
        HelloResult.from_result(["node", 5, versions])


@pytest.mark.parametrize("result", [None, 7, {}, [], ["node", 5], [7, 5, []], ["node", "5", []], ["node", 5, [], 0]])
def test_a_wrong_hello_result_is_refused(result):
    with pytest.raises(FrameError):
        HelloResult.from_result(result)


def test_an_error_of_a_newer_peer_counts_as_internal():
    assert list(ErrorCode) == [error_code(int(code)) for code in ErrorCode]
    assert [error_code(number) for number in (-1, 9_999, 2**63 - 1)] == [ErrorCode.INTERNAL] * 3
    (result,) = FetchResult.from_rows([changed(FETCH_ROW, 2, 9_999)])
    assert ErrorCode.INTERNAL is result.error


READERS = [
    HelloRequest.from_body,
    HelloResult.from_result,
    FetchRequest.from_body,
    FetchResult.from_rows,
    OffsetQuery.from_body,
    OffsetResult.from_rows,
    EpochEndQuery.from_body,
]
LEAVES = (
    st.sampled_from((UUID, 3, 0, "", None, True)) | INT64 | st.floats() | st.text(max_size=3) | st.binary(max_size=17)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
ROWS = st.sampled_from((FETCH_ROW, OFFSET_ROW, [UUID, 3, 7], FETCH, ["node", 5, [[0, 1]]])).flatmap(
    lambda row: st.tuples(*(st.just(item) | ANYTHING for item in row)).map(list)
)


@examples(300)
@given(ANYTHING | ROWS | st.lists(ROWS, max_size=3))
def test_whatever_arrives_is_refused_or_read(body):
    for read in READERS:
        attempt(read, body, FrameError)
