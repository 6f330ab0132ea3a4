"""Consumers for synchronous code: plain iterators."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from liftpy_client.consumer.consumer import Consumer, Consuming
from liftpy_client.errors import UsageError
from liftpy_client.group.consumer import GroupConsumer
from liftpy_client.sync.background import BackgroundLoop, EnteredFacade, blocking, on_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from liftpy_client.group.transaction import Transaction
    from liftpy_client.message import Message

__all__ = ["SyncConsumer", "SyncGroupConsumer"]

_Item = TypeVar("_Item")
_R = TypeVar("_R")
_Inner = TypeVar("_Inner", bound=Consuming[Any] | GroupConsumer[Any])


class _Taking(EnteredFacade[_Inner], Generic[_Inner]):
    """What items are taken from. One that came for a caller who was interrupted comes again."""

    def __init__(self, loop: BackgroundLoop, inner: _Inner) -> None:
        super().__init__(loop, inner)
        self._was_interrupted = False

    def _take(self, take: Callable[[], Coroutine[Any, Any, _R]]) -> _R:
        """Run what takes something, and return it."""
        raised: list[Exception] = []

        async def step() -> _R:
            if self._was_interrupted:
                self._was_interrupted = False
                self._inner.redeliver()
            try:
                return await take()
            except Exception as error:
                raised.append(error)
                raise

        try:
            return self._loop.run(step())
        except BaseException as error:
            if error not in raised:  # Ctrl-C: nobody has what was taken
                self._was_interrupted = True
            raise


class SyncConsumer(_Taking[Consuming[Any]], Generic[_Item]):
    """An iterator over messages or Arrow record batches; see `Consumer` and `BatchConsumer`.

    Messages are created in the calling thread. Fetching continues in the background.
    """

    def __iter__(self) -> Iterator[_Item]:
        fetched = self._inner.parts()
        try:
            while (parts := self._loop.run(_next(fetched, None))) is not None:
                for part in parts:
                    yield from part
        finally:
            self._loop.end(fetched.aclose)

    def poll(self, timeout_s: float) -> _Item | None:
        """Return the next item, or None when none came in time; the next call continues. Errors as for `next`."""
        return self.next(timeout_s)

    def next(self, timeout_s: float | None = None) -> _Item | None:
        """Return the next item, as `Consumer.next` does."""
        item: _Item | None = self._take(lambda: self._inner.next(timeout_s))
        return item

    def next_batch(self, max_messages: int, timeout_s: float | None = None) -> list[_Item]:
        """Return the next messages, as `Consumer.next_batch` does.

        Raises:
            UsageError: It is a consumer of Arrow record batches, of which each is a batch already.
        """
        inner = self._inner
        if not isinstance(inner, Consumer):
            raise UsageError("next_batch: this consumer delivers record batches; use next or poll")
        messages: list[Any] = self._take(lambda: inner.next_batch(max_messages, timeout_s))
        return messages

    close = blocking(Consuming.close)
    redeliver = on_loop(Consuming.redeliver)
    seek = on_loop(Consuming.seek)
    seek_to_time = blocking(Consuming.seek_to_time)
    pause = on_loop(Consuming.pause)
    resume = on_loop(Consuming.resume)
    position = on_loop(Consuming.position)
    lag = on_loop(Consuming.lag)
    delete_horizon = on_loop(Consuming.delete_horizon)
    stream_uuid = on_loop(Consuming.stream_uuid)


class SyncGroupConsumer(_Taking[GroupConsumer[_Item]], Generic[_Item]):
    """An iterator over what the group's coordinator assigns to this process; see `GroupConsumer`.

    The session with the coordinator is kept behind it, however long a message takes. For many small messages
    Each item passes from thread to thread, so `consume_batches` is faster.
    """

    def __iter__(self) -> Iterator[_Item]:
        items = self._inner.__aiter__()
        nothing = object()
        try:
            while (item := self._loop.run(_next(items, nothing))) is not nothing:
                yield item
        finally:
            self._loop.end(lambda: _close(items))

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that this consumer has, as pairs of stream and number."""
        return self._loop.call(lambda: self._inner.assignment)

    def poll(self, timeout_s: float) -> _Item | None:
        """Return the next item, or None when none came in time; the next call continues. Errors as for `next`."""
        return self.next(timeout_s)

    def next(self, timeout_s: float | None = None) -> _Item | None:
        """Return the next item, as `GroupConsumer.next` does."""
        return self._take(lambda: self._inner.next(timeout_s))

    def next_batch(self, max_messages: int, timeout_s: float | None = None) -> list[_Item]:
        """Return the next items, as `GroupConsumer.next_batch` does."""
        return self._take(lambda: self._inner.next_batch(max_messages, timeout_s))

    @contextmanager
    def atomically(self, message: Message, *, run: str = "") -> Iterator[Transaction]:
        """Store the outputs of a message once, however often it is handled; see `GroupConsumer.atomically`."""
        block = self._loop.call(lambda: self._inner.atomically(message, run=run))
        outputs = self._loop.run(block.__aenter__())
        try:
            yield outputs
        except BaseException as error:
            self._loop.run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._loop.run(block.__aexit__(None, None, None))

    close = blocking(GroupConsumer.close)
    redeliver = on_loop(GroupConsumer.redeliver)
    commit = blocking(GroupConsumer.commit)
    seek = on_loop(GroupConsumer.seek)
    seek_to_time = blocking(GroupConsumer.seek_to_time)
    pause = on_loop(GroupConsumer.pause)
    resume = on_loop(GroupConsumer.resume)
    position = on_loop(GroupConsumer.position)
    lag = on_loop(GroupConsumer.lag)


async def _next(items: Any, nothing: object) -> Any:
    """A step of an asynchronous generator, begun in the loop's thread: else the loop would not know of it."""
    return await anext(items, nothing)


async def _close(items: Any) -> None:
    await items.aclose()
