"""What a node tells its replicas of the metadata, and in which order it follows what has changed."""

from __future__ import annotations

from types import SimpleNamespace

from liftpy_server.replication.host.views import by_urgency, partition_view
from support.metadata_commands import Cluster


def test_who_left_the_isr_with_its_session_has_no_incarnation_until_it_is_back():
    cluster = Cluster("a", "b", "c")
    cluster.expire("c")
    view = partition_view(cluster.state, "orders", 0)
    assert (view.isr, view.incarnations) == (("a", "b"), {"a": 1, "b": 1})
    cluster.register("c")
    view = partition_view(cluster.state, "orders", 0)
    assert (view.isr, view.incarnations) == (("a", "b"), {"a": 1, "b": 1, "c": 2})


def test_who_stays_in_the_isr_keeps_its_incarnation_without_a_session():
    """Where the place of a node is needed for `min_isr`, what it has said must go on to count."""
    cluster = Cluster("a", "b")
    cluster.expire("b")
    view = partition_view(cluster.state, "orders", 0)
    assert (view.isr, view.incarnations) == (("a", "b"), {"a": 1, "b": 1})


def test_a_stream_that_is_not_there_has_no_view():
    assert partition_view(Cluster("a", "b").state, "flights", 0) is None


def test_what_has_another_leader_comes_before_what_has_another_isr():
    """Of that what is to be led here comes first, and of the rest as well."""
    cluster = Cluster("a", "b", "c", "d", streams=4)
    for name in ("orders1", "orders2"):
        stream = cluster.state.streams[name]
        where = {"name": name, "uuid": stream.uuid, "partition": 0, "leader_epoch": 1, "version": 1}
        cluster.do("move_leader", leader="d", **where)
    before = {stream.uuid: SimpleNamespace(info=stream) for stream in cluster.state.streams.values()}
    where = {"name": "orders1", "uuid": cluster.state.streams["orders1"].uuid, "partition": 0}
    cluster.do("move_leader", leader="a", leader_epoch=2, version=2, **where)
    cluster.expire("d")
    after = sorted(
        cluster.state.streams.values(), key=by_urgency(lambda info: info.partitions[0].leader == "a", before)
    )
    led = [(stream.name, stream.partitions[0].leader_epoch) for stream in after]
    assert led[0] == ("orders1", 3)
    assert led[1] == ("orders2", 3)
    assert {name for name, _ in led[2:]} == {"orders", "orders3"}
