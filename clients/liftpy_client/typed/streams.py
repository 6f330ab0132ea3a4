"""A stream whose values are objects of the application."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar

from liftpy_client.errors import UndecodableError, UsageError
from liftpy_client.processing.handlers import is_asynchronous

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
    from types import TracebackType

    from liftpy_client.message import Message
    from liftpy_client.typed.codecs import Codec
    from liftpy_envelope.ack import Ack

__all__ = ["OnUndecodable", "TypedConsumer", "TypedMessage", "TypedStream"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
OnUndecodable = Literal["raise", "skip", "dead_letter"]
"""What to do with a message whose value cannot be decoded."""

_CHOICES: Final = ("raise", "skip", "dead_letter")


class TypedMessage(Generic[_T]):
    """A message, and its value as an object.

    Attributes:
        data: The object. None for a tombstone.
        message: The message.
    """

    __slots__ = ("data", "message")

    def __init__(self, data: _T | None, message: Message) -> None:
        self.data = data
        self.message = message

    def __repr__(self) -> str:
        return f"TypedMessage({self.data!r:.80}, {self.message!r})"


class TypedStream(Generic[_T]):
    """A stream, and the codec of its values. Made by `Lift.typed`.

    Args:
        lift: `Lift`.
        stream: Name of the stream.
        codec: Codec of the values.
        on_undecodable: What to do with a message whose value cannot be decoded.

    Attributes:
        name: Name of the stream.
    """

    def __init__(self, lift: Any, stream: str, codec: Codec[_T], on_undecodable: OnUndecodable) -> None:
        if on_undecodable not in _CHOICES:
            raise UsageError(f"on_undecodable: {on_undecodable!r:.60} is not one of {', '.join(_CHOICES)}")
        self._lift = lift
        self.name = stream
        self._codec = codec
        self._on_undecodable = on_undecodable

    async def publish(self, subject: str, value: _T | None, **more: Any) -> Ack:
        """Publish an object, or None for a tombstone. The other arguments are those of `Lift.publish`.

        Raises:
            LiftError: As from `Lift.publish`.
        """
        ack: Ack = await self._lift.publish(subject, self.encode(value), stream=self.name, **more)
        return ack

    def consume(self, **where: Any) -> TypedConsumer[_T]:
        """Consume objects, with `async for`. The arguments are those of `Lift.consume`.

        Raises:
            UsageError: An argument is invalid, or `on_undecodable` is `dead_letter`, which only `process` knows.
        """
        self.check_consuming()
        return TypedConsumer(self, self._lift.consume(self.name, **where))

    def check_consuming(self) -> None:
        """Raise UsageError if a consumer cannot do what is to be done with what cannot be decoded."""
        if self._on_undecodable == "dead_letter":
            raise UsageError("on_undecodable: a consumer writes no dead letters; use process, or choose raise or skip")

    async def process(self, handle: Callable[..., Any], **how: Any) -> None:
        """Call a handler for each object. The arguments are those of `Lift.process`.

        A message that cannot be decoded is tried once: more attempts would change nothing.

        Raises:
            UndecodableError: as the cause of HandlerFailedError, if `on_undecodable` is `raise`.
            LiftError: As from `Lift.process`.
        """
        decoding = self.decoding(handle, how)
        await self._lift.process(self.name, decoding, **how)

    def decoding(self, handle: Callable[..., Any], how: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the handler of messages that calls a handler of objects.

        Raises:
            UsageError: the arguments of `Lift.process` do not fit.
        """
        if how.get("batch") is not None:
            raise UsageError("batch: record batches are not decoded; use Lift.process")
        if self._on_undecodable == "dead_letter" and how.get("dead_letter") is None:
            raise UsageError("on_undecodable is dead_letter: pass dead_letter='...', the subject of the dead letters")
        if self._on_undecodable == "raise" and how.get("dead_letter") is not None:
            raise UsageError(
                "on_undecodable is raise, but with dead_letter='...' nothing is raised; choose dead_letter"
            )
        if is_asynchronous(handle):

            async def handle_later(message: Message, *outputs: Any) -> None:
                decoded = self.decode(message)
                if decoded is not None:
                    await handle(decoded, *outputs)

            return handle_later

        def handle_now(message: Message, *outputs: Any) -> Coroutine[Any, Any, Any] | None:
            decoded = self.decode(message)
            return None if decoded is None else handle(decoded, *outputs)

        return handle_now

    def encode(self, value: _T | None) -> bytes | None:
        """Return the bytes of an object, or None for a tombstone."""
        return None if value is None else self._codec.encode(value)

    def decode(self, message: Message) -> TypedMessage[_T] | None:
        """Return a message with its object, or None if it cannot be decoded and is skipped.

        Raises:
            UndecodableError: It cannot be decoded, and is not skipped.
        """
        if message.value is None:
            return TypedMessage(None, message)
        try:
            return TypedMessage(self._codec.decode(message.value), message)
        except Exception as error:
            if self._on_undecodable == "skip":
                logger.warning("skipped: %s", UndecodableError(message, error))
                return None
            raise UndecodableError(message, error) from error


class TypedConsumer(Generic[_T]):
    """An asynchronous iterator over objects. Use it as the consumer that it decodes.

    Attributes:
        consumer: The consumer of the messages, with `seek`, `pause`, `commit` and so on.
    """

    def __init__(self, stream: TypedStream[_T], consumer: Any) -> None:
        self._stream = stream
        self.consumer = consumer

    async def __aiter__(self) -> AsyncGenerator[TypedMessage[_T], None]:
        async for message in self.consumer:
            decoded = self._stream.decode(message)
            if decoded is not None:
                yield decoded

    async def __aenter__(self) -> Self:
        await self.consumer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.consumer.__aexit__(kind, error, trace)
