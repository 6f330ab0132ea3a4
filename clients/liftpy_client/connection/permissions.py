"""What NATS does not permit a client.

NATS answers no message that a user may not send: the server only reports an error on the connection, and whoever waits
for an answer waits in vain. Here those who wait hear of it.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_client.errors import NotPermittedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["Permissions", "Violation"]

_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


class Violation(NamedTuple):
    """What NATS refused.

    Attributes:
        subject: The subject, in lower case: nats-py makes it so.
        is_publish: Whether a message was refused, rather than a subscription.
    """

    subject: str
    is_publish: bool

    def error_of(self, subject: str, inbox: str) -> NotPermittedError | None:
        """Why whoever publishes to a subject, and waits for an answer in an inbox, waits in vain; None if not so.

        Args:
            subject: Subject that was published to.
            inbox: What all inboxes of the connection begin with.
        """
        if self.is_publish and self.subject == subject.lower():
            return NotPermittedError(f"publish to {subject}")
        if not self.is_publish and self.subject.startswith(f"{inbox.lower()}."):
            return NotPermittedError(f"subscribe to {inbox}.>, where answers arrive")
        return None


class Permissions:
    """Tells those who wait for an answer of what NATS refused.

    Args:
        inbox: What all inboxes of the connection begin with.
    """

    def __init__(self, inbox: str = "_INBOX") -> None:
        self.inbox = inbox
        self._listeners: set[Callable[[Violation], None]] = set()

    def note(self, error: Exception) -> None:
        """Take an error of the connection; only permissions matter here."""
        found = _VIOLATION.search(str(error))
        if found is not None:
            violation = Violation(found[2].lower(), found[1].lower() == "publish")
            for listener in list(self._listeners):
                listener(violation)

    def listen(self, listener: Callable[[Violation], None]) -> None:
        """Call a function for each violation, as long as the connection exists."""
        self._listeners.add(listener)

    @asynccontextmanager
    async def needed(self, subject: str) -> AsyncIterator[None]:
        """End what is awaited in it when NATS does not permit to publish to a subject, or to hear the answer.

        Raises:
            NotPermittedError: it does not.
        """
        errors: list[NotPermittedError] = []
        limit = asyncio.timeout(None)

        def hear(violation: Violation) -> None:
            error = violation.error_of(subject, self.inbox)
            if error is not None and not errors:
                errors.append(error)
                limit.reschedule(asyncio.get_running_loop().time())

        self._listeners.add(hear)
        try:
            async with limit:
                yield
        except TimeoutError:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self._listeners.discard(hear)
