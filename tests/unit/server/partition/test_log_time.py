"""A wall clock that is wrong makes no node forget an id or drop a record: after failover, running, after a start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_log.ids.dedupe import DedupeWindow
from liftpy_log.log_time import LogTime
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_server.node.maintenance import Maintenance, make_checkpoint
from liftpy_server.partition.dedupe_rebuild import note_log
from liftpy_server.partition.partition import Partition
from support.nats_frames import header_block, msg
from support.replica_kit import ReplicaKit
from support.server_kit import NOW_NS

S = 10**9
WINDOW_S = 120
YEAR_S = 365 * 86_400
JUMPS_S = [600, YEAR_S]


def with_id(name, value=b"v"):
    return msg(b"orders.a", value, reply=b"r", headers=header_block(Nats_Msg_Id=name))


def publish(kit, *names):
    """Whether each was a duplicate, and its offset."""
    kit.sent()
    for name in names:
        kit.receive(with_id(name))
    kit.sync()
    return [(bool(ack.get("duplicate")), ack["offset"]) for _, ack in kit.acks()]


def restarted(kit, wall_ns):
    """The partition after a start that the checkpoint of a moment ago tells of, and with another monotonic clock."""
    before = kit.partition
    checkpoint = make_checkpoint(SimpleNamespace(partitions=[before]), kit.clock, clean=False)
    before.log.close()
    kit.clock.ns, kit.clock.seconds = wall_ns, 3.0
    log = PartitionLog.open(kit.disk, kit.files, before.log.directory, before.log.config)
    time = LogTime(log.last_timestamp, kit.clock.monotonic(), checkpoint.times[before.key.uuid, 0])
    dedupe = DedupeWindow(before.dedupe.window_ns, before.dedupe.ids_max)
    note_log(dedupe, log, time)
    kit.partitions[0] = Partition(
        *(before.key, before.stream, log, dedupe, 7, kit.outbox, kit.load, kit.sync_requests.append),
        clock=kit.clock,
        log_time=time,
    )
    return kit.partitions[0]


def retain(kit):
    """Where the log begins after a pass of retention."""
    Maintenance.retain(SimpleNamespace(_tier=None), kit.partition)
    return kit.log.log_start


@pytest.mark.parametrize("ahead_s", JUMPS_S)
def test_a_successor_whose_clock_is_ahead_knows_the_ids_still(tmp_path, ahead_s):
    kit = ReplicaKit(tmp_path)
    kit.lead("a", 1)
    kit.run()
    kit["a"].kit.receive(with_id("one"))
    kit.run()
    kit["b"].kit.clock.ns += ahead_s * S
    kit.lead("b", 2)
    kit.run()
    kit["b"].kit.receive(with_id("two"))
    kit["b"].kit.receive(with_id("one"))
    kit.run()
    acks = [(ack["offset"], bool(ack.get("duplicate"))) for _, ack in kit["b"].kit.acks()]
    assert acks == [(1, False), (0, True)]
    assert [record.timestamp for record in kit["b"].kit.records()] == [NOW_NS, NOW_NS]
    kit.close()


def leapt(side, seconds):
    """A node is started again, and its clock is so much ahead then."""
    partition, clock = side.partition, side.kit.clock
    partition.log_time = LogTime(partition.log.last_timestamp, clock.monotonic(), partition.kept_time())
    clock.ns += seconds * S


@pytest.mark.parametrize("isr", ["ab", "abc"])
@pytest.mark.parametrize("leaps", [["two"], ["three"], ["two", "three"], ["four"]])
def test_a_follower_that_copies_records_across_leaps_forgets_no_id_that_its_leader_knows(tmp_path, isr, leaps):
    """Node `c` gets three batches in one fetch, which were committed without it, or not yet."""
    kit = ReplicaKit(tmp_path)
    kit.lead("a", 1)
    kit.run()
    kit["a"].kit.receive(with_id("one"))
    kit.run()
    kit.lead("a", 2, isr=isr)
    kit.run("ab")
    for name in ("two", "three", "four"):
        kit["a"].kit.clock.advance(1)
        if name in leaps:
            leapt(kit["a"], 600)
        kit["a"].kit.receive(with_id(name))
    kit.run("ab")
    assert kit["c"].partition.log.log_end == 1
    kit.run()
    assert kit["c"].partition.log.log_end == 4
    kit.lead("c", 3)
    kit.run()
    names = ("one", "two", "three", "four", "five")
    for name in names:
        kit["c"].kit.receive(with_id(name))
    kit.run()
    acks = [(ack["offset"], bool(ack.get("duplicate"))) for _, ack in kit["c"].kit.acks()]
    assert acks == [(offset, name != "five") for offset, name in enumerate(names)]
    kit.close()


def test_a_follower_that_is_behind_counts_what_its_leader_measured(tmp_path):
    kit = ReplicaKit(tmp_path)
    kit.lead("a", 1)
    kit.run()
    kit["a"].kit.receive(with_id("one"))
    kit.run()
    for side in kit.sides.values():
        side.kit.clock.advance(WINDOW_S + 2)
    kit["a"].kit.receive(with_id("two"))
    kit.run()
    kit.lead("c", 2)
    kit.run()
    kit["c"].kit.receive(with_id("one"))
    kit.run()
    assert [(ack["offset"], bool(ack.get("duplicate"))) for _, ack in kit["c"].kit.acks()] == [(2, False)]
    kit.close()


@pytest.mark.parametrize("jump_s", [*JUMPS_S, -600])
def test_ids_outlast_a_step_of_the_clock(kit, jump_s):
    assert publish(kit, "one") == [(False, 0)]
    kit.clock.ns += jump_s * S
    assert publish(kit, "two", "one") == [(False, 1), (True, 0)]
    kit.clock.advance(WINDOW_S - 10)
    assert publish(kit, "one") == [(True, 0)]


@pytest.mark.parametrize("jump_s", [0, *JUMPS_S])
def test_an_id_is_forgotten_when_the_window_has_passed_although_nothing_was_written(kit, jump_s):
    publish(kit, "one")
    kit.clock.ns += jump_s * S
    kit.clock.advance(WINDOW_S + 1)
    assert publish(kit, "one") == [(False, 1)]


@pytest.mark.parametrize("down_s", [10, 600, YEAR_S, -600])
def test_ids_outlast_a_restart_and_time_that_was_not_measured(kit, down_s):
    publish(kit, "one", "two")
    kit.clock.advance(60)
    restarted(kit, kit.clock.ns + down_s * S)
    kit.ingest.bindings[1].partitions[0] = kit.partition
    assert publish(kit, "three", "one") == [(False, 2), (True, 0)]
    kit.clock.advance(50)
    assert publish(kit, "two") == [(True, 1)]
    kit.clock.advance(YEAR_S)
    assert publish(kit, "one") == [(False, 3)]


def test_records_have_the_right_time_after_a_night_in_which_the_node_was_off(kit):
    publish(kit, "one")
    restarted(kit, NOW_NS + 8 * 3_600 * S)
    kit.ingest.bindings[1].partitions[0] = kit.partition
    publish(kit, "two")
    assert [record.timestamp - NOW_NS for record in kit.records()] == [0, 8 * 3_600 * S]


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_retention_by_age_does_not_believe_a_step_of_the_clock(make_kit, jump_s):
    kit = make_kit(retention_age_s=300, log=LogConfig(segment_bytes=1))
    publish(kit, "one", "two", "three")
    kit.clock.ns += jump_s * S
    assert retain(kit) == 0
    publish(kit, "four")
    assert retain(kit) == 0
    kit.clock.advance(301)
    assert retain(kit) == 4, "time has passed, whatever the wall clock says"


def test_retention_by_age_counts_the_time_that_a_quiet_node_ran_before_its_restart(make_kit):
    kit = make_kit(retention_age_s=300)
    publish(kit, "one")
    kit.clock.advance(200)
    restarted(kit, kit.clock.ns + YEAR_S * S)
    assert retain(kit) == 0
    kit.clock.advance(101)
    assert retain(kit) == 1


def test_a_newest_record_from_a_clock_that_was_ahead_makes_the_others_no_older(make_kit):
    kit = make_kit(retention_age_s=300, log=LogConfig(segment_bytes=1))
    publish(kit, "one", "two")
    kit.clock.ns += YEAR_S * S
    kit.partition.log_time = LogTime(0, kit.clock.monotonic())  # as if the log had no time yet
    publish(kit, "three")
    kit.clock.ns -= YEAR_S * S
    assert retain(kit) == 0


def test_a_clock_that_is_off_is_told_once_and_shown(make_kit, caplog):
    caplog.set_level("INFO")
    kit = make_kit()
    publish(kit, "one")
    maintenance = Maintenance(
        *(SimpleNamespace(partitions=[kit.partition]), kit.disk, None, None, kit.clock, None, None)
    )
    maintenance._look_at_clock()
    kit.clock.ns += 601 * S
    for _ in range(3):
        maintenance._look_at_clock()
    assert kit.partition.clock_ahead_s() == 601
    kit.clock.ns -= 601 * S
    maintenance._look_at_clock()
    told = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert len(told) == 2
    assert "601 s ahead of the time of 1 partitions" in told[0]
    assert "agrees" in told[1]
    assert kit.partition.clock_ahead_s() == 0


def test_ages_for_those_who_measure_with_the_wall_clock(kit):
    publish(kit, "one")
    kit.clock.advance(10)
    assert kit.partition.by_wall_ns(60) == 60 * S
    kit.clock.ns += 600 * S
    assert kit.partition.by_wall_ns(60) == 660 * S
    kit.clock.ns -= 1_200 * S
    assert kit.partition.by_wall_ns(60) == 60 * S
