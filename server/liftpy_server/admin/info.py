"""What nodes and streams tell of themselves."""

from __future__ import annotations

import resource
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.node import Node
    from liftpy_server.partition import Partition
    from liftpy_server.stream_state import StreamState

__all__ = ["cluster_info", "node_info", "resident_bytes", "stream_info"]


def stream_info(node: Node, info: StreamInfo, *, brief: bool = False) -> dict[str, Any]:
    """One stream, as JSON."""
    local = node.streams.by_uuid.get(info.uuid)
    partitions = [] if local is None else [_partition_info(node, info, p) for p in local.partitions.values()]
    shown: dict[str, Any] = {
        "name": info.name,
        "uuid": info.uuid,
        "config": info.config.to_plain(),
        "created_ns": info.created_ns,
        "version": info.version,
        "paused": info.paused,
        "read_only": info.read_only,
        "messages": sum(partition["high_watermark"] - partition["log_start"] for partition in partitions),
        "bytes": sum(partition["bytes"] for partition in partitions),
        "partitions": partitions,
    }
    if local is not None:
        shown |= _state_info(local.state, brief=brief)
    return shown


def cluster_info(state: MetadataState, wanted: Sequence[str] | None) -> dict[str, Any]:
    """What a client needs to find partitions: nodes with their pull addresses, and streams; None wants all of them."""
    names = state.streams if wanted is None else [name for name in wanted if name in state.streams]
    return {
        "revision": state.revision,
        "nodes": [node.to_plain() for node in state.nodes.values()],
        "streams": [
            {"uuid": stream.uuid, "config": stream.config.to_plain(), "partitions": _leaders(stream)}
            for stream in (state.streams[name] for name in names)
        ],
    }


def _leaders(stream: StreamInfo) -> list[dict[str, Any]]:
    return [
        {"partition": number, "leader": partition.leader, "leader_epoch": partition.leader_epoch}
        for number, partition in enumerate(stream.partitions)
    ]


def _state_info(state: StreamState, *, brief: bool) -> dict[str, Any]:
    gaps = [gap.to_plain() for gap in state.gaps]
    counters = asdict(state.counters)
    counters["refused"] = dict(state.counters.refused)
    return {"counters": counters, "gap_count": len(gaps)} | ({} if brief else {"gaps": gaps})


def _partition_info(node: Node, info: StreamInfo, partition: Partition) -> dict[str, Any]:
    log = partition.log
    meta = info.partitions[partition.number]
    segments = log.segments
    return {
        "partition": partition.number,
        "leader": meta.leader,
        "leader_epoch": meta.leader_epoch,
        "replicas": list(meta.replicas),
        "isr": list(meta.isr),
        "log_start": log.log_start,
        "high_watermark": partition.high_watermark,
        "log_end": log.log_end,
        "bytes": log.size_bytes,
        "segments": len(segments),
        "first_timestamp_ns": next((s.first_timestamp for s in segments if s.first_timestamp is not None), None),
        "last_timestamp_ns": log.last_timestamp or None,
        "offline": None if log.failure is None else str(log.failure),
        "dedupe_ids": len(partition.dedupe),
        "dedupe_window_shortened": partition.dedupe.is_shortened(node.clock.now_ns()),
    }


def node_info(node: Node) -> dict[str, Any]:
    """This node, as JSON."""
    state = node.metadata.state
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
        "streams": len(state.streams),
        "partitions": len(node.streams.by_key),
        "partitions_offline": sum(partition.log.failure is not None for partition in node.streams.partitions),
        "open_files": len(node.files),
        "resident_bytes": resident_bytes(),
        "metadata_revision": state.revision,
        "unbound_messages": node.ingest.ingest.unbound,
        "lost_ack_bytes": node.outbox.lost_bytes,
        "group_commit_rounds": node.group_commit_rounds,
    }


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
