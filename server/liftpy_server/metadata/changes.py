"""What every metadata command is made of: finding what it is about, refusing, and putting down what it changes.

Commands work on a `Draft` of the next state, so that a batch of them copies the streams once and not once each. A
command puts down its changes; they take place when it is done, all of them or, when it is refused, none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ErrorCode, LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.events import Event
    from liftpy_server.metadata.outcomes import Outcome
    from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo

__all__ = ["Draft", "RefusedError", "check_registered", "check_term", "find_partition", "find_stream", "put_partition"]

_DELETED_MAX: Final = 1_000


class RefusedError(LiftError):
    """A command can not be applied; this is its outcome, and nothing changes.

    Attributes:
        code: Code that says why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Draft:
    """The state that commands are making. `accept` or `discard` follows each of them, `finish` the last.

    Args:
        state: What they start from; it is left as it is.

    Attributes:
        nodes: Nodes by id, with the changes of the current command.
        streams: Streams by name, without the changes of the current command.
    """

    def __init__(self, state: MetadataState) -> None:
        self._before = state
        self._accepted = state  # but for its streams
        self._current = state  # as above
        self._changed: dict[str, StreamInfo | None] = {}
        self._streams: dict[str, StreamInfo] | None = None
        self._outcomes: dict[str, Outcome] = {}

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        """See the class."""
        return self._current.nodes

    @property
    def streams(self) -> Mapping[str, StreamInfo]:
        """See the class."""
        return self._before.streams if self._streams is None else self._streams

    @property
    def level(self) -> int:
        """Level of the metadata."""
        return self._current.level

    @property
    def incarnation_floor(self) -> int:
        """The highest incarnation of any node that was removed."""
        return self._current.incarnation_floor

    def stream(self, name: str) -> StreamInfo | None:
        """A stream, with the changes of the current command; None when there is none of that name."""
        return self._changed[name] if name in self._changed else self.streams.get(name)

    def was_deleted(self, uuid: str) -> bool:
        """Whether a stream is one of those that were deleted last."""
        return uuid in self._current.deleted

    def raise_revision(self, revision: int) -> None:
        """Let the state's next revision be this one at least."""
        self._current = replace(self._current, revision=max(self._current.revision, revision))

    def put_stream(self, stream: StreamInfo) -> None:
        """Add or replace a stream."""
        self._changed[stream.name] = _noting_epochs(stream)

    def remove_stream(self, stream: StreamInfo) -> None:
        """Delete a stream, and remember that it was."""
        self._changed[stream.name] = None
        deleted = (*self._current.deleted, stream.uuid)[-_DELETED_MAX:]
        self._current = replace(self._current, deleted=deleted)

    def put_node(self, node: NodeInfo, *, level: int | None = None) -> None:
        """Add or replace a node; `level` is the level of the metadata from now on."""
        nodes = self._current.nodes | {node.node_id: node}
        self._current = replace(self._current, nodes=nodes, level=self.level if level is None else level)

    def remove_node(self, node: NodeInfo, *, level: int) -> None:
        """Forget a node; `level` is the level of the metadata from now on."""
        nodes = {node_id: info for node_id, info in self.nodes.items() if node_id != node.node_id}
        floor = max(self.incarnation_floor, node.incarnation)
        self._current = replace(self._current, nodes=nodes, level=level, incarnation_floor=floor)

    def tell(self, events: tuple[Event, ...]) -> None:
        """A node tells of these events."""
        earlier = () if self._current.told is self._before.told else self._current.told
        self._current = replace(self._current, told=earlier + events)

    def outcome(self, command_id: str) -> Outcome | None:
        """The outcome of a command that was applied before."""
        found = self._outcomes.get(command_id)
        known: Outcome | None = self._before.outcomes.get(command_id) if found is None else found
        return known

    def accept(self) -> None:
        """The changes of the current command take place."""
        self._accepted = self._current
        if not self._changed:
            return
        if self._streams is None:
            self._streams = self._before.streams.copy()
        for name, stream in self._changed.items():
            if stream is None:
                self._streams.pop(name, None)
            else:
                self._streams[name] = stream
        self._changed = {}

    def discard(self) -> None:
        """The changes of the current command do not take place."""
        self._current = self._accepted
        self._changed = {}

    def note(self, command_id: str, outcome: Outcome) -> None:
        """Remember what became of the current command; the state gets its next revision."""
        self._outcomes[command_id] = outcome

    def finish(self) -> MetadataState:
        """The next state."""
        if not self._outcomes:
            return self._before
        return replace(
            self._accepted,
            revision=max(self._accepted.revision, self._before.revision + len(self._outcomes)),
            streams=self._before.streams if self._streams is None else self._streams,
            outcomes=self._before.outcomes.with_added(self._outcomes),
        )


def find_stream(draft: Draft, name: str, uuid: str | None) -> StreamInfo:
    """The stream of that name.

    Raises:
        RefusedError: there is none, or it is not the one with that uuid.
    """
    stream = draft.stream(name)
    if stream is None:
        raise RefusedError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {name!r}")
    if uuid is not None and stream.uuid != uuid:
        raise RefusedError(ErrorCode.STREAM_RECREATED, f"stream {name!r} was deleted and created again")
    return stream


def find_partition(draft: Draft, name: str, uuid: str, partition: int) -> tuple[StreamInfo, PartitionInfo]:
    """A partition and its stream.

    Raises:
        RefusedError: there is none.
    """
    stream = find_stream(draft, name, uuid)
    if type(partition) is not int or not 0 <= partition < len(stream.partitions):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"stream {name!r} has no partition {partition}")
    return stream, stream.partitions[partition]


def put_partition(draft: Draft, stream: StreamInfo, number: int, partition: PartitionInfo) -> StreamInfo:
    """Replace a partition. The stream keeps its version, which is about what its users configure.

    Returns:
        The stream with it.
    """
    partitions = (*stream.partitions[:number], partition, *stream.partitions[number + 1 :])
    changed = replace(stream, partitions=partitions)
    draft.put_stream(changed)
    return changed


def check_registered(draft: Draft, node_id: str, incarnation: int) -> None:
    """A node must be in that incarnation, with a session.

    Raises:
        RefusedError: it is not.
    """
    known = draft.nodes.get(node_id)
    if known is None or known.incarnation != incarnation:
        raise RefusedError(ErrorCode.CONFLICT, f"node {node_id!r} is not in incarnation {incarnation}")
    if known.expired:
        raise RefusedError(ErrorCode.CONFLICT, f"the session of node {node_id!r} has ended")


def check_term(partition: PartitionInfo, leader_epoch: int, version: int | None = None) -> None:
    """A partition must be in that leader epoch, and at that version where one is given.

    Raises:
        RefusedError: it is not.
    """
    if partition.leader_epoch != leader_epoch:
        raise RefusedError(ErrorCode.STALE_EPOCH, f"the leader epoch is {partition.leader_epoch}, not {leader_epoch}")
    if version is not None and partition.version != version:
        raise RefusedError(ErrorCode.CONFLICT, f"the partition is at version {partition.version}, not {version}")


def _noting_epochs(stream: StreamInfo) -> StreamInfo:
    """The stream with the leader epochs in which records can be committed now."""
    min_isr = stream.config.min_isr_effective
    partitions = tuple(
        replace(partition, committing_epoch=partition.leader_epoch)
        if partition.leader is not None
        and partition.committing_epoch != partition.leader_epoch
        and len(partition.isr) >= min_isr
        else partition
        for partition in stream.partitions
    )
    is_same = all(new is old for new, old in zip(partitions, stream.partitions, strict=True))
    return stream if is_same else replace(stream, partitions=partitions)
