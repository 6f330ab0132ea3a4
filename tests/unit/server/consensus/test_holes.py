"""The holes of the stock library, H1 to H11: each is shown open there, and closed here, by the same steps."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from unittest.mock import patch

import pytest
from pysyncobj import journal as stock_journal

from liftpy_envelope.errors import FrameError
from liftpy_server import consensus
from liftpy_server.consensus.membership import encode_change
from liftpy_server.consensus.messages import decode_message, encode_message
from liftpy_server.consensus.proposals import Reason
from liftpy_server.consensus.snapshot_keeper import SNAPSHOT_NAME
from liftpy_server.consensus.storage.journal import JOURNAL_NAMES, RaftJournal
from liftpy_server.consensus.storage.snapshot import SnapshotError
from liftpy_server.metadata.errors import JournalError
from support.raft_kit import VOTERS, Ours, Stock, append, entries
from support.simdisk import ROOT, SimDisk

COMMANDS = [b"command %d" % number for number in range(50)]


class Answers(list):
    """Callbacks that keep what they are told."""

    def __call__(self, result, reason):
        self.append(reason)


def alone(kind, folder, commands, **settings):
    """A cluster of one that was told commands, as its disk looks after a kill."""
    folder.mkdir()
    voter = kind(folder, others=(), **settings)
    voter.lead()
    for command in commands:
        voter.propose(command)
        voter.step()
    for _ in range(3):
        voter.step()
    assert voter.applied == list(commands)
    return voter


def killed_between_rename_and_compaction(kind, tmp_path, snapshot_name):
    """The disk after a snapshot of an older state was renamed, and the log not yet cut."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    voter = alone(kind, older, COMMANDS[:20])
    if kind is Stock:
        voter.forceLogCompaction()
        voter.step()
    else:
        voter._snapshots._begin()
        voter._snapshots._written.result()
    voter.close()
    voter = alone(kind, newer, COMMANDS)
    voter.close()
    shutil.copy(older / snapshot_name, newer / snapshot_name)
    return newer


def after_restart(kind, folder):
    voter = kind(folder, others=())
    voter.lead()
    voter.step()
    return voter


def test_h1_stock_discards_the_journal_when_a_snapshot_is_older(tmp_path):
    folder = killed_between_rename_and_compaction(Stock, tmp_path, "dump")
    assert after_restart(Stock, folder).applied != COMMANDS


def test_h1_entries_after_a_snapshot_are_kept(tmp_path):
    folder = killed_between_rename_and_compaction(Ours, tmp_path, SNAPSHOT_NAME)
    assert after_restart(Ours, folder).applied == COMMANDS


def isolated_leader_gets_a_snapshot_chunk(kind, tmp_path):
    """What the proposers of 10 commands that never left the old leader are told."""
    voter = kind(tmp_path)
    voter.lead()
    answers = Answers()
    for command in COMMANDS[:10]:
        voter.propose(command, answers)
    voter.step()
    chunk = (b"piece", True, False) if kind is Stock else [b"piece", True, False]
    message = {"type": "append_entries", "term": 50, "commit_index": 100, "serialized": chunk}
    voter.hand.deliver("c", message)
    voter.step()
    return answers


def test_h2_stock_commits_its_own_tail_on_a_snapshot_chunk(tmp_path):
    assert isolated_leader_gets_a_snapshot_chunk(Stock, tmp_path) == [Reason.SUCCESS] * 10


def test_h2_a_snapshot_chunk_commits_nothing(tmp_path):
    assert Reason.SUCCESS not in isolated_leader_gets_a_snapshot_chunk(Ours, tmp_path)


def commit_no_op(voter):
    answer = {"type": "next_node_idx", "next_node_idx": 3, "reset": False, "success": True, "term": voter.term}
    voter.hand.deliver("b", answer)
    voter.step()
    assert voter.commit_index == 2


def test_h3_stock_leader_removes_both_peers_and_commits_alone(tmp_path):
    voter = Stock(tmp_path, dynamicMembershipChange=True)
    voter.lead()
    commit_no_op(voter)
    answers = Answers()
    voter.removeNodeFromCluster("b", answers)
    voter.removeNodeFromCluster("c", answers)
    for _ in range(3):
        voter.step()
    assert answers == [Reason.SUCCESS] * 2


def test_h3_voters_change_one_at_a_time(tmp_path):
    voter = Ours(tmp_path)
    voter.lead()
    first, second = Answers(), Answers()
    voter.submit(encode_change("rem", VOTERS[1]), first)
    voter.step()
    assert first == [Reason.NOT_LEADER]  # try again: nothing of this leader's term is committed yet
    commit_no_op(voter)
    first.clear()
    voter.submit(encode_change("rem", VOTERS[1]), first)
    voter.submit(encode_change("rem", VOTERS[2]), second)
    for _ in range(3):
        voter.step()
    assert (first, second) == ([], [Reason.NOT_LEADER])
    answer = {"type": "next_node_idx", "next_node_idx": 4, "reset": False, "success": True, "term": voter.term}
    voter.hand.deliver("b", answer)  # has no say any more
    voter.step()
    assert first == []
    voter.hand.deliver("c", answer)
    voter.step()
    assert first == [Reason.SUCCESS]


def follower_gets_a_stale_heartbeat(kind, tmp_path):
    """The follower's log after entries 2..6 were acknowledged, and a heartbeat of before them arrives."""
    voter = kind(tmp_path)
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 6, 1)))
    assert voter.hand.sent[-1][1]["next_node_idx"] == 7
    voter.hand.deliver("b", append(1, (1, 0)))
    return [index for index, _ in voter.log]


def test_h4_stock_drops_acknowledged_entries_on_a_stale_heartbeat(tmp_path):
    assert follower_gets_a_stale_heartbeat(Stock, tmp_path) == [1]


def test_h4_matching_entries_stay(tmp_path):
    assert follower_gets_a_stale_heartbeat(Ours, tmp_path) == [1, 2, 3, 4, 5, 6]


def leader_gets_an_old_acknowledgement(kind, tmp_path):
    """Commit index after an acknowledgement that an earlier term's leader was owed."""
    voter = kind(tmp_path)
    voter.lead()
    voter.propose(b"x")
    voter.step()
    fields = {"next_node_idx": 4, "reset": False, "success": True, "term": voter.term - 1}
    voter.hand.deliver("b", {"type": "next_node_idx"} | fields)
    voter.step()
    return voter.commit_index


def test_h5_stock_counts_acknowledgements_of_another_term(tmp_path):
    assert leader_gets_an_old_acknowledgement(Stock, tmp_path) == 3


def test_h5_acknowledgements_carry_their_term(tmp_path):
    assert leader_gets_an_old_acknowledgement(Ours, tmp_path) == 1
    with pytest.raises(FrameError):
        decode_message(encode_message({"type": "next_node_idx", "next_node_idx": 3, "reset": False, "success": True}))


def ask_for_vote(voter, candidate):
    """Whether the candidate gets this voter's vote for term 7."""
    question = {"type": "request_vote", "term": 7, "last_log_index": 9, "last_log_term": 6}
    before = len(voter.hand.sent)
    voter.hand.deliver(candidate, question)
    return [(node, message["type"]) for node, message in voter.hand.sent[before:]] == [(candidate, "response_vote")]


def test_h6_stock_votes_twice_after_power_loss(tmp_path):
    voter = Stock(tmp_path)
    assert ask_for_vote(voter, "b")
    voter.close()
    (tmp_path / "journal.meta").write_bytes(b"")  # it was renamed, and never synced
    assert ask_for_vote(Stock(tmp_path), "c")


def copy_of_disk(folder, target):
    """What is on disk right now, as after a kill."""
    return shutil.copytree(folder, target, dirs_exist_ok=True)


def test_h6_a_vote_is_durable_before_it_leaves(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    voter = Ours(folder)
    disks = []
    send = voter.hand.send

    def killed_while_sending(node, message):
        voter.hand.before_send()
        disks.append(copy_of_disk(folder, tmp_path / "killed"))
        return send(node, message)

    voter.hand.send = killed_while_sending
    assert ask_for_vote(voter, "b")
    again = Ours(disks[0])
    assert not ask_for_vote(again, "c")
    assert again.term == 7


def test_h6_an_emptied_journal_stops_the_node(tmp_path):
    Ours(tmp_path).close()
    for name in JOURNAL_NAMES:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(JournalError, match=JOURNAL_NAMES[0]):
        Ours(tmp_path)


class CrashError(Exception):
    """The process dies here."""


def test_h7_stock_loses_entries_when_compaction_is_interrupted(tmp_path):
    journal = stock_journal.createJournal(str(tmp_path / "journal"))
    for entry in entries(1, 100, 1):
        journal.add(*entry)
    added = []

    def add(self, *entry, original=stock_journal.FileJournal.add):
        if len(added) == 10:
            raise CrashError
        added.append(entry)
        original(self, *entry)

    with patch.object(stock_journal.FileJournal, "add", add), pytest.raises(CrashError):
        journal.deleteEntriesTo(50)
    assert len(stock_journal.createJournal(str(tmp_path / "journal"))) == 10  # of the 50 that were to stay


def test_h7_compaction_happens_at_once():
    disk = SimDisk()
    voter = Ours(ROOT, disk=disk)
    voter.hand.deliver("b", append(1, (1, 0), entries(2, 100, 1), commit=100))
    voter.step()
    killed = []
    disk.before = lambda operation: killed.append(disk.kill())
    voter._journal.compact(50)
    voter._journal.truncate(90)
    voter._journal.flush()
    assert len(killed) >= 8
    logs = [[entry[1:] for entry in RaftJournal(ROOT, at)[:]] for at in killed]  # before every operation on the disk
    assert {tuple(log) for log in logs} == {
        ((1, 0), *((index, 1) for index in range(2, 101))),
        tuple((index, 1) for index in range(50, 90)),
    }


def follower_with_a_commit_index_from_before(kind, tmp_path):
    """What a follower applies of entries that its leader has not committed."""
    kind(tmp_path).close()
    if kind is Stock:
        stock_journal.MetaStorer(str(tmp_path / "journal.meta")).storeMeta({"raftCommitIndex": 50})
    voter = kind(tmp_path)
    voter.hand.deliver("b", append(1, (1, 0), [(b"\x01", index, 1) for index in (2, 3, 4)], commit=1))
    voter.step()
    return voter.applied_index


def test_h8_stock_applies_what_is_not_committed(tmp_path):
    assert follower_with_a_commit_index_from_before(Stock, tmp_path) == 4


def test_h8_no_commit_index_outlives_a_crash(tmp_path):
    assert follower_with_a_commit_index_from_before(Ours, tmp_path) == 1


def test_h9_stock_starts_empty_on_a_damaged_snapshot(tmp_path):
    alone(Stock, tmp_path / "a", COMMANDS).close()
    (tmp_path / "a" / "dump").write_bytes(b"")
    assert after_restart(Stock, tmp_path / "a")._isLeader()


@pytest.mark.parametrize("damage", ["empty", "flipped", "gone"])
def test_h9_a_damaged_snapshot_stops_the_node_and_is_named(tmp_path, damage):
    folder = tmp_path / "a"
    voter = alone(Ours, folder, COMMANDS, snapshot_every_entries=10)
    voter.write_snapshot()
    assert voter.log[0][0] > 1
    voter.close()
    path = folder / SNAPSHOT_NAME
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(SnapshotError, match=str(path)):
        Ours(folder, others=())


def acknowledged_with_a_full_disk(voter, make_full):
    """Entries that a follower acknowledges when a tick that found the disk full is survived, as stock does."""
    make_full()
    with pytest.raises((OSError, JournalError)):
        voter.hand.deliver("b", append(1, (1, 0), [(bytes(100_000), 2, 1)]))
    voter.hand.deliver("b", append(1, (2, 1)))
    return max(message["next_node_idx"] - 1 for message in voter.hand.of_kind("next_node_idx") if message["success"])


def test_h10_stock_acknowledges_what_the_full_disk_did_not_take(tmp_path):
    voter = Stock(tmp_path)
    full = patch.object(stock_journal.ResizableFile, "write", side_effect=OSError(28, "no space left on device"))
    assert acknowledged_with_a_full_disk(voter, full.start) == 2
    full.stop()
    assert Stock(tmp_path).log == [(1, 0)]


def test_h10_nothing_is_acknowledged_that_a_full_disk_did_not_take():
    disk = SimDisk()
    voter = Ours(ROOT, disk=disk)

    def make_full():
        disk.capacity = 1_000

    with pytest.raises(JournalError, match="No space left"):
        acknowledged_with_a_full_disk(voter, make_full)
    assert voter.hand.of_kind("next_node_idx") == []


def raising(result, reason):
    raise CrashError


def test_h11_stock_applies_twice_when_a_callback_raises(tmp_path):
    voter = Stock(tmp_path, others=())
    voter.lead()
    voter.propose(b"x", raising)
    voter.step()
    with pytest.raises(CrashError):
        voter.step()
    voter.step()  # the library's own thread logs the error, and goes on
    assert voter.applied == [b"x", b"x"]


def test_h11_a_raising_callback_changes_nothing(tmp_path, caplog):
    voter = Ours(tmp_path, others=())
    voter.lead()
    voter.propose(b"x", raising)
    for _ in range(3):
        voter.step()
    assert voter.applied == [b"x"]
    assert "callback" in caplog.text


def test_h11_stock_is_stuck_on_a_poisoned_command_also_after_a_restart(tmp_path):
    voter = Stock(tmp_path, others=())
    voter.lead()
    voter.propose(b"poison")
    voter.propose(b"x")
    voter.step()
    with pytest.raises(ValueError, match="poison"):
        voter.step()
    voter.close()
    with pytest.raises(ValueError, match="poison"):
        after_restart(Stock, tmp_path)


def test_h11_a_leader_refuses_a_poisoned_command(tmp_path):
    voter = Ours(tmp_path, others=())
    voter.lead()
    answers = Answers()
    voter.propose(b"poison", answers)
    voter.propose(b"x")
    for _ in range(3):
        voter.step()
    assert (voter.applied, answers) == ([b"x"], [Reason.REQUEST_DENIED])


def test_the_library_leaves_the_socket_module_as_it_was():
    """It replaces `socket.inet_ntop` when it is imported, by a function that fails on all systems but Windows."""
    assert socket.inet_ntop(socket.AF_INET, b"\x7f\x00\x00\x01") == "127.0.0.1"
    source = f"import socket, {consensus.__name__}; assert socket.inet_ntop(socket.AF_INET, bytes(4)) == '0.0.0.0'"
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
    stock = "import socket, pysyncobj; socket.inet_ntop(socket.AF_INET, bytes(4))"
    assert subprocess.run([sys.executable, "-c", stock], check=False, capture_output=True, timeout=60).returncode == 1
