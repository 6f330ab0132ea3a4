"""What can go wrong with the metadata, as its users meet it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_envelope.errors import ErrorCode

__all__ = [
    "JournalError",
    "MetadataRefusedError",
    "MetadataUnavailableError",
    "MetadataUnknownError",
    "NewerJournalError",
]


class JournalError(LiftError):
    """The metadata journal can not be read or written."""


class NewerJournalError(JournalError):
    """The metadata journal is of a newer liftpy: nothing is wrong with it."""


class MetadataRefusedError(LiftError):
    """A command was applied, and its outcome is a refusal; or it was not taken, and nothing was done with it.

    Attributes:
        code: Code that says why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MetadataUnavailableError(LiftError):
    """The command was not made durable; nothing changed."""

    retriable = True


class MetadataUnknownError(LiftError):
    """Whether the command was or will be applied is not known. Look before trying again."""
