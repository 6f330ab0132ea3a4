"""`Lift.process`: one member of a group that calls a handler for each message.

The membership is that of any consumer of a group: heartbeats, rebalances, and commits at an interval. Its reader takes
the positions of the partitions from the schedule, so every commit is one of finished messages, without a hole.

When partitions are to move, nothing more of them starts, and what runs gets time to end. When the process is to stop,
the same is so for all partitions. Then it commits and leaves the group.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.errors import UsageError
from liftpy_client.group.link import GroupLink
from liftpy_client.group.member import GroupMember, JoinOptions
from liftpy_client.group.membership import GroupMembership
from liftpy_client.group.subscriptions import Subscriptions
from liftpy_client.processing.batches import Gatherer
from liftpy_client.processing.dead_letters import DeadLetters
from liftpy_client.processing.handlers import HandlerThreads, is_asynchronous
from liftpy_client.processing.outputs import Outputs
from liftpy_client.processing.reader import ProcessReader
from liftpy_client.processing.schedule import Schedule
from liftpy_client.processing.signals import stopping
from liftpy_client.processing.workers import Workers
from liftpy_envelope.errors import LiftError
from liftpy_envelope.groups import CLIENT_BYTES_MAX, NONCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.group.options import GroupOptions
    from liftpy_client.message import Message
    from liftpy_client.processing.options import By, ProcessOptions
    from liftpy_client.publisher.ordered import OrderedDelivery
    from liftpy_client.tracing.interceptors import Interceptors
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Process"]

logger = logging.getLogger(__name__)
_OPEN_S: Final = 30.0
_ANSWERS_PER_SESSION: Final = 3
_MESSAGE_BYTES: Final = 400  # of a message and its work, beside value, key and headers


class Process:
    """Handles the messages of a group until it is stopped.

    Args:
        session: Connections and the cluster's metadata.
        publish: `Lift.publish`, for dead letters.
        streams: Names and patterns of the streams.
        group: Name of the group.
        handle: The handler.
        options: How to call it.
        consume_options: Fetch options.
        group_options: Options of the member.
        ordered: Delivers the outputs of transactions, if there are any.
    """

    def __init__(
        self,
        session: Session,
        publish: Callable[..., Awaitable[Any]],
        streams: Sequence[str],
        group: str,
        handle: Callable[..., Any],
        options: ProcessOptions,
        consume_options: ConsumeOptions,
        group_options: GroupOptions,
        ordered: OrderedDelivery | None = None,
    ) -> None:
        self._session = session
        self._subscriptions = Subscriptions(streams)
        self._group = group
        self._options = options
        self._group_options = group_options
        self._is_asynchronous = is_asynchronous(handle)
        self._threads = (
            None if self._is_asynchronous else HandlerThreads(handle, options.concurrency, f"liftpy {group}")
        )
        call: Callable[..., Awaitable[Any]] = handle if self._threads is None else self._threads
        if session.interceptors:
            call = _intercepted(call, group, session.interceptors)
        self._schedule = Schedule(options.concurrency, options.in_flight_messages, options.in_flight_bytes)
        letters = None if options.dead_letter is None else DeadLetters(publish, options.dead_letter, group)
        outputs = None
        if options.atomic:
            assert ordered is not None, "outputs are delivered"
            outputs = Outputs(self._schedule, ordered, group, options.run, options.dead_letter)
        self._workers = Workers(
            self._schedule,
            call if options.batch is None else lambda batch: call(batch.records()),
            None if letters is None else letters.bury,
            options,
            self._is_member,
            is_interruptible=self._is_asynchronous,
            outputs=outputs,
        )
        self._gatherer = None if options.batch is None else Gatherer(self._schedule, options.batch, self._workers.wake)
        self._reader = ProcessReader(
            session, consume_options, self._schedule, self._drop, batches=options.batch is not None
        )
        self._member = GroupMember(
            self._join_options(consume_options), os.urandom(NONCE_BYTES), asyncio.get_running_loop().time()
        )
        answer_s = max(0.5, min(group_options.session_timeout_s / _ANSWERS_PER_SESSION, 5.0))
        link = GroupLink(session, group, answer_s)
        both = consume_options, group_options
        self._membership = GroupMembership(
            session, self._member, link, self._reader, both, self._release, self._subscriptions
        )
        self._lane = lane_of(options.by)
        self._paused: set[PartitionKey] = set()
        self._stop = asyncio.Event()  # by a signal, by cancelling, or with the connection
        self._work: asyncio.Task[None] | None = None

    def _join_options(self, consume_options: ConsumeOptions) -> JoinOptions:
        options = self._group_options
        return JoinOptions(
            self._group,
            options.instance_id or "",
            self._session.name[: CLIENT_BYTES_MAX // 4],
            consume_options.rack or "",
            int(options.session_timeout_s * 1000),
            int(options.rebalance_timeout_s * 1000),
            self._subscriptions.names,
        )

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Handle messages until `stop` is set, SIGTERM comes, or an error ends it.

        If it is cancelled, it stops in the same way first. If it is cancelled again, it stops at once.

        Raises:
            LiftError: see `Lift.process`.
        """
        work = self._work = asyncio.ensure_future(self._run(stop or self._stop))
        self._session.running.add(self)
        work.add_done_callback(lambda _: self._session.running.discard(self))
        try:
            with stopping(self._stop.set):
                await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done():
                raise
            self._stop.set()
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                work.cancel()
                raise
            if not work.cancelled() and (error := work.exception()) is not None:
                logger.warning("group %s: while it was being cancelled: %s", self._group, error)
            raise

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._work is not None and self._work.done()

    async def close(self) -> None:
        """End it in the same way, because the connection is to be closed. `run` raises its errors.

        If this is cancelled, it ends at once.
        """
        self._stop.set()
        if self._work is None:
            return
        try:
            await asyncio.wait({self._work})
        except asyncio.CancelledError:
            self._work.cancel()
            raise

    async def _run(self, stop: asyncio.Event) -> None:
        for stream in self._subscriptions.names:
            await self._session.cluster.confirmed(stream, _OPEN_S)
        self._membership.start()
        pump = asyncio.create_task(self._pump(), name=f"process {self._group}: read")
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._stop, self._workers.on_failure)]
        try:
            await asyncio.wait({pump, *waits}, return_when=asyncio.FIRST_COMPLETED)
            pump.cancel()
            self._schedule.stop()
            if not await self._workers.finish(None, self._options.shutdown_timeout_s):
                logger.warning(
                    "group %s: handlers have not ended in shutdown_timeout_s=%g; their messages are not committed",
                    self._group,
                    self._options.shutdown_timeout_s,
                )
        finally:
            late = await self._end([pump, *waits])
        read = None if pump.cancelled() else pump.exception()
        for failure in (self._workers.failure, self._membership.failure, read, late):
            if failure is not None:
                raise failure

    async def _end(self, tasks: list[asyncio.Future[Any]]) -> LiftError | None:
        """Commit and leave. Return why that was not possible."""
        await end_tasks(tasks)
        self._schedule.stop()
        self._schedule.cut(self._schedule.partitions)
        await self._workers.close()
        if self._threads is not None:
            self._threads.close()
        await self._membership.stop()  # first: it would go on into a closed reader
        await self._reader.close()
        try:
            await self._membership.end()
        except LiftError as error:
            return error
        return None

    # -- reading

    async def _pump(self) -> None:
        parts = self._reader.parts()
        try:
            async for stream, key, part in parts:
                if await self._is_member():
                    await (self._take_messages(key, part) if self._gatherer is None else self._take(stream, key, part))
        finally:
            await parts.aclose()

    async def _take_messages(self, key: PartitionKey, messages: Any) -> None:
        schedule, workers, lane, epoch = self._schedule, self._workers, self._lane, None
        for message in messages:
            if epoch is None:
                epoch = self._reader.epoch(key)
            size = (
                _MESSAGE_BYTES + len(message.value or b"") + len(message.key or b"") + len(message.header_block or b"")
            )
            schedule.add(key, lane(key, message), message.offset, epoch, size, message)
            workers.wake()
            if not schedule.has_share(key):
                self._pause(key)
            while not schedule.has_room:
                await workers.progress()

    async def _take(self, stream: str, key: PartitionKey, parts: Any) -> None:
        assert self._gatherer is not None, "it is there for batches"
        for records in parts:
            self._gatherer.add(stream, key, self._reader.epoch(key), records)
            while not self._schedule.has_room:
                self._gatherer.seal_all()
                await self._workers.progress()

    def _pause(self, key: PartitionKey) -> None:
        """Let other partitions have their share of the room."""
        self._workers.on_progress = self._resume
        self._paused.add(key)
        self._reader.pause_key(key)

    def _resume(self) -> None:
        for key in [key for key in self._paused if not self._schedule.is_behind(key)]:
            self._paused.discard(key)
            if not self._schedule.is_held(key):
                self._reader.resume_key(key)
        if not self._paused:
            self._workers.on_progress = None

    # -- what the membership asks

    async def _is_member(self) -> bool:
        membership = self._membership
        return asyncio.get_running_loop().time() < membership.confirmed_until_s or await membership.confirm_membership()

    async def _release(self, keys: Collection[PartitionKey]) -> None:
        """Let what runs of these partitions end, for as long as the group can wait."""
        self._schedule.hold(keys)
        limit_s = min(2 * self._options.handler_timeout_s, self._group_options.rebalance_timeout_s / 3)
        if not await self._workers.finish(keys, limit_s):
            logger.warning(
                "group %s: handlers have not ended in %.1f s, and their partitions move; others handle the messages",
                self._group,
                limit_s,
            )

    def _drop(self, key: PartitionKey) -> None:
        """A partition is not this member's any more."""
        self._paused.discard(key)
        if self._gatherer is not None:
            self._gatherer.drop(key)
        self._workers.interrupt(self._schedule.drop(key))
        self._workers.notify()
        self._workers.wake()


def _intercepted(
    call: Callable[..., Awaitable[Any]], group: str, interceptors: Interceptors
) -> Callable[..., Awaitable[Any]]:
    async def intercepted(item: Any, *transaction: Any) -> None:
        with interceptors.processing(group, item):
            await call(item, *transaction)

    return intercepted


def lane_of(by: By) -> Callable[[PartitionKey, Message], Hashable]:
    """The function that tells in which lane a message is."""
    if by == "key":
        return lambda key, message: None if message.key is None else (key, message.key)
    if by == "subject":
        return lambda key, message: (key, message.subject)
    if by == "partition":
        return lambda key, _: key
    chosen: Any = by

    def lane(key: PartitionKey, message: Message) -> Hashable:
        try:
            value = chosen(message)
        except Exception as error:
            error.add_note(f"raised by the function `by` of `process`, for {message!r}")
            raise
        try:
            hash(value)
        except TypeError:
            raise UsageError(
                f"by: the function returned {value!r:.60} for {message!r}; what it returns must be hashable, such as "
                "text, bytes, a number, or a tuple of them"
            ) from None
        return None if value is None else (key, value)

    return lane
