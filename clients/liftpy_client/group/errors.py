"""What can go wrong for a member of a consumer group. All of them are `LiftError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_client.errors import NodeUnavailableError, UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_envelope.groups import GroupError

__all__ = ["CommitRefusedError", "CoordinatorUnavailableError", "GroupFencedError", "GroupRefusedError"]


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
