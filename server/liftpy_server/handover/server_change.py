"""From one NATS server to another without a message missing or double, while publishers at any server go on.

    the new server has the subscriptions   what comes from it is held; what comes from the old one is stored
    every server knows of them             a mark published at each one came by the new server
    marks cut what both bring alike        see `matching`
    the old server has brought the rest    a later mark published at each one came by the old server
    the old server's subscriptions end     what it brings until then is stored
    the new server has brought as much     a last mark published at each one came by it
    what is held and not stored is stored, and what comes from the new server from then on

Where marks do not come, or servers can not be asked, a moment is waited instead, and all that is held is stored:
better a message twice than not at all.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from liftpy_server.handover.held import HELD_BYTES_MAX, Held, HeldBytes, append_left
from liftpy_server.handover.refused import Refused
from liftpy_server.ingest.binding import Binding
from liftpy_server.ingest.marks import MARK_SUBJECT, Marks
from liftpy_server.settings.limits import MOVE_OVERLAP_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from liftpy_log.clock import Clock
    from liftpy_server.handover.held import Left
    from liftpy_server.ingest.subscriptions import Subscriptions
    from liftpy_server.messages.incoming import Incoming
    from liftpy_server.messages.runs import Run
    from liftpy_server.nats.connection import NatsConnection
    from liftpy_server.partition.partition import Partition

__all__ = ["ServerChange"]

logger = logging.getLogger(__name__)

_TOKENS: Final = tuple(f"mark.{number}" for number in range(5))
_MARK_INTERVAL_S: Final = 0.02
_LOOK_S: Final = 0.005
_TIMEOUT_S: Final = 2.0  # of each step
_REFUSED_MAX: Final = 1_000  # of a partition
_UNBOUNDED: Final = 1 << 62
_NO_MARKS: Final = "marks did not come"


class _Reach(Marks):
    """Marks on a subject of their own: who hears one knows that the server where it was published knows of him."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.subject = f"{MARK_SUBJECT}.{name}"


class _HeldPartition:
    """Stands for a partition where its messages are held."""

    def __init__(self, partition: Partition, room: HeldBytes, clock: Clock) -> None:
        self.partition = partition
        held = Held(room)
        held.refused = Refused(_REFUSED_MAX)
        partition.on_refused = held.refused.note
        self.held: Held | None = held
        self.marks: list[int] = []
        self._clock = clock

    def append(self, run: Run, skip: int, now_ns: int) -> None:
        """See `Partition`."""
        if self.held is None or not self.held.add(run, skip):
            self.partition.append(run, skip, now_ns)

    def append_incoming(self, messages: Sequence[Incoming], now_ns: int) -> None:
        """See `Partition`."""
        if self.held is None or not self.held.add_read(list(messages)):
            self.partition.append_incoming(messages, now_ns)

    def end_pass(self) -> None:
        """See `Partition`."""
        self.partition.end_pass()

    def release(self, stored: Sequence[int] | None) -> None:
        """Store what is held.

        Args:
            stored: The end of the log at each mark, for what is stored already to be left out; None leaves out nothing.
        """
        held, self.held = self.held, None
        if held is None:
            return
        partition = self.partition
        partition.on_refused = None
        try:
            left: Iterable[Left] = held.refused.without(held.all(), partition.stream.config)
            if stored is not None and held.marks == len(stored) == len(_TOKENS):
                held.stored = tuple(stored)
                left = held.not_stored(partition.log, partition.stream.config)
            append_left(partition, left, self._clock.now_ns())
        except Exception as error:
            cause = f"messages that were held while another NATS server was chosen could not be taken: {error!r}"
            logger.exception("stream %s partition %d: %s", partition.stream.name, partition.number, cause)
            if partition.is_leading:
                partition.gaps.missed(partition.heard_s, cause)
        held.drop()
        partition.end_pass()


class _HeldBinding(Binding):
    """Feeds what stands for the partitions of a binding.

    Args:
        binding: Binding whose messages are held.
        stand_in: Gives what stands for a partition.
        on_held: Called when more is held.
    """

    def __init__(
        self, binding: Binding, stand_in: Callable[[Partition], _HeldPartition], on_held: Callable[[], None]
    ) -> None:
        super().__init__(binding.stream, binding.subject, {})
        self._binding = binding
        self._stand_in = stand_in
        self._on_held = on_held

    def deliver(self, run: Run, now_ns: int, touched: dict[Partition, None]) -> None:
        """See `Binding`. Partitions that this node leads only now are fed, too."""
        led = self._binding.partitions
        held = {number: self._stand_in(partition) for number, partition in led.items()}
        self.partitions = cast("dict[int, Partition]", held)
        super().deliver(run, now_ns, touched)
        self._on_held()

    def missed(self, cause: str) -> None:
        """See `Binding`."""
        self._binding.missed(cause)


class ServerChange:
    """One change. See the module.

    Args:
        before: The subscriptions at the old server.
        new: Those to be at the new one.
        marks: Heard at the old server.
        clock: Clock that says when messages are stored.
        flush: Sends the acks that are due.
    """

    def __init__(
        self, before: Subscriptions, new: Subscriptions, marks: Marks, clock: Clock, flush: Callable[[], None]
    ) -> None:
        self._before = before
        self._new = new
        self._marks = marks
        self._clock = clock
        self._flush = flush
        self._name = secrets.token_hex(8)
        self._held: dict[Partition, _HeldPartition] = {}
        self._room = HeldBytes(_UNBOUNDED)
        self._may_pause = False  # not while an answer of the new server is waited for
        self._is_full = False
        self._own_marks = new.ingest.marks = Marks()
        self._reach = _Reach(self._name)
        self._old_heard: set[str] = set()
        self._new_heard: set[str] = set()

    def hold(self, binding: Binding) -> Binding:
        """What takes the messages of a binding from the new server for now."""
        if binding is self._marks:
            return self._own_marks
        for partition in binding.partitions.values():  # marks count for those, too, of which nothing has come yet
            self._stand_in(partition)
        return _HeldBinding(binding, self._stand_in, self._check_room)

    def subscribed(self) -> None:
        """See `ServerChange` of the ingest connection."""
        self._may_pause = True
        self._check_room()

    def _check_room(self) -> None:
        """The chunk that is too much is held as well, and then nothing more is read: so the order is kept."""
        if self._may_pause and not self._is_full and _UNBOUNDED - self._room.left > HELD_BYTES_MAX:
            self._is_full = True
            self._new.connection.pause()

    def _stand_in(self, partition: Partition) -> _HeldPartition:
        if partition not in self._held:
            self._held[partition] = _HeldPartition(partition, self._room, self._clock)
        return self._held[partition]

    async def leave(self, wanted: Sequence[Binding], servers: Sequence[NatsConnection], *, are_all: bool) -> None:
        """Leave the old server, which has the subscriptions, as the new one has by now.

        Args:
            wanted: What is subscribed at both.
            servers: Connections to publish marks on: the first to the new server, and one to each other server of the
                cluster but the old one.
            are_all: Whether there is one for each.
        """
        why = "" if servers and are_all else "not every server of the cluster can be reached"
        if not why:
            why = self._why if self._is_full else await self._match(servers)
        is_matched = not why
        if why:
            logger.warning("messages of %g s may be stored twice: %s", MOVE_OVERLAP_S, why)
            await asyncio.sleep(MOVE_OVERLAP_S)
        await self._before.unsubscribe(wanted)
        if is_matched and not await self._reached(servers, "last"):
            logger.warning("messages may be stored twice after the change of NATS servers: %s", self._why)
        self._marks.forget(self._name)
        for each in self._held.values():
            each.release(each.marks if is_matched else None)
        self._new.release()
        self._new.ingest.marks = self._marks
        self._new.connection.resume()
        await self._new.unsubscribe([self._reach])
        self._flush()

    async def _match(self, servers: Sequence[NatsConnection]) -> str:
        """All steps before the old server's subscriptions end. Returns why they failed; empty if they did not."""
        self._marks.expect(self._name, self._heard_old)
        self._own_marks.expect(self._name, self._heard_new)
        self._reach.expect(self._name, self._new_heard.add)
        self._may_pause = False
        is_subscribed = await self._new.subscribe([self._reach])
        self._may_pause = True
        if not is_subscribed:
            return "the new connection was lost"
        self._check_room()
        if not await self._reached(servers, "first"):
            return self._why
        for token in _TOKENS:
            self._publish(servers[0], MARK_SUBJECT, token)
            if not await self._until(partial(self._is_heard, token)) or not await self._level(
                servers, f"{token}.after"
            ):
                return self._why
        return ""

    def _is_heard(self, token: str) -> bool:
        return token in self._old_heard and token in self._new_heard

    async def _level(self, servers: Sequence[NatsConnection], what: str) -> bool:
        """Wait until all that was published by now at any server has come from both the old one and the new one.

        So a message that comes from both is at most one mark apart, however slow the routes are.
        """
        tokens = [f"{what}.{number}" for number in range(len(servers))]
        for server, token in zip(servers, tokens, strict=True):
            self._publish(server, MARK_SUBJECT, token)
        own = f"{what}.own"
        self._publish(self._before.connection, MARK_SUBJECT, own)  # a server gives nobody what he published himself
        answered = self._before.connection.ask()
        came = await self._until(
            lambda: (
                answered.done() and self._old_heard.issuperset(tokens) and self._new_heard.issuperset([*tokens, own])
            )
        )
        return came and answered.result()

    @property
    def _why(self) -> str:
        return "too much is published meanwhile" if self._is_full else _NO_MARKS

    async def _reached(self, servers: Sequence[NatsConnection], what: str) -> bool:
        """Publish a mark at every server until all came by the new one; False when some do not."""
        every = {f"{what}.{number}": server for number, server in enumerate((*servers, self._before.connection))}
        until_s = asyncio.get_running_loop().time() + _TIMEOUT_S
        while asyncio.get_running_loop().time() < until_s and not self._is_full:
            missing = [token for token in every if token not in self._new_heard]
            if not missing:
                return True
            for token in missing:
                self._publish(every[token], self._reach.subject, token)
            await asyncio.sleep(_MARK_INTERVAL_S)
        return False

    async def _until(self, condition: Callable[[], bool]) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while not self._is_full and not condition():  # noqa: ASYNC110 - marks are heard in plain calls
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return False
        return condition()

    def _publish(self, server: NatsConnection, subject: str, token: str) -> None:
        payload = f"{self._name} {token}".encode()
        server.write(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))

    def _heard_old(self, token: str) -> None:
        if token in _TOKENS and token not in self._old_heard:
            for each in self._held.values():
                each.marks.append(each.partition.log.log_end)
        self._old_heard.add(token)

    def _heard_new(self, token: str) -> None:
        if token in _TOKENS and token not in self._new_heard:
            for each in self._held.values():
                if each.held is not None:
                    each.held.mark()
        self._new_heard.add(token)
