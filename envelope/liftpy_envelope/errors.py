"""Every error of liftpy has one root, `LiftError`, and says whether trying again can help.

`ErrorCode` is the stable, numbered vocabulary that crosses the pull protocol and the admin requests;
`AckErrorCode` is the one that crosses in error acks. Numbers are part of the wire format: they are only ever added.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

__all__ = [
    "AckErrorCode",
    "BatchCorruptError",
    "BatchTruncatedError",
    "BatchVersionError",
    "ConfigError",
    "EnvelopeError",
    "ErrorCode",
    "FrameError",
    "FrameTooLargeError",
    "HeaderError",
    "LiftError",
    "NameInvalidError",
    "SubjectInvalidError",
]


class LiftError(Exception):
    """Root of every error that liftpy raises on purpose.

    Attributes:
        retriable: Whether the same call may succeed later without any change by the caller.
    """

    retriable: ClassVar[bool] = False


class ErrorCode(IntEnum):
    """Why a pull or admin request failed. `retriable` is part of the meaning of a code.

    20 to 25 are those of `GroupError`, which stand in the results of group requests. A number that a newer peer
    invented counts as `INTERNAL`.
    """

    NONE = 0
    INVALID_REQUEST = 1
    UNSUPPORTED_VERSION = 2
    UNAUTHENTICATED = 3
    UNKNOWN_STREAM = 4
    STREAM_RECREATED = 5
    NOT_LEADER = 6
    STALE_EPOCH = 7
    OFFSET_OUT_OF_RANGE = 8
    BATCH_CORRUPT = 9
    PARTITION_OFFLINE = 10
    NOT_AVAILABLE = 11
    TOO_MANY_REQUESTS = 12
    FRAME_TOO_LARGE = 13
    INTERNAL = 14
    STREAM_EXISTS = 15
    INVALID_CONFIG = 16
    SUBSCRIPTION_REFUSED = 17
    OUTCOME_UNKNOWN = 18
    CONFLICT = 19
    UNKNOWN_GROUP = 26

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self in _RETRIABLE

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        return cls.INTERNAL if isinstance(value, int) else None


_RETRIABLE = frozenset({ErrorCode.NOT_LEADER, ErrorCode.NOT_AVAILABLE, ErrorCode.TOO_MANY_REQUESTS})


class AckErrorCode(IntEnum):
    """`err_code` of an error ack. Where JetStream has a number for the same refusal, it is JetStream's."""

    STORAGE_FULL = 10047
    TOO_LARGE = 10054
    WRONG_STREAM = 10060
    WRONG_EXPECTED_OFFSET = 10071
    NOT_ENOUGH_REPLICAS = 20001
    READ_ONLY = 20002
    PAUSED = 20003
    MALFORMED = 20004
    UNSUPPORTED = 20005
    OUTCOME_UNKNOWN = 20006
    PARTITION_OFFLINE = 20007
    TOO_MANY_PRODUCERS = 20008
    STAGED_UNREADABLE = 20009

    @property
    def http_status(self) -> int:
        """`code` of the error ack, in the manner of JetStream: 400 is the publisher's doing, 503 is ours."""
        return 503 if self in _OURS else 400

    @property
    def retriable(self) -> bool:
        """Whether publishing the same message again may succeed."""
        return self in _OURS or self is AckErrorCode.PAUSED


_OURS = frozenset(
    {
        AckErrorCode.STORAGE_FULL,
        AckErrorCode.NOT_ENOUGH_REPLICAS,
        AckErrorCode.PAUSED,
        AckErrorCode.OUTCOME_UNKNOWN,
        AckErrorCode.PARTITION_OFFLINE,
        AckErrorCode.STAGED_UNREADABLE,
    }
)


class BatchTruncatedError(LiftError):
    """The bytes end before the record batch does; more bytes may make it whole."""


class BatchCorruptError(LiftError):
    """The bytes can not be a record batch of ours: wrong magic, checksum, length or columns."""


class BatchVersionError(LiftError):
    """The record batch was written by a newer version of liftpy; this one must not guess at it."""


class EnvelopeError(LiftError):
    """A publisher envelope that is ours beyond doubt, and malformed."""


class HeaderError(LiftError):
    """A NATS header that liftpy understands by name carries a value it can not accept.

    Attributes:
        code: The code of the error ack that answers it.
    """

    def __init__(self, message: str, code: AckErrorCode = AckErrorCode.MALFORMED) -> None:
        super().__init__(message)
        self.code = code


class FrameError(LiftError):
    """The peer sent something that is not the pull protocol; the connection can not be used further."""


class FrameTooLargeError(FrameError):
    """The peer announced a frame beyond the limit."""


class NameInvalidError(LiftError):
    """A stream, node or consumer name outside `[A-Za-z0-9_-]{1,128}`."""


class SubjectInvalidError(LiftError):
    """A NATS subject that no NATS server would accept in this place."""


class ConfigError(LiftError):
    """A setting is unknown, of the wrong type, or out of range.

    Attributes:
        field: The setting's name as the user wrote it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
