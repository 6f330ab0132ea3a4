"""What goes wrong with work on the bucket, and how it crosses the pipe between a node and a worker."""

from __future__ import annotations

from typing import Any, Final

from liftpy_bucket.errors import (
    BucketVersionError,
    ForeignBucketError,
    LineageError,
    ObjectCorruptError,
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    RootMissingError,
    SealedError,
    StoreBusyError,
    StoreDeniedError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnfitError,
)
from liftpy_envelope.errors import BatchCorruptError, BatchVersionError, LiftError

__all__ = ["NotNamedError", "SliceGoneError", "TierWorkError", "plain_error"]


class NotNamedError(LiftError):
    """The catalog in the bucket does not name a stream yet; whoever leads the metadata writes it in a moment."""

    retriable = True


class SliceGoneError(LiftError):
    """A piece of a local segment that was to be uploaded is not there any more, or not where it was."""


class TierWorkError(LiftError):
    """A tier worker could not do a job.

    Attributes:
        code: "overtaken", "lineage", "sealed", "denied", "unavailable", "busy", "unfit", "full", "foreign", "version",
            "corrupt", "missing", "rootless" (objects that no root names, for it is gone), "gone" (of a local file),
            "hole" (that no purge explains), "held" (by a pin), "unnamed" (of a stream, in the catalog) or "internal".
        message: Error text.
    """

    def __init__(self, code: str, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self._retriable = retriable

    @property
    def retriable(self) -> bool:  # type: ignore[override]  # the worker says which, not the class
        """Whether the same call may succeed later without any change by the caller."""
        return self._retriable


_CODES: Final[tuple[tuple[type[Exception], str, bool], ...]] = (
    (OvertakenError, "overtaken", True),
    (LineageError, "lineage", False),
    (SealedError, "sealed", False),
    (StoreDeniedError, "denied", False),
    (StoreBusyError, "busy", True),
    (StoreUnavailableError, "unavailable", True),
    (OutcomeUnknownError, "unavailable", True),
    (StoreUnfitError, "unfit", False),
    (StoreFullError, "full", True),
    (ForeignBucketError, "foreign", False),
    (BucketVersionError, "version", False),
    (BatchVersionError, "version", False),
    (ObjectCorruptError, "corrupt", False),
    (BatchCorruptError, "corrupt", False),
    (RootMissingError, "rootless", False),
    (ObjectMissingError, "missing", False),
    (SliceGoneError, "gone", True),
    (NotNamedError, "unnamed", True),
)


def plain_error(error: Exception) -> dict[str, Any]:
    """An error as it crosses the pipe; `TierWorkError(**plain)` is its other end."""
    text = str(error) or type(error).__name__
    for kind, code, retriable in _CODES:
        if isinstance(error, kind):
            return {"code": code, "message": text, "retriable": retriable}
    if not isinstance(error, LiftError):
        text = f"{type(error).__name__}: {text}"
    retriable = isinstance(error, OSError) or (isinstance(error, LiftError) and error.retriable)
    return {"code": "internal", "message": text, "retriable": retriable}
