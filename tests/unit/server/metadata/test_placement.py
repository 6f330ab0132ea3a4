"""Where replicas go: over racks, evenly, the same for the same state, and away from nodes that are to be emptied."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.events import EVENTS_STREAM
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.metadata.placement import Placement, drain_moves, leader_moves, place, shared_racks
from support.examples import examples
from support.metadata_commands import UUIDS, Cluster, config


def cluster_of(racks: dict[str, str | None]) -> Cluster:
    cluster = Cluster(*list(racks)[:1], streams=0, min_isr=None)
    for node, rack in racks.items():
        cluster.register(node, rack=rack)
    return cluster


def stream(partitions=1, replicas=3, name="orders", **settings):
    return StreamConfig(name=name, subject=name, partitions=partitions, replicas=replicas, **settings)


def create(cluster: Cluster, wanted: StreamConfig, uuid: str = UUIDS[0]):
    args = {"uuid": uuid, "config": wanted.to_plain(), "assignment": place(cluster.state, wanted)}
    return cluster.attempt("create_stream", **args)


def test_replicas_and_leaders_are_spread():
    cluster = cluster_of(dict.fromkeys("abcde"))
    assignment = place(cluster.state, stream(partitions=10))
    assert all(len(set(nodes)) == 3 for nodes in assignment)
    assert Counter(nodes[0] for nodes in assignment) == dict.fromkeys("abcde", 2)
    assert Counter(node for nodes in assignment for node in nodes) == dict.fromkeys("abcde", 6)


def test_racks_that_replicas_share_are_told():
    cluster = cluster_of({"a": "h1", "a-2": "h1", "b": "h2", "b-2": "h2", "c": None})
    assert not shared_racks(cluster.state, place(cluster.state, stream(partitions=10)))
    assert shared_racks(cluster.state, place(cluster.state, stream(replicas=4))) != []
    assert shared_racks(cluster.state, place(cluster.state, stream(replicas=5))) == ["h1", "h2"]


def test_streams_of_one_partition_are_spread_too():
    cluster = cluster_of(dict.fromkeys("abc"))
    for number in range(9):
        assert not create(cluster, stream(name=f"s{number}", replicas=1), f"{number:032x}").error
    leaders = Counter(info.partitions[0].leader for info in cluster.state.streams.values())
    assert leaders == dict.fromkeys("abc", 3)


def test_every_partition_is_in_as_many_racks_as_can_be():
    racks = {"a": "r1", "b": "r1", "c": "r1", "d": "r2", "e": "r3"}
    cluster = cluster_of(racks)
    for nodes in place(cluster.state, stream(partitions=12)):
        assert {racks[node] for node in nodes} == {"r1", "r2", "r3"}
    for nodes in place(cluster.state, stream(partitions=12, replicas=5)):
        assert set(nodes) == set("abcde")


def test_what_is_there_already_counts():
    cluster = cluster_of(dict.fromkeys("ab"))
    create(cluster, stream(partitions=4, replicas=2))
    cluster.register("c")
    assignment = place(cluster.state, stream(name="more", partitions=2, replicas=1))
    assert assignment == [["c"], ["c"]]


def test_drained_and_expired_nodes_are_avoided():
    cluster = cluster_of(dict.fromkeys("abcde"))
    cluster.do("drain_node", node_id="a", draining=True)
    cluster.expire("b")
    for nodes in place(cluster.state, stream(partitions=6)):
        assert set(nodes) == set("cde")
    for nodes in place(cluster.state, stream(partitions=6, replicas=4)):
        assert set(nodes) == set("bcde")
        assert nodes[0] != "b"


def test_a_stream_may_begin_without_a_node_that_is_down():
    cluster = cluster_of(dict.fromkeys("abc"))
    cluster.expire("b")
    assert not create(cluster, stream()).error
    info = cluster.partition
    assert (set(info.replicas), set(info.isr), info.leader in {"a", "c"}) == (set("abc"), set("ac"), True)
    for node in "ac":
        cluster.expire(node)
    assert not create(cluster, stream(name="later"), UUIDS[1]).error
    info = cluster.state.streams["later"].partitions[0]
    assert (set(info.isr), info.leader) == (set("abc"), None)


def test_a_stream_is_not_created_on_nodes_that_are_drained():
    cluster = cluster_of(dict.fromkeys("abc"))
    cluster.do("drain_node", node_id="a", draining=True)
    outcome = create(cluster, stream())
    assert (outcome.error, "'a' is being drained" in outcome.message) == (ErrorCode.CONFLICT, True)
    cluster.do("drain_node", node_id="a", draining=False)
    assert not create(cluster, stream()).error


@pytest.mark.parametrize(("settings", "field"), [({"replicas": 4}, "replicas"), ({"observers": 1}, "observers")])
def test_more_copies_than_nodes(settings, field):
    cluster = cluster_of(dict.fromkeys("abc"))
    outcome = create(cluster, stream(**settings))
    assert (outcome.error, outcome.message.startswith(f"{field}:")) == (ErrorCode.INVALID_CONFIG, True)


@pytest.mark.parametrize("nodes", [["a", "a"], ["a", "x"], ["a"], ["a", "b", "c"], ["a", None], "ab", {"a": 1, "b": 2}])
def test_an_assignment_that_can_not_be(nodes):
    cluster = cluster_of(dict.fromkeys("abc"))
    outcome = cluster.attempt("create_stream", uuid=UUIDS[0], config=config(replicas=2), assignment=[nodes])
    assert (outcome.error, cluster.state.streams) == (ErrorCode.INVALID_REQUEST, {})


def test_observers_come_last_and_never_count():
    cluster = cluster_of(dict.fromkeys("abcd"))
    assert not create(cluster, stream(replicas=2, observers=2)).error
    info = cluster.partition
    assert (len(info.replicas), info.observers, info.isr) == (4, info.replicas[2:], info.replicas[:2])


def emptied(cluster: Cluster, node: str) -> None:
    """Drain a node: leaderships first, then replicas."""
    cluster.do("drain_node", node_id=node, draining=True)
    for move in leader_moves(cluster.state, node):
        cluster.do("move_leader", **move)
    for moves in drain_moves(cluster.state, node):
        cluster.do("reassign_partitions", **moves)
    for name, info in cluster.state.streams.items():
        for number, partition in enumerate(info.partitions):
            if partition.target is None:
                continue
            where = {"name": name, "uuid": info.uuid, "partition": number, "leader_epoch": partition.leader_epoch}
            known = {member: cluster.incarnation(member) for member in partition.replicas}
            isr = {"leader": partition.leader, "isr": list(partition.voters), "incarnations": known}
            cluster.do("change_isr", **where, **isr, version=partition.version)
            cluster.do("finish_reassignment", **where, version=partition.version + 1)


def test_a_node_is_drained_and_removed():
    racks = {"a": "r1", "b": "r2", "c": "r3", "d": "r1"}
    cluster = cluster_of(racks)
    create(cluster, stream(partitions=6))
    create(cluster, stream(name="watched", partitions=3, replicas=2, observers=1), UUIDS[1])
    outcome = cluster.attempt("remove_node", node_id="a")
    assert (outcome.error, "drain it first" in outcome.message) == (ErrorCode.CONFLICT, True)
    emptied(cluster, "a")
    for info in cluster.state.streams.values():
        for partition in info.partitions:
            assert "a" not in partition.replicas
            assert len(partition.isr) == info.config.replicas
            assert len({racks[node] for node in partition.replicas}) == 3
    cluster.do("remove_node", node_id="a")
    assert sorted(cluster.state.nodes) == ["b", "c", "d"]


def test_while_a_node_is_drained_it_is_given_nothing():
    cluster = cluster_of(dict.fromkeys("abc"))
    create(cluster, stream())
    preferred = cluster.partition.replicas[0]
    emptied(cluster, preferred)
    assert cluster.partition.leader != preferred
    back = {"name": "orders", "uuid": UUIDS[0], "partition": 0, "leader": preferred}
    term = {"leader_epoch": cluster.partition.leader_epoch, "version": cluster.partition.version}
    outcome = cluster.attempt("move_leader", **back, **term)
    assert (outcome.error, "drained" in outcome.message) == (ErrorCode.CONFLICT, True)
    cluster.expire(cluster.partition.leader)
    assert cluster.partition.leader not in {preferred, None}
    assert drain_moves(cluster.state, preferred) == []  # there is no other node


def test_a_drained_node_leads_when_nobody_else_can():
    cluster = cluster_of(dict.fromkeys("ab"))
    create(cluster, stream(replicas=2, min_isr=1))
    follower = cluster.partition.replicas[1]
    cluster.do("drain_node", node_id=follower, draining=True)
    cluster.expire(cluster.partition.leader)
    assert cluster.partition.leader == follower
    assert leader_moves(cluster.state, follower) == []


def test_a_drain_outlives_a_restart():
    cluster = cluster_of(dict.fromkeys("ab"))
    cluster.do("drain_node", node_id="a", draining=True)
    cluster.register("a", draining=False)
    assert cluster.state.nodes["a"].draining
    for args in ({"node_id": "x", "draining": True}, {"node_id": "a", "draining": 0}):
        assert cluster.attempt("drain_node", **args).error


def test_a_node_that_comes_back_after_its_removal_is_taken_for_no_earlier_one():
    cluster = cluster_of(dict.fromkeys("abc"))
    for _ in range(3):
        cluster.register("c")
    incarnation = cluster.incarnation("c")
    cluster.do("remove_node", node_id="c")
    assert cluster.attempt("remove_node", node_id="c").error is ErrorCode.CONFLICT
    assert cluster.register("c") == incarnation + 1


def test_where_a_node_listens_is_known():
    cluster = cluster_of({"a": None})
    assert (cluster.state.nodes["a"].metadata_host, cluster.state.nodes["a"].metadata_port) == (None, None)
    cluster.register("a", metadata_host="10.0.0.1", metadata_port=4271)
    assert (cluster.state.nodes["a"].metadata_host, cluster.state.nodes["a"].metadata_port) == ("10.0.0.1", 4271)


@pytest.mark.parametrize("wrong", [{"node_id": 5}, {"node_id": ""}, {"pull_port": "1"}, {"rack": 3}, {"level": None}])
def test_a_node_registers_with_values_of_the_right_kind(wrong):
    cluster = cluster_of({"a": None})
    node = {"node_id": "b", "pull_host": "h", "pull_port": 1} | wrong
    outcome = cluster.attempt("register_node", node=node)
    assert (outcome.error, list(cluster.state.nodes)) == (ErrorCode.INVALID_REQUEST, ["a"])


def test_who_places_stream_after_stream_comes_to_the_same_as_who_counts_anew():
    cluster, placement = cluster_of(dict.fromkeys("abcde")), Placement()
    for number in range(12):
        wanted = stream(partitions=2, name=f"s{number}")
        assert placement.place(cluster.state, wanted) == place(cluster.state, wanted)
        assert not create(cluster, wanted, f"{number:032x}").error
        if number % 3 == 2:
            cluster.do("delete_stream", name=f"s{number - 1}")
            cluster.do("drain_node", node_id="abcde"[number % 5], draining=number % 2 == 0)
    assert placement.place(cluster.state, stream(name="last")) == place(cluster.state, stream(name="last"))


_racks = st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from([None, "r1", "r2", "r3"]), min_size=3)


@given(_racks, st.integers(1, 12), st.integers(1, 3), st.sets(st.sampled_from("abcdefg")), st.data())
@examples(150)
def test_any_cluster(racks, partitions, replicas, drained, data):
    cluster = cluster_of(racks)
    drained &= set(racks)
    for node in drained:
        cluster.do("drain_node", node_id=node, draining=True)
    wanted = stream(partitions=partitions, replicas=replicas)
    assignment = place(cluster.state, wanted)
    assert assignment == place(cluster.state, wanted)
    free = set(racks) - drained
    for nodes in assignment:
        assert len(set(nodes)) == len(nodes) == replicas
        assert set(nodes) <= free or free <= set(nodes)
    if not drained:
        count = lambda nodes: len({racks[node] or node for node in nodes})
        possible = min(replicas, count(racks))
        assert all(count(nodes) == possible for nodes in assignment)
        assert not create(cluster, wanted).error
        emptied(cluster, data.draw(st.sampled_from(sorted(racks))))


def events_on(*nodes):
    """A cluster with the stream of the events alone, which has a replica on each node."""
    cluster = cluster_of(dict.fromkeys(nodes))
    wanted = StreamConfig(name=EVENTS_STREAM, subject="", replicas=len(nodes), min_isr=1)
    assert not create(cluster, wanted).error
    return cluster


def test_events_keep_no_node_in_the_cluster():
    cluster = events_on("a", "b", "c")
    for drained, left in (("a", {"b", "c"}), ("b", {"c"})):
        cluster.do("drain_node", node_id=drained, draining=True)
        (plan,) = drain_moves(cluster.state, drained)
        ((_, nodes, _),) = plan["moves"]
        assert set(nodes) == left
        cluster.do("reassign_partitions", **plan)
        (info,) = cluster.state.streams[EVENTS_STREAM].partitions
        where = {"name": EVENTS_STREAM, "uuid": UUIDS[0], "partition": 0}
        cluster.do("finish_reassignment", **where, leader_epoch=info.leader_epoch, version=info.version)
        assert set(cluster.state.streams[EVENTS_STREAM].partitions[0].replicas) == left
    cluster.do("drain_node", node_id="c", draining=True)
    assert drain_moves(cluster.state, "c") == [], "the last one stays"


def test_events_are_moved_where_they_can_be():
    cluster = events_on("a", "b")
    cluster.register("c")
    cluster.do("drain_node", node_id="a", draining=True)
    (plan,) = drain_moves(cluster.state, "a")
    assert set(plan["moves"][0][1]) == {"b", "c"}


def test_where_events_are_moves_no_other_stream():
    cluster = cluster_of(dict.fromkeys("abc"))
    wanted = [stream(name=f"s{number}", replicas=1) for number in range(6)]
    without = [place(cluster.state, each) for each in wanted]
    assert not create(cluster, StreamConfig(name=EVENTS_STREAM, subject="", replicas=2)).error
    assert [place(cluster.state, each) for each in wanted] == without
