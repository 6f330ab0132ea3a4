"""Mistakes that the shell of this system had, or may have, each as a change of the code under test.

With each goes what has to go wrong for it to show: the faults of its runs. How many seeds each takes stands in
`docs/internals/decisions.md`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from liftpy_envelope.batch import HEADER_SIZE, decode_records, read_header
from liftpy_log.ids.dedupe import DedupeWindow
from liftpy_log.ids.ordered import OrderedProducers
from liftpy_log.log_time import LogTime
from liftpy_log.segments.segment import Segment
from liftpy_server.consensus.store import RaftMetadataStore
from liftpy_server.metadata import elections, node_commands, partition_commands
from liftpy_server.metadata.commands import Outcome
from liftpy_server.metadata.elections import led_uncleanly
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.partition import dedupe_rebuild
from liftpy_server.partition.committing import CommittingLog
from liftpy_server.partition.dedupe_rebuild import note_batches
from liftpy_server.replication.core.effects import ReportFailure
from liftpy_server.replication.core.leader import Leader
from liftpy_server.replication.host import durability_record, local
from liftpy_server.replication.host.answering import Answering
from liftpy_server.replication.host.durability_record import DurabilityRecord
from liftpy_server.replication.host.local import LocalReplica
from liftpy_server.replication.host.proposals import ReplicaProposals
from liftpy_server.streams import opening
from simulation import shell_node
from simulation.scheduler import S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BUGS", "Bug", "planted"]


class Bug(NamedTuple):
    """What is patched, how runs go that show it, and the first seed that does."""

    patches: Sequence[tuple[Any, str, Any]]
    how: dict[str, Any]
    seed: int = 0


def _faults(*names: str, **how: Any) -> dict[str, Any]:
    return {"only": frozenset(names), **how}


_COPIED = LogTime.copied
_NOTE_BATCHES = note_batches
_PROPOSE_MANY = RaftMetadataStore.propose_many
_LOST_LOGS = DurabilityRecord.lost_logs
_ADD = ReplicaProposals.add
_NEWS = Answering.follower_news


def _on_the_wall_clock(_time: Any, wall_ns: int, _now_s: float) -> int:
    """What time it is says the clock of who asks."""
    return wall_ns


def _as_stamped(_time: Any, ns: int) -> int:
    """A record is as old as its stamp says."""
    return ns


def _found_without_a_leap(time: Any, timestamp: int) -> None:
    """What was leapt over is what the checkpoint says."""
    time._ns = max(time._ns, timestamp)


def _copied_without_a_leap(time: Any, after_ns: int, timestamp: int, now_s: float, _leaps: Any) -> None:
    """Followers believe that their leader has measured all time."""
    _COPIED(time, after_ns, timestamp, now_s)


def _as_fast_as_it_is(time: Any, after_ns: int, timestamp: int, now_s: float, leaps: Any) -> None:
    """A follower's time goes on with its own clock, however slowly its leader goes."""
    ns = time._ns + max(0, int((now_s - time._s) * 1e9))
    _COPIED(time, after_ns, timestamp, now_s, leaps)
    time._go_on(max(ns, timestamp), now_s)


def _guessed_leap(time: Any, after_ns: int, timestamp: int, now_s: float, _leaps: Any) -> None:
    """A follower takes for a leap by how much the newest record of a fetch is ahead of its own time."""
    elapsed = max(0, int((now_s - time._s) * 1e9))
    time._leap(timestamp, timestamp - time._ns - elapsed)
    _COPIED(time, after_ns, timestamp, now_s)


def _unchecked(segment: Any, file: Any, position: int) -> Any:
    """A body is decoded as it is."""
    _, header = next(segment.headers(file, position))
    return header, decode_records(header, file.read(position + HEADER_SIZE, header.length - HEADER_SIZE))


def _add_no_failure(proposals: Any, replica: Any, effect: Any) -> None:
    """That a log has failed is not told."""
    if not isinstance(effect, ReportFailure):
        _ADD(proposals, replica, effect)


def _lost_where_counted(durability_record: Any, state: Any, node_id: str, *known: Any) -> Any:
    """A log that is lost is told of where the metadata counts on it now."""
    partitions = {
        (stream.uuid, number): partition
        for stream in state.streams.values()
        for number, partition in enumerate(stream.partitions)
    }
    return [
        place for place in _LOST_LOGS(durability_record, state, node_id, *known) if node_id in partitions[place].isr
    ]


def _news_without_tombstones(replica: Any, request: Any) -> Any:
    """A follower is not told which tombstones may be gone."""
    return _NEWS(replica, request)._replace(delete_horizon=0)


def _note_all(window: Any, _stored: Any, data: Any, time: Any, committed_end: int) -> None:
    """Ids of all that a leader sent are remembered, whether or not there was room for it."""
    headers = []
    position = 0
    while position < len(data):
        headers.append(read_header(data, position))
        position += headers[-1].length
    _NOTE_BATCHES(window, headers, data, time, committed_end)


async def _propose_many(store: Any, proposals: Any) -> list[Outcome]:
    """What one attempt is refused never happens."""
    try:
        return await _PROPOSE_MANY(store, proposals)
    except MetadataRefusedError as error:
        return [Outcome(error=error.code, message=str(error))] * len(proposals)


def _elect_by_the_last_isr(nodes: Any, _config: Any, partition: Any) -> Any:
    """Only those who were taken out of the ISR are asked; the best of them leads, even with nothing."""
    told = {report.node_id: report for report in partition.reports if nodes[report.node_id].incarnation == report[1]}
    if partition.isr or not partition.unproven or any(node not in told for node in partition.unproven):
        return partition
    winner = max(partition.unproven, key=lambda node: told[node].reach)
    return partition if nodes[winner].expired else led_uncleanly(partition, winner)


_SETTLED_ISR = elections.settled_isr


def _forget_who_was_in_sync(partition: Any, isr: Any, _min_isr: int) -> Any:
    """Who is elected by reports is the only one that counts from then on."""
    return _SETTLED_ISR(partition, isr, 0)


def _load_no_ordered(_disk: Any, _path: Any, _start: int, log_end: int, *_others: Any) -> OrderedProducers:
    """Only what comes from now on is known."""
    ordered = OrderedProducers()
    ordered.end_offset = log_end
    return ordered


BUGS: dict[str, Bug] = {
    "who was in sync before an election is forgotten": Bug(
        [(elections, "settled_isr", _forget_who_was_in_sync)],
        _faults("power_loss_of_all", "lose_directory"),
        10,
    ),
    "a log whose end was cut is not told of": Bug(
        [(DurabilityRecord, "log_torn", lambda *_: None)],
        _faults("damage_tail", "kill_leader"),
        47,
    ),
    "ids of what found no room are remembered": Bug(
        [
            (local, "note_batches", _note_all),
            (local, "note_log", lambda *_: None),
            (CommittingLog, "stored", lambda partition, key: partition.dedupe.find(key)),
        ],
        _faults("full_failover"),
        3,
    ),
    "an empty log wins an election of the last ISR": Bug(
        [(module, "elect_by_reports", _elect_by_the_last_isr) for module in (node_commands, partition_commands)],
        _faults("lose_directory", "stop_cleanly", copies_to_lose=2),
        0,
    ),
    "the metadata do not hear of the first records": Bug(
        [(Leader, "_told_records", lambda *_: [])],
        _faults("lose_all_early", copies_to_lose=3),
        0,
    ),
    "a replica that gave up goes on without its ids": Bug(
        [(LocalReplica, "_know_ids", lambda _replica: None)],
        _faults("error_in_shell", "kill_leader", "move_leader"),
        0,
    ),
    "what one attempt is refused never happens": Bug(
        [(RaftMetadataStore, "propose_many", _propose_many)],
        _faults("late_joiner"),
        0,
    ),
    "a deposed leader goes on refusing": Bug(
        [(LocalReplica, "is_cut_off", lambda _replica: False)],
        _faults("isolate"),
        1,
    ),
    "a disk is believed after a power loss": Bug(
        [(durability_record, "_has_copies_elsewhere", lambda *_: False)],
        _faults("lying_syncs", "kill_leader"),
        1,
    ),
    "the window of ids runs on the leader's wall clock": Bug(
        [
            (LogTime, "now", _on_the_wall_clock),
            (LogTime, "stamp", _on_the_wall_clock),
            (LogTime, "age_time", _as_stamped),
        ],
        _faults("clock_jump", "move_leader"),
        0,
    ),
    "what a leader leapt over is forgotten": Bug(
        [(LogTime, "found", _found_without_a_leap), (LogTime, "copied", _copied_without_a_leap)],
        _faults("clock_jump", "kill_leader"),
        4,
    ),
    "a log that is lost is told of where it counts": Bug(
        [(DurabilityRecord, "lost_logs", _lost_where_counted)],
        _faults("lose_joiner", trouble_us=8 * S),
        0,
    ),
    "a log that failed is forgotten by a restart": Bug(
        [(DurabilityRecord, "log_failed", lambda *_: None)],
        _faults("forget_failure"),
        0,
    ),
    "ids are rebuilt from bodies without their checksum": Bug(
        [(Segment, "records", _unchecked)],
        _faults("lead_with_damaged_ids"),
        0,
    ),
    "a log that failed is told of by nobody": Bug(
        [(ReplicaProposals, "add", _add_no_failure)],
        _faults("fail_follower"),
        0,
    ),
    "a follower guesses what its leader leapt over": Bug(
        [(LogTime, "copied", _guessed_leap)],
        _faults("behind_a_leap", trouble_us=8 * S),
        0,
    ),
    "a follower is faster than its leader": Bug(
        [(LogTime, "copied", _as_fast_as_it_is)],
        _faults("clock_jump", "kill_leader", "move_leader", ids_max=20),
        3,
    ),
    "a window of ids that is shortened is told of as if it were whole": Bug(
        [(DedupeWindow, "known_ns", lambda window, _now: window.window_ns)],
        _faults("kill_leader", ids_max=20),
        0,
    ),
    "followers hear nothing of tombstones that are gone": Bug(
        [(Answering, "follower_news", _news_without_tombstones)],
        _faults("miss_tombstone", trouble_us=12 * S),
        1,
    ),
    "followers do not note ordered producers": Bug(
        [(dedupe_rebuild, "_note_ordered", lambda *_: None)],
        _faults("kill_leader", "move_leader", ordered=1),
        0,
    ),
    "ordered producers are forgotten by a restart": Bug(
        [(opening, "load_ordered", _load_no_ordered)],
        _faults("power_loss_of_all", ordered=1),
        0,
    ),
    "a checkpoint is written without the file of ordered producers": Bug(
        [(shell_node, "unsaved_ordered", lambda *_, **__: [])],
        _faults("power_loss_of_all", ordered=1),
        12,
    ),
    "what is in the page cache counts as durable": Bug(
        [(CommittingLog, "durable_end", property(lambda partition: partition.log.log_end))],
        _faults("power_loss_of_all", "slow_disk"),
        180,
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this is open the code has that bug."""
    with ExitStack() as stack:
        for owner, attribute, replacement in BUGS[name].patches:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
