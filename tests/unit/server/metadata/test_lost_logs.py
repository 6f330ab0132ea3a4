"""A node starts without some of its logs: it counts for these partitions no more, until it has copied them anew."""

from __future__ import annotations

import pytest

from support.metadata_commands import NODE, UUIDS, Cluster


@pytest.fixture
def cluster():
    return Cluster("a", "b", "c", streams=2)


def start(cluster, node, *lost):
    cluster.do("register_node", node=NODE | {"node_id": node}, lost=[list(each) for each in lost])


def partition(cluster, name):
    return cluster.state.streams[name].partitions[0]


def test_only_the_partition_that_was_lost_is_given_up(cluster):
    start(cluster, "a", (UUIDS[0], 0))
    lost, kept = partition(cluster, "orders"), partition(cluster, "orders1")
    assert (lost.isr, lost.unproven, lost.leader, lost.leader_epoch) == (("b", "c"), ("a",), "b", 2)
    assert (kept.isr, kept.unproven, kept.leader, kept.leader_epoch) == (("a", "b", "c"), (), "a", 2)


def test_a_log_that_another_node_may_still_have_whole_is_waited_for(cluster):
    cluster.change_isr("a", "b")
    cluster.expire("b")
    start(cluster, "a", (UUIDS[0], 0))
    assert (partition(cluster, "orders").isr, partition(cluster, "orders").leader) == (("b",), None)
    start(cluster, "b")
    assert (partition(cluster, "orders").leader, partition(cluster, "orders").unclean_elections) == ("b", 0)


def test_partitions_that_are_not_there_do_not_matter(cluster):
    start(cluster, "a", (UUIDS[0], 7), (UUIDS[2], 0))
    assert partition(cluster, "orders").isr == ("a", "b", "c")


@pytest.mark.parametrize("lost", [5, [5], [["x"]], [None]])
def test_nonsense_is_refused(cluster, lost):
    before = cluster.state.streams
    assert cluster.attempt("register_node", node=NODE | {"node_id": "a"}, lost=lost).error
    assert cluster.state.streams == before
