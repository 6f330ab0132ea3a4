"""What every metadata command is made of: finding what it is about, refusing, and putting back what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.metadata.state import MetadataState

if TYPE_CHECKING:
    from liftpy_server.metadata.state import PartitionInfo, StreamInfo

__all__ = ["Change", "RefusedError", "find_partition", "find_stream", "put_partition", "put_stream"]

Change = tuple[MetadataState, Any]


class RefusedError(LiftError):
    """A command can not be applied; this is its outcome, and nothing changes.

    Attributes:
        code: why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def find_stream(state: MetadataState, name: str, uuid: str | None) -> StreamInfo:
    """The stream of that name.

    Raises:
        RefusedError: there is none, or it is not the one with that uuid.
    """
    stream = state.streams.get(name)
    if stream is None:
        raise RefusedError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {name!r}")
    if uuid is not None and stream.uuid != uuid:
        raise RefusedError(ErrorCode.STREAM_RECREATED, f"stream {name!r} was deleted and created again")
    return stream


def put_stream(state: MetadataState, stream: StreamInfo) -> MetadataState:
    """The state with a changed stream, which gets its next version."""
    return replace(state, streams=state.streams | {stream.name: replace(stream, version=stream.version + 1)})


def find_partition(state: MetadataState, name: str, uuid: str, partition: int) -> tuple[StreamInfo, PartitionInfo]:
    """A partition and its stream.

    Raises:
        RefusedError: there is none.
    """
    stream = find_stream(state, name, uuid)
    if not 0 <= partition < len(stream.partitions):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"stream {name!r} has no partition {partition}")
    return stream, stream.partitions[partition]


def put_partition(state: MetadataState, stream: StreamInfo, number: int, partition: PartitionInfo) -> MetadataState:
    """The state with a changed partition. The stream keeps its version, which is about what its users configure."""
    partitions = (*stream.partitions[:number], partition, *stream.partitions[number + 1 :])
    return replace(state, streams=state.streams | {stream.name: replace(stream, partitions=partitions)})
