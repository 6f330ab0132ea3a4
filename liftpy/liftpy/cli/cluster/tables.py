"""Nodes, partitions that need attention, and quarantines as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape

from liftpy.cli.stream.moves import moves_table
from liftpy.cli.tables import Column, make_table, show_clock_offset, show_time, with_rest
from liftpy.cli.units import show_bytes, show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from liftpy_client.admin.details import ClusterDetails, NodeDetails, PartitionPlace

__all__ = ["attention_tables", "node_table", "nodes_table", "place_table"]

_SHOWN_MAX: Final = 10
_STATES: Final = {"up": "[green]up[/]", "draining": "[cyan]draining[/]", "expired": "[red]expired[/]"}


def nodes_table(cluster: ClusterDetails, width: int = 1_000) -> Table:
    """One line per node.

    Args:
        cluster: Cluster to show.
        width: Width of the terminal, in characters.
    """
    columns = (
        Column("Node"),
        Column("State"),
        Column("Rack", from_width=80),
        Column("Leads", right=True),
        Column("Replicas", right=True),
        Column("Behind", right=True, from_width=70),
        Column("Lag", right=True, from_width=90),
        Column("Metadata", from_width=60),
        Column("Disk free", right=True, from_width=100),
        Column("Memory", right=True, from_width=110),
        Column("Consumers at", from_width=130),
        Column("Nodes at", from_width=150),
    )
    table = make_table(f"Cluster {cluster.cluster_id[:8]}", columns, map(_node_row, cluster.nodes), width)
    notes = [f"streams: {show_count(cluster.streams)}, partitions: {show_count(cluster.partitions)}"]
    known = {node.node_id for node in cluster.nodes}
    joining = [learner["node_id"] for learner in cluster.raw.get("learners", ()) if learner["node_id"] not in known]
    if joining:
        notes.append(f"[yellow]to join, and not there yet: {escape(', '.join(joining))}[/]")
    if cluster.metadata_leader is None:
        notes.append("[red]no node leads the metadata: a majority of those that vote on it is away[/]")
    if cluster.leaderless_count:
        notes.append(f"[red]{show_count(cluster.leaderless_count)} without a leader[/]")
    if cluster.under_replicated_count:
        notes.append(f"[yellow]{show_count(cluster.under_replicated_count)} under-replicated[/]")
    if cluster.reassignment_count:
        notes.append(f"[cyan]{show_count(cluster.reassignment_count)} being moved[/]")
    table.caption = ", ".join(notes)
    return table


def _node_row(node: NodeDetails) -> dict[str, str]:
    state = "[red]silent[/]" if node.unreachable and node.state != "expired" else _STATES.get(node.state, node.state)
    leads = "[bold green]leader[/]" if node.metadata_leader else "votes" if node.metadata_voter else "-"
    return {
        "Node": node.node_id,
        "State": state,
        "Rack": escape(node.rack or "-"),
        "Leads": show_count(node.leaderships),
        "Replicas": show_count(node.replicas),
        "Behind": f"[yellow]{show_count(node.out_of_sync)}[/]" if node.out_of_sync else "0",
        "Lag": show_count(node.lag_messages),
        "Metadata": leads,
        "Disk free": "-" if node.free_bytes is None else show_bytes(node.free_bytes),
        "Memory": "-" if node.resident_bytes is None else show_bytes(node.resident_bytes),
        "Consumers at": _address(node.raw, "pull"),
        "Nodes at": _address(node.raw, "metadata"),
    }


def place_table(node: dict[str, Any]) -> Table:
    """What the cluster knows of one node.

    Args:
        node: What was told of it.
    """
    table = make_table(f"{node['node_id']} in the cluster", (Column("name"), Column("value")), ())
    table.show_header = False
    table.add_row("state", _STATES.get(node["state"], node["state"]))
    table.add_row("rack", escape(node["rack"] or "-"))
    table.add_row("leaderships", show_count(node["leaderships"]))
    behind = f", [yellow]{show_count(node['out_of_sync'])} of them behind[/]" if node["out_of_sync"] else ""
    table.add_row("replicas", show_count(node["replicas"]) + behind)
    votes = "votes on it" if node["metadata_voter"] else "-"
    table.add_row("metadata", "[bold green]leads it[/]" if node["metadata_leader"] else votes)
    table.add_row("consumers at", _address(node, "pull"))
    table.add_row("nodes at", _address(node, "metadata"))
    table.add_row("starts", show_count(node["incarnation"]))
    if node["unreachable"]:
        table.caption = f"[red]it tells nothing:[/] {escape(node['unreachable_reason'])}"
    return table


def _address(node: dict[str, Any], what: str) -> str:
    host, port = node.get(f"{what}_host"), node.get(f"{what}_port")
    return "-" if not host or not port else escape(f"{host}:{port}")


def attention_tables(cluster: ClusterDetails, width: int = 1_000) -> list[Table]:
    """The partitions that need attention, and those whose replicas are being moved; the first of each.

    Args:
        cluster: Cluster to show.
        width: Width of the terminal, in characters.
    """
    tables = []
    if cluster.leaderless:
        tables.append(_places_table("[red]No leader[/]", cluster.leaderless, cluster.leaderless_count))
    if cluster.under_replicated:
        count = cluster.under_replicated_count
        tables.append(_places_table("[yellow]Under-replicated[/]", cluster.under_replicated, count))
    if cluster.reassignments:
        tables.append(moves_table("Being moved", cluster.reassignments, cluster.reassignment_count, width))
    return tables


def _places_table(title: str, places: Sequence[PartitionPlace], count: int) -> Table:
    columns = (Column("Partition"), Column("Leader"), Column("In sync"), Column("Missing"))
    rows = (
        {
            "Partition": f"{place.stream}/{place.partition}",
            "Leader": place.leader or "[red]none[/]",
            "In sync": ", ".join(place.isr) or "[red]none[/]",
            "Missing": ", ".join(place.missing),
        }
        for place in places[:_SHOWN_MAX]
    )
    return with_rest(make_table(title, columns, rows), count)


def node_table(node: dict[str, Any]) -> Table:
    """One node."""
    table = make_table(f"Node {node['node_id']}", (Column("name"), Column("value")), ())
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
    if node.get("clock_ahead_s"):
        table.add_row(
            "clock", f"[red]{show_clock_offset(node['clock_ahead_s'])} the time of partitions that it leads[/]"
        )
    return table
