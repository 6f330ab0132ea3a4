"""What a node tells its replicas of the metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from liftpy_server.replication.core.view import PartitionView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_server.metadata.state import MetadataState, StreamInfo

__all__ = ["KnownStream", "by_urgency", "incarnations", "partition_view"]


class KnownStream(Protocol):
    """A stream as this node has it."""

    @property
    def info(self) -> StreamInfo:
        """The stream in the metadata, as the node follows them."""
        ...


def partition_view(state: MetadataState, name: str, number: int) -> PartitionView | None:
    """The view of one partition; None when there is no such stream or partition.

    It lacks the incarnations of nodes that left the ISR because their session ended: they get another when they are
    back. A leader that went by what they said just before would propose to let them in again, in vain, and again and
    again for as long as a replica may lag; when a node dies thousands of leaders would.
    """
    view = PartitionView.of(state, name, number)
    if view is None:
        return None
    nodes, isr = state.nodes, view.isr
    absent = [node for node in view.incarnations if node not in isr and nodes[node].expired]
    if not absent:
        return view
    return replace(view, incarnations={node: of for node, of in view.incarnations.items() if node not in absent})


def by_urgency(
    leads: Callable[[StreamInfo], bool], known: Mapping[str, KnownStream]
) -> Callable[[StreamInfo], tuple[bool, bool]]:
    """A sort key for streams that have changed.

    What has another leader comes first, since publishers wait for it: where this node is to lead, and then where it is
    to follow, for without followers nothing commits. A change of nothing but the ISR is urgent for nobody.

    Args:
        leads: Whether this node is to lead any partition of a stream.
        known: The streams as this node has them, by uuid.
    """

    def key(info: StreamInfo) -> tuple[bool, bool]:
        before = known.get(info.uuid)
        is_led_as_before = before is not None and all(
            new is old or new.leader_epoch == old.leader_epoch
            for new, old in zip(info.partitions, before.info.partitions, strict=False)
        )
        return is_led_as_before, not leads(info)

    return key


def incarnations(state: MetadataState) -> dict[str, int]:
    """Incarnations of all nodes, by id."""
    return {node_id: node.incarnation for node_id, node in state.nodes.items()}
