"""What can go wrong when a DataFrame is written to a stream."""

from __future__ import annotations

from liftpy_envelope.errors import LiftError

__all__ = [
    "BatchMismatchError",
    "CommitUnclearError",
    "SinkModeError",
    "SinkRowError",
    "SinkSchemaError",
]


class SinkSchemaError(LiftError):
    """The columns of a DataFrame are not those of records; the message names the column and what is right."""


class SinkModeError(LiftError):
    """What is asked for the sink can not do as things are; the message says what has to change."""


class SinkRowError(LiftError):
    """A row can not become a record: too large, on a subject that the stream does not store, or alike."""


class CommitUnclearError(LiftError):
    """A batch was interrupted, and what of it is in the stream can not be told any more."""


class BatchMismatchError(LiftError):
    """What is to be written, or what is in the stream, is not what was noted down when the batch was written before."""
