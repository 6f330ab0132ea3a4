"""One stream as it is shown: what the metadata says, and what the leaders of its partitions told. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_server.gaps.gap import Gap, all_told, bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_server.metadata.state import PartitionInfo, StreamInfo

__all__ = ["GAPS_SHOWN_MAX", "LEADER_NUMBERS", "Told", "leaders_of", "partition_place", "show_stream"]

GAPS_SHOWN_MAX: Final = 1_000  # the newest; what is shown must fit into a message of NATS
LEADER_NUMBERS: Final = (
    "log_start",
    "local_start",
    "tiered_end",
    "high_watermark",
    "log_end",
    "bytes",
    "segments",
    "first_timestamp_ns",
    "last_timestamp_ns",
    "offline",
    "torn_tail",
    "dedupe_ids",
    "dedupe_window_shortened",
    "dedupe_known_s",
    "ordered_producers",
    "clock_ahead_s",
    "unmeasured_s",
)
"""What only the leader of a partition knows of it."""


class Told(NamedTuple):
    """What one node told of the partitions that it leads.

    Attributes:
        streams: By uuid: the `counters` of the stream, the `gaps` that are not recorded yet, and its `partitions` with
            their numbers.
        silence: Why it told nothing, or not all; None when it told all it was asked.
    """

    streams: Mapping[str, dict[str, Any]]
    silence: str | None = None


def leaders_of(info: StreamInfo) -> list[str]:
    """The nodes that lead partitions of a stream, each once."""
    return list(dict.fromkeys(partition.leader for partition in info.partitions if partition.leader is not None))


def partition_place(number: int, meta: PartitionInfo) -> dict[str, Any]:
    """Where a partition is, by the metadata."""
    return {
        "partition": number,
        "leader": meta.leader,
        "leader_epoch": meta.leader_epoch,
        "replicas": list(meta.replicas),
        "isr": list(meta.isr),
        "observers": list(meta.observers),
        "failed": list(meta.failed),
        "unclean_elections": meta.unclean_elections,
        "target": None if meta.target is None else list(meta.target),
    }


def show_stream(info: StreamInfo, told: Mapping[str, Told], *, brief: bool = False) -> dict[str, Any]:
    """One stream, as JSON.

    Args:
        info: The stream in the metadata.
        told: What the leaders told, by node. Partitions of nodes that told nothing are shown without numbers.
        brief: Leave out the gaps.
    """
    partitions = [_show_partition(info.uuid, number, meta, told) for number, meta in enumerate(info.partitions)]
    known = [partition for partition in partitions if not partition["unreachable"]]
    shown: dict[str, Any] = {
        "name": info.name,
        "uuid": info.uuid,
        "config": info.config.to_plain(),
        "created_ns": info.created_ns,
        "version": info.version,
        "paused": info.paused,
        "read_only": info.read_only,
        "messages": sum(partition["high_watermark"] - partition["log_start"] for partition in known),
        "bytes": sum(partition["bytes"] for partition in known),
        "unreachable_partitions": len(partitions) - len(known),
        "partitions": partitions,
    }
    parts = [
        told[node].streams[info.uuid] for node in leaders_of(info) if node in told and info.uuid in told[node].streams
    ]
    gaps = _gaps(info, [part["gaps"] for part in parts if "gaps" in part])
    shown |= _counters([part["counters"] for part in parts if "counters" in part]) | {"gap_count": len(gaps)}
    return shown if brief else shown | {"gaps": gaps[-GAPS_SHOWN_MAX:]}


def _show_partition(uuid: str, number: int, meta: PartitionInfo, told: Mapping[str, Told]) -> dict[str, Any]:
    place = partition_place(number, meta)
    numbers, reason = _numbers(uuid, number, meta, told)
    if numbers is None:
        unknown = dict.fromkeys(LEADER_NUMBERS)
        return place | unknown | {"replica_states": [], "unreachable": True, "unreachable_reason": reason}
    return place | numbers | {"unreachable": False}


def _numbers(
    uuid: str, number: int, meta: PartitionInfo, told: Mapping[str, Told]
) -> tuple[dict[str, Any] | None, str]:
    if meta.leader is None and not meta.isr:
        return None, "no node leads it: no replica can prove its log; see liftpy stream recover --dry-run"
    if meta.leader is None:
        return None, f"no node leads it: its in-sync replicas are down ({', '.join(meta.isr)})"
    answer = told.get(meta.leader)
    if answer is None:
        return None, f"node {meta.leader!r} was not asked"
    for partition in answer.streams.get(uuid, {}).get("partitions", ()):
        if partition["partition"] == number:
            return partition, ""
    return None, answer.silence or f"node {meta.leader!r} has not opened it yet, or leads it no longer"


def _counters(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counters of all leaders together."""
    if not parts:
        return {}
    counters: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for part in parts:
        counters.update({name: count for name, count in part.items() if name != "refused"})
        refused.update(part["refused"])
    return {"counters": dict(counters) | {"refused": dict(refused)}}


def _gaps(info: StreamInfo, unrecorded: Sequence[list[list[Any]]]) -> list[dict[str, Any]]:
    """The gaps that are recorded, with what leaders know beyond that, in the order in which they began."""
    known = dict(info.gaps)
    for number, gap in (each for part in unrecorded for each in part):
        known[number] = all_told(known.get(number, ()), [Gap.from_plain(gap)])
    shown = [{"partition": number} | gap.shown() for number, gaps in known.items() for gap in bounded(gaps)]
    return sorted(shown, key=lambda gap: (gap["since_ns"], gap["partition"]))
