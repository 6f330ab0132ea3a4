"""Mistakes that the shell of this system had, or may have, each as a change of the code under test.

With each goes what has to go wrong for it to show: the faults of its runs. How many seeds each takes stands in
`docs/decisions.md`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from liftpy_envelope.batch import HEADER_SIZE, decode_records
from liftpy_log.log_time import LogTime
from liftpy_log.segment import Segment
from liftpy_server.committing import CommittingLog
from liftpy_server.replicas.standing import Standing
from simulation.scheduler import S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BUGS", "Bug", "planted"]


class Bug(NamedTuple):
    """What is patched, and how runs go that show it."""

    patches: Sequence[tuple[Any, str, Any]]
    how: dict[str, Any]


def _faults(*names: str, **how: Any) -> dict[str, Any]:
    return {"only": frozenset(names), **how}


_COPIED = LogTime.copied
_LOST_LOGS, _SETTLED = Standing.lost_logs, Standing.settled


def _unchecked(segment: Any, file: Any, position: int) -> Any:
    """A body is decoded as it is."""
    _, header = next(segment.headers(file, position))
    return header, decode_records(header, file.read(position + HEADER_SIZE, header.length - HEADER_SIZE))


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


def _lost_where_counted(standing: Any, state: Any, node_id: str) -> Any:
    """A log that is lost is told of where the metadata counts on it now."""
    partitions = {
        (stream.uuid, number): partition
        for stream in state.streams.values()
        for number, partition in enumerate(stream.partitions)
    }
    return [place for place in _LOST_LOGS(standing, state, node_id) if node_id in partitions[place].isr]


def _settled(standing: Any, *args: Any) -> None:
    """Once the metadata has taken note, a failure is forgotten."""
    standing._failed.clear()
    _SETTLED(standing, *args)


BUGS: dict[str, Bug] = {
    "a log whose end was cut is not told of": Bug(
        [(Standing, "log_torn", lambda *_: None)],
        _faults("damage_tail", "kill_leader"),
    ),
    "the window of ids runs on the leader's wall clock": Bug(
        [
            (LogTime, "now", _on_the_wall_clock),
            (LogTime, "stamp", _on_the_wall_clock),
            (LogTime, "age_time", _as_stamped),
        ],
        _faults("clock_jump", "move_leader"),
    ),
    "what a leader leapt over is forgotten": Bug(
        [(LogTime, "found", _found_without_a_leap), (LogTime, "copied", _copied_without_a_leap)],
        _faults("clock_jump", "kill_leader"),
    ),
    "a log that is lost is told of where it counts": Bug(
        [(Standing, "lost_logs", _lost_where_counted)],
        _faults("lose_joiner", trouble_us=8 * S),
    ),
    "a log that failed is forgotten by a restart": Bug(
        [(Standing, "settled", _settled), (Standing, "failed_logs", lambda *_: [])],
        _faults("damage_ids", "kill", "kill_leader"),
    ),
    "ids are rebuilt from bodies without their checksum": Bug(
        [(Segment, "records", _unchecked)],
        _faults("damage_ids", "kill_leader", "move_leader"),
    ),
    "what is in the page cache counts as durable": Bug(
        [(CommittingLog, "durable_end", property(lambda partition: partition.log.log_end))],
        _faults("power_loss_of_all", "slow_disk"),
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this is open the code has that bug."""
    with ExitStack() as stack:
        for owner, attribute, replacement in BUGS[name].patches:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
