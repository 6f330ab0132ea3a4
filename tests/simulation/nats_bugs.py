"""Mistakes of which messages were missing and no gap told: each as a change of the code under test.

With each goes what has to go wrong for it to show. How many seeds each takes stands in `docs/decisions.md`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.gaps.partition_gaps import PartitionGaps
from liftpy_server.gaps.recorder import GapRecorder
from liftpy_server.ingest.connection import IngestConnection
from liftpy_server.nats.connection import NatsConnection
from liftpy_server.replication.host.replica_host import ReplicaHost
from liftpy_server.stream_opening import StreamOpening
from simulation.scheduler import S
from simulation.shell_bugs import Bug, _faults

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUGS", "planted"]

_OPEN, _CLOSE, _END = PartitionGaps.open, PartitionGaps.close, NatsConnection.end


def _whole_when_heard(opening: Any, _stream: Any, _partition: Any) -> float:
    """Nothing is missing that was published before the leader was heard last, which a time-out ago it was."""
    return float(opening._clock.elapsed()) - 1.0


def _ends_with_answers(connection: Any, cause: str) -> None:
    """What is asked when a connection ends counts as answered."""
    if connection.is_open and not connection.cause:
        for question in connection.questions:
            connection.on_answer(question)
    _END(connection, cause)


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
    ),
    "a question counts as answered when its connection ends": Bug(
        [(NatsConnection, "end", _ends_with_answers)],
        _faults("silence", "pause_server"),
    ),
    "gaps are known to the node that leads": Bug(
        [(GapRecorder, "_record", _recorded_by_nobody)],
        _faults("kill_leader", "kill_server"),
    ),
    "the partitions of a stream have one lapse": Bug(
        [(PartitionGaps, "open", _opened_for_all), (PartitionGaps, "close", _closed_for_all)],
        _faults("kill_leader", "silence", "deafen"),
        seed=1,
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
