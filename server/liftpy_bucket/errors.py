"""Failures of the log in the bucket."""

from __future__ import annotations

from liftpy_envelope.errors import LiftError

__all__ = [
    "AnotherWriterError",
    "BucketVersionError",
    "ForeignBucketError",
    "LineageError",
    "ManifestCorruptError",
    "ObjectCorruptError",
    "ObjectMissingError",
    "OutcomeUnknownError",
    "OvertakenError",
    "PreconditionFailedError",
    "RecordMissingError",
    "RootMissingError",
    "SealedError",
    "StagingDamagedError",
    "StagingDirectoryError",
    "StoreBusyError",
    "StoreDeniedError",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
    "StoreUnfitError",
    "TakenError",
    "TierError",
]


class TierError(LiftError):
    """Anything that is wrong with the log in the bucket."""


class StoreError(TierError):
    """The object store did not do what it was asked for."""


class ObjectMissingError(StoreError):
    """There is no such object.

    Args:
        key: Key of the object.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class RootMissingError(ObjectMissingError):
    """A partition has objects in the bucket, and no root that says which of them count.

    Args:
        key: Key of the root.
        other: Key of one of the objects.
    """

    def __init__(self, key: str, other: str) -> None:
        super().__init__(key)
        told = (
            f"there is no object {key}, and there was one: objects that it named are there ({other}). Put it back as "
            "it was, or nothing of what left the disks can be read again; nothing is uploaded meanwhile"
        )
        self.args = (told,)


class PreconditionFailedError(StoreError):
    """The store refused a conditional write: the object is not as the writer thought."""


class TakenError(PreconditionFailedError):
    """An object of this name is there already, and another writer has written it.

    Args:
        key: Key of the object.
        nonce: Nonce of who wrote it.
    """

    def __init__(self, key: str, nonce: str) -> None:
        super().__init__(f"object {key} was written by another writer (nonce {nonce or 'none'})")
        self.key = key
        self.nonce = nonce


class OutcomeUnknownError(StoreError):
    """No answer to a conditional write, or none that says whether it happened."""

    retriable = True


class StoreUnavailableError(StoreError):
    """The store does not answer, or answers that it can not now."""

    retriable = True


class StoreBusyError(StoreUnavailableError):
    """The store asks for fewer requests, and has done nothing: it is well, and to be left alone for a while."""


class StoreDeniedError(StoreError):
    """Credentials are missing, wrong, or do not allow it; or the bucket does not exist."""


class StoreFullError(StoreError):
    """The store has no room, or a quota is used up."""

    retriable = True


class StoreUnfitError(StoreError):
    """The store ignores conditional writes, or does something else that the log can not live with."""


class ObjectCorruptError(TierError):
    """The bytes of an object are not what a manifest says of them.

    Args:
        key: Key of the object.
        why: What does not fit.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"object {key} is damaged: {why}")
        self.key = key
        self.why = why


class ManifestCorruptError(ObjectCorruptError):
    """A manifest can not be read, or its sum does not balance."""


class BucketVersionError(TierError):
    """Something in the bucket was written by a newer liftpy."""


class ForeignBucketError(TierError):
    """The prefix belongs to another cluster, or holds objects that are not ours."""


class OvertakenError(TierError):
    """Another writer committed first: look again, and decide anew."""

    retriable = True


class AnotherWriterError(OvertakenError):
    """Another writer has appended to an object log where we were about to.

    Args:
        log: Prefix of the object log.
        writer: The name that the other gave itself.
        sequence: Sequence of its first record there.
    """

    def __init__(self, log: str, writer: str, sequence: int) -> None:
        super().__init__(
            f"object log {log}: writer {writer!r} wrote record {sequence} before us; let one process write, or open "
            "the log with shared=True"
        )
        self.log = log
        self.writer = writer
        self.sequence = sequence


class RecordMissingError(TierError):
    """An object log has no such record.

    Args:
        log: Prefix of the object log.
        sequence: Sequence that was asked for.
        why: Whether it was trimmed, or is not there yet.
    """

    def __init__(self, log: str, sequence: int, why: str) -> None:
        super().__init__(f"object log {log} has no record {sequence}: {why}")
        self.log = log
        self.sequence = sequence


class LineageError(TierError):
    """What is to be committed does not continue what is there: a deposed leader, a gap, or another history."""


class SealedError(TierError):
    """The partition is sealed and takes no further commit."""


class StagingDamagedError(LiftError):
    """A staged object or file that a batch of the Spark sink needs is gone, or not as it was written."""


class StagingDirectoryError(StoreError):
    """The directory for staged rows can not be used where the message says, or is another one than the driver's."""
