"""What a node tells of itself, of the partitions that it leads, and of where everything is."""

from __future__ import annotations

import resource
import time
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy_log.quarantine import find_quarantined
from liftpy_server.admin.stream_view import GAPS_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_log.segments.recovery import TornTail
    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.partition.partition import Partition

__all__ = [
    "cluster_info",
    "follower_lags",
    "kept_logs",
    "led_stream",
    "node_info",
    "node_load",
    "quarantined",
    "resident_bytes",
]


def led_stream(node: NodeParts, info: StreamInfo, *, brief: bool = False) -> dict[str, Any]:
    """What this node knows of a stream as the leader of its partitions, or of some of them."""
    local = node.streams.by_uuid.get(info.uuid)
    if local is None:
        return {"partitions": []}
    led = [
        partition
        for number, partition in local.partitions.items()
        if info.partitions[number].leader == node.config.node_id
    ]
    told: dict[str, Any] = {"partitions": [_partition_numbers(partition) for partition in led]}
    counters = asdict(local.state.counters) | {"refused": dict(local.state.counters.refused)}
    told |= {"counters": counters}
    return told if brief else told | {"gaps": _unrecorded_gaps(led)}


def kept_logs(node: NodeParts, uuid: str) -> list[dict[str, Any]]:
    """What this node's logs of a stream have, one for each partition that it keeps."""
    local = node.streams.by_uuid.get(uuid)
    return [] if local is None else [_log_numbers(partition) for partition in local.partitions.values()]


def _log_numbers(partition: Partition) -> dict[str, Any]:
    log = partition.log
    return {
        "partition": partition.number,
        "failure": None if log.failure is None else f"{log.failure!s:.300}",
        "torn_tail": _torn_tail(log.torn_tail),
        "log_start": log.log_start,
        "log_end": log.log_end,
        "last_epoch": log.epochs.latest,
        "high_watermark": partition.high_watermark,
        "last_timestamp_ns": log.last_timestamp or None,
    }


def quarantined(node: NodeParts, stream: str | None, limit: int) -> dict[str, Any]:
    """What lies in this node's quarantine, of one stream or of all, the newest first. Reads the disk."""
    found = [
        each for each in find_quarantined(node.data_dir.quarantine_directory) if stream is None or each.stream == stream
    ]
    return {
        "items": [{"node": node.config.node_id} | each._asdict() for each in found[:limit]],
        "count": len(found),
        "bytes": sum(each.size_bytes for each in found),
    }


def cluster_info(state: MetadataState, wanted: Sequence[str] | None) -> dict[str, Any]:
    """What a client needs to find partitions: nodes with their pull addresses, and streams; None wants all of them."""
    names = state.streams if wanted is None else [name for name in wanted if name in state.streams]
    return {
        "revision": state.revision,
        "nodes": [node.for_clients() for node in state.nodes.values()],
        "streams": [
            {"uuid": stream.uuid, "config": stream.config.to_plain(), "partitions": _places(stream)}
            for stream in (state.streams[name] for name in names)
        ],
    }


def _places(stream: StreamInfo) -> list[dict[str, Any]]:
    return [
        {
            "partition": number,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "observers": list(partition.observers),
        }
        for number, partition in enumerate(stream.partitions)
    ]


def _unrecorded_gaps(led: Sequence[Partition]) -> list[list[Any]]:
    """What the metadata do not have yet of the gaps: partition and gap."""
    gaps = [[partition.number, gap.to_plain()] for partition in led for gap in partition.gaps.unrecorded()]
    return gaps[:GAPS_SHOWN_MAX]


def _partition_numbers(partition: Partition) -> dict[str, Any]:
    log, cold = partition.log, partition.cold
    segments = log.segments
    first_timestamp = next((s.first_timestamp for s in segments if s.first_timestamp is not None), None)
    return {
        "partition": partition.number,
        "leader_epoch": partition.epoch,  # in which these numbers are true; the metadata may be behind, or ahead
        "log_start": partition.start,
        "local_start": log.log_start,
        "tiered_end": None if cold is None else cold.end,
        "high_watermark": partition.high_watermark,
        "log_end": log.log_end,
        "bytes": log.size_bytes,
        "segments": len(segments),
        # Of what is in the bucket alone no time is known here.
        "first_timestamp_ns": first_timestamp if partition.start == log.log_start else None,
        "last_timestamp_ns": log.last_timestamp or None,
        "offline": None if log.failure is None else str(log.failure),
        "torn_tail": _torn_tail(log.torn_tail),
        "dedupe_ids": len(partition.dedupe),
        "dedupe_window_shortened": partition.dedupe.is_shortened(partition.age_now_ns()),
        "dedupe_known_s": round(partition.dedupe.known_ns(partition.age_now_ns()) / 1e9, 3),
        "ordered_producers": len(partition.dedupe.ordered),
        "clock_ahead_s": partition.clock_ahead_s(),
        "unmeasured_s": round(partition.log_time.leapt_ns / 1e9, 1),
        "replica_states": partition.replica_states(),
    }


def _torn_tail(tail: TornTail | None) -> dict[str, Any] | None:
    if tail is None:
        return None
    return {"offset": tail.offset, "bytes": tail.length, "file": str(tail.path), "position": tail.position}


def follower_lags(node: NodeParts) -> dict[str, dict[str, int]]:
    """By node, how far it is behind in the partitions that this node leads: messages in all, and in how many."""
    messages: Counter[str] = Counter()
    behind: Counter[str] = Counter()
    state, node_id = node.metadata.state, node.config.node_id
    for stream in state.streams.values():
        local = node.streams.by_uuid.get(stream.uuid)
        for number, partition in () if local is None else local.partitions.items():
            if stream.partitions[number].leader != node_id:
                continue
            for replica in partition.replica_states():
                messages[replica["node"]] += replica["lag_messages"] or 0
                behind[replica["node"]] += not replica["in_sync"]
    return {name: {"lag_messages": lag, "out_of_sync": behind[name]} for name, lag in messages.items()}


def node_load(node: NodeParts) -> dict[str, Any]:
    """How busy this node is: room on its disk, and memory and CPU time of its process."""
    return {
        "free_bytes": node.maintenance.free_bytes,
        "resident_bytes": resident_bytes(),
        "cpu_s": round(time.process_time(), 3),
    }


def node_info(node: NodeParts) -> dict[str, Any]:
    """This node, as JSON."""
    state = node.metadata.state
    partitions = node.streams.partitions
    led = [partition for partition in partitions if partition.is_leading]
    return {
        "node_id": node.config.node_id,
        "version": version("liftpy"),
        "incarnation": node.incarnation,
        "started_ns": node.started_ns,
        "now_ns": node.clock.now_ns(),
        "nats_url": node.config.nats.shown_url,
        "nats_connected": node.ingest.is_connected,
        "nats_reconnects": node.ingest.reconnects,
        "pull_address": f"{node.config.pull.reachable_host}:{node.pull.port}",
        "pull_connections": node.pull.connection_count,
        "data_dir": str(node.data_dir.root.resolve()),
        "storage_full": node.maintenance.storage_full,
        "free_bytes": node.maintenance.free_bytes,
        "streams": len(state.streams),
        "partitions": len(partitions),
        "partitions_led": len(led),
        "partitions_under_replicated": sum(not all(s["in_sync"] for s in each.replica_states()) for each in led),
        "partitions_not_accepting": sum(not partition.is_accepting for partition in led),
        "clock_ahead_s": max((each.clock_ahead_s() for each in led), key=abs, default=0.0),
        "partitions_offline": sum(partition.log.failure is not None for partition in partitions),
        "partitions_in_gap": sum(not partition.gaps.are_recorded for partition in led),
        "unclean_elections": _unclean_elections(state, node.config.node_id),
        "metadata_leader": node.metadata.leader_id == node.config.node_id,
        "open_files": len(node.files),
        "groups": node.groups.quota.groups,
        "group_bytes": node.groups.quota.size_bytes,
        "resident_bytes": resident_bytes(),
        "dedupe_bytes": sum(partition.dedupe.size_bytes for partition in partitions),
        "ordered_producers": sum(len(partition.dedupe.ordered) for partition in partitions),
        "metadata_revision": state.revision,
        "unbound_messages": node.ingest.unbound_messages,
        "events_stored": node.events.stored,
        "events_lost": node.events.lost,
        "lost_ack_bytes": node.outbox.lost_bytes,
        "group_commits": node.group_commits.count,
    }


def _unclean_elections(state: MetadataState, node_id: str) -> int:
    """How often a leader was chosen that may lack acknowledged records, in the partitions that a node leads now."""
    return sum(
        partition.unclean_elections
        for stream in state.streams.values()
        for partition in stream.partitions
        if partition.leader == node_id
    )


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
