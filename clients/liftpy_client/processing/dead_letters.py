"""Dead letters: messages that no handler could handle, kept in a stream of their own with what happened.

A dead letter has the value, the key and the headers of its message, and headers that begin with `Dead-Letter-`. Its
message id is made of the place of the message, so a dead letter that is sent twice is stored once, within the dedupe
window.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_client.message import Message
from liftpy_client.processing.persisting import persist

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_client.processing.schedule import Work

__all__ = ["PREFIX", "DeadLetters", "Origin", "dead_letter_headers", "origin_of", "original_headers"]

PREFIX: Final = "Dead-Letter-"
"""What the names of a dead letter's own headers begin with."""

_CAUSE_LENGTH_MAX: Final = 500
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]+")
_ACTED_ON: Final = ("Nats-", "Lift-", PREFIX)  # these would be acted on, or say where another dead letter came from
_SPACE: Final = re.compile(r"\s")
_AT_ONCE: Final = 200


def original_headers(message: Message) -> dict[str, str | list[str]]:
    """Headers of a message, all values of each, without those that servers act on, and without those of dead letters.

    Names with white space are left out: they cannot be written.
    """
    return {
        name: values
        for name, values in message.headers.all_values().items()
        if not name.startswith(_ACTED_ON) and not _SPACE.search(name)
    }


def dead_letter_headers(
    message: Message, group: str, attempts: int, error: BaseException
) -> dict[str, str | list[str]]:
    """Headers of the dead letter of a message."""
    cause = _UNSAFE.sub(" ", f"{type(error).__name__}: {error}").strip()[:_CAUSE_LENGTH_MAX].strip()
    return original_headers(message) | {
        f"{PREFIX}Cause": cause,
        f"{PREFIX}Attempts": str(attempts),
        f"{PREFIX}Group": _UNSAFE.sub("?", group),
        f"{PREFIX}Stream": message.stream,
        f"{PREFIX}Partition": str(message.partition),
        f"{PREFIX}Offset": str(message.offset),
        f"{PREFIX}Subject": _UNSAFE.sub("?", message.subject),
        f"{PREFIX}Time": message.timestamp.isoformat(),
    }


class Origin(NamedTuple):
    """What a dead letter says of its message.

    Attributes:
        cause: Type and text of the exception.
        attempts: Number of calls of the handler.
        group: Name of the group.
        stream: Stream of the message.
        partition: Partition of the message.
        offset: Offset of the message.
        subject: Subject of the message.
        time: When it was stored, in ISO 8601.
    """

    cause: str
    attempts: int
    group: str
    stream: str
    partition: int
    offset: int
    subject: str
    time: str


def origin_of(message: Message) -> Origin | None:
    """Return what a dead letter says of its message; None if this is no dead letter."""
    headers = message.headers
    texts = {name: headers.get(f"{PREFIX}{name.title()}") for name in Origin._fields}
    try:
        numbers = {name: int(texts.pop(name) or "") for name in ("attempts", "partition", "offset")}
    except ValueError:
        return None
    return None if None in texts.values() else Origin(**texts, **numbers)  # type: ignore[arg-type]  # it is not


class DeadLetters:
    """Stores dead letters.

    Args:
        publish: `Lift.publish`.
        subject: Subject of the dead letters.
        group: Name of the group.
    """

    def __init__(self, publish: Callable[..., Awaitable[Any]], subject: str, group: str) -> None:
        self._publish = publish
        self._subject = subject
        self._group = group

    async def bury(self, work: Work, error: Exception) -> None:
        """Store the dead letters of a message or batch, and return when they are acknowledged.

        It goes on until that is so, unless the stream refuses them for good.

        Raises:
            LiftError: A dead letter was refused, or no stream stores it.
        """
        if isinstance(work.item, Message):
            await self._store(work.item, work.attempts, error)
            return
        chunk: list[Message] = []
        for message in work.item.messages():
            chunk.append(message)
            if len(chunk) == _AT_ONCE:
                await self._store_all(chunk, work.attempts, error)
                chunk = []
        await self._store_all(chunk, work.attempts, error)

    async def _store_all(self, messages: list[Message], attempts: int, error: Exception) -> None:
        await asyncio.gather(*(self._store(message, attempts, error) for message in messages))

    async def _store(self, message: Message, attempts: int, error: Exception) -> None:
        headers = dead_letter_headers(message, self._group, attempts, error)
        place = f"{message.stream}/{message.partition}/{message.offset}/{message.timestamp_ns}"
        message_id = f"dead-letter/{headers[f'{PREFIX}Group']}/{place}"
        await persist(
            lambda: self._publish(
                self._subject, message.value, key=message.key, headers=headers, message_id=message_id
            ),
            f"the dead letter of {message!r}",
        )
