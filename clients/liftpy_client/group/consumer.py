"""A member of a consumer group, as the application holds it.

Delivery is at least once. A message counts as processed when the application requests the next one or commits it, and
only offsets of processed messages are committed. A message that was in hand when the process died, when the handler
raised, or when the loop was left, is delivered again, to this or another member.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, cast

from liftpy_client.connection.session import close_when_dropped
from liftpy_client.consumer.assigned import AssignedConsumer
from liftpy_client.consumer.positions import check_start
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.consumer.taking import check_count, check_timeout
from liftpy_client.errors import (
    CommitRefusedError,
    ConsumerEndedError,
    GroupRefusedError,
    LogDivergedError,
    OffsetLostError,
    UsageError,
)
from liftpy_client.group.link import GroupLink
from liftpy_client.group.member import GroupMember, JoinOptions
from liftpy_client.group.membership import GroupMembership, UpcomingPartitions
from liftpy_client.group.offsets import check_offset, find_bounds, refusal_error
from liftpy_client.group.options import check_group_name, check_streams
from liftpy_client.group.subscriptions import Subscriptions
from liftpy_client.group.transaction import Transaction, check_run, producer_id
from liftpy_client.message import Message
from liftpy_envelope.group_offsets import CommitOffset
from liftpy_envelope.groups import CLIENT_BYTES_MAX, NONCE_BYTES, GroupError
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
    from datetime import datetime
    from types import TracebackType

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.delivery import Mark
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.group.commits import Offsets
    from liftpy_client.group.options import GroupOptions
    from liftpy_client.publisher.ordered import OrderedDelivery
    from liftpy_envelope.group_offsets import CommitRefusal

__all__ = ["GroupConsumer"]

_Item = TypeVar("_Item")
# A coordinator that hangs must be noticed, and its successor found, within a session.
_ANSWERS_PER_SESSION: Final = 3
_ANSWER_S_MIN: Final = 0.5
_ANSWER_S_MAX: Final = 5.0
_OPEN_S: Final = 30.0


class GroupConsumer(Generic[_Item]):
    """An asynchronous iterator over what the group's coordinator assigns to this process.

    Use it in an `async with`. It joins when it is entered, or else when it is iterated. It ends with the `async with`,
    and outside of one with `close`, with the connection, and when nothing refers to it. It survives reconnects,
    leader changes and rebalances. A new iteration continues with what was in hand.

    `seek` and `pause` work for the partitions that are assigned at the moment, from when `on_assigned` is told of them.
    Their effect on a partition ends when the partition is revoked.

    Args:
        session: Connections and the cluster's metadata.
        streams: Names of the streams.
        group: Name of the group.
        options: Fetch options.
        group_options: Options of the member.
        batches: Whether to deliver Arrow record batches rather than messages.
        ordered: Delivers the outputs of transactions.

    Raises:
        UsageError, NameInvalidError: a name cannot be one.
    """

    def __init__(
        self,
        session: Session,
        streams: Sequence[str],
        group: str,
        options: ConsumeOptions,
        group_options: GroupOptions,
        *,
        batches: bool,
        ordered: OrderedDelivery | None = None,
    ) -> None:
        self._ordered = ordered
        self._transaction: Transaction | None = None
        self._session = session
        self._subscriptions = Subscriptions(check_streams(list(streams)))
        self._options = options
        self._member: GroupMember | None = None
        self._upcoming = UpcomingPartitions()
        self._assigned: AssignedConsumer | None = None
        self._group = check_group_name(group)
        self._group_options = group_options
        self._batches = batches
        self._membership: GroupMembership | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._is_entered = False

    # -- iterating

    def __aiter__(self) -> AsyncIterator[_Item]:
        return self._items()

    async def _items(self) -> AsyncGenerator[_Item, None]:
        await self._open()
        assigned, membership = self._assigned, self._membership
        assert assigned is not None and membership is not None  # noqa: PT018 - both are there once it is open
        clock, hand = asyncio.get_running_loop().time, membership.hand
        turn = hand.begin()
        try:
            async for item in assigned:
                now_s = clock()
                if now_s >= membership.confirmed_until_s and not await membership.confirm_membership():
                    continue
                hand.since_s = now_s
                yield cast("_Item", item)
                hand.put_down()
        except Exception as error:
            await self._failed(error)
            raise
        finally:
            hand.end(turn)
        await self._ended()

    async def next(self, timeout_s: float | None = None) -> _Item | None:
        """Return the next item, and count the one before as processed; None when none came in time.

        Args:
            timeout_s: Seconds to wait; None waits as long as it takes.

        Raises:
            ConsumerEndedError: The consumer was closed.
            LiftError: Fetching or the membership has ended.
            UsageError: Another task waits for the next item.
        """
        found = await self._next(None, timeout_s)
        return found[0] if found else None

    async def next_batch(self, max_messages: int, timeout_s: float | None = None) -> list[_Item]:
        """Return the next items, all of one partition, and count those before as processed.

        They are in hand together. Only the first of them is waited for.

        Args:
            max_messages: How many at most.
            timeout_s: Seconds to wait; None waits as long as it takes.

        Returns:
            The items; none if none came in time.

        Raises:
            LiftError: As for `next`.
        """
        check_count(max_messages)
        return await self._next(max_messages, timeout_s)

    def redeliver(self) -> None:
        """Deliver what `next` or `next_batch` returned last again, with the next request."""
        if self._assigned is not None:
            self._assigned.redeliver()

    async def _next(self, count: int | None, timeout_s: float | None) -> list[_Item]:
        check_timeout(timeout_s)
        await self._open()
        assigned, membership = self._assigned, self._membership
        assert assigned is not None and membership is not None  # noqa: PT018 - both are there once it is open
        clock, hand = asyncio.get_running_loop().time, membership.hand
        hand.begin()
        until_s = None if timeout_s is None else clock() + timeout_s
        try:
            while True:
                left_s = None if until_s is None else max(until_s - clock(), 0.0)
                if count is not None:
                    found = await assigned.next_batch(count, left_s)
                else:
                    item = await assigned.next(left_s)
                    found = [] if item is None else [item]
                if not found or clock() < membership.confirmed_until_s or await membership.confirm_membership():
                    break
        except ConsumerEndedError:
            await self._ended()
            raise
        except Exception as error:
            await self._failed(error)
            raise
        if found:
            hand.since_s = clock()
        return cast("list[_Item]", found)

    async def _failed(self, error: Exception) -> None:
        """Outside of an `async with` the consumer ends with an error of its own."""
        if isinstance(error, (LogDivergedError, OffsetLostError)):
            error.add_note(f"group {self._group!r} was to go on there; `reset_group` moves it elsewhere")
        if not self._is_entered and not isinstance(error, UsageError):
            await self.close()

    async def _ended(self) -> None:
        """Nothing more comes: tell why, if it was not closed."""
        if not self._is_entered:
            await self.close()
        if self._membership is not None and self._membership.failure is not None:
            raise self._membership.failure

    async def _open(self) -> None:
        async with self._opening:
            self._check_open()
            if self._membership is not None:
                return
            for stream in self._subscriptions.names:
                await self._session.cluster.confirmed(stream, _OPEN_S)
            self._check_open()
            options = self._group_options
            join_options = JoinOptions(
                self._group,
                options.instance_id or "",
                self._session.name[: CLIENT_BYTES_MAX // 4],
                self._options.rack or "",
                int(options.session_timeout_s * 1000),
                int(options.rebalance_timeout_s * 1000),
                self._subscriptions.names,
            )
            member = GroupMember(join_options, os.urandom(NONCE_BYTES), asyncio.get_running_loop().time())
            self._member = member
            self._assigned = AssignedConsumer(self._session, self._options, batches=self._batches)
            answer_s = max(_ANSWER_S_MIN, min(options.session_timeout_s / _ANSWERS_PER_SESSION, _ANSWER_S_MAX))
            link = GroupLink(self._session, self._group, answer_s)
            both = self._options, options
            self._membership = GroupMembership(
                self._session, member, link, self._assigned, both, subscriptions=self._subscriptions
            )
            self._upcoming = self._membership.upcoming
            self._membership.start()
            self._session.running.add(self._membership)
            close_when_dropped(self, self._membership)

    def _check_open(self) -> None:
        if self._is_closed or (self._membership is not None and self._membership.is_closed):
            raise UsageError("this consumer is closed; create another one")

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_entered = False
        await self.close()

    async def close(self) -> None:
        """Commit processed offsets, unless only `commit` does that, and leave the group.

        A static member does not leave: if it returns within its session timeout, its partitions have not moved.

        Raises:
            CoordinatorUnavailableError: Processed offsets could not be committed. The messages are delivered again.
            GroupRefusedError: The same, because the coordinator refused the commit.
        """
        self._is_closed = True
        if self._membership is not None:
            await self._membership.close()

    # -- committing

    async def commit(self, offsets: Mapping[tuple[str, int], int] | Message | None = None) -> None:
        """Commit offsets, and return when they are stored. The group continues there, whatever happens to this process.

        Args:
            offsets: A message: it and those before it in its partition are committed. Or the next offset to read, by
                stream and partition, at most the one after the message in hand. By default, the offsets of all
                processed messages. The message in hand is not processed yet.

        Raises:
            CommitRefusedError: An offset is beyond what was read, or the partition is not assigned to this consumer.
                Nothing was committed.
            NoStreamError: There is no such stream.
            GroupRefusedError: Partitions were revoked before the commit. Their offsets are not committed.
            CoordinatorUnavailableError: The coordinator was unreachable for as long as a rebalance may take.
            UsageError: the consumer has not begun, or has ended.
        """
        membership = self._membership
        if membership is None or membership.has_left:
            raise UsageError("this consumer is not in its group: enter it with `async with`, or iterate it first")
        if not await membership.confirm_membership():
            raise self._gone()
        rows: Callable[[], Offsets] = membership.commits.finished
        if isinstance(offsets, Message):
            offsets = {(offsets.stream, offsets.partition): offsets.offset + 1}
        if offsets is not None:
            checked = await self._checked(offsets)
            rows = checked.copy
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._group_options.rebalance_timeout_s
        while True:
            refusals = await membership.commits.commit(rows, until_s)
            if membership.failure is not None:
                raise membership.failure
            if refusals is None:
                raise self._gone()
            self._raise_refusal(refusals, is_late=membership.is_ending or loop.time() >= until_s)
            if not refusals:
                self._settle(offsets)
                return
            await membership.next_answer()

    def _settle(self, offsets: Mapping[tuple[str, int], int] | None) -> None:
        """What is in hand and was committed is not delivered again to whoever leaves the loop and iterates again."""
        assert self._assigned is not None, "it is in its group"
        for (stream, partition), offset in (offsets or {}).items():
            key = self.find_key(stream, partition)
            if key is not None:
                self._assigned.settle(stream, key.uuid, partition, offset)

    def _gone(self) -> GroupRefusedError:
        text = f"group {self._group!r}: this process was away for too long, and has lost its partitions"
        return GroupRefusedError(GroupError.UNKNOWN_MEMBER, f"{text}; what was not committed is delivered again")

    def _raise_refusal(self, refusals: list[CommitRefusal], *, is_late: bool) -> None:
        """Raise the first that does not pass with the next heartbeat."""
        for refusal in refusals:
            if is_late or refusal.error is not GroupError.STALE_GENERATION:
                stream = "" if self._member is None else self._member.names.get(refusal.key.uuid, "")
                raise refusal_error(self._group, stream, refusal)

    async def _checked(self, offsets: Mapping[tuple[str, int], int]) -> Offsets:
        assert self._assigned is not None, "it is in its group"
        assert self._membership is not None, "it is in its group"
        rows: Offsets = {}
        finished = self._membership.commits.every()
        for (stream, partition), offset in offsets.items():
            check_offset(stream, partition, offset)
            key = self.find_key(stream, partition)
            if key is None:
                raise await self._not_ours(stream, partition)
            read = self._assigned.position(stream, key.uuid, partition)
            if read is None or offset > read:
                raise await self._beyond(stream, partition, offset, read)
            known = finished.get(key)
            epoch = known.epoch if known is not None and known.offset == offset else -1
            rows[key] = CommitOffset(partition, offset, epoch)
        return rows

    async def _not_ours(self, stream: str, partition: int) -> CommitRefusedError:
        """Why an offset of a partition cannot be committed that this consumer does not have."""
        place = await self._session.cluster.stream(stream, fresh=True)
        count = place.config.partitions
        if not 0 <= partition < count:
            return CommitRefusedError(f"stream {stream} has partitions 0 to {count - 1}, not {partition}")
        if stream not in self._streams:
            return CommitRefusedError(f"stream {stream} is not one that this consumer of {self._group!r} reads")
        return CommitRefusedError(
            f"stream {stream} partition {partition} is not this consumer's: another member of group {self._group!r} "
            "has it, or will have it soon; nothing was committed"
        )

    async def _beyond(self, stream: str, partition: int, offset: int, read: int | None) -> CommitRefusedError:
        """Why an offset cannot be committed that was not read."""
        _, bounds = await find_bounds(self._session, stream, [partition])
        end = bounds[partition].end
        what = f"stream {stream} partition {partition}: {offset} cannot be committed"
        if offset > end:
            return CommitRefusedError(f"{what}: the partition ends at {end}")
        upto = "nothing of it" if read is None else f"it up to {read}"
        return CommitRefusedError(f"{what}: this consumer has read {upto}, of {end}; to leave messages out, seek")

    # -- transactions

    @asynccontextmanager
    async def atomically(self, message: Message, *, run: str = "") -> AsyncIterator[Transaction]:
        """Store the outputs of a message once, however often the message is handled.

        Outputs are sent when the block ends without an exception, and it returns when all of them are acknowledged.
        After that the message counts as processed as any other does: when the next one is requested. If this process
        dies before that, the message is delivered again, and its outputs, sent again, are not stored again. So a
        handler must publish the same outputs in the same order when it gets the same message.

        Args:
            message: The message that was delivered last.
            run: A name for this processing of the stream by this group. With another name, outputs are stored again:
                choose one when the group is reset to process messages again.

        Raises:
            GroupRefusedError: The partition of the message is not assigned to this consumer any more.
            UsageError: The message is not the one that was delivered last, or is in a transaction already.
            LiftError: An output was not acknowledged. Others may be stored; they count when the message is handled
                again.
        """
        check_run(run)
        mark, key = self._in_hand(message)
        transaction = self._transaction = Transaction(
            self._delivery(), producer_id(self._group, key, run), mark.epoch, message.offset
        )
        try:
            yield transaction
            await transaction.send()
        finally:
            transaction.end()
            self._transaction = None

    def _delivery(self) -> OrderedDelivery:
        if self._ordered is None:
            raise UsageError("this consumer was made without a connection to publish with; use `Lift.consume`")
        return self._ordered

    def _in_hand(self, message: Message) -> tuple[Mark, PartitionKey]:
        """Position after the message in hand, and the key of its partition."""
        if self._transaction is not None:
            raise UsageError("another transaction of this consumer is open: a group's outputs have the source's order")
        reader, key = self._reader, self.find_key(message.stream, message.partition)
        if key is None:
            raise self._gone()
        mark = reader.mark(key)
        if mark is None or mark.offset != message.offset + 1 or mark.epoch < 0:
            raise UsageError(f"{message!r} is not the message that was delivered last; transactions are of that one")
        return mark, key

    # -- what it has

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """Assigned partitions, as pairs of stream and number."""
        member = self._member
        return [] if member is None else sorted((member.names[key.uuid], key.partition) for key in member.owned)

    @property
    def generation(self) -> int:
        """Generation of this member's assignment. It grows with each change. 0 before the first assignment."""
        return 0 if self._member is None else self._member.generation

    @property
    def member_id(self) -> str:
        """Id that the coordinator gave this member. "" while it is no member."""
        return "" if self._member is None else self._member.member_id

    def find_key(self, stream: str, partition: int) -> PartitionKey | None:
        """Return the key of a partition, if it is assigned to this consumer."""
        member = self._member
        named = {} if member is None else {uuid for uuid, name in member.names.items() if name == stream}
        keys = (PartitionKey(uuid, partition) for uuid in named)
        return next((key for key in keys if member is not None and key in member.owned), None)

    # -- where it is

    def position(self, partition: int = 0, *, stream: str | None = None) -> int:
        """Return the offset after the last delivered message.

        Raises:
            UsageError: The partition is not assigned to this consumer at the moment.
        """
        name = self._stream(stream)
        (key,) = self._keys(name, [partition])
        upcoming = self._upcoming.find(key)
        offset = self._reader.position(name, key.uuid, partition) if upcoming is None else upcoming.offset
        if offset is None:
            raise UsageError(f"partition {partition} of stream {name} is not being read yet")
        return offset

    def lag(self, *, stream: str | None = None) -> dict[int, int]:
        """Return the lag of each assigned partition: committed offsets not yet delivered, as last reported.

        Raises:
            UsageError: There is no such stream.
        """
        name = self._stream(stream)
        return {number: lag for (of, _, number), lag in self._reader.lag().items() if of == name}

    # -- where it goes

    def seek(self, offset: int | Mapping[int, int], *, stream: str | None = None) -> None:
        """Continue at another offset in assigned partitions. Later commits start from there.

        Args:
            offset: The next offset to deliver, for all assigned partitions or by partition.
            stream: Name of the stream; needed only when several are consumed.

        Raises:
            UsageError: The offset is invalid, there is no such stream, or the partition is not assigned.
        """
        name = self._stream(stream)
        wanted = offset if isinstance(offset, Mapping) else {key.partition: offset for key in self._of_stream(name)}
        check_start(wanted)
        for key in self._keys(name, list(wanted)):
            if self._upcoming.find(key) is not None:
                self._upcoming.seek(key, wanted[key.partition])
            else:
                self._reader.seek(name, key.uuid, key.partition, wanted[key.partition])

    async def seek_to_time(
        self, when: datetime, *, partitions: Sequence[int] | None = None, stream: str | None = None
    ) -> None:
        """Continue at the first message that is not older than a time.

        Args:
            when: The time, with a time zone. If all messages are older, the consumer continues at the end.
            partitions: Numbers of the partitions; by default all that are assigned.
            stream: Name of the stream; needed only when several are consumed.

        Raises:
            UsageError: The time has no time zone, or a partition is not assigned, or was revoked.
            LiftError: The leaders could not be asked.
        """
        check_start(when)
        name = self._stream(stream)
        numbers = [key.partition for key in self._keys(name, partitions)]
        _, found = await StartFinder(self._session, when, None, numbers, self._options).find(name)
        self.seek({number: position.offset for number, position in found.items()}, stream=name)

    def pause(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Stop the delivery of some partitions, by default all assigned ones, until `resume` or until they are revoked.

        Raises:
            UsageError: There is no such stream, or the partition is not assigned.
        """
        for name, key in self._steered(partitions, stream):
            if self._upcoming.find(key) is not None:
                self._upcoming.pause(key, is_paused=True)
            else:
                self._reader.pause(name, key.uuid, [key.partition])

    def resume(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Continue the delivery of paused partitions at their positions.

        Raises:
            UsageError: There is no such stream, or the partition is not assigned.
        """
        for name, key in self._steered(partitions, stream):
            if self._upcoming.find(key) is not None:
                self._upcoming.pause(key, is_paused=False)
            else:
                self._reader.resume(name, key.uuid, [key.partition])

    @property
    def _reader(self) -> AssignedConsumer:
        if self._assigned is None:
            raise UsageError("this consumer has not begun: enter it with `async with`, or iterate it first")
        return self._assigned

    @property
    def _streams(self) -> tuple[str, ...]:
        """Names of the streams that are consumed now."""
        return self._subscriptions.names if self._member is None else self._member.join_options.subscriptions

    def _steered(self, partitions: Sequence[int] | None, stream: str | None) -> list[tuple[str, PartitionKey]]:
        names = self._streams if stream is None and partitions is None else (self._stream(stream),)
        return [(name, key) for name in names for key in self._keys(name, partitions)]

    def _stream(self, stream: str | None) -> str:
        if stream is None and len(self._streams) == 1:
            return self._streams[0]
        if stream not in self._streams:
            raise UsageError(f"stream: {stream!r} is not one of those that are consumed: {', '.join(self._streams)}")
        return stream

    def _of_stream(self, stream: str) -> list[PartitionKey]:
        member = self._member
        return [] if member is None else sorted(key for key in member.owned if member.names[key.uuid] == stream)

    def _keys(self, stream: str, partitions: Collection[int] | None) -> list[PartitionKey]:
        here = {key.partition: key for key in self._of_stream(stream)}
        if partitions is None:
            return list(here.values())
        missing = [number for number in partitions if number not in here]
        if missing:
            raise UsageError(f"partition {missing[0]} of stream {stream} is not this consumer's at the moment")
        return [here[number] for number in partitions]
