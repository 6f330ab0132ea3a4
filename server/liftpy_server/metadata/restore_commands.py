"""The command that brings back a stream whose history is in the bucket.

It begins a new lineage: leader epochs beyond any of the cluster before, so that whoever read what was not in the
bucket yet is told that the log took another way.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.metadata.changes import RefusedError
from liftpy_server.metadata.state import StreamInfo
from liftpy_server.metadata.stream_commands import check_assignment, new_partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Draft
    from liftpy_server.metadata.state import PartitionInfo

__all__ = ["RESTORE_OPERATIONS"]

_FIELDS: Final = {"leader_epoch", "log_start", "local_start", "newest_ns"}
_NUMBERS_END: Final = 2**63
_NS_PER_REVISION: Final = 1_000_000
_UUID: Final = re.compile("[0-9a-f]{32}")


def _restore_stream(
    draft: Draft,
    now: int,
    *,
    uuid: str,
    config: dict[str, Any],
    created_ns: int,
    assignment: list[list[str]],
    partitions: list[dict[str, int]],
) -> dict[str, Any]:
    """Bring a stream back under its uuid, or find that it is there.

    `partitions` say of each: the leader epoch to begin with; the first offset that is wanted; where the nodes' logs
    begin, which is where the history in the bucket ends; and the time of its newest record, 0 when it has none.
    `assignment` is that of a new stream.

    A stream of the system's own gives way, once: it holds only what was written since the cluster was begun anew. What
    comes back instead tells of revisions of the metadata before, which count for more the higher they are. So the
    revision goes on where no cluster before can have been: at the milliseconds since the epoch.
    """
    wanted = StreamConfig.from_plain(config)
    known = draft.stream(wanted.name)
    if known is not None and known.uuid == uuid:
        return {"uuid": uuid, "restored": False}
    if not (isinstance(uuid, str) and _UUID.fullmatch(uuid)) or type(created_ns) is not int:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{uuid!r:.80} is no uuid, or {created_ns!r:.80} no time")
    _check_identity(draft, wanted, uuid, known)
    check_assignment(draft, wanted, assignment)
    marks = _checked_marks(wanted, partitions)
    restored = tuple(
        _restored(new_partition(draft, tuple(nodes), wanted), of_partition, now)
        for nodes, of_partition in zip(assignment, marks, strict=True)
    )
    if known is not None:
        draft.remove_stream(known)
    if wanted.is_internal:
        draft.raise_revision(now // _NS_PER_REVISION)
    draft.put_stream(StreamInfo(uuid=uuid, config=wanted, created_ns=created_ns, partitions=restored))
    return {"uuid": uuid, "restored": True}


def _check_identity(draft: Draft, wanted: StreamConfig, uuid: str, known: StreamInfo | None) -> None:
    if known is not None and not wanted.is_internal:
        raise RefusedError(
            ErrorCode.STREAM_EXISTS,
            f"there is another stream {wanted.name!r} here, with uuid {known.uuid}, so {uuid} can not be restored; "
            "delete it first, or restore to an empty cluster",
        )
    if known is not None and any(partition.restored_ns for partition in known.partitions):
        raise RefusedError(
            ErrorCode.STREAM_EXISTS,
            f"stream {wanted.name!r} was restored already, with uuid {known.uuid}: it does not give way to {uuid}",
        )
    if draft.was_deleted(uuid):
        raise RefusedError(
            ErrorCode.CONFLICT, f"stream {wanted.name!r} ({uuid}) was deleted in this cluster, and is not restored"
        )
    other = next((stream.name for stream in draft.streams.values() if stream.uuid == uuid), None)
    if other is not None:
        raise RefusedError(ErrorCode.CONFLICT, f"the stream with uuid {uuid} is here under the name {other!r}")


def _checked_marks(wanted: StreamConfig, partitions: object) -> list[dict[str, int]]:
    is_list = isinstance(partitions, (list, tuple)) and len(partitions) == wanted.partitions
    if not is_list or not all(map(_are_marks, partitions)):  # type: ignore[call-overload]  # is_list says so
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"stream {wanted.name!r}: of each of its {wanted.partitions} partitions it must be told where to begin: "
            "leader_epoch, log_start, local_start, which is not below log_start, and newest_ns",
        )
    return partitions  # type: ignore[return-value]  # checked above


def _are_marks(marks: object) -> bool:
    if not isinstance(marks, dict) or marks.keys() != _FIELDS:
        return False
    if not all(type(number) is int and 0 <= number < _NUMBERS_END for number in marks.values()):
        return False
    return bool(marks["leader_epoch"] >= 1 and marks["log_start"] <= marks["local_start"])


def _restored(partition: PartitionInfo, marks: dict[str, int], now: int) -> PartitionInfo:
    return replace(
        partition,
        leader_epoch=marks["leader_epoch"],
        log_start=marks["log_start"],
        local_start=marks["local_start"],
        restored_ns=now,
        restored_epoch=marks["leader_epoch"],
        restored_time=marks["newest_ns"],
    )


RESTORE_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {"restore_stream": _restore_stream}
