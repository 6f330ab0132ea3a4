"""`liftpy node ...`: inspect, drain and remove the nodes of a cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from liftpy.cli.cluster.tables import node_table, nodes_table, place_table
from liftpy.cli.run import JsonFlag, open_admin, print_json, run, stdout, tell_warnings
from liftpy.cli.stream.moves import Moved, moves_table, wait_moved
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import MoveDetails

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Inspect, drain and remove the nodes of the cluster."
)

Name = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", show_default=False)]

_LISTED_MAX: Final = 256
_STILL_MAX: Final = 6
_STREAMS_SHOWN: Final = 5


@app.command("ls", hidden=True)
@app.command("list")
def list_nodes(ctx: typer.Context, as_json: JsonFlag = False) -> None:
    """List the nodes: state, leaderships, replicas and metadata role."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            cluster = await lift.cluster_info()
        if as_json:
            print_json([node.raw for node in cluster.nodes])
        else:
            stdout.print(nodes_table(cluster, stdout.width))

    run(work(), as_json=as_json)


@app.command("describe", hidden=True)
@app.command("info")
def info(
    ctx: typer.Context,
    node_id: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Name of the node; by default the one that answers.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one node."""

    async def work() -> None:
        async with open_admin(ctx) as lift:
            node = await lift.node_info(node_id)
        if as_json:
            print_json(node)
            return
        stdout.print(place_table(node))
        if not node["unreachable"]:
            stdout.print(node_table(node))

    run(work(), as_json=as_json)


@app.command("drain")
def drain(
    ctx: typer.Context,
    node_id: Name,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until the node has no replicas.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the drain; the node keeps its replicas and can get new ones.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Move all leaderships and replicas off a node.

    The node gets no new replicas. The drain continues if this command is interrupted; liftpy status shows its progress.
    """

    async def work() -> None:
        if cancel and wait:
            raise UsageError("--cancel ends at once: leave out --wait")
        async with open_admin(ctx) as lift:
            draining = _Draining(lift, node_id)
            await draining.look()
            moves = await lift.drain_node(node_id, cancel=cancel)
            if not as_json:
                _tell(node_id, moves, cancel=cancel)
            if wait:
                await wait_moved(f"draining {node_id}", draining.look)
                if not as_json:
                    stdout.print(f"{node_id} is empty: liftpy node remove {node_id} takes it out of the cluster")
        if as_json:
            print_json({"node_id": node_id, "cancel": cancel, "empty": wait} | asdict(moves))

    run(work(), as_json=as_json)


def _tell(node_id: str, moves: MoveDetails, *, cancel: bool) -> None:
    if cancel:
        stdout.print(f"{node_id} is not drained any more; {moves.cancelled} partitions stay where they were")
    elif moves.moves:
        stdout.print(moves_table(f"Moved off {node_id}", moves.moves, moves.count, stdout.width, planned=True))
    else:
        what = "nothing can be moved off it now" if moves.warnings else "there is nothing on it to be moved"
        stdout.print(f"{node_id} gets nothing more, and {what}")
    tell_warnings(moves.warnings)


class _Draining:
    """How far a node is with being emptied.

    Args:
        lift: Whom to ask.
        node_id: The node.
    """

    def __init__(self, lift: Admin, node_id: str) -> None:
        self._lift = lift
        self._node_id = node_id
        self._total = 0
        self._still = 0

    async def look(self) -> Moved:
        """See how it is now.

        Raises:
            LiftError: there is no such node, or something stays on it and is not being moved.
        """
        name = self._node_id
        cluster = await self._lift.cluster_info(limit=_LISTED_MAX)
        node = next((node for node in cluster.nodes if node.node_id == name), None)
        if node is None:
            known = ", ".join(node.node_id for node in cluster.nodes)
            raise LiftError(f"there is no node {name!r}; there are {known}")
        moving = [move for move in cluster.reassignments if name in move.removing]
        is_listed = cluster.reassignment_count <= len(cluster.reassignments)
        # Between the end of one move and the next look nothing may be on its way, so it is looked at a few times.
        self._still = self._still + 1 if node.replicas and not moving and is_listed else 0
        if self._still >= _STILL_MAX:
            kept = sorted({move.stream for move in cluster.reassignments if name in move.target})
            if kept:
                raise LiftError(
                    f"{name} keeps replicas of streams that are being reassigned: {', '.join(kept[:_STREAMS_SHOWN])}; "
                    "drain again when that is over, or cancel it with liftpy stream reassign NAME --cancel"
                )
            raise LiftError(
                f"{node.replicas} replicas stay on {name}: there are not enough other nodes that are up for them; "
                "let another node join, and drain again, or end the drain with --cancel: until then it gets no replicas"
            )
        self._total = max(self._total, node.replicas)
        done = self._total - node.replicas + sum(move.progress for move in moving)
        text = f"{node.replicas} replicas and {node.leaderships} leaderships left"
        return Moved(done, self._total, text, is_over=not node.replicas and not node.leaderships)


@app.command("remove")
def remove(
    ctx: typer.Context,
    node_id: Name,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not ask for confirmation.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove a node from the cluster permanently. Drain it first: it must have no replicas."""
    if not force and not typer.confirm(f"Remove {node_id} from the cluster for good?", default=False, err=True):
        raise typer.Exit(1)

    async def work() -> None:
        async with open_admin(ctx) as lift:
            await lift.remove_node(node_id)
        if as_json:
            print_json({"removed": node_id})
        else:
            stdout.print(f"{node_id} is removed; it may come back with an empty data directory and --join")

    run(work(), as_json=as_json)
