"""`connect_sync`: liftpy for scripts and notebooks, without a word of asyncio.

Everything runs in one event loop in a thread of its own, and every method waits for it. The methods are those of
`Lift`: their signatures and documentation are taken from there.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypedDict, TypeVar, overload

from liftpy_client.client import Lift, connect
from liftpy_client.processing.signals import stopping_loop
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.sync.background import BackgroundLoop, EnteredFacade, Facade, blocking, collected, synchronous
from liftpy_client.sync.consumer import SyncConsumer, SyncGroupConsumer
from liftpy_client.sync.table import SyncTable
from liftpy_client.sync.typed import SyncTypedStream
from liftpy_client.typed.streams import TypedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType
    from typing import Unpack

    import pyarrow as pa

    from liftpy_client.connection.nats_options import ConnectOptions
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.consumer.positions import Start, Stop
    from liftpy_client.group.options import GroupOptions
    from liftpy_client.message import Message
    from liftpy_client.publisher.outgoing import PendingAck
    from liftpy_client.table.following import DivergedCallback
    from liftpy_client.typed.codecs import Codec
    from liftpy_client.typed.streams import OnUndecodable
    from liftpy_envelope.ack import Ack

__all__ = ["SyncLift", "SyncPublisher", "connect_sync"]


_P = ParamSpec("_P")
_V = TypeVar("_V")


class _Where(TypedDict, total=False):
    """What to consume, and how."""

    start: Start | Mapping[int, int]
    stop: Stop | None
    partitions: Sequence[int] | None
    subjects: str | Sequence[str] | None
    options: ConsumeOptions | None


class _How(TypedDict, total=False):
    """How to keep a table."""

    partitions: Sequence[int] | None
    bytes_max: int
    fill_timeout_s: float
    options: ConsumeOptions | None
    on_diverged: DivergedCallback | None


def _consuming(method: Callable[..., Any], returns: str) -> Callable[..., Any]:
    """A method that makes a consumer as one that makes a synchronous one."""

    @wraps(method)
    def call(self: SyncLift, *args: Any, **kwargs: Any) -> Any:
        consumer = self._loop.call(lambda: method(self._inner, *args, **kwargs))
        kind = SyncConsumer if kwargs.get("group") is None else SyncGroupConsumer
        return kind(self._loop, consumer)

    return synchronous(call, returns=returns)


def _processing(
    method: Callable[Concatenate[Lift, _P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[SyncLift, _P], None]:
    """The method that processes as one that waits, and that signals stop."""

    @wraps(method)
    def call(self: SyncLift, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        stop: Any = kwargs.get("stop") or self._loop.call(asyncio.Event)
        kwargs["stop"] = stop
        with stopping_loop(lambda: self._loop.soon(stop.set)):
            self._loop.run(method(self._inner, *args, **kwargs))

    return synchronous(call)


def _viewing(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method that makes a table as one that makes a synchronous one."""

    @wraps(method)
    def call(self: SyncLift, *args: Any, **kwargs: Any) -> Any:
        return SyncTable(self._loop, self._loop.call(lambda: method(self._inner, *args, **kwargs)))

    return synchronous(call, returns="SyncTable")


class SyncPublisher(EnteredFacade[Publisher]):
    """A publisher for many messages, to be used in a `with`; see `Publisher`.

    `publish_batch` is the quick way: each call goes from thread to thread.
    """

    def wait(self, pending: PendingAck) -> Ack:
        """Wait for the ack of a message; `flush` and leaving the `with` wait for all of them, and tell of failures.

        Raises:
            LiftError: it could not be delivered.
        """

        async def wait() -> Ack:
            return await pending

        return self._loop.run(wait())

    publish = blocking(Publisher.publish)
    publish_batch = blocking(Publisher.publish_batch)
    flush = blocking(Publisher.flush)
    close = blocking(Publisher.close)
    close_within = blocking(Publisher.close_within)


def _publishing(
    method: Callable[Concatenate[Lift, _P], Publisher],
) -> Callable[Concatenate[Facade[Lift], _P], SyncPublisher]:
    """The method that makes a publisher as one that makes a synchronous one."""

    @wraps(method)
    def call(self: Facade[Lift], /, *args: _P.args, **kwargs: _P.kwargs) -> SyncPublisher:
        return SyncPublisher(self._loop, self._loop.call(lambda: method(self._inner, *args, **kwargs)))

    return synchronous(call, returns="SyncPublisher")


class SyncLift(Facade[Lift]):
    """A connection to liftpy: publish, consume, administer. Made by `connect_sync`; to be closed, or used in a `with`.

    Several threads may use it.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """See `Lift.is_closed`."""
        return self._inner.is_closed

    def close(self) -> None:
        """Close the connection, with whatever still uses it, and end its thread; idempotent."""
        try:
            self._loop.end(self._inner.close)
        finally:
            self._loop.close()

    def typed(self, stream: str, codec: Codec[_V], *, on_undecodable: OnUndecodable = "raise") -> SyncTypedStream[_V]:
        """Return a stream whose values are objects; see `Lift.typed`."""
        return SyncTypedStream(self, TypedStream(self._inner, stream, codec, on_undecodable))

    publish = blocking(Lift.publish)
    process = _processing(Lift.process)
    to_arrow = blocking(Lift.to_arrow)
    to_pandas = blocking(Lift.to_pandas)

    create_stream = blocking(Lift.create_stream)
    update_stream = blocking(Lift.update_stream)
    delete_stream = blocking(Lift.delete_stream)
    stream_info = blocking(Lift.stream_info)
    streams = collected(Lift.streams)
    pause_stream = blocking(Lift.pause_stream)
    resume_stream = blocking(Lift.resume_stream)
    set_read_only = blocking(Lift.set_read_only)
    purge_stream = blocking(Lift.purge_stream)
    find_streams = blocking(Lift.find_streams)
    reassign_stream = blocking(Lift.reassign_stream)
    recover_stream = blocking(Lift.recover_stream)
    cancel_reassignment = blocking(Lift.cancel_reassignment)

    cluster_info = blocking(Lift.cluster_info)
    nodes = blocking(Lift.nodes)
    node_details = blocking(Lift.node_details)
    node_info = blocking(Lift.node_info)
    quarantine = blocking(Lift.quarantine)
    drain_node = blocking(Lift.drain_node)
    remove_node = blocking(Lift.remove_node)

    epoch_ends = blocking(Lift.epoch_ends)

    groups = blocking(Lift.groups)
    group = blocking(Lift.group)
    delete_group = blocking(Lift.delete_group)
    committed = blocking(Lift.committed)
    reset_group = blocking(Lift.reset_group)

    tier_status = blocking(Lift.tier_status)
    restore_plan = blocking(Lift.restore_plan)
    restore = blocking(Lift.restore)
    verify_restore = blocking(Lift.verify_restore)

    publisher = _publishing(Lift.publisher)

    if TYPE_CHECKING:

        @overload
        def consume(
            self, stream: str | Sequence[str], *, group: None = None, **where: Unpack[_Where]
        ) -> SyncConsumer[Message]: ...
        @overload
        def consume(
            self,
            stream: str | Sequence[str],
            *,
            group: str,
            group_options: GroupOptions | None = None,
            **where: Unpack[_Where],
        ) -> SyncGroupConsumer[Message]: ...
        def consume(self, stream: str | Sequence[str], **arguments: Any) -> Any:
            """See `Lift`."""

        @overload
        def consume_batches(
            self, stream: str | Sequence[str], *, group: None = None, **where: Unpack[_Where]
        ) -> SyncConsumer[pa.RecordBatch]: ...
        @overload
        def consume_batches(
            self,
            stream: str | Sequence[str],
            *,
            group: str,
            group_options: GroupOptions | None = None,
            **where: Unpack[_Where],
        ) -> SyncGroupConsumer[pa.RecordBatch]: ...
        def consume_batches(self, stream: str | Sequence[str], **arguments: Any) -> Any:
            """See `Lift`."""

        @overload
        def table(self, stream: str, *, decode: None = None, **how: Unpack[_How]) -> SyncTable[bytes]: ...
        @overload
        def table(self, stream: str, *, decode: Callable[[bytes], _V], **how: Unpack[_How]) -> SyncTable[_V]: ...
        def table(self, stream: str, **arguments: Any) -> Any:
            """See `Lift`."""

    else:
        table = _viewing(Lift.table)
        consume = _consuming(Lift.consume, "SyncConsumer | SyncGroupConsumer")
        consume_batches = _consuming(Lift.consume_batches, "SyncConsumer | SyncGroupConsumer")


def connect_sync(
    url: str | None = None,
    *,
    name: str = "liftpy client",
    context: str | None = None,
    **options: Unpack[ConnectOptions],
) -> SyncLift:
    """Connect to liftpy through NATS, for code that is not asynchronous. Arguments and errors as for `connect`.

    To be used in a `with`, or closed in the end. It works where an event loop runs already, as in a notebook.
    """
    connecting = connect(url, name=name, context=context, **options)
    loop = BackgroundLoop(f"liftpy {name}")

    async def open_connection() -> Lift:
        return await connecting

    try:
        return SyncLift(loop, loop.run(open_connection()))
    except BaseException:
        loop.close()
        raise
