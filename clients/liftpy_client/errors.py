"""Errors of the client. All of them are `LiftError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode, LiftError

if TYPE_CHECKING:
    from liftpy_client.message import Message
    from liftpy_envelope.groups import GroupError

__all__ = [
    "AdminError",
    "ChangesMissedError",
    "CommitRefusedError",
    "ConsumerEndedError",
    "CoordinatorUnavailableError",
    "CorruptRecordsError",
    "DisconnectedError",
    "GroupFencedError",
    "GroupRefusedError",
    "HandlerFailedError",
    "HandlerStuckError",
    "LogDivergedError",
    "NoStreamError",
    "NobodyListensError",
    "NodeUnavailableError",
    "NotPermittedError",
    "OffsetLostError",
    "PublishTimeoutError",
    "PullError",
    "StreamGoneError",
    "TableDecodeError",
    "TableTimeoutError",
    "TableTooLargeError",
    "UndecodableError",
    "UnreachableError",
    "UsageError",
]


class UsageError(LiftError, ValueError):
    """An argument is invalid. The message names it."""


class UnreachableError(LiftError, ConnectionError):
    """NATS is not reachable, or refuses the connection."""


class DisconnectedError(LiftError, ConnectionError):
    """The connection is closed."""


class NodeUnavailableError(LiftError):
    """NATS is connected, but no liftpy node answers."""

    retriable = True


class NotPermittedError(LiftError):
    """NATS does not permit what was asked for.

    Attributes:
        action: What is not permitted.
    """

    def __init__(self, action: str) -> None:
        super().__init__(f"NATS does not permit this client to {action}: grant it to the user in nats-server")
        self.action = action


class NoStreamError(LiftError):
    """There is no stream of this name, or none that stores this subject."""


class NobodyListensError(LiftError):
    """NATS has no subscriber for a message. Internal: the client checks whether the stream still exists."""


class AdminError(LiftError):
    """An admin request was refused.

    Attributes:
        code: Reason.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PullError(LiftError):
    """A node refused a request of the pull protocol.

    Attributes:
        code: Reason.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message or code.name.lower().replace("_", " "))
        self.code = code


class PublishTimeoutError(LiftError, TimeoutError):
    """No ack came in time. The message says whether it may be stored."""


class ConsumerEndedError(LiftError):
    """`next` or `poll` was called, and nothing more will come: the consumer was closed, or has reached its stop."""


class OffsetLostError(LiftError):
    """The next offset was deleted, by retention or a purge, before the consumer read it.

    Attributes:
        offset: The wanted offset.
        log_start: First readable offset.
        log_end: Offset after the last committed record.
    """

    def __init__(self, stream: str, partition: int, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(
            f"stream {stream} partition {partition}: offset {offset} is out of range; choose {log_start} to {log_end}, "
            "or pass on_lost='earliest', 'latest' or 'new'"
        )
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class LogDivergedError(LiftError):
    """Records that were read are not in the leader's log.

    Either an unclean election lost them, or the cluster was restored from a bucket that did not have them yet.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        offset: First offset at which the leader's log differs or ends. To continue, start here. After a restore this
            is the recovery point, unless the position was in an older leader epoch.
        position: Offset that would have been read next.
        epoch: Leader epoch of the record before `position`.
    """

    def __init__(self, stream: str, partition: int, offset: int, position: int, epoch: int) -> None:
        super().__init__(
            f"stream {stream} partition {partition}: records up to offset {position - 1} of leader epoch {epoch} were "
            f"read, but the leader has other records, or none, from offset {offset}: an unclean election lost them, or "
            f"the cluster was restored from its bucket, which had them up to {offset}; to continue, start at offset "
            f"{offset} or before"
        )
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.position = position
        self.epoch = epoch


class StreamGoneError(LiftError):
    """The stream was deleted, or deleted and created again, while it was read."""


class CorruptRecordsError(LiftError):
    """Records are damaged.

    Either they are damaged on the node's disk, and the partition went offline. Or an object in the bucket is damaged or
    missing; then the message names it, and the offset from which records can be read again.
    """


class GroupRefusedError(LiftError):
    """The coordinator of a group refused a request for good.

    Attributes:
        code: Reason.
    """

    def __init__(self, code: GroupError, message: str) -> None:
        super().__init__(message or code.name.lower().replace("_", " "))
        self.code = code


class GroupFencedError(GroupRefusedError):
    """Another process joined with the same instance id and replaced this member. The consumer has ended."""


class CoordinatorUnavailableError(NodeUnavailableError):
    """The group has no reachable coordinator at the moment."""


class HandlerFailedError(LiftError):
    """A handler raised in its last attempt, and there is no dead letter for its message. The exception is the cause.

    Attributes:
        attempts: Number of calls of the handler.
    """

    def __init__(self, where: str, attempts: int, cause: Exception) -> None:
        calls = "call" if attempts == 1 else "calls"
        super().__init__(
            f"{where}: the handler failed after {attempts} {calls}, with {type(cause).__name__}: {cause}; it is not "
            "committed and is delivered again; pass dead_letter='...' to go on without such messages"
        )
        self.attempts = attempts


class HandlerStuckError(LiftError, TimeoutError):
    """A handler did not end in twice its time, and could not be ended. Its message is not committed."""

    def __init__(self, where: str, taken_s: float) -> None:
        super().__init__(
            f"{where}: the handler has not ended after {taken_s:.1f} s, and cannot be ended from outside; this member "
            "gives its partitions back: start the process again, or pass a longer handler_timeout_s"
        )


class UndecodableError(LiftError, ValueError):
    """The value of a message cannot be decoded; the codec's exception is the cause. More attempts change nothing.

    Attributes:
        message: The message.
    """

    def __init__(self, message: Message, cause: Exception) -> None:
        super().__init__(
            f"stream {message.stream} partition {message.partition} offset {message.offset}: the value cannot be "
            f"decoded: {type(cause).__name__}: {cause}"
        )
        self.message = message


class CommitRefusedError(UsageError):
    """An offset cannot be committed. Nothing of its commit was stored. The message names the offset and the reason."""


class TableTooLargeError(LiftError):
    """A table needs more memory than `bytes_max`. The table has ended.

    Attributes:
        stream: Name of the stream.
        bytes_max: Limit of the rows' memory.
    """

    def __init__(self, stream: str, bytes_max: int, keys: int) -> None:
        super().__init__(
            f"the table of stream {stream} needs more than bytes_max={bytes_max} bytes of memory, with {keys} keys: "
            "pass a larger bytes_max, or partitions=[...] for a part of the stream"
        )
        self.stream = stream
        self.bytes_max = bytes_max


class TableDecodeError(LiftError, ValueError):
    """The `decode` function of a table raised; its exception is the cause. Other keys can be read.

    Attributes:
        stream: Name of the stream.
        key: Key of the value.
        partition: Partition of the record.
        offset: Offset of the record.
    """

    def __init__(self, stream: str, key: bytes, partition: int, offset: int, cause: Exception) -> None:
        shown = f"{key[:60]!r}..." if len(key) > 60 else repr(key)
        super().__init__(
            f"stream {stream} partition {partition} offset {offset}: the value of key {shown} cannot be decoded: "
            f"{type(cause).__name__}: {cause}"
        )
        self.stream = stream
        self.key = key
        self.partition = partition
        self.offset = offset


class ChangesMissedError(LiftError):
    """A reader of a table's changes was too slow, and some changes were dropped.

    The table contains them all. Read it, and continue with the same iterator: it delivers the next change.

    Attributes:
        missed: Number of dropped changes.
    """

    def __init__(self, stream: str, missed: int) -> None:
        super().__init__(
            f"table of stream {stream}: {missed} changes were dropped because they were not read in time; the table "
            "contains them: read it, and continue with the same iterator"
        )
        self.missed = missed


class TableTimeoutError(LiftError, TimeoutError):
    """A table did not get far enough in time. It continues to read, so a longer timeout may help."""
