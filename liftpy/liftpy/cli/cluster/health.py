"""`liftpy health`: one line and an exit code, for scripts and probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from liftpy.cli.run import JsonFlag, open_admin, print_json, run, stdout

if TYPE_CHECKING:
    from liftpy_client.admin.details import ClusterDetails

__all__ = ["app", "health", "problems_of"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def health(ctx: typer.Context, as_json: JsonFlag = False) -> None:
    """Print the health of the cluster as one line; fail unless it is ok.

    The exit code is 0 if all nodes are up and every partition has a leader and all of its in-sync replicas, and 1
    otherwise.
    """

    async def work() -> ClusterDetails:
        async with open_admin(ctx) as lift:
            return await lift.cluster_info(limit=1)

    cluster = run(work(), as_json=as_json)
    problems = problems_of(cluster)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        counts = f"nodes: {len(cluster.nodes)}, streams: {cluster.streams}, partitions: {cluster.partitions}"
        stdout.print(f"{'; '.join(problems) if problems else 'ok'} ({counts})", markup=False)
    if problems:
        raise typer.Exit(1)


def problems_of(cluster: ClusterDetails) -> list[str]:
    """What keeps the cluster from being well, the worst first. Pure."""
    away = [node.node_id for node in cluster.nodes if node.unreachable or node.state == "expired"]
    found = [
        ("no node leads the metadata", cluster.metadata_leader is None),
        (f"partitions without a leader: {cluster.leaderless_count}", cluster.leaderless_count > 0),
        (f"nodes away: {', '.join(away)}", bool(away)),
        (f"under-replicated partitions: {cluster.under_replicated_count}", cluster.under_replicated_count > 0),
    ]
    return [text for text, is_so in found if is_so]
