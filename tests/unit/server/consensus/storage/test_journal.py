"""Term, vote and entries are on disk together after `flush`, twice: damage of one copy is repaired, of both named."""

from __future__ import annotations

import errno
import random
from itertools import chain

import pytest

from liftpy_server.consensus.settings import Voter
from liftpy_server.consensus.storage import journal_frames
from liftpy_server.consensus.storage.journal import FIRST_ENTRY, JOURNAL_NAMES, RaftJournal
from liftpy_server.metadata.errors import JournalError, NewerJournalError
from support.damage import disk_damage
from support.raft_kit import VOTERS, entries
from support.simdisk import ROOT, Order, SimDisk

FIRST, COPY = (ROOT / name for name in JOURNAL_NAMES)


@pytest.fixture
def disk():
    return SimDisk()


def opened(disk):
    return RaftJournal(ROOT, disk, random.Random(1))


def filled(disk, last=20, term=3):
    journal = opened(disk)
    journal.set_term(term, "b")
    for entry in entries(2, last, term):
        journal.add(*entry)
        journal.flush()
    return journal


def content(journal):
    """All that a voter must never forget."""
    return journal[:], journal.term, journal.vote, journal.instance, journal.cluster_id


def test_a_new_journal_has_one_entry(disk):
    instance = opened(disk).instance
    journal = opened(disk)
    assert (journal[:], journal.term, journal.vote) == ([FIRST_ENTRY], 0, None)
    assert (journal.first, journal.last, len(journal)) == (1, 1, 1)
    assert journal.instance == instance


def test_on_a_real_disk(tmp_path):
    journal = RaftJournal(tmp_path)
    journal.set_term(2, "a")
    journal.add(b"\0x", 2, 2)
    journal.flush()
    wanted = content(journal)
    journal.close()
    assert content(RaftJournal(tmp_path)) == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == [*JOURNAL_NAMES]


def test_what_was_flushed_is_there(disk):
    journal = filled(disk)
    kept = content(journal)
    journal.add(b"\0lost", 21, 3)
    journal.set_term(4, "c")
    assert content(opened(disk)) == kept


def test_cut_and_append_change_together(disk):
    journal = filled(disk)
    journal.truncate(10)
    journal.add(b"\0other", 10, 4)
    journal.compact(5)
    journal.set_term(4, None)
    before = journal.flushes
    journal.flush()
    journal.flush()
    assert journal.flushes == before + 1
    journal = opened(disk)
    assert [entry[1:] for entry in journal[:]] == [*((index, 3) for index in range(5, 10)), (10, 4)]
    assert (journal.term_at(4), journal.term_at(9), journal.term_at(10), journal.term_at(11)) == (None, 3, 4, None)


def test_a_cut_is_kept_without_anything_new(disk):
    journal = filled(disk)
    journal.truncate(10)
    journal.flush()
    assert content(opened(disk)) == content(journal)


def test_a_cut_of_what_was_never_flushed(disk):
    journal = filled(disk)
    for entry in entries(21, 30, 3):
        journal.add(*entry)
    journal.truncate(25)
    journal.add(b"\0new", 25, 4)
    journal.set_term(4, None)
    journal.truncate(15)
    for entry in entries(15, 16, 4):
        journal.add(*entry)
    journal.flush()
    assert [entry[1:] for entry in opened(disk)[:]][13:] == [(14, 3), (15, 4), (16, 4)]


def test_compaction_of_what_was_never_flushed(disk):
    journal = filled(disk)
    for entry in entries(21, 30, 3):
        journal.add(*entry)
    journal.compact(25)
    journal.flush()
    assert [entry[1] for entry in opened(disk)[:]] == [*range(25, 31)]


def test_compaction_makes_the_files_smaller(disk):
    journal = filled(disk, last=200)
    before = len(disk.content(FIRST))
    journal.compact(199)
    journal.flush()
    assert len(disk.content(FIRST)) == len(disk.content(COPY)) < before / 10


def test_restart_from_a_snapshot(disk):
    journal = filled(disk)
    journal.reset((b"\0p", 100, 3), (b"\0l", 101, 3))
    journal.add(b"\0n", 102, 3)
    journal.flush()
    assert opened(disk)[:] == [(b"\0p", 100, 3), (b"\0l", 101, 3), (b"\0n", 102, 3)]


def test_entries_by_bytes(disk):
    journal = filled(disk)
    size = len(journal[12][0])
    assert [entry[1] for entry in journal.entries_from(10, 3 * size)] == [10, 11, 12]
    assert [entry[1] for entry in journal.entries_from(10, 1)] == [10]
    assert [entry[1] for entry in journal.entries_from(18)] == [18, 19, 20]
    assert journal.entries_from(21) == []


@pytest.mark.parametrize("order", Order)
def test_a_power_loss_at_any_operation_keeps_what_was_flushed(order):
    """What a flush returned for is there; what it did not return for is there as a whole, or not at all."""
    for seed in range(300):
        rng, disk = random.Random(seed), SimDisk()
        flushed, now = live_until_the_power_goes(rng, disk)
        disk = disk.crash(rng, order)
        journal = opened(disk)
        if flushed is None:
            assert journal[:] == [FIRST_ENTRY], seed
        else:
            assert content(journal) in (flushed, now), seed
        assert content(opened(disk.crash(rng, order))) == content(journal), "what was read is on disk"


class PowerError(Exception):
    pass


def live_until_the_power_goes(rng, disk):
    """(content when the last flush returned, what was being flushed when the power went)."""
    left = rng.randrange(60)

    def go_out(operation):
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerError

    disk.before = go_out
    flushed = now = None
    try:
        journal = RaftJournal(ROOT, disk, random.Random(1))
        now = flushed = content(journal)
        while True:
            change_somehow(journal, rng)
            now = content(journal)
            journal.flush()
            flushed = now
    except PowerError:
        disk.before = None
    return flushed, now


def change_somehow(journal, rng):
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(8):
            case 0:
                journal.set_term(journal.term + 1, rng.choice((None, "a", "b")))
            case 1 if len(journal) > 1:
                journal.truncate(rng.randint(journal.first + 1, journal.last))
            case 2:
                journal.compact(rng.randint(journal.first, journal.last))
            case 3:
                term, index = journal.term, journal.last + rng.randint(1, 5)
                journal.reset((b"\0p", index, term), (b"\0l", index + 1, term))
            case 4:
                journal.belong_to(f"{rng.randrange(3)}")
            case _:
                journal.add(b"\0" * rng.choice((1, 10, 700, 5_000)), journal.last + 1, journal.term)


def aged(disk):
    """A journal that went through everything, as it is after kill -9."""
    journal = filled(disk, last=40)
    journal.belong_to("c" * 32)
    journal.origin("a", VOTERS)
    journal.compact(12)
    journal.flush()
    for entry in entries(41, 60, 3):
        journal.add(*entry)
        journal.flush()
    journal.truncate(50)
    journal.set_term(5, "c")
    journal.flush()
    return journal


@pytest.mark.parametrize("path", [FIRST, COPY])
def test_damage_of_one_file_is_repaired(disk, path, caplog):
    """Whatever becomes of either file: term, vote, entries and identity are what they were."""
    journal = aged(disk)
    wanted, sound, rng = content(journal), disk.content(path), random.Random(1)
    count = 0
    for what, damaged in chain(disk_damage(sound, rng), [("deleted", None)]):
        if damaged == sound:
            continue
        used = disk.kill()
        used.delete(path) if damaged is None else used.overwrite(path, damaged)
        caplog.clear()
        with caplog.at_level("INFO"):
            assert content(opened(used)) == wanted, what
        assert str(path) in caplog.text, what
        assert used.content(FIRST) == used.content(COPY)
        assert content(opened(used)) == wanted, what
        count += 1
    assert count > 400


def test_damage_of_both_files_is_named(disk):
    """300 flips in the same frames of both, the last one among them."""
    aged(disk)
    rng = random.Random(1)
    for _ in range(300):
        used = disk.kill()
        at = rng.randrange(len(disk.content(FIRST)))
        for path in (FIRST, COPY):
            data = bytearray(used.content(path))
            data[at] ^= 1 << rng.randrange(8)
            used.overwrite(path, bytes(data))
        with pytest.raises(JournalError, match=f"damaged: both copies, {FIRST} and {COPY}"):
            opened(used)


def test_an_older_copy_that_was_put_back_is_not_believed(disk):
    journal = opened(disk)
    for number in range(3):
        old = {path: disk.content(path) for path in (FIRST, COPY)}
        journal.set_term(number + 1, "a")
        journal.add(b"\0x", journal.last + 1, number + 1)
        if number == 1:
            journal.compact(2)
        journal.flush()
        for path in (FIRST, COPY):
            used = disk.kill()
            used.overwrite(path, old[path])
            assert content(opened(used)) == content(journal)


def test_a_torn_write_is_no_damage(disk, caplog):
    """The first file ends with a piece of a frame that the copy does not know: it was never flushed."""
    journal = filled(disk)
    wanted, sound = content(journal), disk.content(FIRST)
    journal.add(b"\0" * 1_000, 21, 3)
    journal.flush()
    whole = disk.content(FIRST)
    for end in range(len(sound), len(whole), 7):
        used = disk.kill()
        used.overwrite(FIRST, whole[:end])
        used.overwrite(COPY, sound)
        assert content(opened(used)) == wanted
    assert "damaged" not in caplog.text


def test_a_write_that_only_the_first_file_has_is_finished(disk, caplog):
    journal = filled(disk)
    sound = disk.content(COPY)
    journal.add(b"\0" * 1_000, 21, 3)
    journal.flush()
    for end in range(len(sound), len(disk.content(FIRST)), 7):
        used = disk.kill()
        used.overwrite(COPY, disk.content(FIRST)[:end])
        assert content(opened(used)) == content(journal)
    assert "damaged" not in caplog.text


def test_a_half_made_journal_is_made_anew(disk):
    disk.overwrite(FIRST.with_name(f"{FIRST.name}.tmp"), b"half")
    assert opened(disk)[:] == [FIRST_ENTRY]


@pytest.mark.parametrize("nonsense", [b"", b"garbage" * 1000])
def test_files_that_are_no_journal(disk, nonsense):
    for path in (FIRST, COPY):
        disk.overwrite(path, nonsense)
    with pytest.raises(JournalError, match=f"{FIRST} and {COPY}"):
        opened(disk)


def test_the_journal_of_before_the_first_release_is_refused(disk):
    disk.overwrite(ROOT / "raft.db", b"SQLite format 3\0")
    with pytest.raises(JournalError, match=r"/sim/raft\.db is the metadata journal of a liftpy from before"):
        opened(disk)
    assert disk.names(ROOT) == ["raft.db"]


def test_a_newer_format_is_refused(disk, monkeypatch):
    monkeypatch.setattr(journal_frames, "_VERSION", 2)
    opened(disk)
    monkeypatch.undo()
    with pytest.raises(NewerJournalError, match=r"newer liftpy \(format 2\)"):
        opened(disk)


@pytest.mark.parametrize("kind", ["write", "sync", "create", "rename", "sync_directory"])
def test_a_disk_that_fails(disk, kind):
    """The flush says so, also when asked again; and what was there before is there."""
    for skip in range(2):
        used = disk.kill()
        journal = filled(used)
        kept = content(journal)
        journal.add(bytes(5_000), 21, 3)
        if kind not in {"write", "sync"}:
            journal.compact(5)
        used.fail(kind, code=errno.ENOSPC, skip=skip)
        for _ in range(2):
            with pytest.raises(JournalError, match=f"writing the metadata journal {FIRST} failed.*No space left"):
                journal.flush()
        used.heal()
        found = content(opened(used.crash(random.Random(skip))))
        assert found in (kept, content(journal))


def test_a_read_that_fails_is_named(disk):
    filled(disk)
    disk.fail("read", code=errno.EIO, where=lambda path: path == FIRST)
    with pytest.raises(JournalError, match=f"opening the metadata journal {FIRST} failed"):
        opened(disk)


def test_the_first_voters_are_kept(disk):
    journal = opened(disk)
    assert journal.origin("a", VOTERS) == VOTERS
    journal.flush()
    journal = opened(disk)
    assert journal.origin("a", (Voter("a", "elsewhere", 1),)) == VOTERS
    with pytest.raises(JournalError, match="the journal of node 'a', and this is 'b'"):
        journal.origin("b", VOTERS)
