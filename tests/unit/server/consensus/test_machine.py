"""Applying an entry never raises for what it holds, and a retry is applied once or refused."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode
from liftpy_server.consensus import machine as machine_module
from liftpy_server.consensus.machine import EXPIRED, MetadataMachine, NewerEntryError, encode_entry
from liftpy_server.metadata.commands import Command
from liftpy_server.metadata.outcomes import OUTCOMES_MIN, OutcomeTable
from support.metadata_commands import NODE


def entry(command_id="one", known_revision=0, **node):
    command = Command(id=command_id, op="register_node", now_ns=5, args={"node": NODE | node})
    return encode_entry(command.encode(), known_revision)


@pytest.fixture
def machine():
    return MetadataMachine(lambda: None)


def test_a_command_is_applied_once(machine):
    assert [machine.apply(entry()).value for _ in range(3)] == [1, 1, 1]
    assert machine.state.revision == 1


def test_changes_are_told():
    told = []
    machine = MetadataMachine(lambda: told.append(machine.state.revision))
    machine.apply(entry())
    machine.restore(machine.capture()())
    assert told == [1, 1]


def test_an_entry_that_may_be_forgotten_is_refused(machine):
    """It was applied, its outcome has left the state since, and now its retry arrives."""
    with patch.object(machine_module, "_WINDOW_REVISIONS", 5):
        machine.apply(entry("one"))
        for number in range(5):
            machine.apply(entry(f"more{number}", known_revision=1))
        assert machine.apply(entry("one")).value == 1  # still remembered
        kept = [(name, outcome) for name, outcome in machine.state.outcomes.items() if name != "one"]
        machine.state = replace(machine.state, outcomes=OutcomeTable(kept))
        assert machine.apply(entry("one")) is EXPIRED
        assert machine.apply(entry("new", known_revision=6)).value == 7


def test_the_window_is_smaller_than_what_is_remembered():
    assert machine_module._WINDOW_REVISIONS < OUTCOMES_MIN


@given(st.binary(max_size=100))
def test_garbage_is_an_outcome(data):
    machine = MetadataMachine(lambda: None)
    assert not machine.accepts(data)
    try:
        assert machine.apply(data).error is ErrorCode.INVALID_REQUEST
    except NewerEntryError:  # by chance it says so
        assert msgpack.unpackb(data)[0] > 1
    assert machine.state.revision == 0


@given(st.recursive(st.none() | st.integers(0, 1) | st.binary(max_size=3) | st.text(max_size=3), st.lists))
def test_entries_of_other_shapes_are_outcomes(value):
    data = msgpack.packb(value)
    assert MetadataMachine(lambda: None).apply(data).error is ErrorCode.INVALID_REQUEST


def test_an_operation_that_raises_is_an_outcome(machine):
    with patch.object(machine_module, "apply_command", side_effect=ZeroDivisionError):
        assert machine.apply(entry()).error is ErrorCode.INTERNAL
    with patch.object(machine_module, "apply_command", side_effect=MemoryError), pytest.raises(MemoryError):
        machine.apply(entry())


@pytest.mark.parametrize(
    "newer", [msgpack.packb([2, "whatever"]), encode_entry(msgpack.packb({"v": 9, "id": "x", "op": "y"}), 0)]
)
def test_a_newer_entry_stops_the_node_and_is_not_proposed(machine, newer):
    assert not machine.accepts(newer)
    with pytest.raises(NewerEntryError, match="upgrade"):
        machine.apply(newer)
