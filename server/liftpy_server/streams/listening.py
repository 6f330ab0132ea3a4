"""What this node listens to: the subscriptions of the streams of which it leads a partition, or is about to."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import Spread
from liftpy_server.ingest.binding import Binding
from liftpy_server.streams.opening import StreamNotOpenedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from liftpy_server.ingest.connection import IngestConnection
    from liftpy_server.partition.partition import Partition
    from liftpy_server.streams.opening import LocalStream

__all__ = ["Listening"]

logger = logging.getLogger(__name__)


class Listening:
    """Subscribes the partitions that this node leads. Streams without such a partition are ready at once."""

    def __init__(self) -> None:
        self._ingest: IngestConnection | None = None
        self._ready: dict[str, asyncio.Future[None]] = {}
        self._changed: dict[LocalStream, None] = {}
        self._binding = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def connect(self, ingest: IngestConnection, streams: Iterable[LocalStream]) -> list[Binding]:
        """Take the ingest connection. Returns the bindings of all streams, for it to subscribe when it connects."""
        self._ingest = ingest
        for stream in streams:
            stream.bindings = _wanted(stream)
        return [binding for stream in streams for binding in stream.bindings]

    def behind_since_s(self, stream: LocalStream) -> float:
        """What was published to a stream since then may be on its way to this node, by elapsed time.

        A partition that it takes over gets that as well, though the leader before may have stored it. Infinite while
        nothing of the stream is subscribed.
        """
        if self._ingest is None or self._ingest.hearing is None or not stream.bindings:
            return float("inf")
        return self._ingest.whole_s

    def confirmed(self, stream: LocalStream) -> None:
        """All subscriptions of a stream are confirmed."""
        stream.refusal = None
        self.set_ready(stream.info.uuid, None)

    async def wait_ready(self, uuid: str) -> None:
        """Wait until a stream is open and its subscriptions are confirmed.

        Raises:
            SubscriptionRefusedError: the NATS server does not allow them.
            StreamNotOpenedError: the node can not store it.
        """
        try:
            await asyncio.shield(self._future(uuid))
        except LiftError:
            self._ready.pop(uuid, None)
            raise

    def _future(self, uuid: str) -> asyncio.Future[None]:
        future = self._ready.get(uuid)
        if future is None:
            future = self._ready[uuid] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def set_ready(self, uuid: str, error: LiftError | None) -> None:
        """A stream is listened to, or can not be."""
        if self._future(uuid).done():
            del self._ready[uuid]
        if error is None:
            self._future(uuid).set_result(None)
        else:
            self._future(uuid).set_exception(error)

    def change(self, stream: LocalStream) -> None:
        """A stream is to be listened to in another way; it is done soon, together with others."""
        self._changed[stream] = None
        if self._ingest is not None and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._follow_changes(), name="listening")

    async def _follow_changes(self) -> None:
        while self._changed:
            await asyncio.sleep(0)  # the rest of a pass over many partitions
            streams, self._changed = list(self._changed), {}
            try:
                await self.bind(streams)
            except Exception as error:
                logger.exception("%d streams are not listened to as they should be", len(streams))
                for stream in streams:
                    self.set_ready(stream.info.uuid, StreamNotOpenedError(f"stream {stream.state.name!r}: {error!r}"))

    async def bind(self, streams: Collection[LocalStream]) -> None:
        """Subscribe what streams want now before leaving what they wanted: better a message twice than not at all."""
        assert self._ingest is not None, "not connected yet"
        async with self._binding:
            new: dict[LocalStream, list[Binding]] = {}
            stale: dict[LocalStream, list[Binding]] = {}
            for stream in streams:
                new[stream], stale[stream] = _update(stream)
            added = [binding for bindings in new.values() for binding in bindings]
            if added:
                await self._ingest.bind(added)
            dropped = []
            for stream in streams:
                refusal = self._ingest.refusal(new[stream])
                if refusal is not None:  # what it wanted is kept until the change is taken back, or the server gives in
                    logger.error("stream %s: %s", stream.state.name, refusal)
                    stream.refusal = refusal
                    self.set_ready(stream.info.uuid, refusal)
                    continue
                dropped += stale[stream]
                stream.bindings = [binding for binding in stream.bindings if binding not in stale[stream]]
            if dropped:
                await self._ingest.unbind(dropped)
            for stream in streams:
                if stale[stream] or not new[stream]:  # what was added has been confirmed, or will be
                    await self._reviewed(stream, self._ingest)

    async def _reviewed(self, stream: LocalStream, ingest: IngestConnection) -> None:
        if stream.refusal is not None:
            return
        if stream.bindings:
            await ingest.review(stream.state)
        else:
            self.set_ready(stream.info.uuid, None)

    async def leave(self, stream: LocalStream) -> None:
        """A stream is gone."""
        assert self._ingest is not None, "not connected yet"
        self._changed.pop(stream, None)
        async with self._binding:
            await self._ingest.unbind(stream.bindings)
        self._ready.pop(stream.info.uuid, None)

    async def stop(self, streams: Iterable[LocalStream]) -> None:
        """Take no more messages; those on their way arrive before this returns."""
        assert self._ingest is not None, "not connected yet"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._ingest.unbind([binding for stream in streams for binding in stream.bindings])


def _wanted(stream: LocalStream) -> list[Binding]:
    config = stream.state.config
    if config.is_internal:  # records come to its leaders in other ways
        return []
    led: dict[int, Partition] = {
        number: each for number, each in stream.partitions.items() if each.is_leading or each.held is not None
    }
    if not led:
        return []
    if config.partitions == 1 or config.spread is Spread.HASH:
        return [Binding(stream.state, config.subject, led)]
    return [
        Binding(stream.state, config.partition_subject(number), {number: partition})
        for number, partition in led.items()
    ]


def _update(stream: LocalStream) -> tuple[list[Binding], list[Binding]]:
    """The bindings that a stream lacks, which are added to it, and those that it needs no longer."""
    wanted = {binding.address: binding for binding in _wanted(stream)}
    known = {binding.address: binding for binding in stream.bindings}
    for address, binding in known.items():
        if address in wanted:
            binding.partitions = wanted[address].partitions
    new = [binding for address, binding in wanted.items() if address not in known]
    stream.bindings += new
    return new, [binding for address, binding in known.items() if address not in wanted]
