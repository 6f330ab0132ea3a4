"""Mistakes that have been made in systems like this one, each as a change of the code under test.

A simulation that does not find them shows nothing by finding nothing.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_server.metadata import elections, node_commands, partition_commands
from liftpy_server.replication.core import follower as follower_module
from liftpy_server.replication.core import leader as leader_module
from liftpy_server.replication.core.effects import AdvanceHighWatermark, Truncate
from liftpy_server.replication.core.follower import Follower, FollowPhase
from liftpy_server.replication.core.leader import Leader
from liftpy_server.replication.core.view import LogMarks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHELL_BUGS = frozenset({"keep_unproven", "keep_cut"})  # a node that can not prove its log, or cut its end, says nothing


def _truncate_by_high_watermark(follower: Follower, now_s: float) -> list[Any]:
    """A follower starts an epoch by dropping whatever it does not know to be committed."""
    follower._is_agreed = True
    log = follower._log
    if log.high_watermark == log.end:
        return follower._go_on(now_s)
    follower.phase = FollowPhase.CUTTING
    return [Truncate(end=log.high_watermark, loses_committed=False)]


def _join_while_behind(progress: Any, high_watermark: int, epoch_start: int) -> bool:
    """A joiner need only have fetched lately."""
    return progress.durable_end is not None


_ADVANCED = Leader.advanced


def _commit_below_min_isr(leader: Leader) -> list[Any]:
    """The in-sync replica set may have any size."""
    view = leader.view
    leader.view = replace(view, min_isr=0)
    try:
        return _ADVANCED(leader)
    finally:
        leader.view = view


def _count_only_the_committed_isr(leader: Leader) -> list[Any]:
    """A proposed member counts only when its leader hears that it was added."""
    pending, leader._pending = leader._pending, None
    try:
        return _ADVANCED(leader)
    finally:
        leader._pending = pending


def _count_only_the_proposed_isr(leader: Leader) -> list[Any]:
    """A member whose removal was proposed counts no longer."""
    isr = leader.view.isr if leader._pending is None else leader._pending.isr
    ends = [leader._log.durable_end]
    ends += [progress.durable_end or 0 for node, progress in leader._followers.items() if node in isr]
    if len(isr) < leader.view.min_isr or min(ends) <= leader._log.high_watermark:
        return []
    leader._log.high_watermark = min(ends)
    return [AdvanceHighWatermark(offset=min(ends))]


def _count_what_is_not_on_disk(marks: LogMarks, epoch: int, base: int, end: int) -> None:
    """A replica counts when it has the record in memory."""
    marks.epochs.begin(epoch, base)
    marks.end = marks.durable_end = end


def _same_epoch_after_restart(partition: Any, _node_id: str, _loads: Any) -> Any:
    """A restarted leader goes on in its epoch."""
    return partition


def _without_asking_again(follower: Follower, answer: Any, now_s: float) -> list[Any]:
    """One answer is believed to be enough, whatever epoch it is about: the reply lacks the epoch."""
    if answer.question != follower._questions or answer.leader_epoch != follower.view.leader_epoch:
        return []
    if follower.phase is not FollowPhase.ASKING or answer.refusal:
        return []
    follower._is_agreed = True
    if answer.end < follower._log.end:
        follower.phase = FollowPhase.CUTTING
        return [Truncate(end=max(answer.end, follower._log.start), loses_committed=False)]
    return follower._go_on(now_s)


def _answers_of_any_epoch(follower: Follower, fetched: Any, now_s: float) -> list[Any]:
    """A follower takes what any leader ever sent it."""
    answer = fetched.result
    if follower.phase is not FollowPhase.FETCHING or answer.offset != follower._log.end or answer.refusal:
        return []
    follower._leader_high_watermark = max(follower._leader_high_watermark, answer.high_watermark)
    if fetched.ranges:
        follower.phase = FollowPhase.APPENDING
        return [follower_module.Append(fetched=fetched)]
    return [*follower._advanced(), *follower._fetch(now_s)]


def _deaf(leader: Leader, progress: Any, heard_s: float) -> None:
    """A leader counts no follower whose fetch waits at it."""


def _count_the_removed(leader: Leader) -> list[Any]:
    """Who was in the set when this leader began counts for ever: removed replicas, too."""
    view = leader.view
    counted = tuple(dict.fromkeys((*vars(leader).setdefault("counted", view.isr), *view.isr)))
    ends = [leader._log.durable_end]
    for node in counted:
        progress = leader._followers.get(node)
        if node != leader._node_id:
            ends.append(0 if progress is None else progress.durable_end or 0)
    if len(view.isr) < view.min_isr or min(ends) <= leader._log.high_watermark:
        return []
    leader._log.high_watermark = min(ends)
    return [AdvanceHighWatermark(offset=min(ends))]


def _count_observers(leader: Leader) -> list[Any]:
    """As many copies as the set has members are enough, an observer's among them."""
    view = leader.view
    ends = [leader._log.durable_end]
    for node, progress in leader._followers.items():
        if node in view.isr or node in view.observers:
            ends.append(progress.durable_end or 0)
    copied = sorted(ends, reverse=True)[len(view.isr) - 1] if len(view.isr) <= len(ends) else 0
    if len(view.isr) < view.min_isr or copied <= leader._log.high_watermark:
        return []
    leader._log.high_watermark = min(copied, leader._log.durable_end)
    return [AdvanceHighWatermark(offset=leader._log.high_watermark)]


def _remembers(leader: Leader, node: str, before: Any, now_s: float) -> Any:
    """What a replica said is believed although it may have been away meanwhile."""
    progress = leader._followers.get(node)
    return progress if progress is not None and progress.incarnation == leader.view.incarnations.get(node) else None


def _elect_by_the_last_isr(nodes: Any, _config: Any, partition: Any) -> Any:
    """Only those who were taken out of the ISR are asked; the best of them leads, even with nothing."""
    told = {report.node_id: report for report in partition.reports if nodes[report.node_id].incarnation == report[1]}
    if partition.isr or not partition.unproven or any(node not in told for node in partition.unproven):
        return partition
    winner = max(partition.unproven, key=lambda node: told[node].reach)
    return partition if nodes[winner].expired else elections.led_uncleanly(partition, winner)


_PATCHES: dict[str, tuple[Any, str, Callable[..., Any] | property]] = {
    "truncate_by_high_watermark": (Follower, "begin", _truncate_by_high_watermark),
    "join_while_behind": (leader_module, "may_join", _join_while_behind),
    "commit_below_min_isr": (Leader, "advanced", _commit_below_min_isr),
    "answer_before_caught_up": (Leader, "is_caught_up", property(lambda leader: True)),
    "count_only_the_committed_isr": (Leader, "advanced", _count_only_the_committed_isr),
    "count_only_the_proposed_isr": (Leader, "advanced", _count_only_the_proposed_isr),
    "count_what_is_not_on_disk": (LogMarks, "append", _count_what_is_not_on_disk),
    "same_epoch_after_restart": (node_commands, "_started_proven", _same_epoch_after_restart),
    "without_asking_again": (Follower, "epoch_end", _without_asking_again),
    "answers_of_any_epoch": (Follower, "fetched", _answers_of_any_epoch),
    "deaf_while_quiet": (Leader, "_heard", _deaf),
    "count_the_removed": (Leader, "advanced", _count_the_removed),
    "count_observers": (Leader, "advanced", _count_observers),
    "remember_the_removed": (Leader, "_kept", _remembers),
    "elect_by_the_last_isr": (partition_commands, "elect_by_reports", _elect_by_the_last_isr),
}
SCRIPTED = frozenset({"remember_the_removed"})  # too rare for chance; a test of its own meets it
MORE_LOST = frozenset({"elect_by_the_last_isr"})  # shows only where more disks are lost than the promise allows
BUGS = tuple(sorted({*_PATCHES, *SHELL_BUGS} - SCRIPTED))


@contextmanager
def planted(name: str) -> Iterator[frozenset[str]]:
    """While this is open the code has that bug; what it yields goes to the run."""
    with ExitStack() as stack:
        if name not in SHELL_BUGS:
            stack.enter_context(patch.object(*_PATCHES[name]))
        yield frozenset({name})
