"""A node starts without some of its logs: it counts for these partitions no more, until it has copied them anew."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.state import PartitionInfo
from support.metadata_commands import NODE, UUIDS, Cluster


@pytest.fixture
def cluster():
    return Cluster("a", "b", "c", streams=2)


def start(cluster, node, *lost):
    cluster.do("register_node", node=NODE | {"node_id": node}, lost=[list(each) for each in lost])


def start_failed(cluster, node, *failed):
    cluster.do("register_node", node=NODE | {"node_id": node}, failed=[list(each) for each in failed])


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


@pytest.mark.parametrize("field", ["lost", "failed"])
@pytest.mark.parametrize("lost", [5, [5], [["x"]], [None]])
def test_nonsense_is_refused(cluster, field, lost):
    before = cluster.state.streams
    assert cluster.attempt("register_node", node=NODE | {"node_id": "a"}, **{field: lost}).error
    assert cluster.state.streams == before


def test_a_log_that_fails_counts_no_more_at_once(cluster):
    assert cluster.report_failure("c").value == {"leader": "a"}
    assert (cluster.partition.isr, cluster.partition.failed) == (("a", "b"), ("c",))
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == ("a", 1)


def test_a_leader_whose_log_fails_leads_no_more(cluster):
    leader = cluster.report_failure("a").value["leader"]
    assert leader in {"b", "c"}
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == (leader, 2)
    assert cluster.partition.isr == ("b", "c")


def test_a_log_that_failed_is_not_elected_below_min_isr_either(cluster):
    cluster.report_failure("c")
    cluster.report_failure("b")
    assert cluster.partition.isr == ("a",), "it could commit nothing with the others either"
    cluster.report_failure("a")
    left = cluster.partition
    assert (left.isr, left.unproven, left.leader) == ((), ("c", "b", "a"), None)
    for node in "cba":
        cluster.report(node, 1, 100)
    assert cluster.partition.leader is None


@pytest.mark.parametrize("is_member", [True, False])
def test_a_proposal_under_way_does_not_bring_back_a_log_that_failed(cluster, is_member):
    if not is_member:
        cluster.change_isr("a", "b")
    version = cluster.partition.version
    cluster.report_failure("c")
    assert cluster.change_isr("a", "b", "c", version=version).error is ErrorCode.CONFLICT
    assert cluster.change_isr("a", "b", "c").error is ErrorCode.CONFLICT, "nor one that believes what it heard before"
    assert cluster.partition.isr == ("a", "b")


def test_a_new_copy_counts_when_the_leader_says_so_and_nothing_older_does(cluster):
    cluster.report_failure("c")
    version, epoch = cluster.partition.version, cluster.partition.leader_epoch
    cluster.report_renewal("c")
    assert (cluster.partition.failed, cluster.partition.isr) == ((), ("a", "b"))
    assert cluster.partition.renewed == (("c", version + 1),)
    assert cluster.partition.leader_epoch == epoch
    assert cluster.change_isr("a", "b", "c", version=version).error is ErrorCode.CONFLICT
    assert not cluster.change_isr("a", "b", "c").error


def test_what_a_node_says_twice_is_done_once(cluster):
    cluster.report_failure("c")
    after = cluster.partition
    assert not cluster.report_failure("c").error
    assert cluster.partition == after
    cluster.report_renewal("c")
    after = cluster.partition
    assert not cluster.report_renewal("c").error
    assert cluster.partition == after


def test_who_has_no_replica_or_another_incarnation_says_nothing_of_a_log(cluster):
    cluster.register("d")
    before = cluster.partition
    assert cluster.report_failure("d").error is ErrorCode.CONFLICT
    assert cluster.report_failure("c", incarnation=0).error is ErrorCode.CONFLICT
    assert cluster.report_renewal("c", incarnation=0).error is ErrorCode.CONFLICT
    assert cluster.partition == before


def test_a_node_that_starts_says_which_logs_have_failed_still(cluster):
    cluster.report_failure("c")
    start_failed(cluster, "c", (UUIDS[0], 0))
    assert (cluster.partition.failed, cluster.partition.isr) == (("c",), ("a", "b"))
    assert cluster.change_isr("a", "b", "c").error is ErrorCode.CONFLICT
    start(cluster, "c", (UUIDS[0], 0))  # somebody took it away
    assert (cluster.partition.failed, cluster.partition.isr) == ((), ("a", "b"))
    assert not cluster.change_isr("a", "b", "c").error


def test_a_proposal_under_way_does_not_survive_the_start_of_a_node_whose_log_failed(cluster):
    cluster.change_isr("a", "b")
    before = cluster.partition
    term = {"version": before.version, "incarnations": {"c": 1}}
    start_failed(cluster, "c", (UUIDS[0], 0))
    assert cluster.change_isr("a", "b", "c", **term).error is ErrorCode.CONFLICT
    assert cluster.partition.isr == ("a", "b")


def test_what_was_said_of_a_replica_goes_with_it(cluster):
    cluster.report_failure("b")
    cluster.report_failure("c")
    cluster.report_renewal("c")
    cluster.change_isr("a", "c")
    assert cluster.partition.failed == ("b",)
    assert not cluster.reassign("a", "c").error
    assert not cluster.finish().error
    assert (cluster.partition.failed, cluster.partition.replicas) == ((), ("a", "c"))
    assert PartitionInfo.from_plain(cluster.partition.to_plain()) == cluster.partition
