"""Commands are on disk when `append` returns, survive reopening and compaction, and damage is noticed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.metadata.journal import Journal, JournalError
from support.examples import examples


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


def reopened(path):
    with closing(Journal(path)) as journal:
        return journal.load()


def change(path, *statements):
    """Do something to the file behind the journal's back."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_new_journal_is_empty(path):
    assert reopened(path) == (None, [])


def test_commands_come_back_in_order(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1", b"2"])
        journal.append([b"3"])
        assert journal.load() == (None, [b"1", b"2", b"3"])
    assert reopened(path) == (None, [b"1", b"2", b"3"])


def test_compaction_replaces_commands_by_a_snapshot(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1", b"2"])
        journal.compact(b"state after 2")
        assert journal.load() == (b"state after 2", [])
        journal.append([b"3"])
        assert journal.load() == (b"state after 2", [b"3"])
    assert reopened(path) == (b"state after 2", [b"3"])


def test_compaction_of_nothing(path):
    with closing(Journal(path)) as journal:
        journal.compact(b"empty")
    assert reopened(path) == (None, [])


def test_compaction_after_reopening(path):
    for number in range(3):
        with closing(Journal(path)) as journal:
            journal.append([b"%d" % number])
            journal.compact(b"state %d" % number)
    assert reopened(path) == (b"state 2", [])


def test_compaction_makes_the_file_no_longer(path):
    with closing(Journal(path)) as journal:
        for number in range(50):
            journal.append([bytes(10_000)])
            journal.compact(b"state %d" % number)
    assert path.stat().st_size < 200_000


operations = st.lists(st.sampled_from(["append", "append", "compact", "reopen"]), max_size=15)


@given(operations)
@examples(25)
def test_state_is_never_lost(tmp_path_factory, given_operations):
    path = tmp_path_factory.mktemp("journal") / "metadata.db"
    journal = Journal(path)
    written = []
    for operation in given_operations:
        if operation == "append":
            written.append(b"%d" % len(written))
            journal.append([written[-1]])
        elif operation == "compact":
            journal.compact(b",".join(written))
        else:
            journal.close()
            journal = Journal(path)
        snapshot, commands = journal.load()
        before = snapshot.split(b",") if snapshot else []
        assert written == before + commands
    journal.close()


def test_newer_format_is_refused(path):
    Journal(path).close()
    change(path, "PRAGMA user_version = 2")
    with pytest.raises(JournalError, match=r"newer liftpy \(format 2\)"):
        Journal(path)


def test_damaged_snapshot_is_noticed(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1"])
        journal.compact(b"the state")
    change(path, "UPDATE snapshot SET state = x'00'")
    with pytest.raises(JournalError, match=r"snapshot in .* is damaged"):
        reopened(path)


def test_missing_command_is_noticed(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1", b"2", b"3"])
    change(path, "DELETE FROM entries WHERE idx = 2")
    with pytest.raises(JournalError, match="no entry 2"):
        reopened(path)


def test_missing_command_behind_the_snapshot_is_noticed(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1"])
        journal.compact(b"state")
        journal.append([b"2", b"3"])
    change(path, "DELETE FROM entries WHERE idx = 2")
    with pytest.raises(JournalError, match="no entry 2"):
        reopened(path)


def test_file_that_is_no_journal_is_refused(path):
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(JournalError, match=r"metadata\.db failed"):
        Journal(path)


def test_directory_that_is_not_there_is_refused(path):
    with pytest.raises(JournalError, match="opening the metadata journal"):
        Journal(path.parent / "nowhere" / "metadata.db")


def test_journal_in_use_is_refused(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1"])
        impatient = sqlite3.connect(path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            impatient.execute("SELECT * FROM entries")
        impatient.close()


def test_command_that_can_not_be_written_leaves_nothing_behind(path):
    with closing(Journal(path)) as journal:
        with pytest.raises(JournalError, match="writing"):
            journal.append([b"1", None])
        journal.append([b"2"])
    assert reopened(path) == (None, [b"2"])


def test_closed_journal_says_so(path):
    journal = Journal(path)
    journal.close()
    for use in (journal.load, lambda: journal.append([b"1"]), lambda: journal.compact(b"s")):
        with pytest.raises(JournalError):
            use()
