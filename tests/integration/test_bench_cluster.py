"""The benchmarks of clusters run to their end, and count what they say they count."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from bench.cluster_rig import NODES, ClusterRig
from bench.cluster_workloads import cluster, followers, idle
from bench.processes import cpu_s
from bench.rig import run_load
from bench.row import Plan

SMALL = replace(
    Plan.quick(),
    runs=1,
    acked={128: 2_000, 1_024: 2_000},
    followed=4_000,
    idle_s=1.0,
    idle_streams=(20,),
)


def test_both_contestants_take_the_load(tmp_path):
    with ClusterRig(tmp_path / "rig") as rig:
        assert all(cpu_s(node.pid) > 0 for node in rig.nodes)
        for server in (rig.liftpy, rig.jetstream):
            assert server.create("orders", "orders.new") == 0
            for is_beside in (True, False):
                port = server.port("orders", is_beside=is_beside)
                load = {"port": port, "subject": "orders.new", "size": 128, "count": 300, "window": 100}
                assert run_load("acked", **load)["refused"] == 0
            stored = server.settled("orders", 600)
            if server is rig.liftpy:
                assert stored == 600
                with pytest.raises(AssertionError, match="600 messages, and 601 were acknowledged"):
                    server.settled("orders", 601)
            assert 0 < stored <= 600  # JetStream was seen to have fewer, for good
        beside = [server.port for server in rig.servers].index(rig.liftpy.port("orders"))
        assert rig.liftpy.leader("orders") == f"node-{beside + 1}"
        assert rig.liftpy.are_whole(1)
        assert not rig.liftpy.are_whole(3)  # one more than this and the events


@pytest.mark.slow
def test_every_workload_of_clusters_says_something(tmp_path):
    rows = [*cluster(tmp_path, SMALL), *followers(tmp_path, SMALL)]
    if shutil.which("ss") is not None:
        rows += idle(tmp_path, SMALL)
    compared = [row for row in rows if not row.is_absolute]
    assert len(compared) == 12
    for row in compared:
        assert row.ratio > 0
        assert row.note == ""
    for row in rows:
        assert row.median("liftpy") is not None
    cpu = next(row for row in rows if "CPU of a follower" in row.workload)
    assert len(cpu.runs["liftpy"]) == NODES - 1
    assert len(cpu.runs["its leader"]) == 1
