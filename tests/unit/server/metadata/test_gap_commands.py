"""Gaps in the metadata: kept once however often they are told, bounded, and gone with their stream."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.gaps.gap import GAPS_KEPT_MAX, Gap
from liftpy_server.metadata.state import MetadataState
from support.metadata_commands import UUIDS, Author


@pytest.fixture
def author():
    author = Author()
    author.register("n1")
    author.create(leaders=("n1", "n1"))
    return author


def row(gap_id="n1.1.1", version=1, since_ns=5, until_ns=None, cause=0, messages=None, partition=0, uuid=UUIDS[0]):
    return ["orders", uuid, partition, gap_id, version, since_ns, until_ns, cause, messages]


def gaps(author, partition=0):
    return author.state.streams["orders"].gaps.get(partition, ())


def test_gaps_are_kept_by_partition(author):
    told = author.do("record_gaps", causes=["lost", "paused"], gaps=[row(), row("n1.1.2", 1, 7, 8, 1, 3, partition=1)])
    assert told == {"kept": 2}
    assert gaps(author, 0) == (Gap(id="n1.1.1", since_ns=5, until_ns=None, cause="lost"),)
    assert gaps(author, 1) == (Gap(id="n1.1.2", since_ns=7, until_ns=8, cause="paused", messages=3),)


def test_told_again_it_is_kept_once_and_the_newest_version_counts(author):
    for given in (row(), row(), row(version=2, until_ns=9), row(version=1)):
        author.do("record_gaps", causes=["lost"], gaps=[given])
    assert gaps(author) == (Gap(id="n1.1.1", version=2, since_ns=5, until_ns=9, cause="lost"),)


def test_a_node_without_a_session_tells_all_the_same(author):
    author.do("expire_node", node_id="n1", incarnation=1)
    author.do("record_gaps", causes=["lost"], gaps=[row()])
    assert len(gaps(author)) == 1


def test_gaps_of_streams_that_are_gone_are_passed_over(author):
    other = ["gone", UUIDS[1], 0, "n1.1.3", 1, 5, None, 0, None]
    assert author.do("record_gaps", causes=["x"], gaps=[other, row(uuid=UUIDS[1]), row()]) == {"kept": 1}
    author.do("delete_stream", name="orders")
    author.create(uuid=UUIDS[2])
    assert gaps(author) == ()


def test_too_many_are_joined(author):
    rows = [row(f"n1.1.{number}", 1, number, number + 1) for number in range(3 * GAPS_KEPT_MAX)]
    for each in rows:
        author.do("record_gaps", causes=["lost"], gaps=[each])
    assert len(gaps(author)) == GAPS_KEPT_MAX
    assert (gaps(author)[0].since_ns, gaps(author)[0].until_ns) == (0, 2 * GAPS_KEPT_MAX + 1)


def test_a_snapshot_holds_them(author):
    author.do("record_gaps", causes=["lost"], gaps=[row(), row(partition=1)])
    assert MetadataState.from_plain(author.state.to_plain()) == author.state


def test_other_commands_leave_them(author):
    author.do("record_gaps", causes=["lost"], gaps=[row()])
    author.do("update_stream", name="orders", changes={"retention_bytes": 5})
    author.do("set_stream_state", name="orders", paused=True)
    assert len(gaps(author)) == 1


@pytest.mark.parametrize(
    "args",
    [
        {"causes": ["x"], "gaps": [row(partition=2)]},
        {"causes": ["x"], "gaps": [row(partition=-1)]},
        {"causes": ["x"], "gaps": [row(partition="0")]},
        {"causes": [], "gaps": [row()]},
        {"causes": ["x"], "gaps": [row(since_ns=-1)]},
        {"causes": ["x"], "gaps": [row(since_ns=9, until_ns=8)]},
        {"causes": [5], "gaps": [row()]},
        {"causes": ["x"], "gaps": [[]]},
        {"causes": ["x"], "gaps": 5},
        {"causes": ["x"]},
    ],
)
def test_what_is_malformed_is_refused_as_a_whole(author, args):
    good = row("good")
    if isinstance(args.get("gaps"), list):
        args = args | {"gaps": [good, *args["gaps"]]}
    before = author.state.streams
    outcome = author.attempt("record_gaps", **args)
    assert outcome.error is ErrorCode.INVALID_REQUEST
    assert author.state.streams == before
