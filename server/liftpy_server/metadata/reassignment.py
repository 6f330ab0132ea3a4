"""Commands that move the replicas of partitions to other nodes.

    begun       replicas = old + new, target = new; a new replica counts only once the leader has it in the ISR
    finished    when all of the target that count are in the ISR: the others go, the leadership with them if need be
    cancelled   replicas = old again, as long as the ISR can do without the new ones

Every member of the ISR has every committed record, so any part of it may go on alone; but a set below `min_isr` could
commit nothing. That is the only rule about which members may leave, here as in `change_isr`. A deposed leader that
does not know it yet commits nothing either: it waits for all of the old ISR, and its next leader belongs to that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_server.metadata.changes import RefusedError, check_term, find_partition, find_stream, put_partition
from liftpy_server.metadata.elections import able_to_lead, led_by, with_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_server.metadata.changes import Draft
    from liftpy_server.metadata.state import PartitionInfo, StreamInfo

__all__ = ["REASSIGNMENT_OPERATIONS"]

_VOTERS_MAX: Final = 7
_REPLICAS_MAX: Final = 23
"""As many as a stream can be configured with, observers included."""


def _reassign_partitions(draft: Draft, _now: int, *, name: str, uuid: str, moves: list[list[Any]]) -> dict[str, Any]:
    """Begin to move replicas: all of the moves, or none.

    `moves` are [partition, nodes, observers]: the nodes that shall keep a copy, the preferred leader first, and which
    of them are observers; observers that are not among the nodes are added to them.

    Returns:
        The numbers of the partitions that are being moved now.
    """
    find_stream(draft, name, uuid)
    moved = []
    for number, nodes, observers in moves:
        stream, old = find_partition(draft, name, uuid, number)
        target = (*nodes, *(node for node in observers if node not in nodes))
        where = f"{name}/{number}"
        _check_target(draft, stream, old, where, target, tuple(observers))
        if old.target is not None:
            if (old.target, old.target_observers) != (target, tuple(observers)):
                raise RefusedError(
                    ErrorCode.CONFLICT,
                    f"{where} is being moved to {', '.join(old.target)}; wait until that is over, or cancel it",
                )
        elif (old.replicas, old.observers) == (target, tuple(observers)):
            continue
        else:
            put_partition(draft, stream, number, _begun(old, target, tuple(observers)))
        moved.append(number)
    return {"partitions": moved}


def _check_target(
    draft: Draft,
    stream: StreamInfo,
    old: PartitionInfo,
    where: str,
    target: tuple[str, ...],
    observers: tuple[str, ...],
) -> None:
    if not all(isinstance(node, str) for node in target) or len(set(target)) != len(target):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{where}: the replicas must be different nodes")
    if len(set(observers)) != len(observers):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{where}: the observers must be different nodes")
    voters = len(target) - len(observers)
    min_isr = stream.config.min_isr_effective
    if voters < min_isr:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{where}: {max(voters, 0)} replicas can not keep a min_isr of {min_isr}; set min_isr lower first",
        )
    if voters > 1 and stream.config.group is not None:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{where}: {voters} replicas: a stream of the queue group {stream.config.group!r} has one; take it out of "
            "the group first",
        )
    if voters > _VOTERS_MAX or len(target) > _REPLICAS_MAX:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{where}: at most {_VOTERS_MAX} replicas that count, and {_REPLICAS_MAX - _VOTERS_MAX} observers",
        )
    for node_id in target:
        node = draft.nodes.get(node_id)
        if node is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{where}: there is no node {node_id!r}")
        if node_id not in old.replicas and node.draining:
            raise RefusedError(ErrorCode.CONFLICT, f"{where}: node {node_id!r} is being drained")
        if node_id not in old.replicas and node.expired:
            raise RefusedError(ErrorCode.CONFLICT, f"{where}: node {node_id!r} is not running; start it first")


def _begun(old: PartitionInfo, target: tuple[str, ...], observers: tuple[str, ...]) -> PartitionInfo:
    """New replicas are added as what they shall be; replicas that shall be observers count until the end."""
    added = tuple(node for node in target if node not in old.replicas)
    voters = set(target) - set(observers)
    begun = replace(
        old,
        replicas=(*old.replicas, *added),
        observers=(
            *(node for node in old.observers if node not in voters),
            *(node for node in added if node in observers),
        ),
        target=target,
        target_observers=observers,
        origin=old.replicas,
        origin_observers=old.observers,
        version=old.version + 1,
    )
    if old.leader is not None and set(added) & set(old.departed):
        # An old fetch of such a node, still on its way, would name a log that it has no more: not in this epoch.
        return led_by(begun, old.leader)
    return begun


def _finish_reassignment(
    draft: Draft, _now: int, *, name: str, uuid: str, partition: int, leader_epoch: int, version: int
) -> dict[str, Any]:
    """The leader has all of the target in its ISR: the other replicas go."""
    stream, old = find_partition(draft, name, uuid, partition)
    check_term(old, leader_epoch, version)
    if old.target is None:
        raise RefusedError(ErrorCode.CONFLICT, f"{name}/{partition} is not being moved")
    missing = [node for node in old.target if node not in old.target_observers and node not in old.isr]
    if missing:
        raise RefusedError(ErrorCode.CONFLICT, f"{name}/{partition}: {', '.join(missing)} not in sync yet")
    new = _kept(draft, stream, old, old.target, old.target_observers)
    draft.put_stream(_reconfigured(put_partition(draft, stream, partition, new)))
    return {"leader": new.leader, "leader_epoch": new.leader_epoch, "version": new.version}


def _cancel_reassignment(draft: Draft, _now: int, *, name: str, uuid: str, partition: int) -> dict[str, Any]:
    """The replicas are again those of before, however far the others have come."""
    stream, old = find_partition(draft, name, uuid, partition)
    if old.origin is None:
        raise RefusedError(ErrorCode.CONFLICT, f"{name}/{partition} is not being moved")
    new = _kept(draft, stream, old, old.origin, old.origin_observers)
    draft.put_stream(_reconfigured(put_partition(draft, stream, partition, new)))
    return {"leader": new.leader, "leader_epoch": new.leader_epoch, "version": new.version}


def _kept(
    draft: Draft, stream: StreamInfo, old: PartitionInfo, replicas: Sequence[str], observers: Sequence[str]
) -> PartitionInfo:
    """The partition with these replicas only, and no move under way.

    Raises:
        RefusedError: too few of them are in sync, or none that is can lead.
    """
    voters = [node for node in replicas if node not in observers]
    isr = tuple(node for node in voters if node in old.isr)
    # Where nobody is in sync any copy may be the best that is left.
    leaving = [node for node in (old.isr or old.replicas) if node not in voters]
    if len(isr) < min(len(old.isr), stream.config.min_isr_effective) or (not isr and leaving):
        raise RefusedError(
            ErrorCode.CONFLICT,
            f"{stream.name}: of {', '.join(voters)} too few are in sync for {', '.join(leaving)} to go; "
            "bring them back first",
        )
    unproven = tuple(node for node in old.unproven if node in voters)
    new = replace(
        old,
        replicas=tuple(replicas),
        observers=tuple(observers),
        isr=isr,
        unproven=unproven,
        # Who of the others was in the ISR to the last is not known any more when one of them goes.
        lost=tuple(node for node in old.lost if node in voters) if unproven == old.unproven else unproven,
        reports=tuple(report for report in old.reports if report.node_id in replicas),
        failed=tuple(node for node in old.failed if node in replicas),
        renewed=tuple(each for each in old.renewed if each[0] in replicas),
        suspicions=tuple(suspicion for suspicion in old.suspicions if suspicion[0] in isr),
        target=None,
        target_observers=(),
        origin=None,
        origin_observers=(),
        departed=(*old.departed, *(node for node in old.replicas if node not in (*replicas, *old.departed))),
        version=old.version + 1,
    )
    if old.leader is None or old.leader in isr:
        return new
    able = able_to_lead(draft.nodes, new, isr)
    if not able:
        raise RefusedError(ErrorCode.CONFLICT, f"{stream.name}: none of {', '.join(isr)} is running and can lead")
    return led_by(new, able[0])


def _reconfigured(stream: StreamInfo) -> StreamInfo:
    """The stream with as many replicas and observers in its configuration as its partitions have, if they agree.

    Only then, so that `min_isr`, which by default follows from them, holds for every partition.
    """
    counts = {(len(partition.voters), len(partition.observers)) for partition in stream.partitions}
    is_moving = any(partition.target is not None for partition in stream.partitions)
    if is_moving or counts == {(stream.config.replicas, stream.config.observers)} or len(counts) > 1:
        return stream
    replicas, observers = counts.pop()
    return with_config(stream, replace(stream.config, replicas=replicas, observers=observers))


REASSIGNMENT_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "reassign_partitions": _reassign_partitions,
    "finish_reassignment": _finish_reassignment,
    "cancel_reassignment": _cancel_reassignment,
}
