"""Whom a node lets in of those that have proven that they belong: only members, each once, each with its own data.

Without these checks a node whose data directory was emptied would come back under its old name, not know whom it has
voted for and what it has acknowledged, and help to elect a leader that lacks what was committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_server.consensus.settings import Voter
    from liftpy_server.consensus.wire.session import PeerIdentity

__all__ = ["PeerRefusedError", "check_peer"]


class PeerRefusedError(FrameError):
    """A peer that knows the key is not let in. The text is for the operators of both nodes."""


def check_peer(
    peer_id: str, peer: PeerIdentity, own: PeerIdentity, members: Mapping[str, Voter], running: str | None
) -> None:
    """Let a peer in, or not.

    Args:
        peer_id: Name of the peer.
        peer: What it said of itself.
        own: What this node says of itself.
        members: Members of the cluster, by the log of this node.
        running: The run of a process of that name that is connected now, and alive.

    Raises:
        PeerRefusedError: it must stay out.
    """
    if own.cluster_id and peer.cluster_id and own.cluster_id != peer.cluster_id:
        raise PeerRefusedError(
            f"{peer_id!r} belongs to cluster {peer.cluster_id}, and the node that it connected with to cluster "
            f"{own.cluster_id}: one of them has the data directory of another cluster, or the wrong addresses"
        )
    known = members.get(peer_id)
    # It may have been added, or removed and added again, by entries that this node does not have yet.
    knows_more = bool(peer.cluster_id) and peer.members_index > own.members_index
    if known is None:
        if not knows_more:
            raise PeerRefusedError(
                f"{peer_id!r} is not a member of this cluster: start it with an empty data directory and cluster.join"
            )
    elif known.instance and known.instance != peer.instance and not knows_more:
        raise PeerRefusedError(
            f"this cluster knows {peer_id!r} with another data directory: either two nodes have this node_id, and one "
            "needs another; or its data directory was lost, and it must be removed from the cluster and join again"
        )
    if running is not None and running != peer.run:
        raise PeerRefusedError(
            f"{peer_id!r} is connected already, by another process: two nodes have this node_id, and one needs another"
        )
