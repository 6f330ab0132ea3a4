"""Delivers published messages and batches: sends each, waits for its ack, and sends it again as its queue decides.

Sending again is harmless: a message carries an id and a batch the publisher's id with a sequence, so the node stores
each once. Nothing is sent while NATS reconnects, because nats-py would only buffer the copies.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from nats.errors import ConnectionClosedError, ConnectionDrainingError, MaxPayloadError, OutboundBufferLimitError
from nats.errors import Error as NatsError

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_client.elapsed import ElapsedClock
from liftpy_client.errors import (
    AdminError,
    DisconnectedError,
    NobodyListensError,
    NodeUnavailableError,
    NoStreamError,
    PublishTimeoutError,
    UsageError,
)
from liftpy_client.publisher.in_flight import InFlightQueue, InFlightRequest
from liftpy_client.publisher.routes import find_route, is_current
from liftpy_envelope.ack import PublishRefusedError
from liftpy_envelope.errors import AckErrorCode, LiftError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.connection.permissions import Violation
    from liftpy_client.connection.session import Session
    from liftpy_client.publisher.ack_inbox import AckInbox
    from liftpy_client.publisher.routes import Route
    from liftpy_envelope.ack import Ack

__all__ = ["Parcel", "Resender"]

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.05
_LOOK_S: Final = 0.5
_QUEUE_IDLE_S: Final = 30.0
_LEADER_CHANGES: Final = frozenset({AckErrorCode.NOT_ENOUGH_REPLICAS, AckErrorCode.OUTCOME_UNKNOWN})


class Parcel(Protocol):
    """A message or batch that is published."""

    route: Route

    @property
    def partition(self) -> int | None:
        """Partition of the parcel, where the stream has several."""
        ...

    def wrap(self, reply: str) -> tuple[str, bytes, dict[str, Any]]:
        """Return subject, payload and options for nats-py. The ack comes to `reply`."""
        ...

    def __str__(self) -> str:
        """Name the parcel in an error."""
        ...


class _Sending(InFlightRequest):
    """A parcel in flight."""

    __slots__ = (
        "acked",
        "expires_s",
        "options",
        "parcel",
        "payload",
        "refusal",
        "reply",
        "stream",
        "subject",
        "trouble",
    )

    def __init__(self, parcel: Parcel, stream: str | None, retry_after_s: float, *, may_repeat: bool) -> None:
        super().__init__(retry_after_s, may_repeat=may_repeat)
        self.parcel = parcel
        self.stream = stream
        self.expires_s = float("inf")
        self.trouble = ""
        self.refusal: PublishRefusedError | None = None

    def begin(self, inbox: AckInbox) -> None:
        """Expect an ack on a new reply subject. A refusal uses up the previous one."""
        self.reply, self.acked = inbox.expect(self.stream)
        self.wrap()

    def wrap(self) -> None:
        """Build subject, payload and options."""
        self.subject, self.payload, self.options = self.parcel.wrap(self.reply)

    def fail(self, error: Exception) -> None:
        """Fail the pending ack with `error`. No effect if it is already resolved."""
        if not self.acked.done():
            self.acked.set_exception(error)


class Resender:
    """Sends parcels until they are acknowledged.

    Args:
        session: Connections and the cluster's metadata.
        inbox: Subscription on which acks arrive.
        clock: Seconds, also those in which the machine sleeps.
    """

    def __init__(self, session: Session, inbox: AckInbox, clock: Callable[[], float] | None = None) -> None:
        self._session = session
        self._inbox = inbox
        self._clock = clock or ElapsedClock()
        self._queues: dict[tuple[str, int | None], InFlightQueue[_Sending]] = {}
        self._looked_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        session.permissions.listen(self._hear)
        self._flushing: dict[InFlightQueue[_Sending], asyncio.Task[None]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def deliver(
        self, parcel: Parcel, stream: str | None, *, retry_after_s: float, timeout_s: float, may_repeat: bool = True,
        retriable: frozenset[AckErrorCode] = _LEADER_CHANGES, is_ordered: bool = False,
    ) -> Ack:  # fmt: skip
        """Send a parcel until it is acknowledged.

        Args:
            parcel: The message or batch.
            stream: Stream whose ack counts; None for the first that answers.
            retry_after_s: Seconds without an ack after which the parcel is sent again in any case.
            timeout_s: Seconds after which the attempt ends.
            may_repeat: If False, the parcel is not sent again once it may be stored.
            retriable: Refusals after which the parcel is sent again.
            is_ordered: Whether it is of an ordered producer, which any stream recognizes.

        Raises:
            PublishRefusedError: A node refused the parcel for good, or still refused it after `timeout_s`.
            PublishTimeoutError: No ack came in time. The parcel may be stored.
            NotPermittedError: NATS does not let us publish, or hear acks.
            LiftError: The parcel cannot be sent.
        """
        config = parcel.route.config
        keeps_ids = config.dedupe_ids_max > 0 and config.dedupe_window_s > 0
        queue = self._queues.setdefault((config.name, parcel.partition), InFlightQueue())
        sending = _Sending(parcel, stream, retry_after_s, may_repeat=may_repeat and (keeps_ids or is_ordered))
        sending.expires_s = self._clock() + timeout_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                sending.begin(self._inbox)
                if queue.add(sending, loop.time()):
                    await self._send(queue, sending)
                if self._timer is None:
                    self._timer = loop.call_later(_TICK_S, self._tick)
                ack = await self._acked(queue, sending, retriable)
        except TimeoutError:
            raise _too_late(sending, timeout_s) from None
        finally:
            queue.remove(sending)
            self._inbox.forget(sending.reply)
            if queue.has_held:
                self._flush_soon(queue)
        return ack

    async def _acked(
        self, queue: InFlightQueue[_Sending], sending: _Sending, retriable: frozenset[AckErrorCode]
    ) -> Ack:
        """Wait for the ack. After a retriable refusal, expect a new one: the queue sends again."""
        loop = asyncio.get_running_loop()
        while True:
            is_stored: bool | None = False
            try:
                ack = await sending.acked
            except NobodyListensError:
                sending.trouble = " (no node listens to this subject)"
            except PublishRefusedError as error:
                is_stored = None if error.may_be_stored else False
                if error.code not in retriable or (is_stored is None and not sending.may_repeat):
                    queue.answered(loop.time())
                    raise
                sending.refusal = error
                sending.trouble = f" ({error})"
                logger.info("sending %s again: %s", sending.parcel, error)
            else:
                queue.acknowledged(sending, ack.epoch, loop.time())
                return ack
            self._inbox.forget(sending.reply)
            sending.begin(self._inbox)
            queue.put_back(sending, loop.time(), is_stored=is_stored)

    async def _send(self, queue: InFlightQueue[_Sending], sending: _Sending) -> None:
        """Publish, unless the connection to NATS is lost at the moment.

        Raises:
            DisconnectedError: The connection is closed for good.
            UsageError: NATS does not accept the message.
        """
        nats, loop = self._session.nats, asyncio.get_running_loop()
        size = len(sending.payload) + _headers_size(sending.options.get("headers"))
        if size > nats.max_payload > 0:  # nats-py does not count headers, and the server would close the connection
            text = f"a message of {size} bytes, key and headers included, exceeds max_payload of the NATS server"
            raise UsageError(f"{text} ({nats.max_payload})")
        queue.sent(sending, loop.time())
        try:
            if nats.is_connected or nats.is_closed:
                with KeptCancellation():
                    await nats.publish(sending.subject, sending.payload, **sending.options)
                return
        except MaxPayloadError:
            text = f"{len(sending.payload)} bytes exceed max_payload of the NATS server ({nats.max_payload})"
            raise UsageError(text) from None
        except OutboundBufferLimitError:
            pass  # nats-py buffers no more until there is a connection
        except (ConnectionClosedError, ConnectionDrainingError):
            raise DisconnectedError("the connection to NATS is closed") from None
        except NatsError as error:
            raise UsageError(f"NATS refuses the message for {sending.subject!r}: {error}") from error
        sending.trouble = " (the connection to NATS is lost)"
        queue.put_back(sending, loop.time(), is_stored=False)

    def _hear(self, violation: Violation) -> None:
        """Fail what NATS does not let us publish, and what nobody can acknowledge."""
        for queue in self._queues.values():
            for sending in queue.items:
                error = violation.error_of(sending.subject, self._session.permissions.inbox)
                if error is not None:
                    sending.fail(error)

    def _tick(self) -> None:
        """Flush all queues. Repeat soon while a request waits."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for key, queue in list(self._queues.items()):
            if queue.items:
                self._flush_soon(queue)
                if queue.is_in_trouble(now_s):
                    self._look_soon(key[0], now_s)
            elif queue.is_idle(now_s, _QUEUE_IDLE_S):
                del self._queues[key]
                self._looked_s.pop(key[0], None)
        if any(queue.items for queue in self._queues.values()):
            self._timer = loop.call_later(_TICK_S, self._tick)

    def _flush_soon(self, queue: InFlightQueue[_Sending]) -> None:
        if queue in self._flushing:
            return
        due = queue.due(asyncio.get_running_loop().time())
        if due:
            task = self._flushing[queue] = asyncio.create_task(self._flush(queue, due))
            task.add_done_callback(lambda _: self._flushing.pop(queue, None))

    async def _flush(self, queue: InFlightQueue[_Sending], due: list[_Sending]) -> None:
        """Send the requests that are due, in order. One that cannot be sent fails."""
        loop = asyncio.get_running_loop()
        while due:
            is_probe = queue.is_stalled
            for sending in due:
                if queue.is_stalled and not is_probe:
                    break
                if sending not in queue.items or sending.acked.done():
                    continue
                try:
                    if self._clock() > sending.expires_s:  # the loop's clock stood still, and nodes forget ids
                        sending.trouble = " (the machine slept)"
                        raise TimeoutError
                    await self._send(queue, sending)
                except Exception as error:  # noqa: BLE001 - whatever it is, the caller that awaits the ack gets it
                    sending.fail(error)
            due = [] if queue.is_stalled else queue.due(loop.time())

    def _look_soon(self, stream: str, now_s: float) -> None:
        if stream in self._looking or now_s - self._looked_s.get(stream, float("-inf")) < _LOOK_S:
            return
        self._looked_s[stream] = now_s
        task = self._looking[stream] = asyncio.create_task(self._look(stream))
        task.add_done_callback(lambda _: self._looking.pop(stream, None))

    async def _look(self, stream: str) -> None:
        """Look whether a stream still exists. If it does not, fail the requests to it."""
        cluster = self._session.cluster
        try:
            config = (await cluster.latest(stream)).config
        except NoStreamError:
            config = None
        except (NodeUnavailableError, AdminError, DisconnectedError) as error:
            logger.info("stream %s: no answer about its leaders: %s", stream, error)
            return
        waiting = [sending for key, queue in self._queues.items() if key[0] == stream for sending in queue.items]
        for sending in waiting:
            route = sending.parcel.route
            if config is not None and is_current(route, config):
                continue
            try:
                sending.parcel.route = await find_route(cluster, route.subject, sending.stream, fresh=True)
                sending.wrap()
            except (NodeUnavailableError, AdminError) as error:
                logger.info("sending to %r again: %s", route.subject, error)
                return
            except LiftError as error:
                sending.fail(error)


def _too_late(sending: _Sending, timeout_s: float) -> LiftError:
    if sending.refusal is not None and not sending.copies:
        return sending.refusal
    known = "it may be stored" if sending.copies else "it is not stored"
    return PublishTimeoutError(
        f"{sending.parcel} was not acknowledged within {timeout_s:g} s{sending.trouble}; {known}"
    )


def _headers_size(headers: dict[str, str] | None) -> int:
    """Return the size of headers on the wire: a version line, one line per header, and an empty line."""
    if not headers:
        return 0
    return 14 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
