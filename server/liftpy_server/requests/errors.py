"""What can go wrong with an admin request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_envelope.errors import ErrorCode

__all__ = ["AdminError", "NodeSilentError"]


class AdminError(LiftError):
    """The request can not be granted.

    Attributes:
        code: Code that says why.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class NodeSilentError(LiftError):
    """Another node did not answer in time: it is down, or cut off from NATS."""

    retriable = True
