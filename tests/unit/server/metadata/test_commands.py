"""Applying commands is a pure function: the same everywhere, once for every id, and without an exception for any."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.metadata.commands import Command, Outcome, apply_command
from liftpy_server.metadata.state import LEVEL, MetadataState
from support.examples import examples
from support.metadata_commands import NODE, UUIDS, Author, any_commands, config, good_commands


@pytest.fixture
def author():
    """One who has registered a node."""
    given_author = Author()
    given_author.register()
    return given_author


def apply_all(commands, state=None):
    state = state or MetadataState()
    outcomes = []
    for command in commands:
        state, outcome = apply_command(state, command)
        outcomes.append(outcome)
    return state, outcomes


def partitions(author, name="orders"):
    return author.state.streams[name].partitions


@given(st.lists(any_commands, max_size=12))
@examples(200)
def test_applying_never_raises_and_is_the_same_everywhere(commands):
    through_the_wire = [Command.decode(command.encode()) for command in commands]
    assert apply_all(commands) == apply_all(through_the_wire)


@given(st.lists(any_commands, max_size=12), st.integers(0, 12))
@examples(200)
def test_snapshot_in_the_middle_changes_nothing(commands, position):
    before, _ = apply_all(commands[:position])
    restored = MetadataState.from_plain(msgpack.unpackb(msgpack.packb(before.to_plain())))
    assert before == restored
    assert apply_all(commands[position:], before) == apply_all(commands[position:], restored)


@given(st.lists(good_commands, max_size=15))
@examples(150)
def test_invariants(commands):
    state, epochs = MetadataState(), {}
    for command in commands:
        seen = command.id in state.outcomes
        after, outcome = apply_command(state, command)
        assert after.revision == state.revision + (not seen)
        if outcome.error:
            assert (state.nodes, state.streams, state.deleted) == (after.nodes, after.streams, after.deleted)
        state = after
        for stream in state.streams.values():
            for number, partition in enumerate(stream.partitions):
                key = stream.uuid, number
                assert (partition.leader_epoch, partition.log_start) >= epochs.get(key, (0, 0))
                epochs[key] = partition.leader_epoch, partition.log_start


@given(any_commands)
@examples(100)
def test_command_through_the_wire(command):
    assert command == Command.decode(command.encode())


def test_command_of_a_newer_version_is_refused():
    data = msgpack.packb({"v": LEVEL + 1, "id": "c", "op": "x", "now_ns": 1, "args": {}})
    with pytest.raises(LiftError, match="newer liftpy"):
        Command.decode(data)


@pytest.mark.parametrize("outcome", [Outcome(), Outcome(error=ErrorCode.CONFLICT, message="m", value={"a": [1]})])
def test_outcome_through_the_state(outcome):
    assert outcome == Outcome.from_plain(outcome.to_plain())


def test_command_with_the_same_id_is_applied_once():
    first = Command(id="c", op="register_node", now_ns=1, args={"node": NODE})
    again = Command(id="c", op="delete_stream", now_ns=2, args={"name": "x"})
    state, outcome = apply_command(MetadataState(), first)
    assert (state, outcome) == apply_command(state, again)
    assert state.nodes["n1"].incarnation == 1


def test_refusal_is_remembered_too(author):
    refused = Command(id="c", op="delete_stream", now_ns=1, args={"name": "x"})
    state, outcome = apply_command(author.state, refused)
    assert outcome.error == ErrorCode.UNKNOWN_STREAM
    assert (state, outcome) == apply_command(state, refused)


def test_unknown_command_is_refused():
    _, outcome = apply_command(MetadataState(), Command(id="c", op="explode", now_ns=1))
    assert (outcome.error, "explode" in outcome.message) == (ErrorCode.INVALID_REQUEST, True)


@pytest.mark.parametrize("assignment", [[[]], [["n1"], []], [None], [5], 5, None, [""]])
def test_assignment_without_leaders_is_refused(author, assignment):
    outcome = author.attempt("create_stream", uuid=UUIDS[0], config=config(), assignment=assignment)
    assert (outcome.error, author.state.streams) == (ErrorCode.INVALID_REQUEST, {})


def test_register_node_counts_its_starts(author):
    assert [author.register(), author.register()] == [2, 3]
    assert (author.register("n2"), author.state.nodes["n1"].incarnation) == (1, 3)


def test_register_node_gives_the_partitions_it_leads_a_new_epoch(author):
    author.register("n2")
    author.create("orders", leaders=("n1", "n2", "n1"))
    author.create("others", UUIDS[1], leaders=("n2",))
    author.register("n1")
    assert [partition.leader_epoch for partition in partitions(author)] == [2, 1, 2]
    assert [partition.leader_epoch for partition in partitions(author, "others")] == [1]
    author.register("n2")
    assert [partition.leader_epoch for partition in partitions(author)] == [2, 2, 2]
    assert [partition.version for partition in partitions(author)] == [2, 2, 2]


def test_register_node_takes_its_new_address(author):
    author.do("register_node", node=NODE | {"pull_port": 9, "rack": "r"})
    assert (author.state.nodes["n1"].pull_port, author.state.nodes["n1"].rack) == (9, "r")


def test_create_stream(author):
    assert {"uuid": UUIDS[0], "created": True} == author.create(leaders=("n1", "n1"))
    stream = author.state.streams["orders"]
    assert (UUIDS[0], 1_002, 1, False, False) == (
        stream.uuid,
        stream.created_ns,
        stream.version,
        stream.paused,
        stream.read_only,
    )
    assert [(p.replicas, p.isr, p.leader, p.leader_epoch, p.log_start) for p in stream.partitions] == [
        (("n1",), ("n1",), "n1", 1, 0)
    ] * 2


def test_create_stream_twice_is_one_stream(author):
    author.create()
    before = author.state.streams
    assert {"uuid": UUIDS[0], "created": False} == author.create(uuid=UUIDS[1])
    assert before == author.state.streams


def test_create_stream_with_other_settings_is_a_conflict(author):
    author.create()
    outcome = author.attempt(
        "create_stream", uuid=UUIDS[1], config=config(acks="off", retention_bytes=5), assignment=[["n1"]]
    )
    assert outcome.error == ErrorCode.STREAM_EXISTS
    assert "acks" in outcome.message
    assert "retention_bytes" in outcome.message


def test_create_stream_with_a_bad_setting_names_it(author):
    outcome = author.attempt("create_stream", uuid=UUIDS[0], config=config(partitions=0), assignment=[])
    assert (outcome.error, outcome.message.startswith("partitions:")) == (ErrorCode.INVALID_CONFIG, True)


def test_create_stream_with_more_replicas_than_nodes(author):
    outcome = author.attempt("create_stream", uuid=UUIDS[0], config=config(replicas=3), assignment=[["n1"]])
    assert (outcome.error, "replicas" in outcome.message) == (ErrorCode.INVALID_CONFIG, True)


def test_delete_stream(author):
    author.create()
    assert {"uuid": UUIDS[0]} == author.do("delete_stream", name="orders")
    assert ({}, (UUIDS[0],)) == (author.state.streams, author.state.deleted)
    assert {"uuid": UUIDS[1], "created": True} == author.create(uuid=UUIDS[1])


def test_delete_stream_that_was_created_again_needs_its_uuid(author):
    author.create(uuid=UUIDS[1])
    outcome = author.attempt("delete_stream", name="orders", uuid=UUIDS[0])
    assert (outcome.error, list(author.state.streams)) == (ErrorCode.STREAM_RECREATED, ["orders"])


def test_update_stream(author):
    author.create()
    author.do("update_stream", name="orders", changes={"retention_bytes": 5, "subject": "new.>"})
    stream = author.state.streams["orders"]
    assert (5, "new.>", 2, UUIDS[0]) == (
        stream.config.retention_bytes,
        stream.config.subject,
        stream.version,
        stream.uuid,
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"partitions": 2}, "partitions"),
        ({"name": "other"}, "name"),
        ({"spread": "mapping"}, "spread"),
        ({"replicas": 2}, "replicas"),
        ({"retention_bytes": -1}, "retention_bytes"),
        ({"colour": "red"}, "colour"),
        ({"acks": "maybe"}, "acks"),
    ],
)
def test_update_stream_refuses_what_can_not_be(author, changes, field):
    author.create()
    before = author.state.streams
    outcome = author.attempt("update_stream", name="orders", changes=changes)
    assert (outcome.error, outcome.message.startswith(f"{field}:")) == (ErrorCode.INVALID_CONFIG, True)
    assert before == author.state.streams


def test_update_stream_when_someone_was_quicker(author):
    author.create()
    author.do("update_stream", name="orders", changes={"retention_bytes": 5}, expected_version=1)
    outcome = author.attempt("update_stream", name="orders", changes={"retention_bytes": 6}, expected_version=1)
    assert (outcome.error, author.state.streams["orders"].config.retention_bytes) == (ErrorCode.CONFLICT, 5)


def test_set_stream_state(author):
    author.create()
    author.do("set_stream_state", name="orders", paused=True)
    author.do("set_stream_state", name="orders", read_only=True)
    author.do("set_stream_state", name="orders", paused=True)
    stream = author.state.streams["orders"]
    assert (stream.paused, stream.read_only, stream.version) == (True, True, 3)


def test_purge_never_moves_back(author):
    author.create(leaders=("n1", "n1"))
    starts = [
        author.do("purge_partition", name="orders", uuid=UUIDS[0], partition=1, log_start=offset)["log_start"]
        for offset in (5, 3, 9)
    ]
    assert (starts, [partition.log_start for partition in partitions(author)]) == ([5, 5, 9], [0, 9])


@pytest.mark.parametrize("args", [{"partition": 1}, {"partition": -1}, {"log_start": -1}, {"log_start": None}])
def test_purge_of_what_is_not_there(author, args):
    author.create()
    given_args = {"name": "orders", "uuid": UUIDS[0], "partition": 0, "log_start": 5} | args
    outcome = author.attempt("purge_partition", **given_args)
    assert (outcome.error, partitions(author)[0].log_start) == (ErrorCode.INVALID_REQUEST, 0)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("delete_stream", {}),
        ("update_stream", {"changes": {}}),
        ("set_stream_state", {"paused": True}),
        ("purge_partition", {"uuid": UUIDS[0], "partition": 0, "log_start": 1}),
    ],
)
def test_stream_that_is_not_there(author, op, args):
    assert author.attempt(op, name="nothing", **args).error == ErrorCode.UNKNOWN_STREAM
