"""Who leads a partition next. Pure functions of the metadata.

A leader comes from the in-sync replica set: its members have every committed record. Where all of them have lost the
proof of that (`unproven`), all replicas report how far their logs reach, and one that reaches the furthest leads,

- if nothing that was committed is lost by it, as far as promise P1 goes: all of the last ISR have reported, but for
  those that are away and had lost their logs; one of those that were in it to the last, `min_isr` of them, still has
  its log; and nobody knows of a committed record behind the end of the one that leads. Until `min_isr` are in sync
  again it commits nothing, and the others vouch for what was committed: one of them leads where it loses its log;
- or if it has all that the log had which was elected so before, where that one's node is gone again before `min_isr`
  were in sync: nothing was committed since (`elected_reach`);
- or if it is the only replica, and its log is back: one that began anew has no record;
- or if nothing was ever written, as far as any replica knows;
- or if the stream allows unclean elections (`unclean_leader_election`), and every replica has reported.

Anything else is for an operator to decide (`recover_partition`). An empty log never leads while a replica has records.
A node that is being drained leads only what nobody else can lead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

from liftpy_envelope.events import EVENTS_STREAM
from liftpy_envelope.stream_config import SyncMode

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.metadata.state import LogReport, NodeInfo, PartitionInfo, StreamInfo

__all__ = [
    "able_to_lead",
    "best_log",
    "elect",
    "elect_by_reports",
    "given_up",
    "healed",
    "knowing",
    "leaderships",
    "led_by",
    "led_uncleanly",
    "settled_isr",
    "spread_over",
    "taken_out",
    "with_config",
    "without",
    "without_log",
]


def leaderships(streams: Mapping[str, StreamInfo]) -> Counter[str]:
    """How many partitions each node leads. That of the events has next to no load."""
    return Counter(
        partition.leader
        for stream in streams.values()
        if stream.name != EVENTS_STREAM
        for partition in stream.partitions
        if partition.leader is not None
    )


def elect(
    nodes: Mapping[str, NodeInfo], partition: PartitionInfo, candidates: Container[str], loads: Counter[str]
) -> PartitionInfo:
    """Give a partition another leader.

    Args:
        nodes: Nodes as they are registered; they say who has a session.
        partition: Partition whose leader is given up.
        candidates: Those of them that are in the ISR and have a session may lead.
        loads: How many partitions each node leads; kept up to date.

    Returns:
        The partition with the least loaded candidate as leader, in a new epoch; without any, with no leader.
    """
    able = able_to_lead(nodes, partition, candidates)
    if not able:
        return replace(partition, leader=None, version=partition.version + 1, suspicions=())
    leader = min(able, key=lambda node: loads[node])  # the first of equals, in the order of the replicas
    loads[leader] += 1
    return led_by(partition, leader)


def able_to_lead(nodes: Mapping[str, NodeInfo], partition: PartitionInfo, candidates: Container[str]) -> list[str]:
    """Those of the candidates that are in the ISR and have a session, in the order of the replicas.

    Nodes that are being drained are among them only when all are.
    """
    able = [
        info
        for node in partition.replicas
        if node in partition.isr and node in candidates and (info := nodes.get(node)) is not None and not info.expired
    ]
    staying = [info.node_id for info in able if not info.draining]
    return staying or [info.node_id for info in able]


def spread_over(able: list[str], uuid: str, number: int, leader_epoch: int) -> str:
    """One of those who may lead, evenly over partitions, without counting what everybody leads.

    When a node falls silent its followers depose it once per partition; to count all leaderships each time would
    make thousands of elections take seconds.
    """
    return able[(crc32(uuid.encode()) + number + leader_epoch) % len(able)]


def without(partition: PartitionInfo, node_id: str, min_isr: int) -> PartitionInfo:
    """The partition with a silent node out of its ISR, so that nobody waits for it; but never below `min_isr`.

    It has every committed record still: where its place is needed to keep `min_isr`, it stays and may be elected.
    """
    left = tuple(node for node in partition.isr if node != node_id)
    if len(left) == len(partition.isr) or len(left) < min_isr:
        return partition
    return replace(partition, isr=left, version=partition.version + 1)


def led_by(partition: PartitionInfo, leader: str) -> PartitionInfo:
    """The partition with this leader, in a new epoch."""
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        version=partition.version + 1,
        suspicions=(),
        departed=(),
    )


def settled_isr(partition: PartitionInfo, isr: tuple[str, ...], min_isr: int) -> PartitionInfo:
    """The partition with an ISR whose members all have every committed record.

    Where they are enough to commit more, all doubts about others are over: these do not have what comes. A smaller set
    commits nothing, so who could vouch for what was committed can do so still.
    """
    if len(isr) >= min_isr:
        return replace(partition, isr=isr, unproven=(), lost=(), reports=(), known_end=0, elected_reach=None)
    return replace(
        partition,
        isr=isr,
        unproven=tuple(node for node in partition.unproven if node not in isr),
        lost=tuple(node for node in partition.lost if node not in isr),
        reports=(),
    )


def with_config(stream: StreamInfo, config: StreamConfig) -> StreamInfo:
    """The stream with another configuration, in its next version.

    Who left the ISR of a partition while it took fewer to commit vouches for nothing once it takes more.
    """
    before, partitions = stream.config.min_isr_effective, stream.partitions
    if config.min_isr_effective > before:
        partitions = tuple(_doubting_early_leavers(partition, before) for partition in partitions)
    partitions = tuple(_committing_more(partition, config.min_isr_effective) for partition in partitions)
    return replace(stream, config=config, version=stream.version + 1, partitions=partitions)


def _doubting_early_leavers(partition: PartitionInfo, min_isr: int) -> PartitionInfo:
    vouching = max(0, min_isr - len(partition.isr))
    early = partition.unproven[: max(0, len(partition.unproven) - vouching)]
    return replace(partition, lost=(*partition.lost, *(node for node in early if node not in partition.lost)))


def _committing_more(partition: PartitionInfo, min_isr: int) -> PartitionInfo:
    """What was elected by reports may be all that a smaller `min_isr` asks for: more is committed then."""
    return replace(partition, elected_reach=None) if len(partition.isr) >= min_isr else partition


def knowing(partition: PartitionInfo, node_id: str, end: int) -> PartitionInfo:
    """The partition of which a node knows that records below `end` were committed, whether it still has them or not.

    It does not count if an election may have given these records up since that node was in the set.
    """
    is_past = partition.unclean_elections > 0 and node_id not in {*partition.isr, *partition.unproven}
    if is_past or end <= partition.known_end:
        return partition
    return replace(partition, known_end=end)


def taken_out(partition: PartitionInfo, node_id: str, *, is_lost: bool) -> PartitionInfo:
    """The partition with a node out of its ISR that can not prove its log, or whose log is lost; also below `min_isr`.

    What it has may lack committed records, so its place in the set would keep nothing electable. Of an empty set
    nobody leads.
    """
    is_known = node_id in partition.unproven
    if not is_known and node_id not in partition.isr:
        return partition
    isr = tuple(node for node in partition.isr if node != node_id)
    lost = (*partition.lost, node_id) if is_lost and node_id not in partition.lost else partition.lost
    if is_known and lost == partition.lost:
        return partition
    return replace(
        partition,
        isr=isr,
        unproven=partition.unproven if is_known else (*partition.unproven, node_id),
        lost=lost,
        leader=partition.leader if isr else None,
        suspicions=partition.suspicions if isr else (),
        version=partition.version + 1,
    )


def given_up(nodes: Mapping[str, NodeInfo], partition: PartitionInfo, min_isr: int) -> PartitionInfo:
    """The partition without an in-sync set that was elected by reports and has no node left with a session.

    The set was too small to commit anything, so others may have all that it had: their reports tell.
    """
    isr, is_elected = partition.isr, partition.elected_reach is not None
    if not isr or len(isr) >= min_isr or not is_elected or any(not nodes[node].expired for node in isr):
        return partition
    unproven = (*partition.unproven, *isr)
    return replace(partition, isr=(), unproven=unproven, leader=None, suspicions=(), version=partition.version + 1)


def elect_by_reports(nodes: Mapping[str, NodeInfo], config: StreamConfig, partition: PartitionInfo) -> PartitionInfo:
    """The partition with a leader where its replicas' reports allow it (see the module), else as it is."""
    if partition.isr or partition.leader is not None:
        return partition
    told = [
        report
        for report in partition.reports
        if report.node_id in nodes and nodes[report.node_id].incarnation == report.incarnation
    ]
    heard = {report.node_id for report in told}
    min_isr = config.min_isr_effective
    winner = _whole_log(nodes, min_isr, partition, told) or _log_like_the_elected(nodes, partition, told)
    if winner is not None:
        is_unclean = config.sync is not SyncMode.ALWAYS  # what counts as durable early may be lost everywhere
    elif not heard.issuperset(partition.replicas):
        return partition
    elif _is_new(partition, told):
        winner, is_unclean = best_log(partition, told), False
    elif config.unclean_leader_election:
        winner, is_unclean = best_log(partition, told), True
    if winner is None or nodes[winner.node_id].expired:  # it registers again, reports again, and is waited for
        return partition
    if is_unclean:
        return led_uncleanly(partition, winner.node_id)
    doubting = replace(_doubting_the_short(partition, told), elected_reach=winner.reach)
    return led_by(settled_isr(doubting, (winner.node_id,), min_isr), winner.node_id)


def _doubting_the_short(partition: PartitionInfo, told: Collection[LogReport]) -> PartitionInfo:
    """The partition when a leader is elected: whose log lacks what is known, or is none, vouches for no later one.

    From now on it copies the leader's, and nobody could tell how much of that it has.
    """
    short = {report.node_id for report in told if report.last_epoch < 0 or report.log_end < partition.committed_end}
    logless = {*short, *partition.lost, *partition.failed}
    return replace(partition, lost=tuple(node for node in partition.unproven if node in logless))


def _whole_log(
    nodes: Mapping[str, NodeInfo], min_isr: int, partition: PartitionInfo, told: Collection[LogReport]
) -> LogReport | None:
    """The log that reaches the furthest, where nothing that was committed can be missing in it.

    Records were committed only while the ISR had `min_isr` members; so those that were taken out of it last, as many,
    have all of them, but for those whose log is lost. Who has lost it still knows what was committed, and is waited
    for while its node is up.

    A log that reaches further has all that one of these has, but for one case: it is of a later epoch than theirs, and
    has no record of the last leader who could commit. That one may have committed what it found in its own log, before
    it had a record of its own epoch, and the other log may have something else in that place.
    """
    logless = {*partition.lost, *partition.failed}
    excused = {node for node in logless if node not in nodes or nodes[node].expired}
    if not {report.node_id for report in told}.issuperset({*partition.unproven} - excused):
        return None
    with_all = {node for node in partition.unproven[-min_isr:] if node not in logless}
    able = [report for report in told if report.node_id not in partition.observers]
    best = best_log(partition, able)
    witness = best_log(partition, [each for each in told if each.node_id in with_all and each.last_epoch >= 0])
    if best is not None and witness is not None and witness.last_epoch < best.last_epoch < partition.committing_epoch:
        best = best_log(partition, [each for each in able if each.last_epoch <= witness.last_epoch])
    if best is None or best.last_epoch == -1 or best.log_end < partition.committed_end:
        return None
    if partition.replicas == (best.node_id,):  # a log that began anew has no record before it leads
        return best
    return best if any(report.node_id in with_all and report.last_epoch >= 0 for report in told) else None


def _log_like_the_elected(
    nodes: Mapping[str, NodeInfo], partition: PartitionInfo, told: Collection[LogReport]
) -> LogReport | None:
    """The best log that reaches as far as the one that reports elected last, since when nothing was committed.

    That one had every committed record, so this one has, too, and nobody needs to be waited for.
    """
    if partition.elected_reach is None:
        return None
    as_far = [
        report
        for report in told
        if report.reach >= partition.elected_reach
        and report.log_end >= partition.committed_end
        and report.node_id not in partition.observers
        and not nodes[report.node_id].expired
    ]
    return best_log(partition, as_far)


def _is_new(partition: PartitionInfo, told: Collection[LogReport]) -> bool:
    """Whether nothing was ever written, as far as any replica knows."""
    start = partition.empty_log_start
    is_empty = all(report.last_epoch == -1 and report.log_end <= start for report in told)
    return is_empty and not partition.failed and partition.committed_end <= start


def best_log(partition: PartitionInfo, told: Collection[LogReport]) -> LogReport | None:
    """Of the logs that have not failed the one that reaches the furthest; among equals replicas before observers."""
    by_node = {report.node_id: report for report in told if report.node_id not in partition.failed}
    in_order = [by_node[node] for node in (*partition.voters, *partition.observers) if node in by_node]
    return max(in_order, key=lambda report: report.reach, default=None)


def without_log(report: LogReport) -> LogReport:
    """What a replica says whose log has failed: the next one in its place, a new copy, is not to be taken for it."""
    return report._replace(last_epoch=-1, log_end=0)


def healed(partition: PartitionInfo, node_id: str) -> PartitionInfo:
    """The partition with a log well again that had failed: as a new copy, if anybody was there to copy from."""
    failed = tuple(node for node in partition.failed if node != node_id)
    is_copy = bool(partition.isr) and node_id in partition.unproven and node_id not in partition.lost
    return replace(partition, failed=failed, lost=(*partition.lost, node_id) if is_copy else partition.lost)


def led_uncleanly(partition: PartitionInfo, winner: str) -> PartitionInfo:
    """The partition with a leader whose log may lack committed records; an observer becomes a replica by it."""
    chosen = replace(
        partition,
        isr=(winner,),
        unproven=(),
        lost=(),
        reports=(),
        known_end=0,
        elected_reach=None,
        observers=tuple(node for node in partition.observers if node != winner),
        unclean_elections=partition.unclean_elections + 1,
        unclean_epoch=partition.leader_epoch + 1,
        first_end=0,  # what was lost is lost
    )
    return led_by(chosen, winner)
