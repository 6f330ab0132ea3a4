"""Which logs are not there any more."""

from __future__ import annotations

import errno
import random

import pytest

from liftpy_log.storage.disk import OsDisk
from liftpy_server.replication.host.durability_record import DurabilityRecord
from support.damage import bit_flips
from support.durability_records import proven
from support.metadata_commands import NODE, UUIDS, WHERE, Cluster, config
from support.simdisk import ROOT, Order, SimDisk


@pytest.fixture
def state():
    return Cluster("a", "b", "c").state


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "streams" / f"orders.{UUIDS[0]}" / "0"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def record(tmp_path):
    return proven(OsDisk(), tmp_path)


def test_a_log_with_a_segment_is_there(record, state, directory):
    (directory / f"{0:020}.log").touch()
    assert record.lost_logs(state, "a") == []


@pytest.mark.parametrize("left", [["00000000000000000000.index"], []])
def test_a_directory_without_a_segment_is_no_log(record, state, directory, left):
    for name in left:
        (directory / name).touch()
    assert record.lost_logs(state, "a") == [(UUIDS[0], 0)]


def test_a_directory_that_was_moved_away_is_missed(record, state, directory):
    directory.rename(directory.parent / "aside")
    assert record.lost_logs(state, "a") == [(UUIDS[0], 0)]


@pytest.mark.parametrize(
    ("known_end", "first_end", "log_start", "is_lost"),
    [(0, 0, 0, False), (5, 0, 0, True), (0, 5, 0, True), (5, 5, 5, False)],
)
def test_the_only_log_is_missed_where_it_is_known_to_have_had_records(
    record, directory, known_end, first_end, log_start, is_lost
):
    cluster = Cluster("a", min_isr=1)
    if first_end:
        cluster.do("report_records", **WHERE, leader="a", leader_epoch=1, end=first_end)
    if log_start:
        cluster.do("purge_partition", **WHERE, log_start=log_start)
    lost = [(UUIDS[0], 0)] if is_lost else []
    assert record.lost_logs(cluster.state, "a", lambda *_: known_end) == lost
    (directory / f"{0:020}.log").touch()
    assert record.lost_logs(cluster.state, "a", lambda *_: known_end) == []


def started_again(tmp_path):
    return DurabilityRecord(OsDisk(), tmp_path / "standing.json", "boot")


def test_a_log_that_had_failed_proves_nothing_until_there_is_another(record, state, directory, tmp_path):
    (directory / f"{0:020}.log").touch()
    record.log_failed(UUIDS[0], 0, "a bit turned")
    for _ in range(2):
        again = started_again(tmp_path)
        assert (again.lost_logs(state, "a"), again.failed_logs(state, "a")) == ([(UUIDS[0], 0)], [(UUIDS[0], 0)])
        assert again.why_failed(UUIDS[0], 0) == "a bit turned"
        again.doubt_recorded(state, "a")
    again.forget(UUIDS[0], 0)
    assert started_again(tmp_path).lost_logs(state, "a") == []


def test_a_log_that_had_failed_and_is_gone_is_lost_and_nothing_else(record, state, directory, tmp_path):
    record.log_failed(UUIDS[0], 0, "a bit turned")
    assert (record.lost_logs(state, "a"), record.failed_logs(state, "a")) == ([(UUIDS[0], 0)], [])
    record.doubt_recorded(state, "a")
    (directory / f"{0:020}.log").touch()
    assert started_again(tmp_path).lost_logs(state, "a") == []


@pytest.mark.parametrize("content", ["[]", '{"boot_id": 1, "doubtful": 0, "failed": [5]}', "{", ""])
def test_a_damaged_file_is_set_aside_and_leaves_a_doubt(tmp_path, state, caplog, content):
    path = tmp_path / "standing.json"
    path.write_text(content)
    for number in range(2):
        record = DurabilityRecord(OsDisk(), path, "boot")
        assert not record.is_proven(state, "a", was_clean=True)
        assert len(list((tmp_path / "quarantine").iterdir())) == 1, f"start {number}: the doubt is on disk"
    assert (tmp_path / "quarantine" / "standing.json.0").read_text() == content
    assert f"{path} is damaged, and was moved to {tmp_path}/quarantine/standing.json.0" in caplog.text


@pytest.mark.thorough
def test_a_bit_that_turns_anywhere_in_the_file_is_found(record, state, directory, tmp_path):
    (directory / f"{0:020}.log").touch()
    record.log_failed(UUIDS[0], 0, "a bit turned")
    path = tmp_path / "standing.json"
    for damaged in bit_flips(path.read_bytes().rstrip()):
        path.write_bytes(damaged)
        assert not started_again(tmp_path).is_proven(state, "a", was_clean=True)


def test_a_file_that_is_missing_leaves_a_doubt(record, state, directory, tmp_path, caplog):
    """Somebody has put the directory together."""
    (directory / f"{0:020}.log").touch()
    path = tmp_path / "standing.json"
    path.unlink()
    for _ in range(2):
        again = started_again(tmp_path)
        assert not again.is_proven(state, "a", was_clean=True)
    assert caplog.text.count(f"{path} is missing: this node can not prove its logs") == 1
    again.doubt_recorded(state, "a")
    assert started_again(tmp_path).is_proven(state, "a", was_clean=True)


def test_a_data_directory_that_is_new_may_replace_another(state, tmp_path, caplog):
    assert not started_again(tmp_path).is_proven(state, "a", was_clean=True)
    assert caplog.text == ""


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("left", ["{", None])
def test_what_a_damaged_file_said_the_metadata_may_know(state, directory, tmp_path, left, starts):
    (directory / f"{0:020}.log").touch()
    if left is not None:
        (tmp_path / "standing.json").write_text(left)
    cluster = Cluster("a", "b", "c")
    cluster.report_failure("a")
    for _ in range(starts):
        record = started_again(tmp_path)
    assert record.failed_logs(cluster.state, "a") == [(UUIDS[0], 0)]
    record.doubt_recorded(cluster.state, "a")
    assert started_again(tmp_path).failed_logs(state, "a") == [(UUIDS[0], 0)]


def test_a_log_that_is_renewed_is_not_taken_for_failed_by_what_the_metadata_heard_before(record, directory):
    (directory / f"{0:020}.log").touch()
    cluster = Cluster("a", "b", "c")
    cluster.report_failure("a")
    assert record.failed_logs(cluster.state, "a") == []


def test_a_log_is_missed_whether_the_metadata_counts_on_it_or_not(record):
    """A proposal to count on it may be under way, and applied before the node registers."""
    cluster = Cluster("a", "b", "c")
    cluster.change_isr("a", "b")
    lost = record.lost_logs(cluster.state, "c")
    assert not cluster.change_isr("a", "b", "c").error
    cluster.do("register_node", node=NODE | {"node_id": "c"}, lost=[list(each) for each in lost])
    assert cluster.partition.isr == ("a", "b")


def test_a_log_that_nobody_else_has_is_not_missed(record):
    assert record.lost_logs(Cluster("a", min_isr=1).state, "a") == []  # nobody else has it either


def test_a_stream_of_one_replica_that_is_being_moved_counts_as_one_of_several(record, tmp_path):
    cluster = Cluster("a", "b", streams=0, min_isr=1)
    made = config("orders", replicas=1, sync="interval")
    cluster.do("create_stream", uuid=UUIDS[0], config=made, assignment=[["a"]])
    record.doubt_recorded(cluster.state, "a")
    restarted = DurabilityRecord(OsDisk(), tmp_path / "standing.json", "another boot")
    assert restarted.is_proven(cluster.state, "a", was_clean=False), "nobody has more than it has"
    cluster.reassign("b")
    assert not restarted.is_proven(cluster.state, "a", was_clean=False)


@pytest.mark.parametrize(("was_clean", "is_proven"), [(True, True), (False, False)])
def test_a_kernel_that_stopped_leaves_a_doubt_of_what_others_have_too(tmp_path, state, record, was_clean, is_proven):
    """Whatever the disk said of its syncs, which are those of `sync = always` here."""
    record.doubt_recorded(state, "a")
    for _ in range(2):
        rebooted = DurabilityRecord(OsDisk(), tmp_path / "standing.json", "another boot")
        assert rebooted.is_proven(state, "a", was_clean=was_clean) is is_proven
    rebooted.doubt_recorded(state, "a")
    assert DurabilityRecord(OsDisk(), tmp_path / "standing.json", "another boot").is_proven(state, "a", was_clean=False)


ALONE = Cluster("a", min_isr=1).state


def test_logs_that_others_have_too_may_lack_their_ends_when_the_write_ahead_log_ended_torn(
    record, state, directory, tmp_path
):
    (directory / f"{0:020}.log").touch()
    record.wal_torn()
    for _ in range(2):
        again = started_again(tmp_path)
        assert again.is_proven(state, "a", was_clean=False)
        assert (again.lost_logs(state, "a"), again.failed_logs(state, "a")) == ([], [])
        assert (again.cut_logs(state, "a"), again.cut_logs(ALONE, "a")) == ([(UUIDS[0], 0)], [])
    again.doubt_recorded(state, "a")
    assert started_again(tmp_path).cut_logs(state, "a") == []


def test_a_log_that_was_cut_is_told_of_until_the_metadata_has_taken_note(record, state, directory, tmp_path):
    (directory / f"{0:020}.log").touch()
    record.log_torn(UUIDS[0], 0)
    record.log_torn(UUIDS[1], 7)  # not here any more
    for _ in range(2):
        again = started_again(tmp_path)
        assert again.is_proven(state, "a", was_clean=False)
        assert (again.lost_logs(state, "a"), again.failed_logs(state, "a")) == ([], [])
        assert (again.cut_logs(state, "a"), again.cut_logs(ALONE, "a")) == ([(UUIDS[0], 0)], [])
    again.doubt_recorded(state, "a")
    assert started_again(tmp_path).cut_logs(state, "a") == []


def test_a_log_is_not_cut_before_that_is_on_disk(state):
    disk = SimDisk()
    disk.make_directory(ROOT)
    record = proven(disk, ROOT)
    record.log_torn(UUIDS[0], 0)
    for order in Order:
        crashed = disk.crash(random.Random(1), order)
        again = DurabilityRecord(crashed, ROOT / "standing.json", "boot")
        assert again.cut_logs(state, "a") == [(UUIDS[0], 0)]
    disk.fail("write", "create", code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        record.log_torn(UUIDS[1], 0)


def test_when_many_logs_are_cut_any_may_have_been(record, tmp_path):
    """A thousand times a file that is synced, while the node starts, would be too much."""
    path, written = tmp_path / "standing.json", []
    for number in range(1_000):
        record.log_torn(UUIDS[0], number)
        if not written or path.stat().st_ino != written[-1]:
            written.append(path.stat().st_ino)
    assert len(written) < 150
    assert started_again(tmp_path).cut_logs(Cluster("a", "b", streams=3).state, "a") == [
        (uuid, 0) for uuid in UUIDS[:3]
    ]


def test_a_log_that_can_not_be_used_is_told_of_as_failed_while_the_node_runs(record, state, directory, tmp_path):
    (directory / f"{0:020}.log").touch()
    record.log_unusable(UUIDS[0], 0)
    assert record.failed_logs(state, "a") == [(UUIDS[0], 0)]
    record.doubt_recorded(state, "a")
    assert record.failed_logs(state, "a") == [(UUIDS[0], 0)]
    assert started_again(tmp_path).failed_logs(state, "a") == [], "it says nothing of what is on disk"
    record.forget(UUIDS[0], 0)
    assert record.failed_logs(state, "a") == []
