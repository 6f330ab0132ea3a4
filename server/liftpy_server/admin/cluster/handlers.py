"""What each admin request about nodes and the cluster does; any node answers them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.cluster.requests import (
    ClusterRequest,
    JoinNodeRequest,
    KnownRequest,
    NodeInfoRequest,
    QuarantineRequest,
    RemoveRequest,
)
from liftpy_server.admin.cluster.view import (
    Quorum,
    leaderless,
    reassignments,
    replicas_on,
    show_nodes,
    show_partitions,
    under_replicated,
    with_progress,
)
from liftpy_server.admin.gather import NUMBERS_TIMEOUT_S, Gatherer
from liftpy_server.admin.requests import NoRequest
from liftpy_server.consensus.settings import Voter
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.requests.errors import AdminError, NodeSilentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo
    from liftpy_server.requests.between_nodes import Body, NodeRequests

    _Found = tuple[StreamInfo, int, PartitionInfo]

__all__ = ["NodeHandlers"]

logger = logging.getLogger(__name__)

_REMOVE_TIMEOUT_S: Final = 15.0
_LEADER_SILENT_S: Final = 2.0  # a leader speaks ten times a second
_LATEST_TIMEOUT_S: Final = 1.0
_LOOK_S: Final = 0.02
_SILENCE_TIMEOUT_S: Final = 3.0
_KNOWN_TIMEOUT_S: Final = 1.5


class NodeHandlers:
    """The handlers of one node.

    Args:
        node: This node.
        requests: Asks other nodes.
        challenge: Challenge of this run, for nodes that ask to join.
    """

    def __init__(self, node: NodeParts, requests: NodeRequests, challenge: str) -> None:
        self._node = node
        self._challenge = challenge
        self._warnings = RepeatedWarnings(logger)
        self._requests = requests
        self._gather = Gatherer(node, requests)

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {
            "CLUSTER.INFO": self.cluster,
            "NODE.INFO": self.info,
            "NODE.JOIN": self.invite,
            "NODE.LIST": self.list,
            "NODE.QUARANTINE": self.quarantine,
            "NODE.REMOVE": self.remove,
        }

    def node_endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers of what only nodes ask, which have proven the cluster's key."""
        return {
            "NODE.JOIN": self.join,
            "NODE.KNOWN": self.known,
            "NODE.LEFT": self.left,
            "NODE.REMOVE": self.remove,  # a node can not take its own vote: it asks another to do so
        }

    def _quorum(self) -> Quorum:
        metadata = self._node.metadata
        leader = metadata.leader_id
        # A node that stands for election in vain remembers the leader that it lost.
        is_heard = leader is not None and metadata.silent_s(leader) < _LEADER_SILENT_S
        return Quorum(leader if is_heard else None, metadata.voters)

    def _known(self, node_id: str) -> NodeInfo:
        nodes = self._node.metadata.state.nodes
        known = nodes.get(node_id)
        if known is None:
            text = f"there is no node {node_id!r}; there are {', '.join(sorted(nodes))}"
            raise AdminError(ErrorCode.INVALID_REQUEST, text)
        return known

    async def info(self, body: Body) -> Body:
        """How a node is, by default the one that answers. Of one that is silent only what the metadata knows."""
        wanted = parse_settings(NodeInfoRequest, body).node_id or self._node.config.node_id
        self._known(wanted)
        shown = show_nodes(self._node.metadata.state, self._quorum())[wanted]
        try:
            told = await self._requests.ask(wanted, "NODE.INFO", {}, NUMBERS_TIMEOUT_S)
        except NodeSilentError as error:
            return {"node": shown | {"unreachable": True, "unreachable_reason": str(error)}}
        return {"node": shown | told["node"] | {"unreachable": False}}

    async def _latest(self) -> MetadataState:
        """The metadata with all that was changed before; what this node has of them where nobody leads them now."""
        try:
            async with asyncio.timeout(_LATEST_TIMEOUT_S):
                return await self._node.metadata.read()
        except LiftError as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no answer from a majority within {_LATEST_TIMEOUT_S:g} s"
        text = f"listing what this node knows of the cluster, which may be old: {reason}"
        self._warnings.tell("old", text, asyncio.get_running_loop().time())
        return self._node.metadata.state

    async def list(self, body: Body) -> Body:
        """The nodes of the cluster, with what they lead and keep, and how far they are behind."""
        parse_settings(NoRequest, body)
        return {"nodes": await self._nodes(await self._latest(), self._quorum())}

    async def _nodes(self, state: MetadataState, quorum: Quorum) -> Sequence[dict[str, Any]]:
        shown = show_nodes(state, quorum)
        answers = await self._requests.ask_all(shown, "NODE.LAGS", {}, NUMBERS_TIMEOUT_S)
        told = {node_id: answer for node_id, answer in answers.items() if isinstance(answer, dict)}
        lags = dict.fromkeys(shown, 0)
        for answer in told.values():
            for node_id, follower in answer["followers"].items():
                lags[node_id] = lags.get(node_id, 0) + follower["lag_messages"]
        return [
            plain
            | {"lag_messages": lags[node_id], "unreachable": node_id not in told}
            | {"version": told[node_id]["version"] if node_id in told else None}
            | {"load": told[node_id].get("load") if node_id in told else None}  # older nodes do not tell it
            for node_id, plain in shown.items()
        ]

    async def cluster(self, body: Body) -> Body:
        """The cluster as a whole: who keeps the metadata, the nodes, and the partitions that need attention."""
        request = parse_settings(ClusterRequest, body)
        state, quorum = await self._latest(), self._quorum()
        moving, few, none = reassignments(state), under_replicated(state), leaderless(state)
        of_users = [stream for stream in state.streams.values() if not stream.config.is_internal]
        nodes, moves = await asyncio.gather(self._nodes(state, quorum), self._progress(moving[: request.limit]))
        return {
            "cluster": {
                "cluster_id": self._node.metadata.cluster_id,
                "metadata_leader": quorum.leader_id,
                "metadata_revision": state.revision,
                "voters": _show_members(quorum.voters),
                "learners": _show_members(self._node.metadata.learners),
                "nodes": nodes,
                "streams": len(of_users),
                "partitions": sum(len(stream.partitions) for stream in of_users),
                "under_replicated_count": len(few),
                "under_replicated": show_partitions(few, request.limit),
                "leaderless_count": len(none),
                "leaderless": show_partitions(none, request.limit),
                "reassignment_count": len(moving),
                "reassignments": moves,
            }
        }

    async def quarantine(self, body: Body) -> Body:
        """What lies in quarantine on all nodes, of one stream or of all: the newest of it, and how much there is."""
        request = parse_settings(QuarantineRequest, body)
        asked = {"stream": request.stream, "limit": request.limit}
        nodes = sorted(self._node.metadata.state.nodes)
        answers = await self._requests.ask_all(nodes, "NODE.QUARANTINE", asked, NUMBERS_TIMEOUT_S)
        told = [answer for answer in answers.values() if isinstance(answer, dict)]
        items = sorted((item for answer in told for item in answer["items"]), key=lambda item: -item["moved_ns"])
        return {
            "items": items[: request.limit],
            "count": sum(answer["count"] for answer in told),
            "bytes": sum(answer["bytes"] for answer in told),
            "unreachable": [node_id for node_id, answer in answers.items() if not isinstance(answer, dict)],
        }

    async def _progress(self, moving: Sequence[_Found]) -> Sequence[dict[str, Any]]:
        streams = {stream.name: stream for stream, _, _ in moving}
        shown = {stream["name"]: stream for stream in await self._gather.show(list(streams.values()), brief=True)}
        return [
            with_progress(stream, number, partition, shown[stream.name]["partitions"][number])
            for stream, number, partition in moving
        ]

    async def invite(self, body: Body) -> Body:
        """Tell a new node whom to ask, and what its proof of the cluster's key must cover."""
        parse_settings(NoRequest, body)
        self._check_listening()
        return {"node_id": self._node.config.node_id, "challenge": self._challenge}

    def _check_listening(self) -> None:
        metadata = self._node.metadata
        deaf = [voter.node_id for voter in metadata.voters if not voter.port]
        if deaf:
            text = (
                f"node {', '.join(deaf)} does not listen for other nodes: set cluster.port and cluster.key_file "
                "there and start it again; then let the new node join"
            )
            raise AdminError(ErrorCode.CONFLICT, text)

    async def join(self, body: Body) -> Body:
        """Take a new node in: it follows the metadata at once, and votes when it has them. Idempotent until it did.

        It has proven the cluster's key: before that, no node of the cluster connects to where it says it is.
        """
        request = parse_settings(JoinNodeRequest, body)
        metadata = self._node.metadata
        self._check_listening()
        await metadata.add_voter(Voter(request.node_id, request.host, request.port))
        return {"cluster_id": metadata.cluster_id, "voters": [voter.to_plain() for voter in metadata.voters]}

    async def remove(self, body: Body) -> Body:
        """Take a node that has no replicas out of the cluster: its vote first, then the node."""
        request = parse_settings(RemoveRequest, body)
        node_id = request.node_id
        metadata = self._node.metadata
        await metadata.read()
        is_member = any(member.node_id == node_id for member in (*metadata.voters, *metadata.learners))
        if is_member and node_id not in metadata.state.nodes:
            await metadata.remove_voter(node_id)  # it was to join, and never came up
            return {"removed": node_id, "voters": _show_members(metadata.voters)}
        known = self._known(node_id)
        replicas = replicas_on(metadata.state, node_id)
        if replicas:
            text = f"node {node_id!r} has {replicas} replicas: drain it first, and remove it when it has none left"
            raise AdminError(ErrorCode.CONFLICT, text)
        if len(metadata.state.nodes) == 1:
            raise AdminError(ErrorCode.CONFLICT, f"node {node_id!r} is the only one of the cluster")
        if node_id == self._node.config.node_id:
            return await self._removed_by_another(node_id)
        if is_member:
            await metadata.remove_voter(node_id)
        await metadata.propose("remove_node", node_id=node_id)
        await self._silence(known, is_waiting=request.is_own_wish)
        return {"removed": node_id, "voters": _show_members(metadata.voters)}

    async def known(self, body: Body) -> Body:
        """The incarnation of a node by the metadata, with all that was ever answered; None when it is in none."""
        node_id = parse_settings(KnownRequest, body).node_id
        found = (await self._node.metadata.read()).nodes.get(node_id)
        return {"incarnation": None if found is None else found.incarnation}

    async def left(self, body: Body) -> Body:
        """Somebody says that this node was removed. It looks itself, at a node that has the metadata still.

        One that was removed hears nothing of the cluster any more, and must not go on answering for it.
        """
        parse_settings(NoRequest, body)
        node_id, incarnation = self._node.config.node_id, self._node.incarnation
        others = [other for other in sorted(self._node.metadata.state.nodes) if other != node_id]
        answers = await self._requests.ask_all(others, "NODE.KNOWN", {"node_id": node_id}, _KNOWN_TIMEOUT_S)
        told = [answer["incarnation"] for answer in answers.values() if isinstance(answer, dict)]
        if not told:
            raise AdminError(ErrorCode.NOT_AVAILABLE, f"node {node_id!r} finds nobody who has the metadata; it stays")
        if incarnation in told:
            raise AdminError(ErrorCode.CONFLICT, f"node {node_id!r} belongs to the cluster by its metadata; it stays")
        self._node.was_removed(incarnation)
        return {}

    async def _silence(self, removed: NodeInfo, *, is_waiting: bool) -> None:
        """See to it that a removed node does not answer with what it knew before."""
        node_id = removed.node_id
        try:
            async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                while True:
                    await self._requests.ask(node_id, "NODE.LEFT", {}, _SILENCE_TIMEOUT_S, token=removed.follow_token)
                    if is_waiting:  # it closes its listeners behind the answer that it waits for
                        return
                    await asyncio.sleep(_LOOK_S)
        except NodeSilentError as error:
            logger.info("removed node %s answers nobody: %s", node_id, error)
        except (LiftError, TimeoutError) as error:
            logger.warning("removed node %s may answer requests until it is stopped: %s", node_id, error)

    async def _removed_by_another(self, node_id: str) -> Body:
        """A node without a vote can propose nothing, so it can not do this to itself."""
        nodes = self._node.metadata.state.nodes
        reason: LiftError | None = None
        for other in sorted(nodes, key=lambda name: (nodes[name].expired, name)):
            if other == node_id:
                continue
            try:
                return await self._requests.ask(
                    other, "NODE.REMOVE", {"node_id": node_id, "is_own_wish": True}, _REMOVE_TIMEOUT_S
                )
            except NodeSilentError as error:
                reason = error
        raise AdminError(ErrorCode.NOT_AVAILABLE, f"no other node can remove {node_id!r} now: {reason}")


def _show_members(members: Iterable[Voter]) -> list[dict[str, Any]]:
    return [{"node_id": member.node_id, "host": member.host, "port": member.port} for member in members]
