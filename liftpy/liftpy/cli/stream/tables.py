"""Streams, their partitions, replicas and gaps as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape

from liftpy.cli.stream.replicas import (
    in_sync_wanted,
    is_replicated,
    is_under_replicated,
    lag_of,
    replica_state,
    role_of,
)
from liftpy.cli.tables import Column, make_table, show_clock_offset, show_time
from liftpy.cli.units import show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from liftpy_client.admin.details import PartitionDetails, StreamDetails
    from liftpy_client.admin.recovery import QuarantinedDetails, QuarantineDetails

__all__ = [
    "gaps_table",
    "partition_table",
    "partitions_table",
    "quarantine_table",
    "replicas_table",
    "settings_table",
    "show_setting",
    "state_table",
    "streams_table",
]

_LEADERS_SHOWN_MAX: Final = 3
_QUARANTINED_SHOWN_MAX: Final = 10


def _state(stream: StreamDetails) -> str:
    parts = stream.partitions
    if any(part.leader is None for part in parts):
        return "[red]no leader[/]"
    if any(part.offline for part in parts):
        return "[red]offline[/]"
    if any(part.unreachable for part in parts):
        return "[red]leader silent[/]"
    if any(is_under_replicated(stream, part) for part in parts):
        return "[yellow]under-replicated[/]"
    if stream.paused:
        return "[yellow]paused[/]"
    if stream.read_only:
        return "[yellow]read-only[/]"
    if any(part.dedupe_window_shortened for part in parts):
        return "[yellow]ids forgotten early[/]"
    return "[cyan]moving[/]" if any(part.target is not None for part in parts) else "[green]ok[/]"


def _is_told(stream: StreamDetails) -> bool:
    """Whether any leader told what is stored; where none did, zero would look like loss."""
    return not stream.partitions or any(not part.unreachable for part in stream.partitions)


def _in_sync(stream: StreamDetails, part: PartitionDetails) -> str:
    shown = f"{len(part.isr)}/{in_sync_wanted(stream, part)}"
    if len(part.isr) < stream.config.min_isr_effective:
        return f"[red]{shown}[/]"
    return f"[yellow]{shown}[/]" if is_under_replicated(stream, part) else shown


def _replication_cells(stream: StreamDetails) -> dict[str, str]:
    """Who leads, and how the partition is that is worst off."""
    parts = stream.partitions
    if not parts:
        return dict.fromkeys(("Leader", "In sync", "Lag"), "-")
    leaders = sorted({part.leader or "[red]none[/]" for part in parts})
    worst = min(parts, key=lambda part: len(part.isr) - in_sync_wanted(stream, part))
    lags = [lag for part in parts if (lag := lag_of(part)) is not None]
    return {
        "Leader": ", ".join(leaders) if len(leaders) <= _LEADERS_SHOWN_MAX else f"{len(leaders)} nodes",
        "In sync": _in_sync(stream, worst),
        "Lag": show_count(max(lags)) if lags else "-",
    }


def streams_table(streams: Sequence[StreamDetails], rates: dict[str, float] | None = None, width: int = 1_000) -> Table:
    """One line per stream; what there is to say of replicas only where there are several.

    Args:
        streams: Streams to show.
        rates: Messages per second, by the stream's name.
        width: Width of the terminal, in characters.
    """
    several = is_replicated(streams)
    columns = [Column("Name"), Column("Subject", from_width=90 if several else 60), Column("Messages", right=True)]
    if rates is not None:
        columns.append(Column("Msgs/s", right=True))
    columns.append(Column("Size", right=True, from_width=70))
    if several:
        columns += [
            Column("Leader", from_width=110),
            Column("In sync", right=True),
            Column("Lag", right=True, from_width=70),
        ]
    last_from_width = 150 if several else 100
    columns += [Column("Gaps", right=True, from_width=80), Column("Last message", from_width=last_from_width)]
    columns.append(Column("State"))
    return make_table("Streams", columns, (_stream_row(stream, rates or {}) for stream in streams), width)


def _stream_row(stream: StreamDetails, rates: dict[str, float]) -> dict[str, str]:
    last = max((part.get("last_timestamp_ns") or 0 for part in stream.raw["partitions"]), default=0)
    known = _is_told(stream)
    return {
        "Name": stream.name,
        "Subject": escape(stream.config.subject),
        "Messages": show_count(stream.messages) if known else "-",
        "Msgs/s": show_count(rates.get(stream.name, 0.0)),
        "Size": show_bytes(stream.bytes) if known else "-",
        "Gaps": str(stream.raw.get("gap_count", 0)),
        "Last message": show_time(last),
        "State": _state(stream),
    } | _replication_cells(stream)


def settings_table(stream: StreamDetails) -> Table:
    """A stream's settings and counts."""
    table = make_table(f"Stream {stream.name}", (Column("Setting"), Column("Value")), ())
    settings = stream.config.to_plain()
    for name, value in settings.items():
        if name == "min_isr" and value is None:
            table.add_row(name, f"{stream.config.min_isr_effective} (a majority)")
        else:
            table.add_row(name, show_setting(name, value))
    table.add_section()
    _add_state(table, stream)
    return table


def state_table(stream: StreamDetails) -> Table:
    """What a stream holds, and how it is."""
    table = make_table(f"State of {stream.name}", (Column("What"), Column("Value")), ())
    _add_state(table, stream)
    return table


def _add_state(table: Table, stream: StreamDetails) -> None:
    table.add_row("uuid", stream.uuid)
    table.add_row("created", stream.created.isoformat(timespec="seconds"))
    table.add_row("version", str(stream.version))
    table.add_row("state", _state(stream))
    known = _is_told(stream)
    table.add_row("messages", show_count(stream.messages) if known else "-")
    table.add_row("size", show_bytes(stream.bytes) if known else "-")
    parts = stream.raw["partitions"]
    table.add_row("last message", show_time(max((part.get("last_timestamp_ns") or 0 for part in parts), default=0)))
    table.add_row("gaps", str(stream.raw.get("gap_count", 0)))
    ahead_s = max((part.get("clock_ahead_s") or 0 for part in parts), key=abs, default=0)
    if ahead_s:
        table.add_row("clock of the leader", f"[red]{show_clock_offset(ahead_s)} the stream's time[/]")
    unmeasured_s = max((part.get("unmeasured_s") or 0 for part in parts), default=0)
    if unmeasured_s:
        table.add_row("unmeasured", f"{show_duration(unmeasured_s)} count for no record's age")
    counters = stream.raw.get("counters", {})
    for name, value in counters.items():
        if name == "refused":
            for reason, count in value.items():
                table.add_row(escape(f"refused: {reason}"), show_count(count))
        elif value and name not in {"messages", "bytes"}:
            table.add_row(f"{name} since start", show_count(value))


def show_setting(name: str, value: Any) -> str:
    """A setting of a stream, as markup."""
    zero = "none" if name in {"min_compaction_lag_s", "delete_retention_s"} else "unlimited"
    if name.startswith("local_retention_"):
        zero = "as retained"
    if name.endswith("_bytes") or name == "message_bytes_max":
        return show_bytes(value) if value else zero
    if name.endswith("_s"):
        return show_duration(value) if value else zero
    if name == "retention_messages":
        return show_count(value) if value else zero
    return "-" if value is None else escape(str(value))


def partitions_table(stream: StreamDetails, width: int = 1_000) -> Table:
    """A stream's partitions.

    Args:
        stream: Stream to show.
        width: Width of the terminal, in characters.
    """
    columns = [
        Column("#"),
        Column("Leader"),
        Column("Epoch", right=True, from_width=90),
        Column("In sync"),
        Column("First", right=True, from_width=80),
        Column("Committed", right=True),
        Column("End", right=True, from_width=80),
        Column("Size", right=True),
        Column("Files", right=True, from_width=100),
    ]
    table = make_table("Partitions", columns, map(_partition_row, stream.partitions), width)
    lines = [
        f"[red]partition {part.partition} is offline:[/] {escape(part.offline)}"
        for part in stream.partitions
        if part.offline
    ]
    lines += [
        f"[red]partition {part['partition']} tells nothing:[/] {escape(str(part.get('unreachable_reason', '')))}"
        for part in stream.raw["partitions"]
        if part.get("unreachable")
    ]
    lines += [
        f"[yellow]partition {part['partition']}: the copy on {escape(', '.join(part['failed']))} has failed[/], "
        "does not count, and is copied anew"
        for part in stream.raw["partitions"]
        if part.get("failed")
    ]
    lines += [
        f"[yellow]partition {part['partition']}: {show_bytes(tail['bytes'])} from offset {tail['offset']} on were cut "
        f"off when {escape(part['leader'])} started[/], as a rule a write that was never finished or acknowledged "
        f"({escape(tail['file'])}, byte {tail['position']})"
        for part in stream.raw["partitions"]
        if (tail := part.get("torn_tail"))
    ]
    lines += [
        f"[yellow]partition {part['partition']} had {part['unclean_elections']} unclean elections:[/] acknowledged "
        "messages may have been lost"
        for part in stream.raw["partitions"]
        if part.get("unclean_elections")
    ]
    wanted = show_duration(stream.config.dedupe_window_s)
    lines += [
        f"[yellow]partition {part.partition} knows message ids for {show_duration(part.dedupe_known_s or 0)}, not for "
        f"{wanted}:[/] a message that is sent again later is stored twice"
        for part in stream.partitions
        if part.dedupe_window_shortened
    ]
    table.caption = "\n".join(lines) or None
    return table


_PARTITION_TIMES: Final = ("first_timestamp_ns", "last_timestamp_ns")
_PARTITION_LEFT_OUT: Final = ("partition", "replica_states")


def partition_table(stream: StreamDetails, number: int) -> Table:
    """All that is known of a partition."""
    table = make_table(f"Partition {number} of {stream.name}", (Column("What"), Column("Value")), ())
    for name, value in stream.raw["partitions"][number].items():
        if name in _PARTITION_TIMES:
            table.add_row(name.removesuffix("_timestamp_ns") + " message", show_time(value, to_ms=True))
        elif name not in _PARTITION_LEFT_OUT:
            table.add_row(name, _shown(name, value))
    return table


def _shown(name: str, value: Any) -> str:
    """What a node says of a partition, as markup."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return escape(", ".join(map(str, value))) or "-"
    if isinstance(value, dict):
        return escape(", ".join(f"{key} {each}" for key, each in value.items()))
    if name == "bytes":
        return show_bytes(value)
    if name.endswith("_s"):
        return show_duration(value)
    return escape(str(value))


def _number(value: int | None) -> str:
    return "-" if value is None else show_count(value)


def _partition_row(part: PartitionDetails) -> dict[str, str]:
    return {
        "#": str(part.partition),
        "Leader": part.leader or "[red]none[/]",
        "Epoch": str(part.leader_epoch),
        "In sync": ", ".join(part.isr),
        "First": _number(part.log_start),
        "Committed": _number(part.high_watermark),
        "End": _number(part.log_end),
        "Size": "-" if part.bytes is None else show_bytes(part.bytes),
        "Files": _number(part.segments),
    }


_ROLE_STYLES: Final = {"leader": "bold", "behind": "yellow", "joining": "cyan", "leaving": "cyan", "observer": "dim"}


def replicas_table(stream: StreamDetails, number: int | None = None) -> Table | None:
    """Every replica of a stream's partitions, or of one; None where each of them has one."""
    if not is_replicated([stream]):
        return None
    columns = (Column("#"), Column("Node"), Column("Is"), Column("End", right=True), Column("Lag", right=True))
    table = make_table("Replicas", columns, ())
    for part in stream.partitions if number is None else (stream.partitions[number],):
        for node in part.replicas:
            table.add_row(str(part.partition), node, *_replica_cells(part, node))
        table.add_section()
    return table


def _replica_cells(part: PartitionDetails, node: str) -> tuple[str, str, str]:
    role = role_of(part, node)
    shown = f"[{_ROLE_STYLES[role]}]{role}[/]" if role in _ROLE_STYLES else role
    if role == "leader":
        return shown, _number(part.log_end), ""
    state = replica_state(part, node)
    return (shown, "-", "-") if state is None else (shown, _number(state.log_end), _number(state.lag_messages))


def gaps_table(stream: StreamDetails, number: int | None = None) -> Table | None:
    """Times in which messages of a stream, or of one partition, may be missing; None when there are none."""
    gaps = [gap for gap in stream.raw.get("gaps") or [] if number in {None, gap["partition"]}]
    if not gaps:
        return None
    columns = (Column("Partition", right=True), Column("Since"), Column("Until"), Column("Messages"), Column("Cause"))
    table = make_table("Gaps: messages of these times may be missing", columns, ())
    for gap in gaps:
        missing = "unknown" if gap["messages"] is None else show_count(gap["messages"])
        until = "now" if gap["until_ns"] is None else show_time(gap["until_ns"], to_ms=True)
        table.add_row(
            str(gap["partition"]), show_time(gap["since_ns"], to_ms=True), until, missing, escape(gap["cause"])
        )
    return table


def quarantine_table(quarantine: QuarantineDetails, width: int = 1_000) -> Table | None:
    """What nodes moved out of the way; None when that is nothing.

    Args:
        quarantine: What is quarantined.
        width: Width of the terminal, in characters.
    """
    if not quarantine.items:
        return None
    columns = (
        Column("Node"),
        Column("Was"),
        Column("Size", right=True),
        Column("Moved there (UTC)", from_width=90),
        Column("Why", from_width=60),
        Column("In quarantine/", from_width=160),
    )
    items = quarantine.items[:_QUARANTINED_SHOWN_MAX]
    table = make_table("In quarantine", columns, map(_quarantine_row, items), width)
    total = f"{show_bytes(quarantine.size_bytes)} in all; nobody but you deletes it"
    hidden = quarantine.count - len(items)
    table.caption = f"and {show_count(hidden)} more; {total}" if hidden else total
    return table


def _quarantine_row(item: QuarantinedDetails) -> dict[str, str]:
    was = (
        item.name
        if item.stream is None
        else item.stream
        if item.partition is None
        else f"{item.stream}/{item.partition}"
    )
    return {
        "Node": item.node,
        "Was": escape(was),
        "Size": show_bytes(item.size_bytes),
        "Moved there (UTC)": show_time(item.moved_ns),
        "Why": escape(item.why),
        "In quarantine/": escape(item.name),
    }
