"""The backlog is bounded, knows what it dropped, and never raises."""

from __future__ import annotations

from liftpy_envelope.events import Position, parse_id
from liftpy_server.events.backlog import NOTHING, Backlog
from liftpy_server.metadata.state import MetadataState
from support.metadata_commands import Author


def filled(limit, streams):
    author, backlog = Author(), Backlog(limit)
    author.register("n1")
    for number in range(streams):
        before = author.state
        author.create(f"s{number}", f"{number:032x}")
        backlog.applied(before, author.state, 5)
    return backlog


def test_it_is_bounded_and_counts_what_it_dropped():
    backlog = filled(3, 10)
    assert len(backlog) == 3
    assert (backlog.unstored, backlog.dropped_to) == (7, Position(8, 0))
    assert [event.stream for _, event in backlog.after(NOTHING)] == ["s7", "s8", "s9"]


def test_what_is_stored_goes():
    backlog = filled(100, 5)
    positions = [position for position, _ in backlog.after(NOTHING)]
    assert [position for position, _ in backlog.after(positions[2])] == positions[3:]
    backlog.stored(positions[2])
    assert [position for position, _ in backlog.after(NOTHING)] == positions[3:]


def test_what_others_have_stored_was_not_lost():
    backlog = filled(3, 10)
    backlog.stored(Position(7, 0))
    assert backlog.unstored, "one that was dropped is newer"
    backlog.stored(Position(9, 0))
    assert not backlog.unstored


def test_a_fault_of_the_program_stops_nobody():
    backlog = Backlog()
    backlog.applied(MetadataState(), MetadataState(nodes=None), 5)
    assert (backlog.failures, len(backlog)) == (1, 0)


def test_nodes_alone_are_worth_no_stream():
    author, backlog = Author(), Backlog()
    before = author.state
    author.register("n1")
    backlog.applied(before, author.state, 5)
    assert len(backlog) == 1
    assert not backlog.is_worth_a_stream
    assert filled(100, 1).is_worth_a_stream


def test_ids_are_read_back():
    assert parse_id(str(Position(12, 3)).encode()) == Position(12, 3)
    assert Position(12, 10) > Position(12, 9) > Position(11, 99)
