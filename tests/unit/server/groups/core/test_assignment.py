"""Proves that assignments are complete, balanced, sticky and the same every time."""

import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.assignment import StreamShape, Subscriber, assign
from support.examples import examples

NAMES = ("a", "b", "c", "d")


def uuid_of(name):
    return name.encode().ljust(16, b"\0")


def shapes(**counts):
    return {name: StreamShape(uuid_of(name), count) for name, count in counts.items()}


def assert_proper(members, streams, assigned):
    owners = {}
    for member_id, keys in assigned.items():
        allowed = {uuid_of(name) for name in members[member_id].subscriptions}
        for key in keys:
            assert key not in owners, "two owners"
            assert key.uuid in allowed, "not subscribed"
            owners[key] = member_id
    wanted = {
        PartitionKey(shape.uuid, number)
        for name, shape in streams.items()
        if any(name in member.subscriptions for member in members.values())
        for number in range(shape.partition_count)
    }
    assert owners.keys() == wanted


def assert_balanced(members, assigned):
    for one, other in combinations(members, 2):
        if set(members[one].subscriptions) == set(members[other].subscriptions):
            assert abs(len(assigned[one]) - len(assigned[other])) <= 1
    for keys in assigned.values():
        for receiver, member in members.items():
            can_move = {uuid_of(name) for name in member.subscriptions} & {key.uuid for key in keys}
            assert not (can_move and len(keys) >= len(assigned[receiver]) + 2)


def moves(members, assigned):
    kept = sum(len(member.had & assigned[member_id]) for member_id, member in members.items())
    return sum(len(member.had) for member in members.values()) - kept


STREAMS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12), max_size=4).map(lambda counts: shapes(**counts))
KEYS = st.frozensets(st.builds(PartitionKey, st.sampled_from(NAMES).map(uuid_of), st.integers(0, 12)), max_size=20)


@st.composite
def questions(draw, equal):
    """Members with whatever they had: also partitions that are no more, and that others had, too."""
    common = tuple(draw(st.lists(st.sampled_from(NAMES), unique=True)))
    subscriptions = st.just(common) if equal else st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
    ids = draw(st.lists(st.sampled_from("pqrstuvw"), unique=True, min_size=1))
    members = {
        member_id: Subscriber(draw(subscriptions), draw(st.sampled_from(["", "r1", "r2"])), draw(KEYS))
        for member_id in ids
    }
    streams = draw(STREAMS)
    if draw(st.booleans()):
        racks = st.frozensets(st.sampled_from(["r1", "r2", "r3"]))
        streams = {
            name: shape._replace(racks=tuple(draw(racks) for _ in range(shape.partition_count)))
            for name, shape in streams.items()
        }
    return members, streams


@examples(400)
@given(questions(equal=False))
def test_every_partition_has_one_owner_and_nobody_has_too_much(question):
    members, streams = question
    assigned = assign(members, streams)
    assert_proper(members, streams, assigned)
    assert_balanced(members, assigned)


@examples(200)
@given(questions(equal=False))
def test_an_assignment_stands_as_long_as_nothing_changes(question):
    members, streams = question
    assigned = assign(members, streams)
    again = {member_id: member._replace(had=assigned[member_id]) for member_id, member in members.items()}
    assert assign(again, streams) == assigned


@examples(200)
@given(questions(equal=False))
def test_the_order_of_the_question_does_not_matter(question):
    members, streams = question
    turned = assign(dict(reversed(members.items())), dict(reversed(streams.items())))
    assert turned == assign(members, streams)


@st.composite
def histories(draw):
    """Equal members with disjoint partitions that they may keep, unbalanced as they may be."""
    streams = shapes(**draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 12), min_size=1)))
    ids = draw(st.lists(st.sampled_from("pqrstuvw"), unique=True, min_size=1))
    had = {member_id: set() for member_id in ids}
    for shape in streams.values():
        for number in range(shape.partition_count):
            owner = draw(st.sampled_from([None, ids[0], *ids]))
            if owner is not None:
                had[owner].add(PartitionKey(shape.uuid, number))
    return {member_id: Subscriber(NAMES, "", frozenset(had[member_id])) for member_id in ids}, streams


@examples(400)
@given(histories())
def test_no_more_partitions_move_than_must(history):
    members, streams = history
    assigned = assign(members, streams)
    assert_proper(members, streams, assigned)
    assert_balanced(members, assigned)
    total = sum(shape.partition_count for shape in streams.values())
    floor, ceilings = divmod(total, len(members))
    over = [len(member.had) - floor for member in members.values() if len(member.had) > floor]
    assert moves(members, assigned) == sum(over) - min(ceilings, len(over))


def test_who_has_a_share_already_gets_nothing_while_others_have_less():
    streams = shapes(a=12)
    keys = [PartitionKey(streams["a"].uuid, number) for number in range(12)]
    had = {"q": (), "r": keys[:9], "s": (), "t": keys[9:10], "u": keys[10:], "v": ()}
    members = {member_id: Subscriber(("a",), "", frozenset(has)) for member_id, has in had.items()}
    assert moves(members, assign(members, streams)) == 7


def test_a_leaving_member_moves_only_its_own():
    streams = shapes(a=9)
    members = {name: Subscriber(("a",)) for name in "pqr"}
    before = assign(members, streams)
    rest = {name: Subscriber(("a",), "", before[name]) for name in "pq"}
    after = assign(rest, streams)
    assert all(before[name] <= after[name] for name in "pq")
    assert sorted(map(len, after.values())) == [4, 5]


def test_a_recreated_stream_is_another():
    members = {name: Subscriber(("a",)) for name in "pq"}
    before = assign(members, shapes(a=4))
    again = {name: Subscriber(("a",), "", before[name]) for name in "pq"}
    after = assign(again, {"a": StreamShape(b"n" * 16, 4)})
    assert {key.uuid for keys in after.values() for key in keys} == {b"n" * 16}


def test_racks_decide_between_equals():
    racks = tuple(frozenset({f"r{number % 3}"}) for number in range(9))
    streams = {"a": StreamShape(uuid_of("a"), 9, racks)}
    members = {f"m{rack}": Subscriber(("a",), f"r{rack}") for rack in range(3)}
    assigned = assign(members, streams)
    assert all(racks[key.partition] == {members[name].rack} for name, keys in assigned.items() for key in keys)
    everything = frozenset(PartitionKey(uuid_of("a"), number) for number in range(9))
    crowded = {"m0": Subscriber(("a",), "r0", everything), "m1": Subscriber(("a",), "r1")}
    moved = assign(crowded, streams)["m1"]
    assert {key.partition for key in moved} >= {1, 4, 7}


@pytest.mark.parametrize("member_count", [10, 500])
def test_ten_thousand_partitions_are_assigned_in_no_time(member_count):
    streams = shapes(a=4_000, b=3_000, c=3_000)
    members = {f"m{number}": Subscriber(NAMES) for number in range(member_count)}
    before = assign(members, streams)
    joined = {name: Subscriber(NAMES, "", before[name]) for name in members} | {"new": Subscriber(NAMES)}
    began = time.process_time()
    after = assign(joined, streams)
    assert time.process_time() - began < 2
    assert_proper(joined, streams, after)
    assert moves(joined, after) == 10_000 // (member_count + 1)
