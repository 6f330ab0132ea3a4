"""Mistakes that have been made in implementations of Raft, each as a change of the code under test."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_server.consensus import snapshot_keeper as snapshot_module
from liftpy_server.consensus.elections import Elections
from liftpy_server.consensus.follower import RaftFollower
from liftpy_server.consensus.leader import RaftLeader
from liftpy_server.consensus.leader_duties import LeaderDuties
from liftpy_server.consensus.storage import journal as journal_module
from liftpy_server.consensus.storage.journal import RaftJournal
from liftpy_server.consensus.storage.journal_frames import read_copies
from simulation.raft_network import SimTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

_APPEND = RaftJournal._append
_HEAR = Elections.receive
_DUTIES = LeaderDuties.run
_RESET = RaftJournal.reset
_LOAD = RaftJournal._load
_TAKE = RaftFollower._take_entries
_RECONCILE = snapshot_module._reconcile


def _forget_the_vote(journal: RaftJournal) -> None:
    """A vote is not written before the answer leaves: it goes to disk with the next entries."""
    if journal.last > journal._durable_last or journal._is_truncated:
        _APPEND(journal)


def _forget_vote_and_keep_term(journal: RaftJournal) -> None:
    """The term is written without the vote in it."""
    vote, journal._vote = journal._vote, None
    try:
        _APPEND(journal)
    finally:
        journal._vote = vote


def _forget_the_term(journal: RaftJournal, bodies: Any) -> None:
    """After a restart the term is that of the last entry, as if none had been kept."""
    _LOAD(journal, bodies)
    journal._term, journal._vote = journal._entries[-1][2], None


def _commit_older_terms(duties: LeaderDuties) -> None:
    """An entry that a majority has is committed, whatever its term."""
    core, journal = duties._core, duties._journal
    if core.is_leader:
        matches = [journal.last, *(core.match_index(node) for node in core.other_voters)]
        core.commit_to(sorted(matches)[(len(matches) - 1) // 2])
    _DUTIES(duties)


def _send_before_flush(transport: SimTransport, node: str, message: Any) -> bool:
    """What leaves does not wait for the disk."""
    if transport._network.link(transport._node.name, node) is None:
        return False
    return transport._network.send(transport._node, node, message)


def _cut_what_follows(follower: RaftFollower, entries: Any) -> None:
    """A message is all that there is behind its place: what follows is truncated, in conflict or not."""
    if not entries:
        return
    first = entries[0][1]
    if first <= follower._journal.last:
        follower._journal.truncate(first)
        follower._peers.membership.truncate(first)
    for entry in entries:
        follower._journal.add(*entry)
    follower._peers.membership.record(entries)
    follower._peers.sync()


def _snapshot_without_its_term(journal: RaftJournal, previous: Any, last: Any) -> None:
    """The log after an installed snapshot says nothing of the snapshot's term."""
    _RESET(journal, (*previous[:2], 0), (*last[:2], 0))


def _vote_for_shorter_logs(elections: Elections, node: str, message: Any) -> None:
    """Who asks gets the vote of this term, whatever its log."""
    if message["type"] in {"pre_vote", "request_vote"}:
        message = message | {"last_log_index": 1 << 40, "last_log_term": 1 << 40}
    _HEAR(elections, node, message)


def _believe_one_copy(first: bytes | None, _second: bytes | None) -> Any:
    """One file is the journal: what is not well at its end was never flushed."""
    return read_copies(first, b"")


def _commit_unverified(follower: RaftFollower, node: str, message: Any) -> None:
    """A follower commits as far as the leader, whether or not its log was compared so far."""
    _TAKE(follower, node, message)
    follower._core.commit_to(min(message["commit_index"], follower._journal.last))


def _write_once(journal: RaftJournal) -> None:
    """The copy is written with the next frame."""
    files = journal._files
    journal._files = files[:1]
    try:
        _APPEND(journal)
    finally:
        journal._files = files


def _keep_after_any_snapshot(snapshot: Any, journal: RaftJournal) -> bool:
    """What stands after a leader's snapshot is kept, whether or not it agrees."""
    if journal.first < snapshot.previous[1] and journal.last > snapshot.index:
        journal.compact(snapshot.previous[1])
        journal.flush()
        return True
    return _RECONCILE(snapshot, journal)


_PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "vote_not_persisted": [(RaftJournal, "_append", _forget_vote_and_keep_term)],
    "term_not_persisted": [(RaftJournal, "_load", _forget_the_term)],
    "vote_persisted_late": [(RaftJournal, "_append", _forget_the_vote)],
    "older_term_committed_by_counting": [(LeaderDuties, "run", _commit_older_terms)],
    "acked_before_flush": [(SimTransport, "send", _send_before_flush)],
    "committed_entries_cut": [(RaftFollower, "_store", _cut_what_follows)],
    "two_changes_at_once": [(RaftLeader, "may_change_voters", lambda _leader: True)],
    "snapshot_without_its_term": [(RaftJournal, "reset", _snapshot_without_its_term)],
    "vote_for_a_shorter_log": [(Elections, "receive", _vote_for_shorter_logs)],
    "damaged_tail_taken_for_torn": [(journal_module, "read_copies", _believe_one_copy)],
    "commit_beyond_what_was_compared": [(RaftFollower, "_take_entries", _commit_unverified)],
    "one_file_written": [(RaftJournal, "_append", _write_once)],
    "snapshot_keeps_what_disagrees": [(snapshot_module, "_reconcile", _keep_after_any_snapshot)],
}
BUGS = tuple(_PATCHES)


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this is open the code has that bug."""
    with ExitStack() as stack:
        for owner, attribute, replacement in _PATCHES[name]:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
