"""Commands about nodes and partitions: who is in sync, who leads, and what a stale proposer can not do."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.partition_commands import HOLD_OFF_FIRST_NS, SUSPICION_WINDOW_NS
from liftpy_server.metadata.state import MetadataState, PartitionInfo
from support.examples import examples
from support.metadata_commands import NODE, UUIDS, WHERE, Cluster

S = 1_000_000_000


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def test_the_isr_shrinks_and_grows_in_the_order_of_the_replicas(cluster):
    assert cluster.change_isr("b", "a").value == {"version": 2}
    assert cluster.partition.isr == ("a", "b")
    assert not cluster.change_isr("c", "b", "a").error
    assert cluster.partition.isr == ("a", "b", "c")
    assert cluster.partition.leader_epoch == 1


@pytest.mark.parametrize(
    ("stale", "code"),
    [
        ({"leader_epoch": 0}, ErrorCode.STALE_EPOCH),
        ({"leader_epoch": 2}, ErrorCode.STALE_EPOCH),
        ({"version": 0}, ErrorCode.CONFLICT),
        ({"leader": "b"}, ErrorCode.NOT_LEADER),
        ({"uuid": UUIDS[1]}, ErrorCode.STREAM_RECREATED),
        ({"partition": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_stale_proposal_changes_nothing(cluster, stale, code):
    before = cluster.partition
    assert cluster.change_isr("a", "b", **stale).error is code
    assert cluster.partition == before


def test_an_isr_is_a_set_of_replicas_with_the_leader(cluster):
    cluster.register("d")
    for isr in (["b", "c"], ["a", "a", "b"], ["a", "d"], []):
        assert cluster.change_isr(*isr).error


def test_a_joiner_that_has_restarted_since_is_not_added(cluster):
    cluster.change_isr("a", "b")
    cluster.register("c", is_log_proven=False)
    assert cluster.change_isr("a", "b", "c", incarnations={"c": 1}).error is ErrorCode.CONFLICT
    assert not cluster.change_isr("a", "b", "c", incarnations={"c": 2}).error


def test_a_joiner_without_a_session_is_not_added(cluster):
    cluster.change_isr("a", "b")
    cluster.do("expire_node", node_id="c", incarnation=1)
    assert cluster.change_isr("a", "b", "c").error is ErrorCode.CONFLICT


def test_the_isr_is_never_made_smaller_than_min_isr(cluster):
    assert not cluster.change_isr("a", "b").error
    assert cluster.change_isr("a").error is ErrorCode.CONFLICT
    assert cluster.partition.isr == ("a", "b")


def test_a_majority_of_the_others_deposes_a_silent_leader(cluster):
    assert cluster.suspect("b").value == {"deposed": False}
    assert cluster.partition.leader == "a"
    assert cluster.suspect("c").value == {"deposed": True}
    assert (cluster.partition.leader in {"b", "c"}, cluster.partition.leader_epoch) == (True, 2)
    assert cluster.partition.isr == ("b", "c")
    assert cluster.partition.suspicions == ()


def test_the_deposed_leader_keeps_its_place_where_min_isr_needs_it():
    cluster = Cluster("a", "b")
    assert cluster.suspect("b").value == {"deposed": True}
    assert (cluster.partition.leader, cluster.partition.isr) == ("b", ("a", "b"))


def test_one_voice_counts_once(cluster):
    for _ in range(3):
        assert cluster.suspect("b").value == {"deposed": False}


def test_suspicions_are_of_one_window(cluster):
    cluster.suspect("b")
    cluster.now_ns += SUSPICION_WINDOW_NS + 1
    assert cluster.suspect("c").value == {"deposed": False}
    assert cluster.suspect("b").value == {"deposed": True}


@pytest.mark.parametrize("args", [{"leader_epoch": 0}, {"incarnation": 0}, {"node_id": "a"}, {"node_id": "x"}])
def test_who_has_no_voice_is_not_heard(cluster, args):
    assert cluster.suspect("b", **args).error
    assert cluster.partition.suspicions == ()


def test_who_is_not_in_sync_has_no_voice(cluster):
    cluster.change_isr("a", "b")
    assert cluster.suspect("c").error is ErrorCode.CONFLICT


def test_suspicions_do_not_stand_in_the_way_of_the_leaders_proposals(cluster):
    version = cluster.partition.version
    cluster.suspect("b")
    assert cluster.partition.version == version


def test_two_members_depose_each_other_ever_more_slowly():
    cluster = Cluster("a", "b")
    waits = []
    for _ in range(8):
        voter = "b" if cluster.partition.leader == "a" else "a"
        begun = cluster.now_ns
        while not cluster.suspect(voter).value["deposed"]:
            cluster.now_ns += S // 4
        waits.append((cluster.now_ns - begun) // S)
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60]


def test_a_clock_that_was_wrong_once_does_no_lasting_harm():
    cluster = Cluster("a", "b")
    cluster.now_ns += 10**6 * S
    cluster.suspect("b")
    cluster.now_ns -= 10**6 * S
    assert cluster.suspect("a").value == {"deposed": True}
    cluster.now_ns += HOLD_OFF_FIRST_NS
    assert cluster.suspect("b").value == {"deposed": True}


def test_a_session_that_ends_costs_leaderships_and_places():
    cluster = Cluster("a", "b", "c", streams=4)
    cluster.do("expire_node", node_id="a", incarnation=1)
    infos = [stream.partitions[0] for stream in cluster.state.streams.values()]
    assert [info.leader for info in infos] == ["b", "c", "b", "c"]  # spread
    assert all(info.isr == ("b", "c") and info.leader_epoch == 2 for info in infos)


def test_only_the_incarnation_that_was_silent_expires(cluster):
    cluster.register("a")
    assert cluster.attempt("expire_node", node_id="a", incarnation=1).error is ErrorCode.CONFLICT
    assert cluster.attempt("expire_node", node_id="x", incarnation=1).error is ErrorCode.CONFLICT
    assert cluster.partition.leader == "a"


def test_without_any_session_nobody_leads_until_a_clean_member_returns(cluster):
    for node in "abc":
        cluster.do("expire_node", node_id=node, incarnation=1)
    assert (cluster.partition.leader, cluster.partition.isr) == (None, ("b", "c"))
    epoch = cluster.partition.leader_epoch
    cluster.register("a")
    assert cluster.partition.leader is None  # it may lack what the others have committed
    cluster.register("c")
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == ("c", epoch + 1)
    assert cluster.partition.unclean_elections == 0


def test_a_restarted_leader_gets_a_new_epoch(cluster):
    cluster.register("a")
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == ("a", 2)
    cluster.register("b")
    assert cluster.partition.leader_epoch == 2


def test_a_node_that_can_not_prove_its_log_is_out_before_it_serves(cluster):
    cluster.register("a", is_log_proven=False)
    assert cluster.partition.isr == ("b", "c")
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == ("b", 2)
    cluster.register("c", is_log_proven=False)
    assert (cluster.partition.isr, cluster.partition.leader, cluster.partition.leader_epoch) == (("b",), "b", 2)


def test_unproven_members_wait_for_the_clean_one_that_has_no_session(cluster):
    cluster.change_isr("a", "b")
    cluster.do("expire_node", node_id="b", incarnation=1)
    cluster.register("a", is_log_proven=False)
    assert (cluster.partition.isr, cluster.partition.leader) == (("b",), None)
    assert cluster.report("a", 1, 100).error is ErrorCode.CONFLICT
    cluster.register("b")
    assert cluster.partition.leader == "b"
    assert cluster.partition.unclean_elections == 0


def lose_all(cluster: Cluster) -> None:
    for node in "abc":
        cluster.register(node, is_log_proven=False)
    assert (cluster.partition.isr, cluster.partition.leader) == ((), None)


@pytest.mark.parametrize(
    ("reports", "winner"),
    [
        ({"a": (1, 10), "b": (1, 12), "c": (1, 11)}, "b"),
        ({"a": (2, 3), "b": (1, 12), "c": (2, 2)}, "a"),
        ({"c": (-1, 0), "b": (-1, 0), "a": (-1, 0)}, "a"),
    ],
)
def test_where_no_clean_member_is_left_the_greatest_log_wins(cluster, reports, winner):
    lose_all(cluster)
    epoch = cluster.partition.leader_epoch
    for number, (node, (last_epoch, end)) in enumerate(reports.items()):
        told = cluster.report(node, last_epoch, end)
        assert told.value == {"leader": winner if number == 2 else None}
    info = cluster.partition
    assert (info.leader, info.isr, info.leader_epoch) == (winner, (winner,), epoch + 1)
    assert (info.unclean_elections, set(info.unproven), info.reports) == (0, set("abc") - {winner}, ())


def test_what_counted_before_it_was_on_disk_may_be_lost_everywhere(cluster):
    cluster.do("update_stream", name="orders", changes={"sync": "interval"})
    lose_all(cluster)
    for node in "abc":
        cluster.report(node, 1, 10)
    info = cluster.partition
    assert (info.leader, info.unclean_elections, info.unclean_epoch) == ("a", 1, info.leader_epoch)


def test_a_report_of_an_earlier_process_does_not_count(cluster):
    lose_all(cluster)
    cluster.report("a", 1, 99)
    cluster.register("a")  # it starts again, and may have lost more
    cluster.report("b", 1, 5)
    assert cluster.report("a", 1, 99, incarnation=1).error is ErrorCode.CONFLICT
    assert cluster.report("c", 1, 4).value == {"leader": None}
    assert cluster.report("a", 1, 3).value == {"leader": "b"}


def test_the_greatest_log_is_waited_for_when_its_session_ends(cluster):
    lose_all(cluster)
    cluster.report("a", 1, 99)
    cluster.do("expire_node", node_id="a", incarnation=cluster.incarnation("a"))
    cluster.report("b", 1, 5)
    assert cluster.report("c", 1, 4).value == {"leader": None}
    cluster.register("a")
    assert cluster.report("a", 1, 99).value == {"leader": "a"}


def test_the_leadership_moves_to_a_member_in_sync(cluster):
    term = {"leader_epoch": 1, "version": 1}
    assert cluster.do("move_leader", **WHERE, **term, leader="b") == {"leader_epoch": 2}
    assert (cluster.partition.leader, cluster.partition.isr) == ("b", ("a", "b", "c"))
    assert cluster.attempt("move_leader", **WHERE, **term, leader="a").error is ErrorCode.STALE_EPOCH
    now = {"leader_epoch": 2, "version": 2}
    assert cluster.do("move_leader", **WHERE, **now, leader="b") == {"leader_epoch": 2}
    cluster.change_isr("a", "b")
    for leader in ("c", "x"):
        assert cluster.attempt("move_leader", **WHERE, leader_epoch=2, version=3, leader=leader).error


def test_a_state_of_an_older_version_is_read():
    old = {"replicas": ["a"], "isr": ["a"], "leader": "a", "leader_epoch": 3, "version": 2, "log_start": 0}
    assert PartitionInfo.from_plain(old) == PartitionInfo(
        replicas=("a",), isr=("a",), leader="a", leader_epoch=3, version=2
    )


def test_a_state_with_everything_in_it_survives_a_snapshot(cluster):
    cluster.suspect("b")
    lose_all(cluster)
    cluster.report("a", 1, 9)
    restored = MetadataState.from_plain(msgpack.unpackb(msgpack.packb(cluster.state.to_plain())))
    assert restored == cluster.state


_nodes = st.sampled_from(["a", "b", "c", "x"])
_small = st.integers(-1, 4)
_any: Any = st.none() | st.text(max_size=2) | st.lists(_small, max_size=2) | st.floats() | _small | st.booleans()
_op_args = st.one_of(
    st.tuples(
        st.just("register_node"),
        st.builds(lambda n, p: {"node": NODE | {"node_id": n}, "is_log_proven": p}, _nodes, st.booleans()),
    ),
    st.tuples(st.just("expire_node"), st.fixed_dictionaries({"node_id": _nodes, "incarnation": _small})),
    st.tuples(
        st.just("change_isr"),
        st.fixed_dictionaries(
            {
                "leader": _nodes,
                "leader_epoch": _small,
                "version": _small,
                "isr": st.lists(_nodes, max_size=4),
                "incarnations": st.dictionaries(_nodes, _small),
            }
        ).map(lambda args: WHERE | args),
    ),
    st.tuples(
        st.just("suspect_leader"),
        st.fixed_dictionaries({"node_id": _nodes, "incarnation": _small, "leader_epoch": _small}).map(
            lambda args: WHERE | args
        ),
    ),
    st.tuples(
        st.just("move_leader"),
        st.fixed_dictionaries({"leader": _nodes, "leader_epoch": _small, "version": _small}).map(
            lambda args: WHERE | args
        ),
    ),
    st.tuples(
        st.just("report_log"),
        st.fixed_dictionaries({"node_id": _nodes, "incarnation": _small, "last_epoch": _small, "log_end": _small}).map(
            lambda args: WHERE | args
        ),
    ),
)
_spoiled = st.tuples(_op_args, st.integers(0, 20), _any).map(
    lambda given: (given[0][0], {**given[0][1], sorted(given[0][1])[given[1] % len(given[0][1])]: given[2]})
)


@examples(300)
@given(st.lists(st.tuples(st.one_of(_op_args, _op_args, _spoiled), st.integers(0, 10**12)), max_size=20))
def test_whatever_comes_nothing_raises_and_the_rules_hold(commands):
    cluster = Cluster("a", "b", "c")
    for (op, args), now_ns in commands:
        before = cluster.partition
        cluster.now_ns = now_ns
        cluster.attempt(op, **args)
        after = cluster.partition
        assert set(after.isr) <= set(after.replicas)
        assert after.leader is None or after.leader in after.isr
        assert not set(after.isr) & set(after.unproven)
        assert after.leader_epoch >= before.leader_epoch
        assert after.leader_epoch > before.leader_epoch or after.leader in {before.leader, None}
        changed = (before.isr, before.leader, before.leader_epoch) != (after.isr, after.leader, after.leader_epoch)
        assert after.version > before.version or not changed
        MetadataState.from_plain(msgpack.unpackb(msgpack.packb(cluster.state.to_plain())))
