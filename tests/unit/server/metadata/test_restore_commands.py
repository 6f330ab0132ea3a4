"""A stream comes back under its uuid, once, and never in the place of another."""

from __future__ import annotations

import msgpack
import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.commands import Command, apply_command
from liftpy_server.metadata.state import MetadataState
from support.metadata_commands import UUIDS, Author, config

MARKS = {"leader_epoch": 10_007, "log_start": 5, "local_start": 70, "newest_ns": 33}
UUID = UUIDS[3]


@pytest.fixture
def author():
    given = Author()
    given.register()
    return given


def args(name="orders", uuid=UUID, partitions=(MARKS,), **settings):
    return {
        "uuid": uuid,
        "config": config(name, partitions=len(partitions), **settings),
        "created_ns": 17,
        "assignment": [["n1"] for _ in partitions],
        "partitions": [dict(marks) for marks in partitions],
    }


def test_it_is_as_it_was_and_begins_where_the_bucket_ends(author):
    other = {"leader_epoch": 3, "log_start": 0, "local_start": 0, "newest_ns": 0}
    assert author.do("restore_stream", **args(partitions=(MARKS, other))) == {"uuid": UUID, "restored": True}
    stream = author.state.streams["orders"]
    first, second = stream.partitions
    assert (stream.uuid, stream.created_ns, stream.version) == (UUID, 17, 1)
    assert (first.leader, first.isr, first.leader_epoch) == ("n1", ("n1",), 10_007)
    assert (first.log_start, first.local_start, first.empty_log_start) == (5, 70, 70)
    assert first.restored_ns == second.restored_ns == 1_000 + author.count
    assert (first.restored_epoch, second.restored_epoch) == (10_007, 3)
    assert (first.restored_time, second.restored_time) == (33, 0)
    assert (second.leader_epoch, second.empty_log_start) == (3, 0)
    assert author.state == MetadataState.from_plain(msgpack.unpackb(msgpack.packb(author.state.to_plain())))


def test_a_purge_beyond_it_moves_where_new_copies_begin(author):
    author.do("restore_stream", **args())
    author.do("purge_partition", name="orders", uuid=UUID, partition=0, log_start=90)
    assert author.state.streams["orders"].partitions[0].empty_log_start == 90


def test_again_it_changes_nothing(author):
    author.do("restore_stream", **args())
    author.do("update_stream", name="orders", changes={"retention_bytes": 7})
    before = author.state.streams
    again = args(partitions=({"leader_epoch": 20_000, "log_start": 0, "local_start": 900, "newest_ns": 44},))
    assert author.do("restore_stream", **again) == {"uuid": UUID, "restored": False}
    assert author.state.streams == before


def test_another_stream_of_that_name_stays(author):
    author.create(uuid=UUIDS[0])
    outcome = author.attempt("restore_stream", **args())
    assert outcome.error is ErrorCode.STREAM_EXISTS
    assert UUIDS[0] in outcome.message
    assert UUID in outcome.message
    assert author.state.streams["orders"].uuid == UUIDS[0]


def test_a_stream_of_the_system_gives_way(author):
    internal = {"subject": "", "acks": "off"}
    author.create("__groups", uuid=UUIDS[0], **internal)
    author.do("restore_stream", **args("__groups", **internal))
    assert author.state.streams["__groups"].uuid == UUID
    assert author.state.deleted == (UUIDS[0],)


def test_a_stream_of_the_system_that_was_brought_back_gives_way_to_no_other(author):
    internal = {"subject": "", "acks": "off"}
    author.do("restore_stream", **args("__groups", **internal))
    outcome = author.attempt("restore_stream", **args("__groups", UUIDS[4], **internal))
    assert (outcome.error, "was restored already" in outcome.message) == (ErrorCode.STREAM_EXISTS, True)
    assert author.state.streams["__groups"].uuid == UUID


def test_revisions_go_on_beyond_those_that_the_streams_of_the_system_tell_of(author):
    author.do("restore_stream", **args())
    before = author.state.revision
    command = Command(id="x", op="restore_stream", now_ns=5 * 10**15, args=args("__groups", UUIDS[4], acks="off"))
    command.args["config"]["subject"] = ""
    author.state, outcome = apply_command(author.state, command)
    assert (outcome.value["restored"], before, author.state.revision) == (True, 2, 5 * 10**9)
    author.do("delete_stream", name="orders")
    assert author.state.revision == 5 * 10**9 + 1


def test_what_was_deleted_here_does_not_come_back(author):
    author.do("restore_stream", **args())
    author.do("delete_stream", name="orders")
    outcome = author.attempt("restore_stream", **args())
    assert (outcome.error, "was deleted" in outcome.message) == (ErrorCode.CONFLICT, True)
    assert not author.state.streams


def test_one_stream_does_not_get_two_names(author):
    author.do("restore_stream", **args())
    outcome = author.attempt("restore_stream", **args("flights"))
    assert (outcome.error, "'orders'" in outcome.message) == (ErrorCode.CONFLICT, True)


def test_fewer_nodes_than_copies_is_refused(author):
    outcome = author.attempt("restore_stream", **args(replicas=3))
    assert (outcome.error, "3 replicas need 3 nodes; the cluster has 1" in outcome.message) == (
        ErrorCode.INVALID_CONFIG,
        True,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"leader_epoch": 0},
        {"leader_epoch": True},
        {"log_start": -1},
        {"log_start": 71},
        {"local_start": 2**63},
        {"local_start": "70"},
        {"newest_ns": -1},
        {"newest_ns": None},
        {"more": 1},
    ],
)
def test_marks_that_mean_nothing_are_refused(author, wrong):
    outcome = author.attempt("restore_stream", **args(partitions=(MARKS | wrong,)))
    assert outcome.error is ErrorCode.INVALID_REQUEST
    assert "partitions" not in author.state.streams


@pytest.mark.parametrize("wrong", [{"uuid": "../x"}, {"uuid": 5}, {"created_ns": "now"}, {"partitions": []}])
def test_a_malformed_command_is_refused(author, wrong):
    assert author.attempt("restore_stream", **args() | wrong).error is ErrorCode.INVALID_REQUEST
    assert not author.state.streams
