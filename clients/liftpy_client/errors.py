"""What can go wrong for a client. All of them are `LiftError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import ErrorCode, LiftError

if TYPE_CHECKING:
    from liftpy_envelope.groups import GroupError

__all__ = [
    "AdminError",
    "ChangesMissedError",
    "CommitRefusedError",
    "CoordinatorUnavailableError",
    "CorruptRecordsError",
    "DisconnectedError",
    "GroupFencedError",
    "GroupRefusedError",
    "LogDivergedError",
    "NoStreamError",
    "NobodyListensError",
    "NodeUnavailableError",
    "OffsetLostError",
    "PublishTimeoutError",
    "PullError",
    "StreamGoneError",
    "TableDecodeError",
    "TableTimeoutError",
    "TableTooLargeError",
    "UnreachableError",
    "UsageError",
]


class UsageError(LiftError, ValueError):
    """An argument has no meaning; the message names it."""


class UnreachableError(LiftError, ConnectionError):
    """NATS can not be reached, or refuses us."""


class DisconnectedError(LiftError, ConnectionError):
    """The connection is closed."""


class NodeUnavailableError(LiftError):
    """NATS is there, but no node of liftpy answers."""

    retriable = True


class NoStreamError(LiftError):
    """No stream of this name, or none that stores this subject."""


class NobodyListensError(LiftError):
    """NATS has no subscriber for a message; kept inside the client, which looks whether the stream is gone."""


class AdminError(LiftError):
    """An admin request was refused.

    Attributes:
        code: why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PullError(LiftError):
    """A node refused a request of the pull protocol.

    Attributes:
        code: why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message or code.name.lower().replace("_", " "))
        self.code = code


class PublishTimeoutError(LiftError, TimeoutError):
    """No ack came in time: the message may be stored or not."""


class OffsetLostError(LiftError):
    """The offset to go on from is no longer there: retention or a purge was quicker than the consumer.

    Attributes:
        offset: the one wanted.
        log_start: the first one there is.
        log_end: the one after the last committed.
    """

    def __init__(self, stream: str, partition: int, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(
            f"stream {stream} partition {partition}: offset {offset} is not there any more, or not yet; there are "
            f"{log_start} to {log_end}; start at one of those, or pass on_lost='earliest' or 'latest'"
        )
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class LogDivergedError(LiftError):
    """What was read before is not what the leader has now.

    An unclean election has lost it; or every disk was lost, and the cluster was restored from its bucket, which did not
    have it yet.

    Attributes:
        stream: its name.
        partition: its number.
        offset: from here on the leader has other records, or none; to go on with those, start here. After a restore
            this is the recovery point, unless the position was in an older epoch.
        position: the offset that would have been read next.
        epoch: leader epoch of the record before that.
    """

    def __init__(self, stream: str, partition: int, offset: int, position: int, epoch: int) -> None:
        super().__init__(
            f"stream {stream} partition {partition}: records up to offset {position - 1} of leader epoch {epoch} were "
            f"read, but from offset {offset} on the leader has others, or none: an unclean election has lost them, or "
            f"the cluster was restored from its bucket, which had them up to {offset}; start again at offset {offset} "
            "or before to read what it has"
        )
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.position = position
        self.epoch = epoch


class StreamGoneError(LiftError):
    """The stream was deleted, or deleted and created again, while it was being read."""


class CorruptRecordsError(LiftError):
    """Records are damaged.

    Either on the node's disk, and the partition went offline; or an object of the bucket is damaged or gone: then the
    message names it, and the offset from which on there are records again.
    """


class GroupRefusedError(LiftError):
    """The coordinator of a group refused a request for good.

    Attributes:
        code: why.
    """

    def __init__(self, code: GroupError, message: str) -> None:
        super().__init__(message or code.name.lower().replace("_", " "))
        self.code = code


class GroupFencedError(GroupRefusedError):
    """Another process joined with the same instance id and took this one's place; this consumer has ended."""


class CoordinatorUnavailableError(NodeUnavailableError):
    """No node coordinates the group at the moment, or none that can be reached."""


class CommitRefusedError(UsageError):
    """An offset that can not be committed, and nothing of its commit was; the message says which, and why."""


class TableTooLargeError(LiftError):
    """A table needs more memory than it may have; it is of no use any more.

    Attributes:
        stream: its stream.
        bytes_max: what it may have.
    """

    def __init__(self, stream: str, bytes_max: int, keys: int) -> None:
        super().__init__(
            f"the table of stream {stream} needs more than bytes_max={bytes_max} bytes of memory, with {keys} keys: "
            "pass a larger bytes_max, or partitions=[...] for a part of the stream"
        )
        self.stream = stream
        self.bytes_max = bytes_max


class TableDecodeError(LiftError, ValueError):
    """The `decode` of a table raised; its exception is the cause. Other keys can be read.

    Attributes:
        stream: the table's stream.
        key: whose value it is.
        partition: where the record is.
        offset: where the record is.
    """

    def __init__(self, stream: str, key: bytes, partition: int, offset: int, cause: Exception) -> None:
        shown = f"{key[:60]!r}..." if len(key) > 60 else repr(key)
        super().__init__(
            f"stream {stream} partition {partition} offset {offset}: the value of key {shown} can not be decoded: "
            f"{type(cause).__name__}: {cause}"
        )
        self.stream = stream
        self.key = key
        self.partition = partition
        self.offset = offset


class ChangesMissedError(LiftError):
    """Whoever reads the changes of a table was too slow, and some were dropped.

    The table itself has them all. Read from it what is of interest, and go on with the same iterator: it continues
    with the next change of the table.

    Attributes:
        missed: how many.
    """

    def __init__(self, stream: str, missed: int) -> None:
        super().__init__(
            f"{missed} changes of the table of stream {stream} came faster than they were read, and were dropped; the "
            "table has them all: look there, and go on with the same iterator"
        )
        self.missed = missed


class TableTimeoutError(LiftError, TimeoutError):
    """A table did not get as far as it was to in the time given; it goes on, so waiting longer may help."""
