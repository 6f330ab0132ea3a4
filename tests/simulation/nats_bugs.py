"""Mistakes of which messages were missing and no gap told: each as a change of the code under test.

With each goes what has to go wrong for it to show. How many seeds each takes stands in `docs/internals/decisions.md`.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.gaps.partition_gaps import PartitionGaps
from liftpy_server.gaps.recorder import GapRecorder
from liftpy_server.handover import held
from liftpy_server.handover.handover import Handover
from liftpy_server.handover.held import Holding
from liftpy_server.handover.server_change import ServerChange, _HeldPartition
from liftpy_server.handover.taking import Taking
from liftpy_server.ingest import subscriptions
from liftpy_server.ingest.binding import Binding
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.nats.connection import NatsConnection
from liftpy_server.replication.host.replica_host import ReplicaHost
from liftpy_server.streams.opening import StreamOpening
from simulation.scheduler import MS, S
from simulation.shell_bugs import Bug, _faults

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUGS", "planted"]

_OPEN, _CLOSE, _END = PartitionGaps.open, PartitionGaps.close, NatsConnection.end
_MARK = Taking._mark
_RELEASE = _HeldPartition.release
_REACHED = ServerChange._reached


def _whole_when_heard(opening: Any, _stream: Any, _partition: Any) -> float:
    """Nothing is missing that was published before the leader was heard last, which a time-out ago it was."""
    return float(opening._clock.elapsed()) - 1.0


def _ends_with_answers(connection: Any, cause: str) -> None:
    """What is asked when a connection ends counts as answered."""
    if connection.is_open and not connection.cause:
        for question in connection.questions:
            connection.on_answer(question)
    _END(connection, cause)


def _heard_although_held(binding: Any, asked_s: float) -> None:
    """What is held counts as stored."""
    for partition in binding.partitions.values():
        partition.heard_s = asked_s
        partition.gaps.heard(asked_s)


async def _recorded_by_nobody(_recorder: Any, due: Any) -> None:
    """Gaps are known to the node that leads, and to nobody else."""
    for gaps in due:
        _recorder._due.pop(gaps, None)
        gaps.were_recorded(gaps.unrecorded())


def _siblings(gaps: Any) -> Any:
    """The gaps of the other partitions of a stream on a node."""
    return [each for each in _ALL if each._keeper is gaps._keeper and each.stream == gaps.stream and each._lapse]


_ALL: list[Any] = []


def _opened_for_all(gaps: Any, since_s: float, cause: str) -> None:
    """What one partition of a stream misses already, another does not begin anew."""
    if gaps not in _ALL:
        _ALL.append(gaps)
    if not _siblings(gaps):
        _OPEN(gaps, since_s, cause)


def _closed_for_all(gaps: Any) -> None:
    """What one partition misses no longer, no other misses."""
    for each in [gaps, *_siblings(gaps)]:
        _CLOSE(each)


def _append_unguarded(holding: Any, partition: Any, held: Any, left: Any, _since_s: Any) -> None:
    """What goes wrong goes on to whoever called."""
    partition.held = None
    for messages, skip in left(held):
        if isinstance(messages, list):
            partition.append_incoming(messages, holding._clock.now_ns())
        else:
            partition.append(messages, skip, holding._clock.now_ns())
    held.drop()
    partition.end_pass()


def _append_nothing(_holding: Any, partition: Any, _held: Any, _left: Any, since_s: Any) -> None:
    """Who leads next begins with what comes then."""
    partition.let_go()
    partition.heard_s = since_s


def _known_by_content(stored: Any, segments: Any) -> Any:
    """Messages of the same content are the same message."""
    known = {content for segment in stored for content in segment}
    return Counter(content for segment in segments for content in segment if content in known)


async def _marks_but_the_last(taking: Any, name: str, tokens: list[str], on_mark: Any) -> None:
    """Who is to lead does not wait until it has heard what the leader before stored last."""
    if len(tokens) > 1:
        await _MARK(taking, name, tokens, on_mark)


async def _at_once(*_: Any) -> None:
    """Nobody waits for anybody."""


async def _reached_at_once(*_: Any) -> bool:
    """Marks are not waited for."""
    return True


async def _reached_but_the_last(change: Any, servers: Any, what: str) -> bool:
    """Nobody waits until the new server has brought what the old one did."""
    return what == "last" or await _REACHED(change, servers, what)


def _released_whole(partition: Any, _stored: Any) -> None:
    """All that came from the new server is stored, whatever the old one has brought."""
    _RELEASE(partition, None)


def _released_never(partition: Any, _stored: Any) -> None:
    """What came from the new server before the old one was left is not stored."""
    partition.held = None


def _missed_in_silence(_binding: Any, _cause: str) -> None:
    """What was read and not taken is only logged."""


def _missed_by_all(binding: Any, cause: str) -> None:
    """What a node that is to lead can not take is a gap of the leader's, which ends it before it comes to that."""
    for partition in binding.partitions.values():
        if partition.is_leading or partition.held is not None:
            partition.gaps.missed(partition.heard_s, cause)


def _by_two_clocks(gaps: Any, known: Any, *, until_ns: int | None) -> Any:
    """When a gap began says the clock of then, and when it ended that of now."""
    until_ns = None if until_ns is None else max(until_ns, known.gap.since_ns)
    gap = replace(known.gap, version=known.gap.version + 1, until_ns=until_ns)
    gaps._write(gap)
    return gap


def _quoted_as_json(text: str, asked: Any, _unconfirmed: Any) -> Any:
    """A refusal is recognised by the subject, written as JSON has it."""
    quoted = {json.dumps(binding.subject, ensure_ascii=False): binding for binding in asked.values()}
    return [binding for subject, binding in quoted.items() if subject in text] or None


BUGS: dict[str, Bug] = {
    "each leader of a partition takes its share of a queue group": Bug(
        [(StreamConfig, "_check_group", lambda _: None)],
        _faults("cut_route", group="g", partitions=3),
    ),
    "a leader that stood still keeps its share of a queue group": Bug(
        [(StreamConfig, "_check_group", lambda _: None)],
        _faults("pause", group="g", partitions=1, trouble_us=15 * S),
        seed=2,
    ),
    "a gap begins when the leader before was heard last": Bug(
        [(StreamOpening, "whole_until_s", _whole_when_heard)],
        _faults("kill_leader", "overload"),
        seed=1,
    ),
    "a leader that is deaf goes on leading": Bug(
        [(ReplicaHost, "_hand_over", lambda *_: None)],
        _faults("deafen"),
    ),
    "routes between servers are not looked at": Bug(
        [(IngestConnection, "told", lambda *_: None)],
        _faults("cut_route"),
    ),
    "a server that ours never named is not looked for": Bug(
        [(IngestConnection, "_ask_others", lambda *_: None)],
        _faults("cut_route", "kill_leader"),
        seed=4,
    ),
    "a question counts as answered when its connection ends": Bug(
        [(NatsConnection, "end", _ends_with_answers)],
        _faults("silence", "pause_server"),
        seed=1,
    ),
    "gaps are known to the node that leads": Bug(
        [(GapRecorder, "_record", _recorded_by_nobody)],
        _faults("kill_leader", "kill_server"),
    ),
    "the partitions of a stream have one lapse": Bug(
        [(PartitionGaps, "open", _opened_for_all), (PartitionGaps, "close", _closed_for_all)],
        _faults("kill_leader", "silence", "deafen"),
        seed=6,
    ),
    "what is held and meets an error is lost": Bug(
        [(Holding, "append", _append_unguarded)],
        _faults("hand_over", "error_in_handover"),
    ),
    "what a leader holds counts as stored when NATS answers": Bug(
        [(Binding, "heard", _heard_although_held)],
        _faults("kill_in_handover", "slow_disk", "overload"),
        seed=19,
    ),
    "the next leader does not hold": Bug(
        [(Holding, "append", _append_nothing)],
        _faults("hand_over"),
    ),
    "messages of the same content are one": Bug(
        [(held, "stored_of_held", _known_by_content)],
        _faults("hand_over"),
    ),
    "what the leader before stored last is not waited for": Bug(
        [(Taking, "_mark", _marks_but_the_last)],
        _faults("hand_over", "overload"),
        seed=8,
    ),
    "leaders change while a node changes its server": Bug(
        [(Holding, "steady", _at_once), (Handover, "_ended", _at_once)],
        _faults("lame_duck", "hand_over"),
        seed=6,
    ),
    "what two servers bring is stored twice": Bug(
        [(_HeldPartition, "release", _released_whole)],
        _faults("lame_duck"),
        seed=6,
    ),
    "what the next server brings is not held": Bug(
        [(_HeldPartition, "release", _released_never)],
        _faults("lame_duck"),
        seed=9,
    ),
    "a server is left before all know where the node listens now": Bug(
        [(ServerChange, "_reached", _reached_at_once), (ServerChange, "_level", _reached_at_once)],
        _faults("lame_duck"),
        seed=12,
    ),
    "what the old server brought last is not waited for at the new one": Bug(
        [(ServerChange, "_reached", _reached_but_the_last)],
        _faults("lame_duck", lag_us=150 * MS),
        seed=20,
    ),
    "a server that stands still is not looked for": Bug(
        [(IngestConnection, "_check", lambda *_: None)],
        _faults("pause_server", trouble_us=15 * S),
    ),
    "an error in delivery is only logged": Bug(
        [(Binding, "missed", _missed_in_silence)],
        _faults("error_in_delivery"),
    ),
    "a node that holds and meets an error leads all the same": Bug(
        [(Binding, "missed", _missed_by_all)],
        _faults("hand_over", "error_in_delivery"),
        seed=9,
    ),
    "a gap is timed by two clocks": Bug(
        [(PartitionGaps, "_write_anew", _by_two_clocks)],
        _faults("clock_jump", "silence"),
        seed=16,
    ),
    "a refused subject is known by how JSON writes it": Bug(
        [(subscriptions, "refused_bindings", _quoted_as_json)],
        _faults("deny"),
        seed=9,
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this is open the code has that bug."""
    _ALL.clear()
    with ExitStack() as stack:
        for owner, attribute, replacement in BUGS[name].patches:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
