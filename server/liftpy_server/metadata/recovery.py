"""An operator's decision who leads a partition that no replica can lead without it. Pure functions of the metadata.

What it would come to is told before it is made, by the same rules: which log leads, what is known to be lost by that,
and what the operator has to say in words first. An empty log leads only where that was said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_server.metadata.elections import best_log

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from liftpy_server.metadata.state import LogReport, NodeInfo, PartitionInfo

__all__ = ["Recovery", "needs_recovery", "plan_recovery"]


class Recovery(NamedTuple):
    """What a decision would come to.

    Attributes:
        leader: Node whose log would lead; None where it can not be decided.
        known_end: Records below it were committed, as a replica knows for certain.
        lost: How many of them that log lacks: so many are lost, at least.
        loss: What is given up by it, where the operator has to accept that in words.
        refusal: Why it can not be decided.
    """

    leader: LogReport | None
    known_end: int
    lost: int = 0
    loss: str | None = None
    refusal: str | None = None


def needs_recovery(partition: PartitionInfo, told: Mapping[str, LogReport]) -> bool:
    """Whether nobody leads, or a leader lacks records that were committed.

    Args:
        partition: Number of the partition.
        told: How far the log of each node reaches.
    """
    if partition.leader is None:
        return True
    leading = told.get(partition.leader)
    return leading is not None and leading.log_end < _known_end(partition, told)


def plan_recovery(
    nodes: Mapping[str, NodeInfo],
    partition: PartitionInfo,
    told: Mapping[str, LogReport],
    given_up: Collection[str],
    wanted: str | None = None,
) -> Recovery:
    """What it comes to when an operator decides now.

    Args:
        nodes: Nodes as they are registered.
        partition: Number of the partition.
        told: How far the log of each node reaches.
        given_up: Nodes that are gone for good with what they have.
        wanted: The replica that is to lead; None for the one whose log reaches the furthest.
    """
    known_end = _known_end(partition, told)
    best = best_log(partition, told.values())
    leader = best if wanted is None else told.get(wanted)
    refusal = _refusal(nodes, partition, told, given_up, wanted) or (
        "no replica has a log that can be read" if best is None or leader is None else None
    )
    if refusal is not None or best is None or leader is None:
        return Recovery(None, known_end, refusal=refusal)
    lost = max(0, known_end - leader.log_end)
    return Recovery(leader, known_end, lost, _loss(leader, best, known_end, given_up))


def _known_end(partition: PartitionInfo, told: Mapping[str, LogReport]) -> int:
    """A log that has failed while there is a leader may have done so as an election gave up what it knows of."""
    is_led = partition.leader is not None
    marks = (log.high_watermark for node, log in told.items() if not (is_led and node in partition.failed))
    return max((partition.committed_end, *marks))


def _refusal(
    nodes: Mapping[str, NodeInfo],
    partition: PartitionInfo,
    told: Mapping[str, LogReport],
    given_up: Collection[str],
    wanted: str | None,
) -> str | None:
    if not needs_recovery(partition, told):
        return f"{partition.leader!r} leads it: there is nothing to recover"
    strangers = [node for node in (*told, *given_up) if node not in partition.replicas]
    if strangers:
        return f"{', '.join(strangers)} keeps no replica of it"
    alive = [node for node in given_up if node in told or (node in nodes and not nodes[node].expired)]
    if alive:
        return f"{', '.join(alive)} is up, and can not be given up: what it has must be known"
    missing = [node for node in partition.replicas if node not in told and node not in given_up]
    if missing:
        return (
            f"{', '.join(missing)} can not be left out: start its node again, or give the replica up where it is gone "
            "for good"
        )
    if wanted is not None and wanted not in told:
        return f"{wanted} can not lead: it keeps no replica of it that is up"
    if wanted in partition.failed:
        return f"{wanted} can not lead: its log has failed"
    return None


def _loss(leader: LogReport, best: LogReport, known_end: int, given_up: Collection[str]) -> str | None:
    """What the operator has to accept; None where the log that leads is the best, and nobody knows of a loss."""
    losses = []
    if leader.log_end < known_end:
        losses.append(f"committed records from offset {leader.log_end} to {known_end - 1} are lost, at least")
    if leader.reach < best.reach:
        losses.append(
            f"the log of {best.node_id} reaches further, to offset {best.log_end} of leader epoch {best.last_epoch}"
        )
    if leader.last_epoch == -1:
        others = f", also what {', '.join(given_up)} may have" if given_up else ""
        losses.append(f"the log of {leader.node_id} is empty, so every record is given up{others}")
    return "; ".join(losses) or None
