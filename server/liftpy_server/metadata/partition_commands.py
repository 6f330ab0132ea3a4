"""Commands about one partition: its in-sync replica set, its leader, and who doubts it.

All of them carry what their proposer believes (leader epoch, partition version, incarnations) and are refused when
the metadata knows better: a deposed leader or a process that was replaced changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.changes import RefusedError, find_partition, put_partition
from liftpy_server.metadata.elections import able_to_lead, elect_unclean, led_by, spread_over, without

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Change
    from liftpy_server.metadata.state import MetadataState, PartitionInfo

__all__ = ["HOLD_OFF_FIRST_NS", "HOLD_OFF_MAX_NS", "PARTITION_OPERATIONS", "SUSPICION_WINDOW_NS"]

SUSPICION_WINDOW_NS: Final = 5_000_000_000
HOLD_OFF_FIRST_NS: Final = 1_000_000_000
HOLD_OFF_MAX_NS: Final = 60_000_000_000


def _check_registered(state: MetadataState, node_id: str, incarnation: int) -> None:
    known = state.nodes.get(node_id)
    if known is None or known.incarnation != incarnation:
        raise RefusedError(ErrorCode.CONFLICT, f"node {node_id!r} is not in incarnation {incarnation}")
    if known.expired:
        raise RefusedError(ErrorCode.CONFLICT, f"the session of node {node_id!r} has ended")


def _check_term(partition: PartitionInfo, leader_epoch: int, version: int | None = None) -> None:
    if partition.leader_epoch != leader_epoch:
        raise RefusedError(ErrorCode.STALE_EPOCH, f"the leader epoch is {partition.leader_epoch}, not {leader_epoch}")
    if version is not None and partition.version != version:
        raise RefusedError(ErrorCode.CONFLICT, f"the partition is at version {partition.version}, not {version}")


def _change_isr(
    state: MetadataState,
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
) -> Change:
    """The leader changes its in-sync replica set; `incarnations` are those of the members it adds, at least.

    The set is never made smaller than `min_isr`: whoever is left could not commit anything anyway, and the member that
    stays can be elected without loss.
    """
    stream, old = find_partition(state, name, uuid, partition)
    _check_term(old, leader_epoch, version)
    if old.leader != leader or leader not in isr:
        raise RefusedError(ErrorCode.NOT_LEADER, f"{leader!r} does not lead, or leaves itself out")
    if len(set(isr)) != len(isr) or any(node not in old.replicas for node in isr):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the ISR must be a set of replicas")
    for node in isr:
        if node not in old.isr:
            _check_registered(state, node, incarnations[node])
    if len(isr) < min(len(old.isr), stream.config.min_isr_effective):
        raise RefusedError(ErrorCode.CONFLICT, "the ISR is not made smaller than min_isr")
    new = replace(
        old,
        isr=tuple(node for node in old.replicas if node in isr),
        unproven=(),
        reports=(),
        version=old.version + 1,
    )
    return put_partition(state, stream, partition, new), {"version": new.version}


def _suspect_leader(
    state: MetadataState,
    now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    node_id: str,
    incarnation: int,
    leader_epoch: int,
) -> Change:
    """A member of the ISR hears nothing of the leader. A majority of the others within a window deposes it.

    The deposed leader leaves the ISR, or the next one could commit nothing until it had lagged for long enough.

    Two members that can not hear each other would depose each other for ever; so after each deposition the leader is
    left in place for twice as long. Times come from different nodes: only their distance is looked at, so that a
    clock that was wrong once does no lasting harm.
    """
    stream, old = find_partition(state, name, uuid, partition)
    _check_term(old, leader_epoch)
    _check_registered(state, node_id, incarnation)
    voters = [node for node in old.isr if node != old.leader]
    if old.leader is None or node_id not in voters:
        raise RefusedError(ErrorCode.CONFLICT, f"{node_id!r} has no voice in who leads")
    fresh = (
        (node, told)
        for node, told in old.suspicions
        if node in voters and node != node_id and abs(now - told) <= SUSPICION_WINDOW_NS
    )
    suspicions = (*fresh, (node_id, now))
    doubted = replace(old, suspicions=suspicions)
    is_majority = len(suspicions) > len(voters) // 2
    if not is_majority or abs(now - old.elected_ns) < _hold_off_ns(old.depositions):
        return put_partition(state, stream, partition, doubted), {"deposed": False}
    # Those that suspect are known to be alive; the one that does so now is able to lead.
    able = able_to_lead(state, doubted, (node for node, _ in suspicions))
    new = led_by(
        without(doubted, old.leader, stream.config.min_isr_effective),
        spread_over(able, uuid, partition, old.leader_epoch),
    )
    new = replace(new, elected_ns=now, depositions=_depositions(old, now))
    return put_partition(state, stream, partition, new), {"deposed": True}


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
    state: MetadataState,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    leader: str,
    leader_epoch: int,
    version: int,
) -> Change:
    """Another member of the ISR leads: the preferred replica after its return, or any other before a drain."""
    stream, old = find_partition(state, name, uuid, partition)
    _check_term(old, leader_epoch, version)
    if leader not in old.isr or leader not in state.nodes or state.nodes[leader].expired:
        raise RefusedError(ErrorCode.CONFLICT, f"{leader!r} is not in sync, or has no session")
    if leader == old.leader:
        return state, {"leader_epoch": old.leader_epoch}
    new = led_by(old, leader)
    return put_partition(state, stream, partition, new), {"leader_epoch": new.leader_epoch}


def _report_log(
    state: MetadataState,
    _now: int,
    *,
    name: str,
    uuid: str,
    partition: int,
    node_id: str,
    incarnation: int,
    last_epoch: int,
    log_end: int,
) -> Change:
    """A member of the last ISR, none of which can prove its log, says how far its log reaches."""
    stream, old = find_partition(state, name, uuid, partition)
    _check_registered(state, node_id, incarnation)
    if old.isr or node_id not in old.unproven:
        raise RefusedError(ErrorCode.CONFLICT, f"nobody asks how far the log of {node_id!r} reaches")
    if type(last_epoch) is not int or type(log_end) is not int:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "last_epoch and log_end are numbers")
    others = tuple(report for report in old.reports if report[0] != node_id)
    told = replace(old, reports=(*others, (node_id, incarnation, last_epoch, log_end)))
    new = elect_unclean(state, told)
    return put_partition(state, stream, partition, new), {"leader": new.leader}


PARTITION_OPERATIONS: Final[dict[str, Callable[..., Change]]] = {
    "change_isr": _change_isr,
    "suspect_leader": _suspect_leader,
    "move_leader": _move_leader,
    "report_log": _report_log,
}
