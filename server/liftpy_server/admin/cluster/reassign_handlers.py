"""What admin requests do that move replicas: to other nodes as asked, or away from a node that is to go."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.cluster.reassigning import plan_reassignment, targeted
from liftpy_server.admin.cluster.requests import DrainRequest, read_reassign
from liftpy_server.admin.cluster.view import partitions_of, with_progress
from liftpy_server.metadata.placement import drain_moves, leader_moves
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from liftpy_server.admin.cluster.reassigning import Move
    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.outcomes import Outcome
    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.requests.between_nodes import Body, NodeRequests

__all__ = ["ReassignHandlers"]

_SHOWN_MAX: Final = 256  # an answer stays well below the payload that NATS takes
_REASONS_MAX: Final = 3
_GIVE_TIMEOUT_S: Final = 8.0  # longer than one handover takes; clients wait for 15 s

Proposal = tuple[str, str | None, dict[str, Any]]


class ReassignHandlers:
    """The handlers of one node.

    Args:
        node: This node.
        requests: Asks other nodes.
    """

    def __init__(self, node: NodeParts, requests: NodeRequests) -> None:
        self._node = node
        self._requests = requests

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {"NODE.DRAIN": self.drain, "STREAM.REASSIGN": self.reassign}

    async def reassign(self, body: Body) -> Body:
        """Begin to move the replicas of a stream, or leave them where they were. `CLUSTER.INFO` shows how far it is."""
        request = read_reassign(body)
        metadata = self._node.metadata
        state = await metadata.read()  # a plan that is made of an old state would undo what others did
        stream = state.streams.get(request.name)
        if stream is None:
            raise AdminError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {request.name!r}")
        if request.cancel:
            return await self._cancel(stream)
        moves = plan_reassignment(state, stream, request)
        shown = _show(stream, moves)
        if moves and not request.dry_run:
            plain = [list(move) for move in moves]
            await metadata.propose("reassign_partitions", name=stream.name, uuid=stream.uuid, moves=plain)
        warnings = _what_waits(state, moves)
        return {"moves": shown[:_SHOWN_MAX], "move_count": len(moves), "cancelled": 0, "warnings": warnings}

    async def _cancel(self, stream: StreamInfo) -> Body:
        moving = [number for number, partition in enumerate(stream.partitions) if partition.target is not None]
        await self._propose_all(_cancel_of(stream, number) for number in moving)
        return {"moves": [], "move_count": 0, "cancelled": len(moving)}

    async def drain(self, body: Body) -> Body:
        """Begin to move everything off a node; with `cancel`, let it keep what it has, and take more."""
        request = parse_settings(DrainRequest, body)
        metadata, node_id = self._node.metadata, request.node_id
        state = await metadata.read()
        if node_id not in state.nodes:
            text = f"there is no node {node_id!r}; there are {', '.join(sorted(state.nodes))}"
            raise AdminError(ErrorCode.INVALID_REQUEST, text)
        await metadata.propose("drain_node", node_id=node_id, draining=not request.cancel)
        if request.cancel:
            return await self._fill_again(node_id)
        # Who is in sync can lead at once; the copies take as long as they take. A leadership that was changed by
        # someone else meanwhile is no reason to stop, nor is one that can not be handed over without a gap.
        with suppress(LiftError):
            await self._requests.ask(node_id, "HANDOVER.GIVE", {}, _GIVE_TIMEOUT_S)
            await metadata.read()
        await metadata.propose_many([("move_leader", None, args) for args in leader_moves(metadata.state, node_id)])
        state = metadata.state
        plan = drain_moves(state, node_id)
        await self._propose_all(("reassign_partitions", None, args) for args in plan)
        shown = [
            move
            for args in plan
            for move in _show(state.streams[args["name"]], [tuple(move) for move in args["moves"]])
        ]
        return {
            "moves": shown[:_SHOWN_MAX],
            "move_count": len(shown),
            "cancelled": 0,
            "warnings": _what_stays(metadata.state, node_id),
        }

    async def _fill_again(self, node_id: str) -> Body:
        leaving = [
            _cancel_of(stream, number)
            for stream in self._node.metadata.state.streams.values()
            for number, partition in enumerate(stream.partitions)
            if partition.target is not None and node_id in (partition.origin or ()) and node_id not in partition.target
        ]
        await self._propose_all(leaving)
        return {"moves": [], "move_count": 0, "cancelled": len(leaving), "warnings": []}

    async def _propose_all(self, proposals: Iterable[Proposal]) -> None:
        """Have all of them applied.

        Raises:
            AdminError: some were refused; the others are applied.
        """
        outcomes: list[Outcome] = await self._node.metadata.propose_many(list(proposals))
        refused = [outcome for outcome in outcomes if outcome.error is not ErrorCode.NONE]
        if refused:
            reasons = "; ".join(dict.fromkeys(outcome.message for outcome in refused[:_REASONS_MAX]))
            text = f"{len(refused)} of {len(outcomes)} changes were refused, the others are under way: {reasons}"
            raise AdminError(refused[0].error, text)


def _cancel_of(stream: StreamInfo, number: int) -> Proposal:
    return "cancel_reassignment", None, {"name": stream.name, "uuid": stream.uuid, "partition": number}


def _show(stream: StreamInfo, moves: Iterable[Move]) -> list[dict[str, Any]]:
    return [with_progress(stream, move[0], targeted(stream.partitions[move[0]], move), {}) for move in moves]


def _what_waits(state: MetadataState, moves: Iterable[Move]) -> list[str]:
    """Warnings of nodes that are to get replicas, and are away."""
    wanted = sorted({node_id for _, nodes, _ in moves for node_id in nodes})
    return [
        f"node {node_id!r} is away: what moves to it is over when it is back and has copied, or when it is cancelled"
        for node_id in wanted
        if node_id in state.nodes and state.nodes[node_id].expired
    ]


def _what_stays(state: MetadataState, node_id: str) -> list[str]:
    """Warnings of the replicas that are not on their way off a node."""
    kept = [partition for _, _, partition in partitions_of(state) if node_id in partition.replicas]
    stuck = sum(partition.target is None for partition in kept)
    busy = sum(partition.target is not None and node_id in partition.target for partition in kept)
    warnings = []
    if stuck:
        warnings.append(
            f"{stuck} replicas stay on node {node_id!r}: no other node that is up and not drained can take them. "
            "Add a node, or give the streams fewer replicas, and drain again"
        )
    if busy:
        warnings.append(
            f"{busy} partitions of node {node_id!r} are being reassigned, and it keeps a replica of them: drain again "
            "when that is over, or cancel it"
        )
    return warnings
