"""A snapshot is whole or refused, and there is always one."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest

from liftpy_log.storage.disk import OsDisk
from liftpy_server.consensus.snapshot_keeper import SNAPSHOT_NAME, load_and_reconcile
from liftpy_server.consensus.storage.journal import RaftJournal
from liftpy_server.consensus.storage.snapshot import MetadataSnapshot, SnapshotError, load_snapshot, store_snapshot
from support.raft_kit import VOTERS, Ours, append, entries
from support.simdisk import ROOT, SimDisk

SNAPSHOT = MetadataSnapshot(
    previous=(b"\0x9", 9, 2), last=(b"\0x10", 10, 2), voters=VOTERS, state={"revision": 3, "a": [b"x"]}
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / SNAPSHOT_NAME


def test_round_trip(path):
    store_snapshot(OsDisk(), path, SNAPSHOT.encode())
    assert load_snapshot(OsDisk(), path) == SNAPSHOT
    assert load_snapshot(OsDisk(), path.with_name("none")) is None


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    data = SNAPSHOT.encode()
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
        for content in (damaged, data[:position]):
            with pytest.raises(SnapshotError):
                MetadataSnapshot.decode(content)
    path.write_bytes(data[:-1])
    with pytest.raises(SnapshotError, match=str(path)):
        load_snapshot(OsDisk(), path)


def test_a_failed_write_leaves_the_one_before(path):
    store_snapshot(OsDisk(), path, SNAPSHOT.encode())
    with (
        patch.object(OsDisk, "rename", side_effect=OSError(28, "no space left on device")),
        pytest.raises(SnapshotError, match="no space"),
    ):
        store_snapshot(OsDisk(), path, b"other")
    assert load_snapshot(OsDisk(), path) == SNAPSHOT


def journal_with(folder, first, last, term):
    journal = RaftJournal(folder)
    journal.set_term(max(term, 2), None)
    if first > 1:
        journal.reset(*entries(first, first + 1, term))
        first += 1
    for entry in entries(first + 1, last, term):
        journal.add(*entry)
    journal.flush()
    return journal


@pytest.mark.parametrize(
    ("first", "last", "term", "kept"),
    [
        (1, 20, 2, range(9, 21)),  # killed between rename and compaction
        (1, 10, 2, range(9, 11)),
        (9, 20, 2, range(9, 21)),  # nothing to do
        (1, 5, 2, range(9, 11)),  # killed while a leader's snapshot was installed
        (1, 20, 1, range(9, 11)),  # likewise, and the log after it was never the leader's
    ],
)
def test_journal_and_snapshot_are_reconciled(tmp_path, path, first, last, term, kept):
    store_snapshot(OsDisk(), path, SNAPSHOT.encode())
    journal = journal_with(tmp_path, first, last, term)
    assert load_and_reconcile(OsDisk(), path, journal) == SNAPSHOT
    journal.close()
    assert [entry[1] for entry in RaftJournal(tmp_path)[:]] == [*kept]


def test_a_gap_between_them_stops_the_node(tmp_path, path):
    store_snapshot(OsDisk(), path, SNAPSHOT.encode())
    with pytest.raises(SnapshotError, match="ends at 10, the journal is at 12"):
        load_and_reconcile(OsDisk(), path, journal_with(tmp_path, 12, 20, 2))


def test_a_lost_journal_stops_the_node(tmp_path, path):
    store_snapshot(OsDisk(), path, SNAPSHOT.encode())
    with pytest.raises(SnapshotError, match="its journal does not know"):
        load_and_reconcile(OsDisk(), path, RaftJournal(tmp_path))


def install(voter, snapshot, term=3, piece_bytes=50):
    """Send a snapshot in pieces, as a leader does."""
    data = snapshot.encode()
    pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    for number, piece in enumerate(pieces):
        chunk = [piece, number == 0, number == len(pieces) - 1]
        message = {"type": "append_entries", "term": term, "commit_index": 50, "serialized": chunk}
        voter.hand.deliver("b", message)


def snapshot_at(index, term, state):
    previous, last = entries(index - 1, index, term)
    return MetadataSnapshot(previous=previous, last=last, voters=VOTERS, state=state)


def test_a_leader_s_snapshot_is_taken_and_survives(tmp_path):
    voter = Ours(tmp_path)
    install(voter, snapshot_at(30, 2, [b"state"]))
    assert (voter.applied, voter.applied_index, voter.log) == ([b"state"], 30, [(29, 2), (30, 2)])
    assert voter.hand.sent[-1][1]["next_node_idx"] == 31
    voter.hand.deliver("b", append(3, (30, 2), entries(31, 32, 3), commit=32))
    voter.tick(0)
    voter.close()
    voter = Ours(tmp_path)
    assert (voter.applied, voter.log[-1]) == ([b"state"], (32, 3))


def test_what_follows_the_snapshot_is_kept_and_not_acknowledged(tmp_path):
    """The entries after it were acknowledged to this leader before; dropping them would undo its majority."""
    voter = Ours(tmp_path)
    voter.hand.deliver("b", append(3, (1, 0), entries(2, 40, 2)))
    install(voter, snapshot_at(30, 2, [b"state"]))
    assert voter.log[-1] == (40, 2)
    assert voter.hand.sent[-1][1]["next_node_idx"] == 31
    assert voter.commit_index == 30


def test_a_snapshot_of_what_is_applied_changes_nothing(tmp_path):
    voter = Ours(tmp_path)
    voter.hand.deliver("b", append(3, (1, 0), entries(2, 40, 2), commit=40))
    voter.tick(0)
    applied = list(voter.applied)
    install(voter, snapshot_at(30, 2, [b"old"]))
    assert (voter.applied, voter.applied_index) == (applied, 40)


def test_a_snapshot_of_its_own_does_not_replace_a_leader_s_newer_one(tmp_path):
    voter = Ours(tmp_path, snapshot_every_entries=5)
    may_write = threading.Event()
    voter.machine.capture = lambda: lambda: may_write.wait(5)
    voter.hand.deliver("b", append(3, (1, 0), entries(2, 20, 2), commit=20))
    voter.tick(0)
    assert not voter._snapshots._written.done()
    threading.Timer(0.1, may_write.set).start()
    install(voter, snapshot_at(30, 2, [b"state"]))
    voter.tick(0)
    voter.close()
    assert Ours(tmp_path).applied == [b"state"]


def test_a_leader_sends_no_damaged_snapshot_and_writes_it_anew(caplog):
    disk = SimDisk()
    voter = Ours(ROOT, others=("b",), disk=disk, snapshot_every_entries=5, heartbeat_s=1e-9)
    voter.lead()
    for number in range(20):
        voter.propose(b"%d" % number)
    voter.step()
    voter.hand.deliver("b", ack(voter, voter.log[-1][0] + 1, success=True))
    voter.step()
    voter.write_snapshot()
    path = ROOT / SNAPSHOT_NAME
    data = bytearray(disk.content(path))
    data[-1] ^= 1
    disk.overwrite(path, bytes(data))
    voter._core.track("b")
    voter.hand.deliver("b", ack(voter, 2, success=False))  # it has lost everything
    voter.hand.sent.clear()
    voter.step()
    assert [message for message in voter.hand.of_kind("append_entries") if "serialized" in message] == []
    assert f"the metadata snapshot {path} can not be sent: its checksum does not match" in caplog.text
    voter.write_snapshot()
    voter.hand.deliver("b", ack(voter, 2, success=False))
    voter.step()
    sent = next(message["serialized"] for message in voter.hand.of_kind("append_entries") if "serialized" in message)
    assert MetadataSnapshot.decode(sent[0]).state == voter.applied
    voter.close()


def ack(voter, next_index, *, success):
    fields = {"term": voter.term, "next_node_idx": next_index}
    return {"type": "next_node_idx", "reset": not success, "success": success} | fields


def test_pieces_of_two_snapshots_do_not_mix(tmp_path):
    voter = Ours(tmp_path)
    first, second = snapshot_at(30, 2, [b"one"]).encode(), snapshot_at(30, 2, [b"two"]).encode()
    for term, chunk in ((3, [first[:60], True, False]), (4, [second[60:], False, True])):
        message = {"type": "append_entries", "term": term, "commit_index": 1, "serialized": chunk}
        voter.hand.deliver("b", message)
    assert (voter.applied, voter.applied_index) == ([], 1)


def test_a_damaged_piece_is_noticed(tmp_path, caplog):
    voter = Ours(tmp_path)
    data = bytearray(snapshot_at(30, 2, [b"one"]).encode())
    data[80] ^= 1
    message = {"type": "append_entries", "term": 3, "commit_index": 1, "serialized": [bytes(data), True, True]}
    voter.hand.deliver("b", message)
    assert (voter.applied, voter.applied_index) == ([], 1)
    assert "b sent" in caplog.text


def test_proposers_are_told_that_the_outcome_is_unknown(tmp_path):
    voter = Ours(tmp_path)
    voter.lead()
    answers = []
    for number in range(5):
        voter.propose(b"%d" % number, lambda result, reason: answers.append(reason))
    voter.tick(0)
    install(voter, snapshot_at(30, 2, []), term=voter.term + 1)
    assert answers == [7] * 5


def test_a_crash_at_any_step_of_an_installation(tmp_path):
    """Before the rename, and between it and the truncation of the journal."""
    snapshot = snapshot_at(30, 1, [b"state"])
    for step, (target, name) in enumerate([(OsDisk, "rename"), (RaftJournal, "reset")]):
        folder = tmp_path / str(step)
        folder.mkdir()
        voter = Ours(folder)
        with patch.object(target, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            install(voter, snapshot, piece_bytes=1 << 20)
        voter.close()
        voter = Ours(folder)
        assert voter.applied == ([] if step == 0 else [b"state"])
        assert voter.term == 3
        install(voter, snapshot)
        assert voter.applied == [b"state"]
