"""Proves that the bodies for consumer groups keep their places on the wire, and are checked on arrival."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope import group_offsets, groups
from liftpy_envelope.bodies import pack_body, unpack_body
from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.group_offsets import (
    METADATA_BYTES_MAX,
    OFFSETS_MAX,
    CommitOffset,
    CommitRefusal,
    CommitRequest,
    CommitResult,
    CommitStream,
    FetchedOffset,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from liftpy_envelope.group_routing import (
    FIND_GROUPS_MAX,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResult,
    partition_of_group,
)
from liftpy_envelope.groups import (
    ASSIGNED_PARTITIONS_MAX,
    GROUP_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    AssignedStream,
    GroupError,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    MembershipResult,
)
from liftpy_envelope.limits import RESPONSE_HEADER_BYTES_MAX
from liftpy_envelope.pull import Api, PartitionKey
from support.damage import attempt, damaged
from support.examples import examples

UUID = bytes(range(16))
KEY = PartitionKey(UUID, 3)
JOIN = JoinRequest("g", b"n" * 16, 2, "i", "client", "r1", 6_000, 9_000, ("a", "b"))
HEARTBEAT = HeartbeatRequest("g", "7-aa", "i", 7, 100)
COMMIT = CommitRequest("g", "7-aa", "i", 7, 5, (CommitStream(UUID, "a", (CommitOffset(3, 42, 1, b"m"),)),))
FETCH = OffsetFetchRequest("g", "7-aa", "i", 7, (KEY,))
MEMBERSHIP = MembershipResult(GroupError.NONE, "", "7-aa", 7, (AssignedStream(UUID, "a", (0, 3)),))
FOUND = Coordinator("g", GroupError.NONE, "", 4, "node", "host", 4_000, True)


def crossed(value):
    """What arrives at the other side."""
    return unpack_body(type(value), pack_body(value))


def wire(value):
    """What is on the wire, as msgpack has it."""
    return msgpack.unpackb(pack_body(value))


def read(kind, body):
    return unpack_body(kind, msgpack.packb(body, unicode_errors="surrogatepass"))


def test_numbers_are_the_persisted_ones():
    golden = {"OFFSET_COMMIT": 5, "OFFSET_FETCH": 6, "GROUP_JOIN": 7, "GROUP_HEARTBEAT": 8, "GROUP_LEAVE": 9}
    assert golden | {"FIND_COORDINATOR": 10} == {api.name: api.value for api in Api if api.value in range(5, 11)}
    errors = {error.name: error.value for error in GroupError if error >= 20}
    assert list(errors.values()) == [20, 21, 22, 23, 24, 25]
    assert all(ErrorCode[error.name] == error for error in GroupError if error < 20)
    assert GroupError(999) is GroupError.INTERNAL
    assert GroupError.NOT_LEADER.retriable
    assert not GroupError.FENCED_MEMBER.retriable
    assert partition_of_group("orders", 50) == partition_of_group("orders", 50) < 50


def test_requests_are_stable():
    assert wire(JOIN) == ["g", b"n" * 16, 2, "i", "client", "r1", 6_000, 9_000, ["a", "b"]]
    assert wire(HEARTBEAT) == ["g", "7-aa", "i", 7, 100]
    assert wire(LeaveRequest("g", "7-aa", "i")) == ["g", "7-aa", "i"]
    assert wire(COMMIT) == ["g", "7-aa", "i", 7, 5, [[UUID, "a", [[3, 42, 1, b"m"]]]]]
    assert wire(FETCH) == ["g", "7-aa", "i", 7, [[UUID, 3]]]
    assert wire(FindCoordinatorRequest(("g", "h"))) == [["g", "h"]]


def test_results_are_stable():
    assert wire(MEMBERSHIP) == [0, "", "7-aa", 7, [[UUID, "a", [0, 3]]]]
    assert wire(MembershipResult(GroupError.UNKNOWN_MEMBER, "m")) == [20, "m", "", 0, None]
    refused = CommitResult(GroupError.NONE, "", (CommitRefusal(KEY, GroupError.NOT_ASSIGNED),))
    assert wire(refused) == [0, "", [[[UUID, 3], 23]]]
    fetched = OffsetFetchResult(GroupError.NONE, "", (FetchedOffset(KEY, 42, 1, b"m"),))
    assert wire(fetched) == [0, "", [[[UUID, 3], 42, 1, b"m"]]]
    assert wire(FindCoordinatorResult((FOUND,))) == [[["g", 0, "", 4, "node", "host", 4_000, True]]]


@pytest.mark.parametrize("request_", [JOIN, HEARTBEAT, LeaveRequest("g", "m", ""), COMMIT, FETCH])
def test_requests_round_trip(request_):
    assert crossed(request_) == request_


def test_results_round_trip():
    for result in (
        MEMBERSHIP,
        MembershipResult(GroupError.FENCED_MEMBER, "stop"),
        CommitResult(GroupError.NONE, "", (CommitRefusal(KEY, GroupError.STALE_GENERATION),)),
        OffsetFetchResult(GroupError.NONE, "", (FetchedOffset(KEY, 0, -1, b""),)),
        FindCoordinatorResult((FOUND, Coordinator("h", GroupError.NOT_AVAILABLE, "wait", 1))),
    ):
        assert crossed(result) == result
    assert crossed(FindCoordinatorRequest(("g",))) == FindCoordinatorRequest(("g",))


@pytest.mark.parametrize("name", ["g", "Verkauf Süd", "a.b/c:d", "x" * GROUP_BYTES_MAX, "é" * 127])
def test_names_of_groups(name):
    assert read(LeaveRequest, [name, "", ""]).group == name


@pytest.mark.parametrize("name", ["", "a\nb", "\0", "a\x7f", "\u200b", "x" * 256, "é" * 128, b"g", None, 7, "\ud800"])
def test_what_is_no_name_of_a_group(name):
    with pytest.raises(FrameError, match="(?i)utf-8" if name == "\ud800" else "group"):
        read(LeaveRequest, [name, "", ""])


def changed(row, place, value):
    return [*row[:place], value, *row[place + 1 :]]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, ""), (1, b"n" * 15), (1, "n" * 16), (2, -1), (2, True), (3, "i\n"), (3, "i" * 256), (4, None), (5, b""),
        (6, 999), (6, 1_800_001), (6, True), (7, 0), (7, 2**40), (8, ["a b"]), (8, ["a", "a"]), (8, [1]), (8, "a"),
        (8, [f"s{number}" for number in range(SUBSCRIPTIONS_MAX + 1)]),
    ],
)  # fmt: skip
def test_malformed_joins(place, value):
    with pytest.raises(FrameError, match="join request"):
        read(JoinRequest, changed(wire(JOIN), place, value))


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1), (1, None), (1, "m" * 129), (2, 5), (3, -1), (3, 2**63), (3, True), (4, -1), (4, 60_001)],
)
def test_malformed_heartbeats(place, value):
    with pytest.raises(FrameError, match="heartbeat request"):
        read(HeartbeatRequest, changed(wire(HEARTBEAT), place, value))


WRONG_OFFSETS = [
    [-1, 42, 1, b""], [2**31, 42, 1, b""], [3, -1, 1, b""], [3, 2**63, 1, b""], [3, 42, -2, b""], [3, 42, 2**31, b""],
    [3, 42, 1, "m"], [3, 42, 1, bytes(METADATA_BYTES_MAX + 1)], [True, 42, 1, b""], [3, 4.2, 1, b""], [3],
    [3, 42, 1, b"", 0], None,
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG_OFFSETS)
def test_malformed_offsets(row):
    with pytest.raises(FrameError, match="commit request"):
        read(CommitRequest, changed(wire(COMMIT), 5, [[UUID, "a", [row]]]))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, None), (1, 7), (2, 7), (3, -2), (4, -1), (5, None), (5, [[UUID[:15], "a", []]]), (5, [[UUID, "a b", []]]),
        (5, [[UUID, "a"]]), (5, [[UUID, "a", None]]), (5, [[UUID, "a", [[1, 2, 3, b""], [1, 9, 3, b""]]]]),
        (5, [[UUID, "a", [[number, 1, 1, b""] for number in range(OFFSETS_MAX + 1)]]]),
    ],
)  # fmt: skip
def test_malformed_commits(place, value):
    with pytest.raises(FrameError, match="commit request"):
        read(CommitRequest, changed(wire(COMMIT), place, value))


@pytest.mark.parametrize(
    ("place", "value"), [(0, ""), (1, None), (2, 1), (3, -2), (4, [[UUID, -1]]), (4, [[UUID, 1]] * (OFFSETS_MAX + 1))]
)
def test_malformed_fetches(place, value):
    with pytest.raises(FrameError, match="offset fetch request"):
        read(OffsetFetchRequest, changed(wire(FETCH), place, value))


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, None), (0, "0"), (1, None), (2, 7), (3, -1), (4, 7), (4, [[UUID, "a", [-1]]]), (4, [[UUID, "a", [True]]]),
     (4, [[UUID, "a"]]), (4, [[b"", "a", []]]), (4, [[UUID, "a", [0] * (ASSIGNED_PARTITIONS_MAX + 1)]])],
)  # fmt: skip
def test_malformed_membership(place, value):
    with pytest.raises(FrameError, match="membership result"):
        read(MembershipResult, changed(wire(MEMBERSHIP), place, value))


def test_malformed_results():
    for rows in ([[[UUID, 3]]], [[[UUID, 3], None]], [[[UUID, 3], 23]] * (OFFSETS_MAX + 1), None):
        with pytest.raises(FrameError, match="commit result"):
            read(CommitResult, [0, "", rows])
    for row in ([-1, 1, b""], [1, -2, b""], [1, 1, None], [1, 1]):
        with pytest.raises(FrameError, match="offset fetch result"):
            read(OffsetFetchResult, [0, "", [[[UUID, 3], *row]]])
    good = wire(FOUND)
    for place, value in enumerate(["", None, None, -1, "n\n", 7, 65_536, 1]):
        with pytest.raises(FrameError, match="find coordinator result"):
            read(FindCoordinatorResult, [[changed(good, place, value)]])
    for body in ([], [None], [["g"] * (FIND_GROUPS_MAX + 1)], [[""]]):
        with pytest.raises(FrameError, match="find coordinator request"):
            read(FindCoordinatorRequest, body)


def test_the_largest_answer_fits_into_a_response():
    rows = tuple(
        FetchedOffset(PartitionKey(UUID, number), 2**62, 2**30, bytes(METADATA_BYTES_MAX))
        for number in range(OFFSETS_MAX)
    )
    assert len(pack_body(OffsetFetchResult(GroupError.NONE, "", rows))) < RESPONSE_HEADER_BYTES_MAX


KINDS = [
    *(JoinRequest, HeartbeatRequest, LeaveRequest, CommitRequest, OffsetFetchRequest, FindCoordinatorRequest),
    *(MembershipResult, CommitResult, OffsetFetchResult, FindCoordinatorResult),
]
BODIES = [pack_body(body) for body in (JOIN, HEARTBEAT, COMMIT, FETCH, MEMBERSHIP)]


@examples(300)
@given(st.sampled_from(KINDS), damaged(st.sampled_from(BODIES)))
def test_whatever_arrives_is_read_or_refused(kind, data):
    attempt(lambda data: unpack_body(kind, data), data, FrameError)


def test_everything_public_is_listed():
    for module in (groups, group_offsets):
        assert all(hasattr(module, name) for name in module.__all__)
