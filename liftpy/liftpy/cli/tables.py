"""Streams and nodes as tables, in the manner of the nats CLI."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from liftpy.cli.units import show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.admin import StreamDetails

__all__ = ["gaps_table", "node_table", "partitions_table", "settings_table", "streams_table"]


def _table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, box=box.ROUNDED, title_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def show_time(ns: int | None) -> str:
    """A time, or a dash."""
    if not ns:
        return "-"
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _state(stream: StreamDetails) -> str:
    if any(partition.offline for partition in stream.partitions):
        return "[red]offline[/]"
    if stream.paused:
        return "[yellow]paused[/]"
    return "[yellow]read-only[/]" if stream.read_only else "[green]ok[/]"


def streams_table(streams: Iterable[StreamDetails], rates: dict[str, float] | None = None) -> Table:
    """One line per stream."""
    columns = ["Name", "Subject", "Messages", "Size", "Gaps", "Last message", "State"]
    if rates is not None:
        columns.insert(3, "Msgs/s")
    table = _table("Streams", *columns, right=("Messages", "Msgs/s", "Size", "Gaps"))
    for stream in streams:
        last = max((part.get("last_timestamp_ns") or 0 for part in stream.raw["partitions"]), default=0)
        row = [
            stream.name,
            escape(stream.config.subject),
            show_count(stream.messages),
            show_bytes(stream.bytes),
            str(stream.raw.get("gap_count", 0)),
            show_time(last),
            _state(stream),
        ]
        if rates is not None:
            row.insert(3, show_count(rates.get(stream.name, 0.0)))
        table.add_row(*row)
    return table


def settings_table(stream: StreamDetails) -> Table:
    """A stream's settings and counts."""
    table = _table(f"Stream {stream.name}", "Setting", "Value")
    settings = stream.config.to_plain()
    for name, value in settings.items():
        if name.endswith("_bytes") or name == "message_bytes_max":
            shown = show_bytes(value) if value else "unlimited"
        elif name.endswith("_s"):
            shown = show_duration(value) if value else "unlimited"
        elif name == "retention_messages":
            shown = show_count(value) if value else "unlimited"
        else:
            shown = "-" if value is None else escape(str(value))
        table.add_row(name, shown)
    table.add_section()
    table.add_row("uuid", stream.uuid)
    table.add_row("created", stream.created.isoformat(timespec="seconds"))
    table.add_row("version", str(stream.version))
    table.add_row("state", _state(stream))
    table.add_row("messages", show_count(stream.messages))
    table.add_row("size", show_bytes(stream.bytes))
    counters = stream.raw.get("counters", {})
    for name, value in counters.items():
        if name == "refused":
            for reason, count in value.items():
                table.add_row(escape(f"refused: {reason}"), show_count(count))
        elif value and name not in {"messages", "bytes"}:
            table.add_row(f"{name} since start", show_count(value))
    return table


def partitions_table(stream: StreamDetails) -> Table:
    """A stream's partitions."""
    columns = ("#", "Leader", "Epoch", "In sync", "First", "Committed", "End", "Size", "Files")
    table = _table("Partitions", *columns, right=columns[4:])
    for part in stream.partitions:
        table.add_row(
            str(part.partition),
            part.leader or "[red]none[/]",
            str(part.leader_epoch),
            ", ".join(part.isr),
            show_count(part.log_start),
            show_count(part.high_watermark),
            show_count(part.log_end),
            show_bytes(part.bytes),
            str(part.segments),
        )
    offline = [
        f"[red]partition {part.partition} is offline:[/] {escape(part.offline)}"
        for part in stream.partitions
        if part.offline
    ]
    table.caption = "\n".join(offline) or None
    return table


def gaps_table(stream: StreamDetails) -> Table | None:
    """Times in which messages may be missing; None when there are none."""
    gaps = stream.raw.get("gaps") or []
    if not gaps:
        return None
    table = _table("Gaps: messages of these times may be missing", "Since", "Until", "Messages", "Cause")
    for gap in gaps:
        missing = "unknown" if gap["messages"] is None else show_count(gap["messages"])
        until = "now" if gap["until_ns"] is None else show_time(gap["until_ns"])
        table.add_row(show_time(gap["since_ns"]), until, missing, escape(gap["cause"]))
    return table


def node_table(node: dict[str, Any]) -> Table:
    """One node."""
    table = _table(f"Node {node['node_id']}", "", "")
    table.show_header = False
    up = (node["now_ns"] - node["started_ns"]) / 1e9
    nats = "[green]connected[/]" if node["nats_connected"] else "[red]not connected[/]"
    table.add_row("version", node["version"])
    table.add_row("up since", f"{show_time(node['started_ns'])} ({show_duration(up)})")
    table.add_row("nats", f"{escape(node['nats_url'])} ({nats}, {node['nats_reconnects']} reconnects)")
    table.add_row("consumers at", f"{node['pull_address']} ({node['pull_connections']} connected)")
    table.add_row("data", escape(node["data_dir"]) + ("  [red]DISK FULL[/]" if node["storage_full"] else ""))
    offline = f", [red]{node['partitions_offline']} offline[/]" if node["partitions_offline"] else ""
    table.add_row("streams", f"{node['streams']} with {node['partitions']} partitions{offline}")
    table.add_row("memory", show_bytes(node["resident_bytes"]))
    return table
