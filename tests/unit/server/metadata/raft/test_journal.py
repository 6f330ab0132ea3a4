"""Term, vote and entries are on disk together after `flush`, and damage is named."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from liftpy_server.metadata.errors import JournalError
from liftpy_server.metadata.raft.journal import FIRST_ENTRY, RaftJournal
from liftpy_server.metadata.raft.settings import Voter
from support.raft_kit import VOTERS, entries


@pytest.fixture
def path(tmp_path):
    return tmp_path / "raft.db"


def reopened(journal, path):
    journal.close()
    return RaftJournal(path)


def filled(path, last=20, term=3):
    journal = RaftJournal(path)
    journal.setCurrentTerm(term, "b")
    for entry in entries(2, last, term):
        journal.add(*entry)
    journal.flush()
    return journal


def change(path, statement):
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement).rowcount > 0


def test_a_new_journal_has_one_entry(path):
    journal = reopened(RaftJournal(path), path)
    assert (journal[:], journal.getCurrentTerm(), journal.getVotedForNodeId()) == ([FIRST_ENTRY], 0, None)
    assert (journal.first, journal.last, len(journal)) == (1, 1, 1)


def test_what_was_flushed_is_there(path):
    journal = filled(path)
    kept = journal[:]
    journal.add(b"\0lost", 21, 3)
    journal.setCurrentTerm(4, "c")
    journal = reopened(journal, path)
    assert (journal[:], journal.getCurrentTerm(), journal.getVotedForNodeId()) == (kept, 3, "b")


def test_cut_and_append_change_together(path):
    journal = filled(path)
    journal.truncate(10)
    journal.add(b"\0other", 10, 4)
    journal.compact(5)
    journal.setCurrentTerm(4, None)
    before = journal.flushes
    journal.flush()
    journal.flush()
    assert journal.flushes == before + 1
    journal = reopened(journal, path)
    assert [entry[1:] for entry in journal[:]] == [*((index, 3) for index in range(5, 10)), (10, 4)]
    assert (journal.term_at(4), journal.term_at(9), journal.term_at(10), journal.term_at(11)) == (None, 3, 4, None)


def test_a_cut_of_what_was_never_flushed(path):
    journal = filled(path)
    for entry in entries(21, 30, 3):
        journal.add(*entry)
    journal.truncate(25)
    journal.add(b"\0new", 25, 4)
    journal.setCurrentTerm(4, None)
    journal.truncate(15)
    for entry in entries(15, 16, 4):
        journal.add(*entry)
    journal.flush()
    assert [entry[1:] for entry in reopened(journal, path)[:]][13:] == [(14, 3), (15, 4), (16, 4)]


def test_compaction_of_what_was_never_flushed(path):
    journal = filled(path)
    for entry in entries(21, 30, 3):
        journal.add(*entry)
    journal.compact(25)
    journal.flush()
    assert [entry[1] for entry in reopened(journal, path)[:]] == [*range(25, 31)]


def test_restart_from_a_snapshot(path):
    journal = filled(path)
    journal.restart((b"\0p", 100, 3), (b"\0l", 101, 3))
    journal.add(b"\0n", 102, 3)
    journal.flush()
    assert reopened(journal, path)[:] == [(b"\0p", 100, 3), (b"\0l", 101, 3), (b"\0n", 102, 3)]


def test_entries_by_bytes(path):
    journal = filled(path)
    size = len(journal[12][0])
    assert [entry[1] for entry in journal.entries_from(10, 3 * size)] == [10, 11, 12]
    assert [entry[1] for entry in journal.entries_from(10, 1)] == [10]
    assert [entry[1] for entry in journal.entries_from(18)] == [18, 19, 20]
    assert journal.entries_from(21) == []


def test_everything_is_synced(path):
    journal = RaftJournal(path)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_one_process_at_a_time(path):
    journal = filled(path)
    with pytest.raises(JournalError, match="locked"):
        RaftJournal(path)
    journal.close()


def test_a_half_made_journal_is_made_anew(path):
    path.with_name("raft.db.new").write_bytes(b"half")
    assert RaftJournal(path)[:] == [FIRST_ENTRY]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE entries SET command = x'00' WHERE idx = 7", "entry 7 in .* is damaged"),
        ("UPDATE entries SET term = 2 WHERE idx = 7", "entry 7 in .* is damaged"),
        ("DELETE FROM entries WHERE idx = 7", "has no entry 7"),
        ("DELETE FROM entries", "has no entry"),
        ("UPDATE hard_state SET term = 2", "term and vote in .* are damaged"),
        ("UPDATE hard_state SET vote = NULL", "term and vote in .* are damaged"),
        ("DELETE FROM hard_state", "has no term"),
    ],
)
def test_damage_is_named(path, statement, message):
    filled(path).close()
    change(path, statement)
    with pytest.raises(JournalError, match=message) as raised:
        RaftJournal(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
def test_a_file_that_is_no_journal(path, content):
    path.write_bytes(content)
    with pytest.raises(JournalError, match=str(path)):
        RaftJournal(path)


def test_damaged_pages_are_noticed(path):
    filled(path, last=2_000).close()
    data = bytearray(path.read_bytes())
    data[8192:12288] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(JournalError, match=str(path)):
        RaftJournal(path)


def test_a_newer_format_is_refused(path):
    RaftJournal(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 3")
    with pytest.raises(JournalError, match="format 3"):
        RaftJournal(path)


def test_a_full_disk(path):
    journal = filled(path)
    kept = journal[:]
    journal._db.execute("PRAGMA max_page_count = 1")
    journal.add(bytes(100_000), 21, 3)
    with pytest.raises(JournalError, match="full"):
        journal.flush()
    assert reopened(journal, path)[:] == kept


def test_the_first_voters_are_kept(path):
    journal = RaftJournal(path)
    assert journal.origin("a", VOTERS) == VOTERS
    journal = reopened(journal, path)
    assert journal.origin("a", (Voter("a", "elsewhere", 1),)) == VOTERS
    with pytest.raises(JournalError, match="the journal of node 'a', and this is 'b'"):
        journal.origin("b", VOTERS)
