"""A replica that is cut before a round of group commit began has on disk what the cut has left, and says so."""

from __future__ import annotations

from support.nats_frames import msg


def publish(side, *numbers):
    side.kit.receive(*(msg(b"orders.x", b"v%d" % number) for number in numbers))


def deliver(side):
    while side.deliver():
        pass


def test_what_a_cut_has_left_is_on_disk_and_the_leader_is_told_so(three):
    publish(three["a"], 0, 1)
    three.run("ab")
    deliver(three["c"])  # which has not synced it yet
    publish(three["a"], 2)
    deliver(three["c"])
    assert [side.partition.log.log_end for side in three.sides.values()] == [3, 2, 3]
    assert three["c"].partition.log.synced_end == 0
    three.lead("b", 2)
    three.run(sync=False)  # it cuts before the round that it has asked for begins
    three.run()
    assert [side.partition.log.log_end for side in three.sides.values()] == [2, 2, 2]
    assert [side.partition.log.synced_end for side in three.sides.values()] == [2, 2, 2]
    assert three["b"].partition.high_watermark == 2
