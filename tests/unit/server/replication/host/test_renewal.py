"""When a log that has failed may be begun anew: not while its leader believes what it was told of it.

A leader that was told of three records on a follower's disk may let it into the in-sync replica set by that; with an
empty log in their place it could be elected.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy_server.metadata.state import PartitionInfo
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.host.replica_host import ReplicaHost
from support.nats_frames import msg
from support.replica_kit import TIMES, ReplicaKit
from support.server_kit import SetClock


@pytest.fixture
def three(tmp_path):
    kit = ReplicaKit(tmp_path)
    kit.lead("a", 1, isr="ab")
    kit["a"].kit.receive(msg(b"orders.x", b"v"))
    kit.run()
    yield kit
    kit.close()


def may_renew(kit, node, info):
    host = ReplicaHost(node, TIMES, SetClock(), None, lambda: 0.0, lambda _: None, lambda: None)
    host.enter(kit[node].replica)
    return host.may_renew(kit[node].partition, info)


INFO = PartitionInfo(replicas=("a", "b", "c"), isr=("a", "b"), leader="a", leader_epoch=1, version=1, failed=("c",))


def test_not_before_the_metadata_knows_that_it_failed(three):
    three["a"].replica.tick(0.0)
    proposed = [effect for effect in three["a"].proposals if isinstance(effect, fx.ProposeIsr)]
    assert set(proposed[-1].isr) == {"a", "b", "c"}, "this may be decided at any moment"
    three["c"].partition.fail("told to")
    assert not may_renew(three, "c", replace(INFO, failed=()))
    assert three["c"].proposals == [fx.ReportFailure(high_watermark=1)]
    assert may_renew(three, "c", INFO), "in the same leader epoch"


@pytest.mark.parametrize("more", [{"isr": ("a", "c")}, {"leader": None}, {"isr": ()}, {"leader": "c"}])
def test_not_while_somebody_counts_on_it_or_nobody_has_a_copy(three, more):
    three["c"].partition.fail("told to")
    assert not may_renew(three, "c", replace(INFO, **more))


def test_not_while_it_is_well(three):
    assert not may_renew(three, "c", replace(INFO, failed=()))
