"""Streams of objects for synchronous code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_client.typed.streams import TypedMessage, TypedStream
    from liftpy_envelope.ack import Ack

__all__ = ["SyncTypedStream"]

_T = TypeVar("_T")


class SyncTypedStream(Generic[_T]):
    """A stream, and the codec of its values; see `TypedStream`.

    Args:
        lift: `SyncLift`.
        stream: What encodes and decodes.
    """

    def __init__(self, lift: Any, stream: TypedStream[_T]) -> None:
        self._lift = lift
        self._stream = stream

    def publish(self, subject: str, value: _T | None, **more: Any) -> Ack:
        """Publish an object, or None for a tombstone. The other arguments are those of `SyncLift.publish`."""
        ack: Ack = self._lift.publish(subject, self._stream.encode(value), stream=self._stream.name, **more)
        return ack

    def consume(self, **where: Any) -> Iterator[TypedMessage[_T]]:
        """Consume objects, with `for`. The arguments are those of `SyncLift.consume`."""
        self._stream.check_consuming()
        return self._decoded(self._lift.consume(self._stream.name, **where))

    def _decoded(self, consumer: Any) -> Iterator[TypedMessage[_T]]:
        for message in consumer:
            decoded = self._stream.decode(message)
            if decoded is not None:
                yield decoded

    def process(self, handle: Callable[..., Any], **how: Any) -> None:
        """Call a handler for each object. The arguments are those of `SyncLift.process`."""
        self._lift.process(self._stream.name, self._stream.decoding(handle, how), **how)
