"""Replicas move to other nodes: no step of it weakens what was committed, and every step can be cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy_envelope.errors import ErrorCode
from support.metadata_commands import UUIDS, WHERE, Cluster, config


@pytest.fixture
def cluster() -> Cluster:
    """Partition `orders/0` on a, b, c; d, e and f keep nothing."""
    given = Cluster("a", "b", "c")
    for node in "def":
        given.register(node)
    return given


def begun(cluster: Cluster, *nodes: str, observers: tuple[str, ...] = ()) -> Cluster:
    outcome = cluster.reassign(*nodes, observers=observers)
    assert not outcome.error, outcome
    return cluster


def test_new_replicas_are_added_and_do_not_count_yet(cluster):
    assert cluster.reassign("d", "b", "e").value == {"partitions": [0]}
    info = cluster.partition
    assert (info.replicas, info.isr, info.leader, info.leader_epoch) == (
        ("a", "b", "c", "d", "e"),
        ("a", "b", "c"),
        "a",
        1,
    )
    assert (info.target, info.target_observers, info.observers, info.version) == (("d", "b", "e"), (), (), 2)


def test_the_move_ends_when_all_of_the_target_are_in_sync(cluster):
    begun(cluster, "a", "b", "d")
    refused = cluster.finish()
    assert (refused.error, "d not in sync" in refused.message) == (ErrorCode.CONFLICT, True)
    assert not cluster.change_isr("a", "b", "c", "d").error
    assert cluster.finish().value == {"leader": "a", "leader_epoch": 1, "version": 4}
    info = cluster.partition
    assert (info.replicas, info.isr, info.target, info.origin) == (("a", "b", "d"), ("a", "b", "d"), None, None)


def test_the_leader_is_among_those_that_go(cluster):
    begun(cluster, "d", "e", "f")
    cluster.change_isr("a", "b", "c", "d", "e", "f")
    assert cluster.finish().value["leader"] == "d"
    info = cluster.partition
    assert (info.replicas, info.isr, info.leader, info.leader_epoch) == (("d", "e", "f"), ("d", "e", "f"), "d", 2)
    assert cluster.finish(leader_epoch=1).error is ErrorCode.STALE_EPOCH


def test_leadership_passes_over_a_target_without_session_or_being_drained():
    cluster = Cluster("a", min_isr=None)
    for node in "def":
        cluster.register(node)
    begun(cluster, "d", "e", "f")
    cluster.change_isr("a", "d", "e", "f")
    cluster.do("drain_node", node_id="d", draining=True)
    assert cluster.finish().value["leader"] == "e"
    assert cluster.partition.isr == ("d", "e", "f")


def test_the_end_waits_while_no_target_can_lead():
    cluster = Cluster("a", "b", "c", min_isr=3)
    for node in "bc":
        cluster.expire(node)
    assert cluster.partition.isr == ("a", "b", "c")  # min_isr needs them
    cluster.do("update_stream", name="orders", changes={"min_isr": 2})
    begun(cluster, "b", "c")
    refused = cluster.finish()
    assert (refused.error, "running" in refused.message) == (ErrorCode.CONFLICT, True)
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == ("a", 1)
    cluster.register("c")
    assert cluster.finish().value["leader"] == "c"


def test_a_stale_end_changes_nothing(cluster):
    begun(cluster, "a", "b", "d")
    cluster.change_isr("a", "b", "c", "d")
    before = cluster.partition
    assert cluster.finish(version=before.version - 1).error is ErrorCode.CONFLICT
    assert cluster.finish(leader_epoch=0).error is ErrorCode.STALE_EPOCH
    assert cluster.partition == before
    assert not cluster.finish().error
    assert "not being moved" in cluster.finish().message


def test_a_target_that_dies_on_the_way_is_waited_for_and_may_be_given_up(cluster):
    begun(cluster, "a", "b", "d")
    cluster.change_isr("a", "b", "c", "d")
    cluster.expire("d")
    assert cluster.partition.isr == ("a", "b", "c")
    assert cluster.finish().error is ErrorCode.CONFLICT
    assert not cluster.cancel().error
    assert (cluster.partition.replicas, cluster.partition.isr) == (("a", "b", "c"), ("a", "b", "c"))
    assert not cluster.reassign("a", "b", "e").error


def test_the_leader_dies_on_the_way(cluster):
    begun(cluster, "d", "e", "f")
    cluster.change_isr("a", "b", "c", "d")
    cluster.expire("a")
    info = cluster.partition
    assert (info.leader in {"b", "c", "d"}, info.leader_epoch, info.target) == (True, 2, ("d", "e", "f"))
    cluster.change_isr("b", "c", "d", "e", "f")
    assert not cluster.finish().error
    assert cluster.partition.isr == ("d", "e", "f")


def test_cancelling_takes_a_leadership_back(cluster):
    begun(cluster, "d", "e", "f")
    cluster.change_isr("a", "b", "c", "d")
    cluster.do("move_leader", **WHERE, leader="d", leader_epoch=1, version=cluster.partition.version)
    assert cluster.cancel().value["leader"] == "a"
    info = cluster.partition
    assert (info.replicas, info.isr, info.leader_epoch, info.target) == (("a", "b", "c"), ("a", "b", "c"), 3, None)
    assert "not being moved" in cluster.cancel().message


def test_cancelling_is_refused_while_too_few_of_before_are_in_sync(cluster):
    begun(cluster, "a", "d", "e")
    cluster.change_isr("a", "d", "e")
    refused = cluster.cancel()
    assert (refused.error, "too few are in sync" in refused.message) == (ErrorCode.CONFLICT, True)
    assert cluster.partition.isr == ("a", "d", "e")
    cluster.change_isr("a", "b", "d", "e")
    assert not cluster.cancel().error
    assert cluster.partition.isr == ("a", "b")


def test_cancelling_keeps_those_whose_log_is_asked_for(cluster):
    begun(cluster, "a", "b", "d")
    cluster.change_isr("a", "b", "d")
    for node in "abd":
        cluster.register(node, is_log_proven=False)
    assert (cluster.partition.isr, set(cluster.partition.unproven)) == ((), {"a", "b", "d"})
    assert cluster.cancel().error is ErrorCode.CONFLICT
    for node in "abd":
        cluster.report(node, 1, 7)
    assert cluster.partition.leader == "a"


def test_a_second_move_is_refused_until_the_first_is_over(cluster):
    begun(cluster, "a", "b", "d")
    refused = cluster.reassign("a", "b", "e")
    assert (refused.error, "a, b, d" in refused.message) == (ErrorCode.CONFLICT, True)
    version = cluster.partition.version
    assert cluster.reassign("a", "b", "d").value == {"partitions": [0]}  # the same again
    assert cluster.partition.version == version
    cluster.cancel()
    assert not cluster.reassign("a", "b", "e").error


def test_a_move_to_where_it_is_changes_nothing(cluster):
    before = cluster.partition
    assert cluster.reassign("a", "b", "c").value == {"partitions": []}
    assert cluster.partition is before


def test_what_a_node_keeps_it_may_go_on_keeping(cluster):
    cluster.do("drain_node", node_id="b", draining=True)
    cluster.expire("c")
    assert not cluster.reassign("b", "c", "d").error


def test_another_order_makes_another_preferred_leader(cluster):
    begun(cluster, "b", "a", "c")
    assert cluster.partition.replicas == ("a", "b", "c")
    assert cluster.finish().value["leader"] == "a"
    assert cluster.partition.replicas == ("b", "a", "c")


@pytest.mark.parametrize(
    ("nodes", "observers", "message"),
    [
        (("a", "x", "b"), (), "no node 'x'"),
        (("a", "a", "b"), (), "different nodes"),
        (("a",), (), "min_isr"),
        ((), (), "min_isr"),
        (("a", "b"), ("b",), "min_isr"),
        (("a", "b"), ("c", "c"), "different nodes"),
        (("a", "b", "d"), (), "drained"),
        (("a", "b", "e"), (), "not running"),
    ],
)
def test_a_move_that_can_not_be(cluster, nodes, observers, message):
    cluster.do("drain_node", node_id="d", draining=True)
    cluster.expire("e")
    before = cluster.partition
    outcome = cluster.reassign(*nodes, observers=observers)
    assert outcome.error, outcome
    assert message in outcome.message
    assert cluster.partition is before


@pytest.mark.parametrize("moves", [None, 5, [[0]], [[0, None, []]], [[0, ["a", 5, "b"], []]], [[None, ["a", "b"], []]]])
def test_malformed_moves(cluster, moves):
    outcome = cluster.attempt("reassign_partitions", name="orders", uuid=UUIDS[0], moves=moves)
    assert (outcome.error, cluster.partition.target) == (ErrorCode.INVALID_REQUEST, None)


def test_too_many_replicas(cluster):
    nodes = [f"n{number}" for number in range(24)]
    for node in nodes:
        cluster.register(node)
    assert "at most 7" in cluster.reassign(*nodes[:8]).message
    assert "16 observers" in cluster.reassign(*nodes, observers=tuple(nodes[7:])).message
    assert not cluster.reassign(*nodes[:23], observers=tuple(nodes[7:23])).error


def test_observers_never_count(cluster):
    begun(cluster, "a", "b", "c", observers=("d",))
    assert (cluster.partition.target, cluster.partition.observers) == (("a", "b", "c", "d"), ("d",))
    assert cluster.change_isr("a", "b", "c", "d").error is ErrorCode.INVALID_REQUEST
    assert not cluster.finish().error
    info = cluster.partition
    assert (info.replicas, info.observers, info.voters) == (("a", "b", "c", "d"), ("d",), ("a", "b", "c"))
    assert cluster.suspect("d").error is ErrorCode.CONFLICT
    moved = cluster.attempt("move_leader", **WHERE, leader="d", leader_epoch=1, version=info.version)
    assert moved.error is ErrorCode.CONFLICT


def test_an_observer_becomes_a_replica_that_counts(cluster):
    begun(cluster, "a", "b", "c", observers=("d",))
    cluster.finish()
    begun(cluster, "a", "b", "d")
    assert cluster.partition.observers == ()
    cluster.change_isr("a", "b", "c", "d")
    assert not cluster.finish().error
    assert (cluster.partition.replicas, cluster.partition.observers) == (("a", "b", "d"), ())


def test_an_observer_that_counted_for_a_while_is_one_again_when_that_is_cancelled(cluster):
    begun(cluster, "a", "b", "c", observers=("d",))
    cluster.finish()
    begun(cluster, "a", "b", "d")
    cluster.change_isr("a", "b", "c", "d")
    assert not cluster.cancel().error
    info = cluster.partition
    assert (info.replicas, info.observers, info.isr) == (("a", "b", "c", "d"), ("d",), ("a", "b", "c"))


def test_a_replica_that_counts_becomes_an_observer_at_the_end(cluster):
    begun(cluster, "b", "c", "d", observers=("a",))
    assert (cluster.partition.observers, cluster.partition.leader) == ((), "a")
    cluster.change_isr("a", "b", "c", "d")
    assert cluster.finish().value["leader"] == "b"
    info = cluster.partition
    assert (info.replicas, info.observers, info.isr) == (("b", "c", "d", "a"), ("a",), ("b", "c", "d"))


def grown(min_isr: int | None = None) -> Cluster:
    """Two partitions with one replica each, and two more nodes."""
    cluster = Cluster("a", min_isr=None)
    for node in "bc":
        cluster.register(node)
    made: dict[str, Any] = config("two", partitions=2, min_isr=min_isr)
    cluster.do("create_stream", uuid=UUIDS[5], config=made, assignment=[["a"], ["b"]])
    return cluster


def move(cluster: Cluster, number: int, *nodes: str) -> None:
    where = {"name": "two", "uuid": UUIDS[5]}
    cluster.do("reassign_partitions", **where, moves=[[number, list(nodes), []]])
    info = cluster.state.streams["two"].partitions[number]
    term = {"partition": number, "leader_epoch": info.leader_epoch, "version": info.version}
    cluster.do(
        "change_isr",
        **where | term,
        leader=info.leader,
        isr=list(info.replicas),
        incarnations={node: cluster.incarnation(node) for node in info.replicas},
    )
    cluster.do("finish_reassignment", **where | term | {"version": info.version + 1})


def test_the_configuration_follows_when_all_partitions_agree():
    cluster = grown()
    move(cluster, 0, "a", "b", "c")
    stream = cluster.state.streams["two"]
    assert (stream.config.replicas, stream.config.min_isr_effective, stream.version) == (1, 1, 1)
    move(cluster, 1, "c", "b", "a")
    stream = cluster.state.streams["two"]
    assert (stream.config.replicas, stream.config.min_isr_effective, stream.version) == (3, 2, 2)


def test_min_isr_is_no_more_than_the_smallest_partition_can_keep():
    cluster = grown(min_isr=1)
    for number in (0, 1):
        move(cluster, number, "a", "b", "c")
    cluster.do("reassign_partitions", name="two", uuid=UUIDS[5], moves=[[1, ["a"], []]])
    outcome = cluster.attempt("update_stream", name="two", changes={"min_isr": 2})
    assert (outcome.error, outcome.message.startswith("min_isr:")) == (ErrorCode.CONFLICT, True)
    cluster.do("cancel_reassignment", name="two", uuid=UUIDS[5], partition=1)
    cluster.do("update_stream", name="two", changes={"min_isr": 2})


@pytest.mark.parametrize("changes", [{"replicas": 2}, {"observers": 1}])
def test_the_number_of_copies_is_changed_by_reassigning(cluster, changes):
    outcome = cluster.attempt("update_stream", name="orders", changes=changes)
    assert (outcome.error, "reassign" in outcome.message) == (ErrorCode.INVALID_CONFIG, True)


def test_a_node_that_comes_back_in_the_same_epoch_begins_another(cluster):
    begun(cluster, "a", "b", "d")
    cluster.change_isr("a", "b", "c", "d")
    assert not cluster.finish().error
    assert (cluster.partition.departed, cluster.partition.leader_epoch) == (("c",), 1)
    begun(cluster, "a", "b", "c")
    info = cluster.partition
    assert (info.leader, info.leader_epoch, info.departed) == ("a", 2, ()), "what c said of its old log counts no more"


def test_another_node_that_comes_does_not_interrupt_the_leader(cluster):
    begun(cluster, "a", "b", "d")
    cluster.change_isr("a", "b", "c", "d")
    cluster.finish()
    begun(cluster, "a", "b", "e")
    assert (cluster.partition.leader_epoch, cluster.partition.departed) == (1, ("c",))


def test_a_stream_of_a_queue_group_gets_no_replicas():
    """A leader that stood still would go on getting its share after a failover, and lose it."""
    cluster = Cluster("n1", "n2", min_isr=1)
    made = config("shared", group="workers")
    cluster.do("create_stream", uuid=UUIDS[5], config=made, assignment=[["n1"]])
    target = {"name": "shared", "uuid": UUIDS[5]}
    refused = cluster.attempt("reassign_partitions", **target, moves=[[0, ["n1", "n2"], []]])
    assert refused.error is ErrorCode.INVALID_CONFIG
    assert "take it out of the group first" in refused.message
    assert cluster.attempt("reassign_partitions", **target, moves=[[0, ["n2"], []]]).error is ErrorCode.NONE
    cluster.do("update_stream", name="shared", changes={"group": None})
    assert cluster.state.streams["shared"].config.group is None
