"""Keeps a consumer in its group: heartbeats, adopts assignments, and commits at its interval.

Three tasks run beside the application. One heartbeats. One watches the time, to notice that the process stood still.
One rebalances: it stops lost partitions, calls the callbacks, commits, adopts the assignment, and starts the gained
partitions, in this order and one assignment after the other. Partitions that stay are delivered without a pause. A
fourth task commits at its interval. An error in any of them ends the consumer, and is raised where the application
iterates.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.errors import (
    AdminError,
    CoordinatorUnavailableError,
    DisconnectedError,
    NodeUnavailableError,
    StreamGoneError,
)
from liftpy_client.group.commits import Commits
from liftpy_client.group.hand import Hand
from liftpy_client.group.starting import GroupStarts
from liftpy_envelope.errors import LiftError
from liftpy_envelope.limits import FETCH_WAIT_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
    from typing import Any

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.assigned import AssignedConsumer
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.consumer.positions import Position
    from liftpy_client.group.link import GroupLink
    from liftpy_client.group.member import Assignment, GroupMember, Lost
    from liftpy_client.group.options import GroupOptions, PartitionsCallback
    from liftpy_client.group.subscriptions import Subscriptions
    from liftpy_envelope.groups import LeaveRequest
    from liftpy_envelope.pull import PartitionKey

__all__ = ["GroupMembership", "Upcoming", "UpcomingPartitions"]

logger = logging.getLogger(__name__)
_HEARTBEATS_PER_SESSION: Final = 3
_HEARTBEAT_S_MIN: Final = 0.1  # whatever else is asked on the connection ends the wait of a heartbeat
_ADOPTING_HEARTBEATS_PER_SESSION: Final = 5
_BEATS_PER_STALL: Final = 3
_RETRY_S: Final = 0.3
_LOOK_S: Final = 10.0  # for streams that match a pattern
_LEAVE_S: Final = 2.0
_Result = TypeVar("_Result")


class GroupMembership:
    """The membership of one consumer, from joining to leaving.

    Args:
        session: Connections and the cluster's metadata.
        member: State machine of the membership.
        link: Connection to the coordinator.
        assigned: Reader of the assigned partitions.
        options: Fetch options, and options of the member.
        wait_processed: Waits, with a limit, until what the application has of partitions is processed; by default, of
            what is in its `hand`.
        subscriptions: Streams by name and pattern; None if there is no pattern.

    Attributes:
        hand: What the application has in hand.
        commits: Commits of processed offsets.
        upcoming: Partitions that `on_assigned` was told of and that are not read yet.
        confirmed_until_s: Loop time until which items may be delivered without calling `confirm_membership`.
        failure: The error that ended the membership.
        is_ending: Whether the last commit is under way. Heartbeats have ended.
        has_left: Whether commits are impossible now.
    """

    def __init__(
        self,
        session: Session,
        member: GroupMember,
        link: GroupLink,
        assigned: AssignedConsumer,
        options: tuple[ConsumeOptions, GroupOptions],
        wait_processed: Callable[[Collection[PartitionKey]], Awaitable[None]] | None = None,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        self._subscriptions = subscriptions
        self._session = session
        self._wait_processed = wait_processed or self._wait_hand
        self._member = member
        self._link = link
        self._assigned = assigned
        self._options = options[1]
        self.hand = Hand()
        self._goodbye: LeaveRequest | None = None  # while the application is stuck
        self._closing: asyncio.Task[None] | None = None
        self.commits = Commits(member, link, assigned, self.note, session.interceptors)
        self.upcoming = UpcomingPartitions()
        self._starts = GroupStarts(session, member, link, self.commits, options)
        self.confirmed_until_s = float("-inf")
        self.failure: BaseException | None = None
        self.is_ending = self.has_left = False
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._reading: set[PartitionKey] = set()
        self._losses: deque[Lost] = deque()
        self._losses_applied = asyncio.Event()
        self._losses_applied.set()
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        self._answered = asyncio.Event()
        self._answer_wait = _AbandonableWait()

    def start(self) -> None:
        """Join the group."""
        works = {"heartbeat": self._keep, "time": self._watch, "rebalance": self._rebalance}
        if self._options.commit_interval_s is not None:
            works["commit"] = self._checkpoint
        if self._subscriptions is not None and self._subscriptions.patterns:
            works["subscribe"] = self._subscribe
        group = self._member.join_options.group
        for what, work in works.items():
            task = asyncio.create_task(work(), name=f"group {group}: {what}")
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.failure is None:
            self.failure = error
            for other in self._tasks:
                other.cancel()
            self._tasks.append(self._loop.create_task(self._assigned.close()))
            self._losses_applied.set()
            self._answered.set()

    # -- what the one who iterates asks

    async def confirm_membership(self) -> bool:
        """Whether it still is the member for which something was fetched; if not, returns when all that is dropped.

        A callback is not made to wait for that: the task that drops things waits for the callback.
        """
        self.note(self._member.beat(self._loop.time()))
        if not self._losses:
            self.confirmed_until_s = self._member.beat_s + self._member.stall_s
            return True
        if not self.is_ending and asyncio.current_task() not in self._tasks:
            await self._losses_applied.wait()
        return False

    def note(self, lost: Lost | None) -> None:
        """All that the member had is lost, if so."""
        if lost is None:
            return
        logger.warning(
            "group %s: %d partitions are lost, joining anew: %s",
            self._member.join_options.group,
            len(lost.keys),
            lost.reason,
        )
        self._losses.append(lost)
        self.confirmed_until_s = float("-inf")
        self._losses_applied.clear()
        self.commits.forget(lost.keys)
        self._news.set()
        self._hurry.set()
        self._answer_wait.abandon()

    async def next_answer(self) -> None:
        """Wait until the coordinator has answered the next heartbeat."""
        self._answered.clear()
        self._hurry.set()
        await self._answered.wait()

    # -- the tasks

    async def _keep(self) -> None:
        member = self._member
        session_s = self._options.session_timeout_s
        wait_ms = min(int(session_s * 1000 / _HEARTBEATS_PER_SESSION), FETCH_WAIT_MS_MAX)
        while True:
            self._hurry.clear()
            if self._goodbye is not None:
                await self._stay_away(self._goodbye)
            request = member.request(wait_ms)
            sent_s = self._loop.time()
            try:
                result = await self._answer_wait.wait(self._link.ask(request))
            except CoordinatorUnavailableError:
                await self._link.pause()
                continue
            if result is None:
                continue
            self.note(member.answered(request, result, sent_s))
            self._answered.set()
            if member.pending is not None:
                self._news.set()
                await _rest(self._hurry, session_s / _ADOPTING_HEARTBEATS_PER_SESSION)
            else:
                await _rest(self._hurry, sent_s + _HEARTBEAT_S_MIN - self._loop.time())

    async def _watch(self) -> None:
        while True:
            self.note(self._member.beat(self._loop.time()))
            if not self._losses:
                self.confirmed_until_s = self._member.beat_s + self._member.stall_s
            self._give_back_when_stuck()
            await asyncio.sleep(self._member.stall_s / _BEATS_PER_STALL)

    def _give_back_when_stuck(self) -> None:
        """Let others have the partitions of an application that takes longer than it said for what it has in hand."""
        since_s, timeout_s = self.hand.since_s, self._options.handler_timeout_s
        if since_s is None or timeout_s is None or self._goodbye is not None:
            return
        if self._loop.time() - since_s < timeout_s or self._assigned.in_hand is None:
            return
        given = self._member.give_back(
            f"the application has had an item in hand for more than handler_timeout_s ({timeout_s:g} s)"
        )
        if given is not None:
            self._goodbye, lost = given
            self.hand.watch()
            self.note(lost)

    async def _stay_away(self, goodbye: LeaveRequest) -> None:
        """Leave, and return when the application is not stuck any more."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._link.ask(goodbye)
        except (LiftError, TimeoutError) as error:
            logger.info("group %s: left without saying so: %s", goodbye.group, error)
        await self.hand.free.wait()
        self.hand.unwatch()
        self._goodbye = None

    async def _subscribe(self) -> None:
        """Subscribe to streams that match a pattern, soon after they are created."""
        assert self._subscriptions is not None, "only then this task is started"
        group = self._member.join_options.group
        while True:
            try:
                names = await self._subscriptions.find(self._session.cluster)
            except (AdminError, NodeUnavailableError, DisconnectedError) as error:
                logger.warning("group %s: streams that match a pattern are not known: %s", group, error)
            else:
                if self._member.subscribe(names):
                    logger.info("group %s: subscribed to %s", group, ", ".join(names) or "no stream yet")
                    self._hurry.set()
                    self._answer_wait.abandon()
            await asyncio.sleep(_LOOK_S * random.uniform(0.5, 1))  # noqa: S311 - spreads requests

    async def _checkpoint(self) -> None:
        interval_s = self._options.commit_interval_s
        assert interval_s is not None, "only then this task is started"
        while True:
            await asyncio.sleep(interval_s)
            await self._commit_finished(self._loop.time() + max(interval_s, self._options.session_timeout_s))

    async def _commit_finished(self, until_s: float) -> None:
        """Commit what is finished. What cannot be committed now is with the next ones, unless others have it then."""
        try:
            await self.commits.commit(self.commits.finished, until_s)
        except CoordinatorUnavailableError as error:
            logger.warning("group %s: not committed: %s", self._member.join_options.group, error)

    async def _rebalance(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._apply_losses()
            pending = self._member.pending
            if pending is not None:
                await self._adopt(pending)
            await self._gain()

    async def _apply_losses(self) -> None:
        while self._losses:
            lost = self._losses[0]
            await self._stop(lost.keys)
            self.commits.forget(lost.keys)
            self._losses.popleft()
            if not self._losses:
                self._losses_applied.set()
            await self._tell(self._options.on_lost_partitions, lost.keys)

    async def _stop(self, keys: Iterable[PartitionKey]) -> None:
        """Let nothing more of these partitions reach the application."""
        numbers: dict[bytes, list[int]] = {}
        for key in sorted(self._reading.intersection(keys)):
            numbers.setdefault(key.uuid, []).append(key.partition)
            self._reading.discard(key)
        for uuid, of_stream in numbers.items():
            self.commits.stop(await self._assigned.revoke(self._member.names[uuid], uuid, of_stream))

    async def _adopt(self, pending: Assignment) -> None:
        lost = self._member.owned.keys() - pending.keys
        if lost:
            await self._release(lost)
        if self._member.adopt(pending):
            self.commits.forget(lost)
            self._hurry.set()

    async def _release(self, lost: set[PartitionKey]) -> None:
        numbers: dict[bytes, list[int]] = {}
        for key in sorted(lost & self._reading):
            numbers.setdefault(key.uuid, []).append(key.partition)
        for uuid, of_stream in numbers.items():
            self._assigned.pause(self._member.names[uuid], uuid, of_stream)
        await self._wait_processed(lost)
        await self._stop(lost)
        await self._tell(self._options.on_revoked, lost)
        if self._options.commit_interval_s is not None:
            await self._commit_finished(self._loop.time() + self._options.rebalance_timeout_s / 2)

    async def _wait_hand(self, keys: Collection[PartitionKey]) -> None:
        """Wait for what the application has in hand, if it is of these partitions."""
        if self.hand.since_s is not None and self._assigned.in_hand in keys:
            await self.hand.wait_free(self._patience_s(self.hand.since_s))

    def _patience_s(self, since_s: float) -> float:
        """How long to wait for the item in hand before its partition is released."""
        most_s, timeout_s = self._options.rebalance_timeout_s / 2, self._options.handler_timeout_s
        return most_s if timeout_s is None else min(max(since_s + timeout_s - self._loop.time(), 0.0), most_s)

    async def _gain(self) -> None:
        """Begin to read what was assigned and is not read yet, as far as that is possible now."""
        member = self._member
        try:
            positions, lost = await self._starts.find()
        except CoordinatorUnavailableError as error:
            logger.warning("group %s: where to begin is not known yet: %s", member.join_options.group, error)
            positions, lost = {}, None
        self.note(lost)
        since = {key: member.owned[key] for key in positions}
        self.upcoming.expect({key: at.offset for key, at in positions.items()})
        await self._tell(self._options.on_assigned, positions)
        for uuid in sorted({key.uuid for key in positions}):
            await self._begin(uuid, {key: at for key, at in positions.items() if key.uuid == uuid}, since)
        if member.unfetched and not self._news.is_set():
            self._loop.call_later(_RETRY_S, self._news.set)

    async def _begin(
        self, uuid: bytes, positions: Mapping[PartitionKey, Position], since: Mapping[PartitionKey, int]
    ) -> None:
        """Begin to read partitions of one stream, unless they went again meanwhile."""
        member = self._member
        here = [key for key in positions if key in member.unfetched and member.owned[key] == since[key]]
        self._reading.update(here)
        try:
            await self._assigned.assign(member.names[uuid], uuid, {key.partition: positions[key] for key in here})
        except (StreamGoneError, NodeUnavailableError, AdminError) as error:
            # The coordinator hears of the stream's end, too, and then takes the partitions back.
            logger.warning("group %s: cannot begin: %s", member.join_options.group, error)
            self._reading.difference_update(here)
            return
        for key in here:
            self._apply_upcoming(key)
            if member.owned.get(key) == since[key]:
                member.begin(key)

    def _apply_upcoming(self, key: PartitionKey) -> None:
        """Apply an early `seek` or `pause` to a partition, before its first message is delivered."""
        upcoming, name = self.upcoming.pop(key), self._member.names[key.uuid]
        if upcoming is not None and upcoming.is_sought:
            self._assigned.seek(name, key.uuid, key.partition, upcoming.offset)
        if upcoming is not None and upcoming.is_paused:
            self._assigned.pause(name, key.uuid, [key.partition])

    async def _tell(self, callback: PartitionsCallback | None, keys: Collection[PartitionKey]) -> None:
        if callback is None or not keys:
            return
        names = self._member.names
        result: Any = callback([(names[key.uuid], key.partition) for key in sorted(keys)])
        if inspect.isawaitable(result):
            await result

    # -- the end

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing is not None

    async def close(self) -> None:
        """Commit what is processed, and leave; a static member only falls silent.

        Raises:
            LiftError: What was processed cannot be committed. The membership has ended all the same.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._session.running.discard(self)
        await self.stop()  # first: they would go on into a closed reader
        await self._assigned.close()
        await self.end()

    async def stop(self) -> None:
        """End the tasks: from now on nothing is assigned, and no callback called, until `end`."""
        self.is_ending = True
        self._losses_applied.set()
        self._answered.set()
        current = asyncio.current_task()
        await end_tasks([task for task in self._tasks if task is not current])

    async def end(self) -> None:
        """Commit what is processed, and leave; a static member only falls silent. To be stopped before.

        Raises:
            LiftError: What was processed cannot be committed. The membership has ended all the same.
        """
        try:
            if self.failure is None:
                await self._hand_over()
        finally:
            self.has_left = True
            await self._leave()
            self._link.close()

    async def _hand_over(self) -> None:
        self.note(self._member.beat(self._loop.time()))
        for lost in self._losses:
            await self._tell(self._options.on_lost_partitions, lost.keys)
        await self._tell(self._options.on_revoked, set(self._member.owned))
        if self._options.commit_interval_s is not None:
            until_s = self._loop.time() + self._options.session_timeout_s
            await self.commits.commit(self.commits.finished, until_s)

    async def _leave(self) -> None:
        request = None if self._options.instance_id else self._member.leave()
        if request is None:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._link.ask(request)
        except (LiftError, TimeoutError) as error:
            logger.info("group %s: left without saying so: %s", request.group, error)


class Upcoming(NamedTuple):
    """A partition that is about to be read.

    Attributes:
        offset: The first offset to read.
        is_sought: Whether the application chose the offset with `seek`, rather than the group.
        is_paused: Whether the application paused the partition.
    """

    offset: int
    is_sought: bool = False
    is_paused: bool = False


class UpcomingPartitions:
    """Partitions that `on_assigned` was told of and that are not read yet.

    `on_assigned` is called before the first message, and is the place to call `seek` and `pause`. No reader has the
    partitions then. So both calls are kept here, and take effect when reading begins.
    """

    def __init__(self) -> None:
        self._upcoming: dict[PartitionKey, Upcoming] = {}

    def expect(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Replace all entries: these partitions are about to be read, from these offsets."""
        self._upcoming = {key: Upcoming(offset) for key, offset in offsets.items()}

    def find(self, key: PartitionKey) -> Upcoming | None:
        """Return the entry of a partition, or None if it is not about to be read."""
        return self._upcoming.get(key)

    def pop(self, key: PartitionKey) -> Upcoming | None:
        """Remove and return the entry of a partition, because reading begins."""
        return self._upcoming.pop(key, None)

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Begin at another offset."""
        self._upcoming[key] = self._upcoming[key]._replace(offset=offset, is_sought=True)

    def pause(self, key: PartitionKey, *, is_paused: bool) -> None:
        """Begin paused, or not."""
        self._upcoming[key] = self._upcoming[key]._replace(is_paused=is_paused)


class _AbandonableWait:
    """Waits for one thing at a time, and can be abandoned: a pending heartbeat must not hold up the next join."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None

    async def wait(self, work: Coroutine[Any, Any, _Result]) -> _Result | None:
        """Return the result of `work`, or raise its error; None when the wait was abandoned."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            return None
        finally:
            self._scope = None

    def abandon(self) -> None:
        """End the current wait, if there is one."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())


async def _rest(until: asyncio.Event, pause_s: float) -> None:
    """Wait for `pause_s` seconds, or until the event is set."""
    try:
        async with asyncio.timeout(max(pause_s, 0.0)):
            await until.wait()
    except TimeoutError:
        pass
