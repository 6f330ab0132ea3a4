"""Many commands in one: each by itself, each once, and no more dear than they must be."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.metadata import commands as commands_module
from liftpy_server.metadata.changes import Draft, RefusedError
from liftpy_server.metadata.commands import Command, Outcome, apply_command, check_proposable
from liftpy_server.metadata.outcomes import OUTCOMES_MIN, OutcomeTable
from liftpy_server.metadata.state import LEVEL, MetadataState
from support.examples import examples
from support.metadata_commands import NODE, UUIDS, Cluster, any_commands, config


def batch(*commands, command_id="batch", now_ns=1):
    return Command(id=command_id, op="batch", now_ns=now_ns, args={"commands": [list(each) for each in commands]})


def register(node_id, **info):
    return {"node": NODE | {"node_id": node_id} | info}


@given(st.lists(any_commands, min_size=1, max_size=12))
@examples(150)
def test_a_batch_does_what_its_commands_do_one_by_one(commands):
    commands = [Command(id=each.id, op=each.op, now_ns=7, args=each.args) for each in commands]
    one_by_one, outcomes = MetadataState(), []
    for command in commands:
        one_by_one, outcome = apply_command(one_by_one, command)
        outcomes.append(outcome.to_plain())
    together = batch(*((each.id, each.op, each.args) for each in commands), now_ns=7)
    state, outcome = apply_command(MetadataState(), Command.decode(together.encode()))
    assert (state, outcome) == (one_by_one, Outcome(value=outcomes))


def test_a_refusal_in_a_batch_refuses_nothing_else():
    given_batch = batch(
        ("a", "register_node", register("n1")),
        ("b", "delete_stream", {"name": "nothing"}),
        ("c", "register_node", {"node": 5}),
        ("d", "register_node", register("n2")),
    )
    state, outcome = apply_command(MetadataState(), given_batch)
    errors = [each["error"] for each in outcome.value]
    assert errors == [0, ErrorCode.UNKNOWN_STREAM, ErrorCode.INVALID_REQUEST, 0]
    assert (sorted(state.nodes), state.revision, len(state.outcomes)) == (["n1", "n2"], 4, 4)


def test_a_command_that_fails_half_way_leaves_nothing_behind():
    state, _ = apply_command(MetadataState(), Command(id="n", op="register_node", now_ns=1, args=register("n1")))
    moves = {"name": "orders", "uuid": UUIDS[0], "moves": [[0, ["n1", "n2"], []], [7, ["n1"], []]]}
    given_batch = batch(
        ("s", "create_stream", {"uuid": UUIDS[0], "config": config(), "assignment": [["n1"]]}),
        ("r", "register_node", register("n2")),
        ("m", "reassign_partitions", moves),
        ("p", "set_stream_state", {"name": "orders", "paused": True}),
    )
    state, outcome = apply_command(state, given_batch)
    assert [bool(each["error"]) for each in outcome.value] == [False, False, True, False]
    assert state.streams["orders"].partitions[0].target is None
    assert state.streams["orders"].paused


def test_changes_that_are_discarded_leave_nothing_behind():
    cluster = Cluster("a", min_isr=None)
    draft = Draft(cluster.state)
    draft.put_node(replace(draft.nodes["a"], expired=True), level=2)
    draft.remove_node(draft.nodes["a"], level=2)
    draft.remove_stream(draft.streams["orders"])
    assert (dict(draft.nodes), draft.stream("orders"), draft.level) == ({}, None, 2)
    draft.discard()
    draft.note("c", Outcome())
    after = draft.finish()
    assert replace(after, revision=cluster.state.revision, outcomes=cluster.state.outcomes) == cluster.state


def test_a_batch_again_or_under_another_id_is_applied_once():
    given_batch = batch(("a", "register_node", register("n1")), ("b", "register_node", register("n1")))
    state, outcome = apply_command(MetadataState(), given_batch)
    assert [each["value"] for each in outcome.value] == [1, 2]
    assert (state, outcome) == apply_command(state, given_batch)
    other = batch(("b", "x", {}), ("c", "register_node", register("n1")), command_id="other")
    state, outcome = apply_command(state, other)
    assert [each["value"] for each in outcome.value] == [2, 3]


def test_an_id_that_stands_twice_in_a_batch_is_applied_once():
    state, outcome = apply_command(MetadataState(), batch(*[("a", "register_node", register("n1"))] * 2))
    assert ([each["value"] for each in outcome.value], state.revision) == ([1, 1], 1)


@pytest.mark.parametrize(
    "args",
    [{}, {"commands": []}, {"commands": 5}, {"commands": [["a", "x"]]}, {"commands": [[1, "x", {}]]}, {"x": 1}],
)
def test_a_malformed_batch_is_refused_as_a_whole(args):
    state, outcome = apply_command(MetadataState(), Command(id="b", op="batch", now_ns=1, args=args))
    assert (outcome.error, list(state.outcomes)) == (ErrorCode.INVALID_REQUEST, ["b"])


def test_a_batch_in_a_batch_is_refused():
    inner = {"commands": [["x", "register_node", register("n1")]]}
    state, outcome = apply_command(MetadataState(), batch(("a", "batch", inner)))
    assert (outcome.value[0]["error"], state.nodes) == (ErrorCode.INVALID_REQUEST, {})


def test_the_state_that_a_batch_began_with_is_left_as_it_was():
    cluster = Cluster("a", "b", "c", streams=3)
    before, plain = cluster.state, cluster.state.to_plain()
    cluster.do("batch", commands=[["d", "delete_stream", {"name": "orders1"}], ["n", "register_node", register("z")]])
    assert plain == before.to_plain()
    assert cluster.state.streams["orders2"] is before.streams["orders2"]


def table_of(count):
    return OutcomeTable((str(number), Outcome(value=number)) for number in range(count))


def test_outcomes_are_forgotten_oldest_first_and_not_too_soon():
    table = OutcomeTable()
    added = 0
    for size in [1, 500, 511, 513, 1_025] * 20:
        table = table.with_added({str(added + number): Outcome(value=added + number) for number in range(size)})
        added += size
    assert added > OUTCOMES_MIN
    assert OUTCOMES_MIN <= len(table) < OUTCOMES_MIN + 1_024
    assert list(table) == [str(number) for number in range(added - len(table), added)]
    assert table.get(str(added - OUTCOMES_MIN)) == Outcome(value=added - OUTCOMES_MIN)
    assert (table.get("0"), "0" in table, table.get("never")) == (None, False, None)
    with pytest.raises(KeyError):
        table["0"]


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, OUTCOMES_MIN - 1, OUTCOMES_MIN, OUTCOMES_MIN + 700])
def test_a_table_from_a_snapshot_forgets_when_the_other_does(count):
    table = table_of(count)
    restored = OutcomeTable.from_plain(msgpack.unpackb(msgpack.packb(table.to_plain())))
    for number in range(1_200):
        added = {f"x{number}": Outcome()}
        table, restored = table.with_added(added), restored.with_added(added)
        assert len(table) == len(restored)
    assert list(table.items()) == list(restored.items())


def test_a_table_is_left_as_it_is():
    table = table_of(511)
    assert len(table.with_added({"x": Outcome(), "y": Outcome()})) == 513
    assert (len(table), "x" in table) == (511, False)


def test_a_refusal_is_remembered_at_a_bounded_length():
    command = Command(id="c", op="delete_stream", now_ns=1, args={"name": "x" * 10_000})
    state, outcome = apply_command(MetadataState(), command)
    assert (len(outcome.message), state.outcomes["c"]) == (500, outcome)


@pytest.mark.parametrize(
    "wrong", [{"id": ["x"]}, {"id": 5}, {"op": None}, {"now_ns": "now"}, {"now_ns": True}, {"args": []}]
)
def test_a_command_with_a_part_of_another_kind_is_none(wrong):
    fields = {"v": 1, "id": "c", "op": "x", "now_ns": 1, "args": {}} | wrong
    with pytest.raises(LiftError, match="not a metadata command"):
        Command.decode(msgpack.packb(fields))


@pytest.fixture
def newer(monkeypatch):
    """A command that this liftpy knows, and older nodes do not."""
    monkeypatch.setitem(commands_module._OPERATIONS, "shine", lambda draft, now: "bright")
    monkeypatch.setitem(commands_module._LEVELS, "shine", LEVEL + 1)
    return Command(id="shine", op="shine", now_ns=1)


def test_a_newer_command_waits_until_all_nodes_know_it(newer, monkeypatch):
    cluster = Cluster("a", "b")
    cluster.register("b", level=LEVEL + 1)
    together = batch(("x", "register_node", register("c")), ("y", "shine", {}))
    for command in (newer, together):
        with pytest.raises(RefusedError, match="upgraded; still to do: a") as caught:
            check_proposable(cluster.state, command)
        assert caught.value.code.retriable
        assert msgpack.unpackb(command.encode())["v"] == LEVEL + 1
        with pytest.raises(LiftError, match="newer liftpy"):
            Command.decode(command.encode())
    _, outcome = apply_command(cluster.state, newer)
    assert outcome.message == "unknown metadata command 'shine'"  # as where it is not known
    cluster.register("a", level=LEVEL + 1)
    assert cluster.state.level == LEVEL + 1
    check_proposable(cluster.state, newer)
    monkeypatch.setattr(commands_module, "LEVEL", LEVEL + 1)
    _, outcome = apply_command(cluster.state, Command.decode(newer.encode()))
    assert outcome == Outcome(value="bright")


def test_a_node_that_is_older_than_the_metadata_is_not_registered():
    cluster = Cluster("a", "b")
    for node in "ab":
        cluster.register(node, level=2)
    outcome = cluster.attempt("register_node", **register("c", level=1))
    assert (outcome.error, "upgrade it" in outcome.message) == (ErrorCode.CONFLICT, True)
    assert cluster.attempt("register_node", **register("a", level=1)).error is ErrorCode.CONFLICT
    assert (cluster.register("c", level=3), cluster.state.level) == (1, 2)


def test_a_node_that_is_gone_holds_nothing_back():
    cluster = Cluster("a", "b")
    cluster.register("old")
    for node in "ab":
        cluster.register(node, level=2)
    assert cluster.state.level == 1
    cluster.do("remove_node", node_id="old")
    assert cluster.state.level == 2


def test_a_snapshot_of_a_newer_liftpy_is_not_read():
    plain = MetadataState(level=LEVEL + 1).to_plain()
    with pytest.raises(LiftError, match="upgrade this node"):
        MetadataState.from_plain(plain)
    del plain["level"], plain["incarnation_floor"]  # as the first liftpy wrote it
    assert MetadataState.from_plain(plain) == MetadataState()
