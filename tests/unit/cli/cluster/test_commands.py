"""`liftpy status`, `node` and `stream reassign`, with the answers of a cluster that is not there."""

from __future__ import annotations

import json
import re

import pytest

from support.cli import Cli, line_with
from support.fake_cluster import (
    FakeCluster,
    cluster_answer,
    move_answer,
    node_answer,
    partition_answer,
    replica_answer,
    stream_answer,
    told_by_node,
)

NODES = ["node-1", "node-2", "node-3"]


def listing(*streams):
    return {"total": len(streams), "streams": list(streams)}


def place(stream, number, *, leader="node-1", isr=("node-1",), missing=("node-2",)):
    return {"stream": stream, "partition": number, "leader": leader, "replicas": NODES[:2], "isr": list(isr),
            "missing": list(missing)}  # fmt: skip


@pytest.fixture
def fake(monkeypatch):
    nodes = [
        node_answer("node-1", metadata_leader=True, rack="a[/]"),
        node_answer("node-2", state="expired", expired=True, unreachable=True, out_of_sync=2, lag_messages=1_234),
        node_answer("node-3", state="draining", draining=True, metadata_voter=False),
    ]
    states = [replica_answer("node-1", 1_000), replica_answer("node-2", 400, in_sync=False)]
    worse = partition_answer(1, ["node-3", "node-1", "node-2"], isr=["node-3", "node-1"], replica_states=states)
    stream = stream_answer("orders", partition_answer(0, NODES), worse, replicas=3)
    cluster = cluster_answer(nodes, under_replicated_count=1, under_replicated=[place("orders", 1)])
    told = node_answer("node-1", metadata_leader=True) | told_by_node("node-1")
    fake = FakeCluster(
        {
            "CLUSTER.INFO": {"cluster": cluster},
            "NODE.INFO": {"node": told},
            "STREAM.LIST": listing(stream),
            "STREAM.INFO": {"stream": stream},
            "GROUP.LIST": {"groups": [], "more": False, "unreachable": []},
        }
    )
    fake.stands_in(monkeypatch)
    monkeypatch.setattr("liftpy.cli.stream.moves._LOOK_EVERY_S", 0.001)
    return fake


@pytest.fixture
def cli(fake, tmp_path):
    return Cli(None, tmp_path)


def test_the_status_of_a_cluster(cli):
    shown = cli.out("status")
    assert "Cluster abcdef01" in shown
    assert "a[/]" in line_with(shown, "node-1", "up", "leader")
    assert "1,234" in line_with(shown, "node-2", "expired", "votes")
    line_with(shown, "node-3", "draining")
    assert "1 under-replicated" in shown
    row = line_with(shown, "orders", "under-replicated")
    assert "node-1, node-3" in row
    assert "2/3" in row
    assert " 600 " in row
    assert "orders.[x].>" in row
    assert "node-2" in line_with(shown, "orders/1")


def test_what_is_moved(cli, fake):
    moving = [move_answer("orders", n, adding=["node-4"], removing=["node-3"], progress=n / 12) for n in range(12)]
    cluster = fake.answers["CLUSTER.INFO"]["cluster"]
    cluster |= {"reassignments": moving, "reassignment_count": 300}
    cluster |= {"leaderless": [place("bills", 2, leader=None, isr=())], "leaderless_count": 1}
    shown = cli.out("status")
    assert "300 being moved" in shown
    assert "1 without a leader" in shown
    assert "node-2, node-4" in line_with(shown, "orders/6", "50%")
    assert "and 290 more" in shown
    line_with(shown, "bills/2", "none")
    cluster["metadata_leader"] = None
    assert "no node leads the metadata" in cli.out("status")


def test_the_status_for_scripts(cli, fake):
    plain = cli.json("status")
    assert plain["cluster"] == fake.answers["CLUSTER.INFO"]["cluster"]
    assert plain["node"]["node_id"] == "node-1"
    assert [stream["name"] for stream in plain["streams"]] == ["orders"]


@pytest.mark.parametrize("width", ["40", "60", "80", "100", "120", "200"])
def test_what_matters_is_there_on_narrow_terminals(fake, tmp_path, width):
    shown = re.sub(r"\x1b\[[0-9;]*m", "", Cli(None, tmp_path, COLUMNS=width, FORCE_COLOR="1").out("status"))
    assert "╭" in shown  # it is a terminal
    assert all(len(line) <= max(int(width), 60) for line in shown.splitlines() if line.startswith(("│", "╭", "╰")))
    for word in ("node-1", "orders", "2/3"):
        assert word in shown


def test_the_status_of_a_node_that_is_alone(cli, fake):
    fake.answers["CLUSTER.INFO"]["cluster"] = cluster_answer([node_answer("node-1", metadata_leader=True)])
    fake.answers["STREAM.LIST"] = listing(stream_answer("orders", partition_answer(0, ["node-1"])))
    shown = cli.out("status")
    assert "Node node-1" in shown
    assert "1m30s" in shown
    assert "/data/[x]" in shown
    assert "Cluster" not in shown
    assert "In sync" not in shown


def test_a_copy_that_has_failed_is_shown_until_there_is_another(cli, fake):
    part = partition_answer(0, ["node-1", "node-2"])
    stream = stream_answer("orders", part | {"isr": ["node-1"], "failed": ["node-2"]}, replicas=2)
    fake.answers |= {"STREAM.INFO": {"stream": stream}, "STREAM.LIST": listing(stream)}
    assert "the copy on node-2 has failed" in cli.out("stream", "info", "orders")
    stream["partitions"][0]["failed"] = []
    assert "has failed" not in cli.out("stream", "info", "orders")


def test_the_end_of_a_log_that_was_cut_off_is_shown(cli, fake):
    part = partition_answer(0, ["node-1"])
    tail = {"offset": 49, "bytes": 2_048, "file": "/data/[x]/0.log", "position": 777}
    stream = stream_answer("orders", part | {"torn_tail": tail})
    fake.answers |= {"STREAM.INFO": {"stream": stream}, "STREAM.LIST": listing(stream)}
    shown = " ".join(cli.out("stream", "info", "orders").split())
    assert "partition 0: 2.0 KiB from offset 49 on were cut off when node-1 started" in shown
    assert "never finished or acknowledged (/data/[x]/0.log, byte 777)" in shown
    assert "ok" in shown, "that is usual after a kill"
    stream["partitions"][0]["torn_tail"] = None
    assert "cut off" not in cli.out("stream", "info", "orders")


def test_unclean_elections_are_not_forgotten(cli, fake):
    stream = stream_answer("orders", partition_answer(0, NODES) | {"unclean_elections": 2}, replicas=3)
    fake.answers["STREAM.INFO"] = {"stream": stream}
    shown = cli.out("stream", "info", "orders")
    assert "partition 0 had 2 unclean elections: acknowledged messages may have been lost" in shown
    stream["partitions"][0]["unclean_elections"] = 0
    assert "unclean" not in cli.out("stream", "info", "orders").replace("unclean_leader_election", "")


def test_what_lies_in_quarantine_is_listed(cli, fake):
    item = {
        "node": "node-2", "name": "orders.abc.1.17", "stream": "orders", "uuid": "abc", "partition": 1,
        "size_bytes": 2_048, "moved_ns": 1_700_000_000 * 10**9, "why": "copied anew from node [node-1]",
    }  # fmt: skip
    damaged = item | {"name": "checkpoint.0", "stream": None, "partition": None}
    told = {"items": [item] + [damaged] * 11, "count": 12, "bytes": 5_000, "unreachable": []}
    fake.answers["NODE.QUARANTINE"] = told
    for command in (("status",), ("stream", "info", "orders")):
        shown = cli.out(*command).partition("In quarantine")[2]
        line_with(shown, "node-2", "orders/1", "2.0 KiB", "2023-11-14 22:13:20", "copied anew from node [node-1]")
        assert "and 2 more; 4.9 KiB in all; nobody but you deletes it" in shown
    assert [body["stream"] for body in fake.bodies("NODE.QUARANTINE")] == [None, "orders"]
    assert cli.json("status")["quarantine"] == cli.json("stream", "info", "orders")["quarantine"] == told


def test_partitions_that_tell_nothing(cli, fake):
    nothing = dict.fromkeys(
        ("log_start", "high_watermark", "log_end", "bytes", "segments", "first_timestamp_ns", "last_timestamp_ns",
         "offline")
    )  # fmt: skip
    silent = {"unreachable": True, "unreachable_reason": "node 'node-2' is [not] there", "replica_states": []}
    stream = stream_answer("orders", partition_answer(0, ["node-2", "node-1"]) | nothing | silent, replicas=2)
    fake.answers |= {"STREAM.INFO": {"stream": stream}, "STREAM.LIST": listing(stream)}
    assert "leader silent" in cli.out("stream", "ls")
    assert "is [not] there" in cli.out("stream", "info", "orders")
    stream["partitions"][0].update(leader=None, isr=[])
    assert "no leader" in cli.out("stream", "ls")
    assert "none" in cli.out("stream", "info", "orders")
    assert "0/2" in cli.out("status")


def test_the_replicas_of_a_stream(cli, fake):
    part = partition_answer(
        0, ["node-1", "node-2", "node-3", "node-4"], isr=["node-1", "node-2"], observers=["node-4"],
        target=["node-1", "node-3", "node-4"],
        replica_states=[replica_answer("node-2", 1_000), replica_answer("node-3", 250, in_sync=False),
                        replica_answer("node-4", 900, in_sync=False)],
    )  # fmt: skip
    fake.answers["STREAM.INFO"] = {"stream": stream_answer("orders", part, replicas=2, observers=1)}
    shown = cli.out("stream", "info", "orders").partition("Replicas")[2]
    assert "1,000" in line_with(shown, "node-1", "leader")
    line_with(shown, "node-2", "leaving")
    assert "750" in line_with(shown, "node-3", "joining", "250")
    assert "100" in line_with(shown, "node-4", "observer", "900")
    assert "moving" in cli.out("stream", "info", "orders")


def test_the_nodes(cli, fake):
    assert "node-3" in cli.out("node", "list")
    assert [node["node_id"] for node in cli.json("node", "list")] == NODES
    shown = cli.out("node", "info", "node-1")
    assert "leads it" in shown
    assert "127.0.0.1:4280" in shown
    assert "1m30s" in shown
    assert cli.json("node", "info", "node-1")["replicas"] == 2
    cli.run("node", "info")
    assert fake.bodies("NODE.INFO") == [{"node_id": "node-1"}] * 2 + [{}]


def test_a_node_that_is_silent(cli, fake):
    gone = {"state": "expired", "unreachable": True, "unreachable_reason": "nobody answers"}
    fake.answers["NODE.INFO"] = {"node": node_answer("node-2", **gone)}
    shown = cli.out("node", "info", "node-2")
    assert "expired" in shown
    assert "nobody answers" in shown
    fake.answers["NODE.INFO"] = "there is no node 'node-9'"
    assert "there is no node 'node-9'" in cli.error("node", "info", "node-9")


def moves(*found, cancelled=0, warnings=()):
    return {"moves": list(found), "move_count": len(found), "cancelled": cancelled, "warnings": list(warnings)}


def draining(replicas, leaderships, *reassignments):
    nodes = [node_answer("node-1"), node_answer("node-2", replicas=replicas, leaderships=leaderships)]
    return {"cluster": cluster_answer(nodes, reassignments=list(reassignments), reassignment_count=len(reassignments))}


def test_draining_a_node(cli, fake):
    move = move_answer("orders", 1, adding=["node-3"], removing=["node-2"])
    fake.answers["NODE.DRAIN"] = moves(move, warnings=["1 replicas stay [here]"])
    ended = cli.run("node", "drain", "node-2")
    assert "node-3" in line_with(ended.stdout, "orders/1")
    assert "1 replicas stay [here]" in ended.stderr
    assert fake.bodies("NODE.DRAIN") == [{"node_id": "node-2", "cancel": False}]
    plain = cli.json("node", "drain", "node-2")
    assert fake.answers["NODE.DRAIN"]["warnings"][0] in plain["warnings"]
    assert (plain["empty"], plain["moves"][0]["removing"]) == (False, ["node-2"])
    assert "there is no node 'node-9'; there are node-1, node-2, node-3" in cli.error("node", "drain", "node-9")


def test_draining_a_node_that_has_nothing_to_move(cli, fake):
    fake.answers["NODE.DRAIN"] = moves()
    assert "there is nothing on it to be moved" in cli.out("node", "drain", "node-2")
    fake.answers["NODE.DRAIN"] = moves(warnings=["3 replicas stay"])
    assert "nothing can be moved off it now" in cli.out("node", "drain", "node-2")


def test_waiting_until_a_node_is_empty(cli, fake):
    fake.answers["NODE.DRAIN"] = moves(move_answer("orders", 1, adding=["node-3"], removing=["node-2"]))
    fake.answers["CLUSTER.INFO"] = [
        draining(2, 1),
        draining(2, 0, move_answer("orders", 1, adding=["node-3"], removing=["node-2"])),
        draining(1, 0),  # the end of one move, before what follows is seen
        draining(0, 0),
    ]
    ended = cli.run("node", "drain", "node-2", "--wait")
    assert "node-2 is empty: liftpy node remove node-2" in ended.stdout
    assert len(fake.bodies("CLUSTER.INFO")) == 4
    assert cli.json("node", "drain", "node-2", "--wait")["empty"] is True


def test_waiting_ends_when_nothing_moves(cli, fake):
    fake.answers["NODE.DRAIN"] = moves()
    fake.answers["CLUSTER.INFO"] = draining(2, 0)
    assert "2 replicas stay on node-2" in cli.error("node", "drain", "node-2", "--wait", "--json")
    # Moves of other nodes that are not listed may still be followed by those of this one.
    others = draining(2, 0)
    others["cluster"]["reassignment_count"] = 500
    fake.answers["CLUSTER.INFO"] = [draining(2, 0)] + [others] * 20 + [draining(0, 0)]
    assert cli.json("node", "drain", "node-2", "--wait")["empty"] is True


def test_waiting_ends_when_a_reassignment_keeps_the_node(cli, fake):
    fake.answers["NODE.DRAIN"] = moves()
    fake.answers["CLUSTER.INFO"] = draining(1, 0, move_answer("orders", 1, adding=["node-2"], removing=["node-1"]))
    said = cli.error("node", "drain", "node-2", "--wait", "--json")
    assert "keeps replicas of streams that are being reassigned: orders" in said


def test_nodes_that_are_to_join(cli, fake):
    assert "to join" not in cli.out("node", "list")
    fake.answers["CLUSTER.INFO"]["cluster"]["learners"] = [{"node_id": "node-1"}, {"node_id": "node-9"}]
    assert "to join, and not there yet: node-9" in cli.out("node", "list")


def test_a_stream_of_which_nobody_tells(cli, fake):
    """Zero messages would look like loss."""
    silent = {"unreachable": True, "replica_states": [], "log_start": None, "log_end": None, "high_watermark": None}
    stream = stream_answer("orders", partition_answer(0, NODES, **silent), replicas=3) | {"messages": 0, "bytes": 0}
    fake.answers["STREAM.LIST"] = listing(stream)
    line = next(line for line in cli.out("stream", "ls").splitlines() if "orders" in line)
    assert "0 B" not in line
    assert "leader silent" in line


def test_nothing_is_moved_that_could_be_cancelled(cli, fake):
    fake.answers["STREAM.REASSIGN"] = moves(cancelled=0)
    assert "nothing to cancel" in cli.out("stream", "reassign", "orders", "--cancel")


def test_not_draining_any_more(cli, fake):
    fake.answers["NODE.DRAIN"] = moves(cancelled=3)
    assert "3 partitions stay where they were" in cli.out("node", "drain", "node-3", "--cancel")
    assert fake.bodies("NODE.DRAIN") == [{"node_id": "node-3", "cancel": True}]
    assert "leave out --wait" in cli.error("node", "drain", "node-3", "--cancel", "--wait", code=2)


def test_removing_a_node(cli, fake):
    fake.answers["NODE.REMOVE"] = {"removed": "node-2", "voters": []}
    cli.run("node", "remove", "node-2", answer="n\n", code=1)
    assert fake.bodies("NODE.REMOVE") == []
    assert "node-2 is removed" in cli.run("node", "remove", "node-2", answer="y\n").stdout
    assert cli.json("node", "remove", "node-2", "--force") == {"removed": "node-2"}
    fake.answers["NODE.REMOVE"] = "node 'node-2' has 7 replicas: drain it first"
    assert "has 7 replicas: drain it first" in cli.error("node", "remove", "node-2", "-f")
    assert json.loads(cli.error("node", "remove", "node-2", "-f", "--json"))["error"]["kind"] == "AdminError"


def test_reassigning(cli, fake):
    move = move_answer("orders", 1, adding=["node-3"], removing=["node-1"])
    fake.answers["STREAM.REASSIGN"] = moves(move)
    assert "To be moved" in cli.out("stream", "reassign", "orders", "--replicas", "2", "--dry-run")
    cli.run("stream", "reassign", "orders", "--partition", "1", "--to", "node-2, node-3", "--observers", "1")
    assert fake.bodies("STREAM.REASSIGN") == [
        {"name": "orders", "replicas": 2, "observers": None, "dry_run": True},
        {"name": "orders", "replicas": None, "observers": 1, "dry_run": False,
         "partitions": {"1": ["node-2", "node-3"]}},
    ]  # fmt: skip
    plain = cli.json("stream", "reassign", "orders", "--replicas", "2")
    assert (plain["dry_run"], plain["count"], plain["moves"][0]["target"]) == (False, 1, ["node-2", "node-3"])
    fake.answers["STREAM.REASSIGN"] = moves()
    assert "nothing to move" in cli.out("stream", "reassign", "orders", "--replicas", "2")
    fake.answers["STREAM.REASSIGN"] = moves(cancelled=4)
    assert "4 partitions of orders stay" in cli.out("stream", "reassign", "orders", "--cancel")
    assert cli.json("stream", "reassign", "orders", "--cancel") == {"stream": "orders", "cancelled": 4}


def test_watching_a_reassignment(cli, fake):
    def moving(end):
        part = partition_answer(
            0, ["node-1", "node-2", "node-3"], isr=["node-1", "node-2"], target=["node-1", "node-3"],
            replica_states=[replica_answer("node-3", end, in_sync=False)],
        )  # fmt: skip
        return {"stream": stream_answer("orders", part, partition_answer(1, ["node-2"]), replicas=2)}

    fake.answers["STREAM.REASSIGN"] = moves(move_answer("orders", 0, adding=["node-3"], removing=["node-2"]))
    done = {"stream": stream_answer("orders", partition_answer(0, ["node-1", "node-3"]), replicas=2)}
    fake.answers["STREAM.INFO"] = [moving(0), moving(400), done]
    ended = cli.run("stream", "reassign", "orders", "--replicas", "2", "--watch")
    assert len(fake.bodies("STREAM.INFO")) == 3
    assert "done" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the number of replicas"),
        (("--partition", "1"), "belong together"),
        (("--partition", "1", "--to", "a", "--to", "b"), "belong together"),
        (("--partition", "1", "--to", "a", "--partition", "1", "--to", "b"), "each partition once"),
        (("--partition", "1", "--to", "a,,b"), "is not a list of nodes"),
        (("--replicas", "2", "--dry-run", "--watch"), "moves nothing"),
        (("--replicas", "2", "--cancel"), "goes alone"),
        (("--replicas", "0"), "--replicas"),
    ],
)
def test_what_can_not_be_reassigned(cli, fake, arguments, said):
    assert said in cli.error("stream", "reassign", "orders", *arguments, code=2)
    assert fake.asked == []


def test_a_stream_with_copies(cli, fake):
    stream = stream_answer("orders", partition_answer(0, NODES), replicas=3)
    fake.answers["STREAM.CREATE"] = {"stream": stream, "warnings": []}
    cli.run("stream", "add", "orders", "--subject", "orders.>", "--replicas", "2", "--min-isr", "1", "--observers", "1")
    (body,) = fake.bodies("STREAM.CREATE")
    assert (body["replicas"], body["min_isr"], body["observers"]) == (2, 1, 1)
    cli.run("stream", "add", "orders", "--subject", "orders.>", "--replicas", "3")
    assert (fake.bodies("STREAM.CREATE")[1]["min_isr"], fake.bodies("STREAM.CREATE")[1]["observers"]) == (None, 0)


def test_every_command_has_help_and_json(cli):
    for verb in ("list", "info", "drain", "remove"):
        shown = cli.out("node", verb, "--help")
        assert "--json" in shown
    assert "--dry-run" in cli.out("stream", "reassign", "--help")
    assert "--nodes" in cli.out("dev", "--help")


def test_health_is_one_line_and_an_exit_code(cli, fake):
    bad = cli.run("health", code=1).stdout
    assert bad.count("\n") == 1
    fake.answers["CLUSTER.INFO"]["cluster"] = cluster_answer([node_answer("node-1", metadata_leader=True)])
    assert cli.out("health").startswith("ok (nodes: 1, ")
    assert cli.json("health") == {"ok": True, "problems": []}
    fake.answers["CLUSTER.INFO"]["cluster"]["metadata_leader"] = None
    assert cli.run("health", code=1).stdout.startswith("no node leads the metadata (")
