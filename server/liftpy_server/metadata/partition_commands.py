"""Commands about one partition: its in-sync replica set, its leader, and who doubts it.

All of them carry what their proposer believes (leader epoch, partition version, incarnations) and are refused when
the metadata knows better: a deposed leader or a process that was replaced changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.changes import (
    RefusedError,
    check_registered,
    check_term,
    find_partition,
    put_partition,
)
from liftpy_server.metadata.elections import (
    able_to_lead,
    elect_by_reports,
    healed,
    knowing,
    led_by,
    led_uncleanly,
    settled_isr,
    spread_over,
    taken_out,
    without,
    without_log,
)
from liftpy_server.metadata.recovery import plan_recovery
from liftpy_server.metadata.state import LogReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Draft
    from liftpy_server.metadata.state import PartitionInfo

__all__ = ["HOLD_OFF_FIRST_NS", "HOLD_OFF_MAX_NS", "PARTITION_OPERATIONS", "SUSPICION_WINDOW_NS"]

SUSPICION_WINDOW_NS: Final = 5_000_000_000
HOLD_OFF_FIRST_NS: Final = 1_000_000_000
HOLD_OFF_MAX_NS: Final = 60_000_000_000


def _change_isr(
    draft: Draft,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    leader: str,
    leader_epoch: int,
    version: int,
    isr: list[str],
    incarnations: dict[str, int],
) -> dict[str, Any]:
    """The leader changes its in-sync replica set; `incarnations` are those of the members it adds, at least.

    The set is never made smaller than `min_isr`: whoever is left could not commit anything anyway, and the member that
    stays can be elected without loss.
    """
    stream, old = find_partition(draft, name, uuid, partition)
    check_term(old, leader_epoch, version)
    if old.leader != leader or leader not in isr:
        raise RefusedError(ErrorCode.NOT_LEADER, f"{leader!r} does not lead, or leaves itself out")
    if len(set(isr)) != len(isr) or any(node not in old.voters for node in isr):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the ISR must be a set of replicas that are no observers")
    for node in isr:
        if node not in old.isr:
            check_registered(draft, node, incarnations[node])
        if node in old.failed:
            raise RefusedError(ErrorCode.CONFLICT, f"the log of node {node!r} has failed, and it has no new copy yet")
    min_isr = stream.config.min_isr_effective
    if len(isr) < min(len(old.isr), min_isr):
        raise RefusedError(ErrorCode.CONFLICT, "the ISR is not made smaller than min_isr")
    settled = settled_isr(old, tuple(node for node in old.replicas if node in isr), min_isr)
    new = replace(settled, version=old.version + 1)
    put_partition(draft, stream, partition, new)
    return {"version": new.version}


def _suspect_leader(
    draft: Draft,
    now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    node_id: str,
    incarnation: int,
    leader_epoch: int,
) -> dict[str, Any]:
    """A member of the ISR hears nothing of the leader. A majority of the others within a window deposes it.

    The deposed leader leaves the ISR, or the next one could commit nothing until it had lagged for long enough.

    Two members that can not hear each other would depose each other for ever; so after each deposition the leader is
    left in place for twice as long. Times come from different nodes: only their distance is looked at, so that a
    clock that was wrong once does no lasting harm.
    """
    check_registered(draft, node_id, incarnation)
    return {"deposed": _suspect(draft, now, node_id, name, uuid, partition, leader_epoch)}


def _suspect_leaders(
    draft: Draft, now: int, *, node_id: str, incarnation: int, partitions: list[list[Any]]
) -> dict[str, Any]:
    """Many suspicions of one node, as after a failure of the node that led them all.

    `partitions` are [stream name, uuid, partition, leader epoch]. Those that are out of date are passed over.

    Returns:
        For each whether its leader was deposed, None where the node had nothing to say (any more).
    """
    check_registered(draft, node_id, incarnation)
    deposed: list[bool | None] = []
    for name, uuid, partition, leader_epoch in partitions:
        try:
            deposed.append(_suspect(draft, now, node_id, name, uuid, partition, leader_epoch))
        except RefusedError:  # the answer says so; the other partitions are not to suffer for it
            deposed.append(None)
    return {"deposed": deposed}


def _suspect(draft: Draft, now: int, node_id: str, name: str, uuid: str, number: int, leader_epoch: int) -> bool:
    """Note a suspicion of a registered node. Returns whether the leader was deposed.

    Raises:
        RefusedError: the node may not say that, or its view is out of date.
    """
    stream, old = find_partition(draft, name, uuid, number)
    check_term(old, leader_epoch)
    voters = [node for node in old.isr if node != old.leader]
    if old.leader is None or node_id not in voters:
        raise RefusedError(ErrorCode.CONFLICT, f"{node_id!r} has no say in who leads")
    fresh = (
        (node, told)
        for node, told in old.suspicions
        if node in voters and node != node_id and abs(now - told) <= SUSPICION_WINDOW_NS
    )
    suspicions = (*fresh, (node_id, now))
    doubted = replace(old, suspicions=suspicions)
    is_majority = len(suspicions) > len(voters) // 2
    if not is_majority or abs(now - old.elected_ns) < _hold_off_ns(old.depositions):
        put_partition(draft, stream, number, doubted)
        return False
    # Those that suspect are known to be alive; the one that does so now is able to lead.
    able = able_to_lead(draft.nodes, doubted, {node for node, _ in suspicions})
    new = led_by(
        without(doubted, old.leader, stream.config.min_isr_effective),
        spread_over(able, uuid, number, old.leader_epoch),
    )
    put_partition(draft, stream, number, replace(new, elected_ns=now, depositions=_depositions(old, now)))
    return True


def _hold_off_ns(depositions: int) -> int:
    """How long after the last deposition the next one is held off."""
    if depositions == 0:
        return 0
    return min(HOLD_OFF_FIRST_NS << min(depositions - 1, 10), HOLD_OFF_MAX_NS)


def _depositions(partition: PartitionInfo, now: int) -> int:
    """The count after one more; a leader that stayed for long enough ends a series."""
    is_over = abs(now - partition.elected_ns) > HOLD_OFF_MAX_NS + 2 * _hold_off_ns(partition.depositions)
    return 1 if is_over else partition.depositions + 1


def _move_leader(
    draft: Draft,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    leader: str,
    leader_epoch: int,
    version: int,
) -> dict[str, Any]:
    """Another member of the ISR leads: the preferred replica after its return, or any other before a drain."""
    stream, old = find_partition(draft, name, uuid, partition)
    check_term(old, leader_epoch, version)
    if leader not in old.isr or leader not in draft.nodes or draft.nodes[leader].expired:
        raise RefusedError(ErrorCode.CONFLICT, f"{leader!r} is not in sync, or has no session")
    if leader == old.leader:
        return {"leader_epoch": old.leader_epoch}
    if draft.nodes[leader].draining:
        raise RefusedError(ErrorCode.CONFLICT, f"{leader!r} is being drained")
    new = led_by(old, leader)
    put_partition(draft, stream, partition, new)
    return {"leader_epoch": new.leader_epoch}


def _report_log(
    draft: Draft,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    node_id: str,
    incarnation: int,
    leader_epoch: int,
    last_epoch: int,
    log_end: int,
    high_watermark: int = 0,
) -> dict[str, Any]:
    """A replica of a partition of which no clean member of the ISR is left says how far its log reaches.

    What it said before the last leader of that epoch came late: its log has grown since.
    """
    stream, old = find_partition(draft, name, uuid, partition)
    check_term(old, leader_epoch)
    check_registered(draft, node_id, incarnation)
    if old.isr or node_id not in old.replicas:
        raise RefusedError(ErrorCode.CONFLICT, f"nobody asks how far the log of {node_id!r} reaches")
    report = _log_report(node_id, incarnation, last_epoch, log_end, high_watermark)
    if node_id in old.failed:
        report = without_log(report)
    told = replace(
        old,
        reports=(*(each for each in old.reports if each.node_id != node_id), report),
        known_end=max(old.known_end, report.high_watermark),
    )
    new = elect_by_reports(draft.nodes, stream.config, told)
    put_partition(draft, stream, partition, new)
    return {"leader": new.leader}


def _report_records(
    draft: Draft,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    leader: str,
    leader_epoch: int,
    end: int,
) -> None:
    """A leader committed the first records, below `end`: an empty log never leads without an operator's word again.

    The version stays: nothing changes by it for replicas, and what is proposed about them is not to be refused for it.
    """
    stream, old = find_partition(draft, name, uuid, partition)
    check_term(old, leader_epoch)
    if old.leader != leader:
        raise RefusedError(ErrorCode.NOT_LEADER, f"{leader!r} does not lead")
    if type(end) is not int:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"an offset is a number, not {end!r:.50}")
    if end > old.first_end:
        put_partition(draft, stream, partition, replace(old, first_end=end))


def _report_failure(
    draft: Draft,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    node_id: str,
    incarnation: int,
    high_watermark: int = 0,
) -> dict[str, Any]:
    """The log of a replica failed, or was found damaged: it leaves the ISR and leads no more, until it has a new copy.

    The version grows even where it is in no ISR: a proposal to count on it, made before this was known, is refused.
    """
    stream, old = find_partition(draft, name, uuid, partition)
    check_registered(draft, node_id, incarnation)
    if node_id not in old.replicas:
        raise RefusedError(ErrorCode.CONFLICT, f"node {node_id!r} keeps no replica of {name}/{partition}")
    if node_id in old.failed:
        return {"leader": old.leader}
    left = taken_out(knowing(old, node_id, high_watermark), node_id, is_lost=False)
    reports = tuple(without_log(report) if report.node_id == node_id else report for report in left.reports)
    new = replace(left, failed=(*old.failed, node_id), reports=reports, version=old.version + 1)
    if not new.isr:
        new = elect_by_reports(draft.nodes, stream.config, new)
    elif old.leader == node_id:
        able = able_to_lead(draft.nodes, new, new.isr)
        if able:
            new = led_by(new, spread_over(able, uuid, partition, old.leader_epoch))
        else:
            new = replace(new, leader=None, suspicions=())
    put_partition(draft, stream, partition, new)
    return {"leader": new.leader}


def _report_renewal(
    draft: Draft, _now: int, *, name: str, uuid: str, partition: int, node_id: str, incarnation: int
) -> dict[str, Any]:
    """A replica whose log had failed has another in its place: it may follow, and count once it has caught up.

    What was heard of its log before this version is about the copy before.
    """
    stream, old = find_partition(draft, name, uuid, partition)
    check_registered(draft, node_id, incarnation)
    if node_id not in old.failed:
        return {"version": old.version}
    version = old.version + 1
    new = replace(
        healed(old, node_id),
        renewed=(*(each for each in old.renewed if each[0] != node_id), (node_id, version)),
        version=version,
    )
    put_partition(draft, stream, partition, new)
    return {"version": version}


def _log_report(*parts: Any) -> LogReport:
    report = LogReport(*parts)
    if [type(part) for part in report] != [str, int, int, int, int]:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{parts!r:.200} does not say how far a log reaches")
    return report


def _recover_partition(
    draft: Draft,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    version: int,
    logs: list[list[Any]],
    given_up: list[str],
    leader: str | None = None,
    accept_data_loss: bool = False,
) -> dict[str, Any]:
    """An operator decides which log leads, whatever it may lack: the best there is, or that of `leader`.

    `logs` are the fields of a `LogReport` for each replica that can be asked; the others must be `given_up`. Refused
    where a leader has everything that is known to have been committed: nothing is to be recovered there. What is known
    to be lost by it has to be accepted.
    """
    stream, old = find_partition(draft, name, uuid, partition)
    where = f"{name}/{partition}"
    if old.version != version:
        raise RefusedError(ErrorCode.CONFLICT, f"{where} has changed since its logs were looked at; look again")
    told = {report.node_id: report for report in (_log_report(*log) for log in logs)}
    for report in told.values():
        check_registered(draft, report.node_id, report.incarnation)
    plan = plan_recovery(draft.nodes, old, told, given_up, leader)
    if plan.leader is None:
        raise RefusedError(ErrorCode.CONFLICT, f"{where}: {plan.refusal}")
    if plan.loss is not None and accept_data_loss is not True:
        raise RefusedError(ErrorCode.CONFLICT, f"{where}: {plan.loss}; that has to be accepted in words")
    chosen = plan.leader.node_id
    new = led_uncleanly(old, chosen)
    put_partition(draft, stream, partition, new)
    return {
        "leader": chosen,
        "leader_epoch": new.leader_epoch,
        "log_end": plan.leader.log_end,
        "known_end": plan.known_end,
    }


PARTITION_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "change_isr": _change_isr,
    "suspect_leader": _suspect_leader,
    "suspect_leaders": _suspect_leaders,
    "move_leader": _move_leader,
    "report_log": _report_log,
    "report_records": _report_records,
    "report_failure": _report_failure,
    "report_renewal": _report_renewal,
    "recover_partition": _recover_partition,
}
