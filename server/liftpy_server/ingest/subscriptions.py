"""The subscriptions on one connection: which stand, which the server refuses, and which are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.ingest.server_errors import refused_bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from liftpy_server.ingest.binding import Binding
    from liftpy_server.ingest.ingest import Ingest
    from liftpy_server.nats.connection import NatsConnection

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of an ingest connection.

    Args:
        connection: Where they are.
        ingest: Takes their messages.

    Attributes:
        refused: Why the server refuses those that it refuses.
        room: What to say of a server that holds little for this node; empty of others.
    """

    def __init__(self, connection: NatsConnection, ingest: Ingest) -> None:
        self.connection = connection
        self.ingest = ingest
        self.refused: dict[Binding, str] = {}
        self.room = ""
        self._numbers: dict[Binding, int] = {}
        self._last_number = 0
        self._unconfirmed: dict[Binding, None] = {}

    @property
    def confirmed(self) -> Iterator[Binding]:
        """Bindings whose subscriptions the server has confirmed."""
        return (each for each in self._numbers if each not in self._unconfirmed and each not in self.refused)

    async def subscribe(self, bindings: Iterable[Binding], hold: Callable[[Binding], Binding] | None = None) -> bool:
        """Subscribe; returns when the server has handled it, False when the connection is lost meanwhile.

        Args:
            bindings: What is wanted.
            hold: What takes their messages instead, until `release`.
        """
        frames = []
        for binding in bindings:
            self.refused.pop(binding, None)
            self._last_number += 1
            self._numbers[binding] = self._last_number
            self._unconfirmed[binding] = None
            taker = binding if hold is None else hold(binding)
            self.ingest.bindings[self._last_number] = taker  # messages may come at once
            words = ["SUB", binding.subject, *([binding.group] if binding.group else []), str(self._last_number)]
            frames.append(" ".join(words))
        self.connection.write("".join(f"{frame}\r\n" for frame in frames).encode())
        if not await self.connection.ask():
            return False
        for binding in bindings:
            self._unconfirmed.pop(binding, None)
        return True

    def release(self) -> None:
        """Let the bindings receive their messages themselves from now on."""
        for binding, number in self._numbers.items():
            self.ingest.bindings[number] = binding

    async def unsubscribe(self, bindings: Iterable[Binding]) -> bool:
        """Unsubscribe; returns when no more messages will come. False when some may have been lost on their way."""
        numbers = [self._numbers.pop(binding) for binding in bindings if binding in self._numbers]
        is_whole = True
        if numbers:
            self.connection.write("".join(f"UNSUB {number}\r\n" for number in numbers).encode())
            is_whole = await self.connection.ask()
        for number in numbers:
            self.ingest.bindings.pop(number, None)
        for binding in bindings:
            self.refused.pop(binding, None)
            self._unconfirmed.pop(binding, None)
        return is_whole

    def note_error(self, text: str) -> list[Binding] | None:
        """Act on an error of the server.

        Returns:
            The bindings that it refuses; None when it is about something else.
        """
        asked = {number: binding for binding, number in self._numbers.items() if binding not in self.refused}
        refused = refused_bindings(text, asked, list(self._unconfirmed))
        for binding in refused or []:
            self.refused[binding] = f"the NATS server refuses a subscription to {binding.subject}: {text}"
        return refused
