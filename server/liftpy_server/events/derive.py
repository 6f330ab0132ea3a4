"""Which events a change of the metadata is. Pure: every node finds the same ones, in the same order.

A change is all that one entry of the metadata's log does. What it does and undoes is no event.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import compress
from operator import is_not
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.events import Event
from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_server.gaps.gap import Gap
    from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo

__all__ = ["derive"]

_SETTINGS: Final = tuple(field.name for field in fields(StreamConfig))


def derive(before: MetadataState, after: MetadataState, now_ns: int) -> list[Event]:
    """The events of one entry.

    Args:
        before: The state before it.
        after: The state that it made.
        now_ns: Time of the command, stamped by the node that proposed it, ns since the epoch.
    """
    now_ns = min(max(now_ns, 0), 2**63 - 1)
    events: list[Event] = []
    if after.nodes is not before.nodes:
        events += _of_nodes(before, after, now_ns)
    if after.streams is not before.streams:
        for name in _changed(before, after):
            events += _of_stream(before, after, name, now_ns)
        events += _drained(before, after, now_ns)
    if after.told is not before.told:
        events += after.told
    return events


def _changed(before: MetadataState, after: MetadataState) -> list[str]:
    """Names of the streams that are other ones now. As a rule they are few of many, at the same places as before."""
    old, new = before.streams, after.streams
    candidates = new if len(new) != len(old) else compress(new, map(is_not, new.values(), old.values()))
    changed = [name for name in candidates if old.get(name) is not new[name]]
    if len(new) != len(old) or any(name not in old for name in changed):
        changed += old.keys() - new.keys()
    return sorted(changed)


# -- nodes


def _of_nodes(before: MetadataState, after: MetadataState, now_ns: int) -> Iterator[Event]:
    for node_id in sorted(before.nodes.keys() | after.nodes.keys()):
        old, new = before.nodes.get(node_id), after.nodes.get(node_id)
        if new is not old:
            for kind, details in _of_node(old, new):
                yield Event(kind, now_ns, node=node_id, details=details)


def _of_node(old: NodeInfo | None, new: NodeInfo | None) -> Iterator[tuple[str, dict[str, Any]]]:
    if new is None:
        assert old is not None, "one of them is there"
        yield "node.removed", {"incarnation": old.incarnation}
        return
    if old is None:
        yield "node.joined", {"incarnation": new.incarnation, "rack": new.rack}
    elif new.incarnation != old.incarnation:
        yield "node.started", {"incarnation": new.incarnation}
    elif new.expired and not old.expired:
        yield "node.gone", {"incarnation": new.incarnation, "cause": "its session ended"}
    if old is not None and new.draining != old.draining:
        yield "node.draining" if new.draining else "node.undrained", {}


def _drained(before: MetadataState, after: MetadataState, now_ns: int) -> Iterator[Event]:
    """Nodes that are to be emptied, and that this change emptied."""
    for node_id in sorted(node.node_id for node in after.nodes.values() if node.draining):
        if not _keeps(after, node_id) and _keeps(before, node_id):
            yield Event("node.drained", now_ns, node=node_id)


def _keeps(state: MetadataState, node_id: str) -> bool:
    return any(node_id in partition.replicas for stream in state.streams.values() for partition in stream.partitions)


# -- streams


def _of_stream(before: MetadataState, after: MetadataState, name: str, now_ns: int) -> Iterator[Event]:
    old, new = before.streams.get(name), after.streams.get(name)
    if old is not None and (new is None or new.uuid != old.uuid):
        yield Event("stream.deleted", now_ns, name, details={"uuid": old.uuid})
        old = None
    if new is None:
        return
    if old is None:
        yield Event("stream.created", now_ns, name, details=_created(new))
    else:
        changes = _changes(old, new)
        if changes:
            yield Event("stream.edited", now_ns, name, details={"changes": changes})
        for number, (was, now) in enumerate(zip(old.partitions, new.partitions, strict=False)):
            if now is not was:
                for kind, node, details in _of_partition(before, after, was, now):
                    yield Event(kind, now_ns, name, number, node, details)
    if new.gaps:
        yield from _of_gaps({} if old is None else old.gaps, new, now_ns)


def _created(stream: StreamInfo) -> dict[str, Any]:
    return {
        "uuid": stream.uuid,
        "subject": stream.config.subject,
        "partitions": len(stream.partitions),
        "replicas": stream.config.replicas,
        "restored": any(partition.restored_ns for partition in stream.partitions),
    }


def _changes(old: StreamInfo, new: StreamInfo) -> dict[str, list[Any]]:
    changes: dict[str, list[Any]] = {}
    if new.config is not old.config:
        was, now = old.config.to_plain(), new.config.to_plain()
        changes = {name: [was.get(name), now.get(name)] for name in _SETTINGS if was.get(name) != now.get(name)}
    for name in ("paused", "read_only"):
        if getattr(old, name) != getattr(new, name):
            changes[name] = [getattr(old, name), getattr(new, name)]
    return changes


# -- partitions

_Found = tuple[str, str | None, dict[str, Any]]


def _of_partition(
    before: MetadataState, after: MetadataState, old: PartitionInfo, new: PartitionInfo
) -> Iterator[_Found]:
    for node in sorted(set(new.failed) - set(old.failed)):
        yield "damage.found", node, {}
    for node in sorted((set(old.failed) - set(new.failed)) & set(new.replicas)):
        yield "damage.repaired", node, {}
    if new.leader != old.leader:
        is_unclean = new.unclean_elections > old.unclean_elections
        details = {"leader": new.leader, "previous": old.leader, "leader_epoch": new.leader_epoch}
        cause = _why_changed(before, after, old, new)
        yield "leader.changed", new.leader, details | {"unclean": is_unclean, "cause": cause}
    left = sorted((set(old.isr) - set(new.isr)) & set(new.voters))
    if left:
        causes = "; ".join(f"{node}: {_why_left(before, after, new, node)}" for node in left)
        sizes = {"left": left, "isr": list(new.isr), "replicas": len(new.voters)}
        yield "isr.shrunk", new.leader, sizes | {"cause": causes}
    elif set(old.voters) - set(old.isr) and set(new.voters) <= set(new.isr):
        yield "isr.whole", new.leader, {"isr": list(new.isr)}
    if new.log_start > old.log_start:
        yield "stream.purged", new.leader, {"log_start": new.log_start}


def _why_changed(before: MetadataState, after: MetadataState, old: PartitionInfo, new: PartitionInfo) -> str:
    previous = old.leader
    if new.unclean_elections > old.unclean_elections:
        return "an unclean election: records that were acknowledged may be missing"
    if previous is None:
        return "a replica that may lead is there again"
    known, node = before.nodes.get(previous), after.nodes.get(previous)
    causes = (
        (node is None, f"{previous} was removed"),
        (previous in new.failed, f"the log of {previous} failed"),
        (node is not None and node.expired and not (known and known.expired), f"the session of {previous} ended"),
        (node is not None and known is not None and node.incarnation != known.incarnation,
         f"{previous} started again, and can not prove its log"),
        (new.elected_ns != old.elected_ns, f"{previous} was silent"),
        (previous not in new.replicas, f"{previous} keeps no replica any more"),
        (node is not None and node.draining, f"{previous} is drained"),
    )  # fmt: skip
    return next((text for is_so, text in causes if is_so), "it was moved")


def _why_left(before: MetadataState, after: MetadataState, partition: PartitionInfo, node_id: str) -> str:
    known, node = before.nodes.get(node_id), after.nodes.get(node_id)
    if node_id in partition.failed:
        return "its log failed"
    if node is None or node.expired:
        return "its session ended"
    if known is not None and node.incarnation != known.incarnation:
        return "it started again, and can not prove its log"
    return "it was silent, or did not keep up"


# -- gaps


def _of_gaps(known: dict[int, tuple[Gap, ...]], stream: StreamInfo, now_ns: int) -> Iterator[Event]:
    if stream.gaps is known:
        return
    for number in sorted(stream.gaps):
        gaps, were = stream.gaps[number], known.get(number, ())
        if gaps is were:
            continue
        is_open = {gap.id: gap.until_ns is None for gap in were}
        for gap in gaps:
            if gap.id not in is_open or (is_open[gap.id] and gap.until_ns is not None):
                yield _of_gap(gap, stream.name, number, now_ns)


def _of_gap(gap: Gap, stream: str, number: int, now_ns: int) -> Event:
    node = gap.id.rsplit(".", 2)[0]
    details: dict[str, Any] = {"gap": gap.id, "since_ns": gap.since_ns}
    if gap.until_ns is not None:
        details |= {"until_ns": gap.until_ns, "messages": gap.messages}
    kind = "gap.opened" if gap.until_ns is None else "gap.closed"
    return Event(kind, now_ns, stream, number, node, details | {"cause": gap.cause})
