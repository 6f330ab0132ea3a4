"""Every change of the metadata is told once, and in the same words by every node."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.events import COMMON_FIELDS, KINDS, TOLD
from liftpy_server.consensus.machine import MetadataMachine, encode_entry
from liftpy_server.events.backlog import NOTHING, Backlog
from liftpy_server.events.derive import derive
from liftpy_server.metadata.commands import Command, apply_command
from support.examples import examples
from support.metadata_commands import UUIDS, Author, Cluster, any_commands


class Told:
    """What happens to a cluster of the tests, as events."""

    def __init__(self, author):
        self.author = author
        self._before = author.state

    def __call__(self):
        """The events since the last call."""
        before, self._before = self._before, self.author.state
        return derive(before, self._before, 7)


def kinds(events):
    return [event.kind for event in events]


@pytest.fixture
def author():
    return Author()


def row(gap_id="n1.1.1", until_ns=None, messages=None, version=1):
    return ["orders", UUIDS[0], 0, gap_id, version, 5, until_ns, 0, messages]


def test_the_life_of_a_stream(author):
    author.register("n1")
    told = Told(author)
    author.create()
    (created,) = told()
    assert created[:5] == ("stream.created", 7, "orders", None, None)
    assert created.details["partitions"] == 1
    author.do("update_stream", name="orders", changes={"retention_bytes": 5})
    assert [event.details["changes"] for event in told()] == [{"retention_bytes": [0, 5]}]
    author.do("set_stream_state", name="orders", paused=True)
    assert [event.details["changes"] for event in told()] == [{"paused": [False, True]}]
    author.do("purge_partition", name="orders", uuid=UUIDS[0], partition=0, log_start=9)
    (purged,) = told()
    assert (purged.kind, purged.partition, purged.details) == ("stream.purged", 0, {"log_start": 9})
    author.do("delete_stream", name="orders")
    assert kinds(told()) == ["stream.deleted"]


def test_a_stream_that_is_made_anew_at_once(author):
    author.register("n1")
    author.create()
    before = author.state
    deleted, _ = apply_command(before, Command(id="a", op="delete_stream", now_ns=1, args={"name": "orders"}))
    author.state = deleted
    author.create(uuid=UUIDS[1])
    assert kinds(derive(before, author.state, 7)) == ["stream.deleted", "stream.created"]


def test_what_changes_nothing_is_no_event(author):
    author.register("n1")
    author.create()
    told = Told(author)
    author.create()
    author.do("set_stream_state", name="orders", paused=False)
    author.attempt("delete_stream", name="nothing")
    assert told() == []


def test_nodes_come_and_go(author):
    told = Told(author)
    author.register("n1")
    assert kinds(told()) == ["node.joined"]
    author.register("n1")
    assert [(event.kind, event.details["incarnation"]) for event in told()] == [("node.started", 2)]
    author.do("expire_node", node_id="n1", incarnation=2)
    assert kinds(told()) == ["node.gone"]
    author.do("drain_node", node_id="n1", draining=True)
    assert kinds(told()) == ["node.draining"]
    author.do("drain_node", node_id="n1", draining=False)
    assert kinds(told()) == ["node.undrained"]
    author.do("remove_node", node_id="n1")
    (removed,) = told()
    assert (removed.kind, removed.node, removed.stream) == ("node.removed", "n1", None)


def test_a_leader_that_is_gone():
    cluster = Cluster("a", "b", "c")
    told = Told(cluster)
    cluster.expire("a")
    gone, changed, shrunk = told()
    assert (gone.kind, gone.node) == ("node.gone", "a")
    assert (changed.kind, changed.stream, changed.partition) == ("leader.changed", "orders", 0)
    assert changed.details["previous"] == "a"
    assert changed.details["leader"] == cluster.partition.leader == changed.node
    assert changed.details["cause"] == "the session of a ended"
    assert not changed.details["unclean"]
    assert (shrunk.kind, shrunk.details["left"], shrunk.details["replicas"]) == ("isr.shrunk", ["a"], 3)
    cluster.register("a")
    assert kinds(told()) == ["node.started"]
    cluster.change_isr("a", "b", "c")
    assert kinds(told()) == ["isr.whole"]


def test_a_log_that_failed():
    cluster = Cluster("a", "b", "c")
    told = Told(cluster)
    cluster.report_failure("a")
    found, changed, shrunk = told()
    assert (found.kind, found.node) == ("damage.found", "a")
    assert changed.details["cause"] == "the log of a failed"
    assert shrunk.details["cause"] == "a: its log failed"
    cluster.report_renewal("a")
    assert [(event.kind, event.node) for event in told()] == [("damage.repaired", "a")]


def test_a_node_is_emptied():
    cluster = Cluster("a", "b", "c")
    cluster.register("d")
    told = Told(cluster)
    cluster.do("drain_node", node_id="a", draining=True)
    cluster.reassign("b", "c", "d")
    assert kinds(told()) == ["node.draining"]
    cluster.do("move_leader", **{"name": "orders", "uuid": UUIDS[0], "partition": 0, "leader": "b"}
               | {"leader_epoch": cluster.partition.leader_epoch, "version": cluster.partition.version})  # fmt: skip
    (changed,) = told()
    assert changed.details["cause"] == "a is drained"
    cluster.change_isr("b", "c", "d")
    cluster.finish()
    assert "node.drained" in kinds(told())
    assert cluster.partition.replicas == ("b", "c", "d")


def test_gaps_open_and_close_once(author):
    author.register("n1")
    author.create()
    told = Told(author)
    for gap in (row(), row(), row(until_ns=9, messages=3, version=2), row(until_ns=9, messages=3, version=2)):
        author.do("record_gaps", causes=["lost"], gaps=[gap])
    author.do("record_gaps", causes=["lost"], gaps=[row("n2.1.1", until_ns=8)])
    author.do("record_gaps", causes=["lost"], gaps=[row("n2.1.1", until_ns=8)])
    assert kinds(told()) == ["gap.closed", "gap.closed"]  # of all of it as one change
    one_by_one = []
    author.do("record_gaps", causes=["lost"], gaps=[row("n1.1.2", messages=3)])
    one_by_one += told()
    author.do("record_gaps", causes=["lost"], gaps=[row("n1.1.2", until_ns=9, messages=3, version=2)])
    one_by_one += told()
    author.do("record_gaps", causes=["lost"], gaps=[row("n1.1.2", until_ns=9, messages=3, version=3)])
    assert told() == []
    assert kinds(one_by_one) == ["gap.opened", "gap.closed"]
    assert one_by_one[1].details == {"gap": "n1.1.2", "since_ns": 5, "until_ns": 9, "messages": 3, "cause": "lost"}
    assert one_by_one[1].node == "n1"


TOLD_ROWS = [
    ["disk.full", 5, None, None, {"free_bytes": 1, "reserve_bytes": 2, "other": 3}],
    ["upload.stopped", 6, "orders", 0, {"code": "hole", "cause": "x" * 1_000}],
]


def test_what_a_node_tells_of_itself(author):
    author.register("n1")
    told = Told(author)
    author.do("tell_events", node_id="n1", events=TOLD_ROWS)
    full, stopped = told()
    assert (full.kind, full.node, full.time_ns) == ("disk.full", "n1", 5)
    assert full.details == {"free_bytes": 1, "reserve_bytes": 2}
    assert (stopped.stream, stopped.partition, len(stopped.details["cause"])) == ("orders", 0, 500)
    author.register("n1")
    assert kinds(told()) == ["node.started"], "what was told before is not told again"


@pytest.mark.parametrize(
    "events",
    [
        [["stream.deleted", 5, "orders", None, {}]],
        [["disk.full", -1, None, None, {}]],
        [["disk.full", 5, "no.name", None, {}]],
        [["disk.full", 5, None, 3, {}]],
        [["disk.full", 5, None, None, {"cause": ["list"]}]],
        [["disk.full", 5, None, None, {"cause": float("nan")}]],
        [["disk.full", 5]],
        [TOLD_ROWS[0]] * 101,
        7,
    ],
)
def test_what_is_no_event_is_refused(author, events):
    author.register("n1")
    told = Told(author)
    assert author.attempt("tell_events", node_id="n1", events=events).error
    assert told() == []


def entries_of(commands):
    return [(command, encode_entry(command.encode(), 0)) for command in commands]


def applied(machine, commands):
    for _, entry in entries_of(commands):
        machine.apply(entry)


def values_of(backlog):
    return [
        (str(position), event.subject, event.key, event.value(position)) for position, event in backlog.after(NOTHING)
    ]


@examples(300)
@given(st.lists(any_commands, max_size=25), st.integers(0, 25))
def test_every_node_tells_the_same(commands, snapshot_at):
    """Whether it applied all of the log, twice, or only what came after a snapshot."""
    commands = [command for command in commands if _is_encodable(command)]
    one, again, late = Backlog(), Backlog(), Backlog()
    first = MetadataMachine(lambda: None, one.applied)
    applied(first, commands)
    applied(MetadataMachine(lambda: None, again.applied), commands)
    assert values_of(one) == values_of(again)
    half = MetadataMachine(lambda: None)
    applied(half, commands[:snapshot_at])
    other = MetadataMachine(lambda: None, late.applied)
    other.restore(half.capture()())
    applied(other, commands[snapshot_at:])
    revision = half.state.revision
    assert values_of(late) == [each for each in values_of(one) if int(each[0].split(".")[0]) > revision]
    assert not one.failures + again.failures + late.failures
    applied(first, commands)
    assert len(values_of(one)) == len(values_of(again)), "commands that are proposed again are no events"


@examples(300)
@given(st.lists(any_commands, max_size=25))
def test_events_are_as_documented(commands):
    backlog = Backlog()
    applied(MetadataMachine(lambda: None, backlog.applied), filter(_is_encodable, commands))
    positions = [position for position, _ in backlog.after(NOTHING)]
    assert positions == sorted(set(positions))
    for position, event in backlog.after(NOTHING):
        value = json.loads(event.value(position))
        assert set(value) <= {*COMMON_FIELDS, *KINDS[event.kind].fields}
        assert set(KINDS[event.kind].fields) <= set(value) or event.kind in TOLD
        assert (value["id"], value["kind"]) == (str(position), event.kind)


def _is_encodable(command):
    try:
        Command.decode(command.encode())
    except Exception:
        return False
    return True
