"""Gets what is published to its stream: sends it, waits for its ack, and sends it again as its lane says.

Sending again is harmless: a message carries an id and a batch the publisher's id with a sequence, so the node stores
each once. While NATS is being reconnected nothing is sent, since nats-py would only gather the copies.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from nats.errors import ConnectionClosedError, ConnectionDrainingError, MaxPayloadError, OutboundBufferLimitError
from nats.errors import Error as NatsError

from liftpy_client.errors import (
    AdminError,
    DisconnectedError,
    NobodyListensError,
    NodeUnavailableError,
    NoStreamError,
    PublishTimeoutError,
    UsageError,
)
from liftpy_client.publisher.in_flight import Lane, Outstanding
from liftpy_client.publisher.routes import find_route, is_current
from liftpy_envelope.ack import PublishRefusedError
from liftpy_envelope.errors import AckErrorCode, LiftError

if TYPE_CHECKING:
    from liftpy_client.connection.session import Session
    from liftpy_client.publisher.ack_inbox import AckInbox
    from liftpy_client.publisher.routes import Route
    from liftpy_envelope.ack import Ack

__all__ = ["Parcel", "Resender"]

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.05
_LOOK_S: Final = 0.5
_LANE_IDLE_S: Final = 30.0
_LEADER_CHANGES: Final = frozenset({AckErrorCode.NOT_ENOUGH_REPLICAS, AckErrorCode.OUTCOME_UNKNOWN})


class Parcel(Protocol):
    """What is sent."""

    route: Route

    @property
    def partition(self) -> int | None:
        """The partition it belongs to, where the stream has several."""
        ...

    def wrap(self, reply: str) -> tuple[str, bytes, dict[str, Any]]:
        """Subject, payload and options for nats-py; the ack is to come on `reply`."""
        ...

    def __str__(self) -> str:
        """As an error names it."""
        ...


class _Sending(Outstanding):
    """A parcel that waits for its ack."""

    __slots__ = ("acked", "options", "parcel", "payload", "refusal", "reply", "stream", "subject", "trouble")

    def __init__(self, parcel: Parcel, stream: str | None, patience_s: float, *, may_repeat: bool) -> None:
        super().__init__(patience_s, may_repeat=may_repeat)
        self.parcel = parcel
        self.stream = stream
        self.trouble = ""
        self.refusal: PublishRefusedError | None = None

    def begin(self, inbox: AckInbox) -> None:
        """Expect an ack. One that is merely late may still come, a refusal uses its inbox up."""
        self.reply, self.acked = inbox.expect(self.stream)
        self.wrap()

    def wrap(self) -> None:
        """Make what goes over the wire."""
        self.subject, self.payload, self.options = self.parcel.wrap(self.reply)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits."""
        if not self.acked.done():
            self.acked.set_exception(error)


class Resender:
    """See the module.

    Args:
        session: connections and the cluster's metadata.
        inbox: where acks come back.
    """

    def __init__(self, session: Session, inbox: AckInbox) -> None:
        self._session = session
        self._inbox = inbox
        self._lanes: dict[tuple[str, int | None], Lane[_Sending]] = {}
        self._looked_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: dict[Lane[_Sending], asyncio.Task[None]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def deliver(
        self, parcel: Parcel, stream: str | None, *, patience_s: float, timeout_s: float, may_repeat: bool = True,
        retriable: frozenset[AckErrorCode] = _LEADER_CHANGES,
    ) -> Ack:  # fmt: skip
        """Send a parcel until it is acknowledged.

        Args:
            parcel: what to send.
            stream: the stream whose ack counts; None for the first that answers.
            patience_s: without an ack for so long it is sent again, whatever comes back for others.
            timeout_s: how long to try.
            may_repeat: False: once it may be stored, it is not sent again.
            retriable: refusals after which it is sent again.

        Raises:
            PublishRefusedError: it was refused for good, or was not taken in time.
            PublishTimeoutError: no ack came in time: it may be stored or not.
            LiftError: it can not be sent.
        """
        config = parcel.route.config
        keeps_ids = config.dedupe_ids_max > 0 and config.dedupe_window_s > 0
        lane = self._lanes.setdefault((config.name, parcel.partition), Lane())
        sending = _Sending(parcel, stream, patience_s, may_repeat=may_repeat and keeps_ids)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                sending.begin(self._inbox)
                if lane.enter(sending, loop.time()):
                    await self._send(lane, sending)
                if self._timer is None:
                    self._timer = loop.call_later(_TICK_S, self._tick)
                ack = await self._acked(lane, sending, retriable)
        except TimeoutError:
            raise _too_late(sending, timeout_s) from None
        finally:
            lane.leave(sending)
            self._inbox.forget(sending.reply)
            if lane.has_held:
                self._flush_soon(lane)
        return ack

    async def _acked(self, lane: Lane[_Sending], sending: _Sending, retriable: frozenset[AckErrorCode]) -> Ack:
        """Wait for the ack; after what may pass a new one is expected, and the lane sends again."""
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
                    lane.answered(loop.time())
                    raise
                sending.refusal = error
                sending.trouble = f" ({error})"
                logger.info("sending %s again: %s", sending.parcel, error)
            else:
                lane.acknowledged(sending, ack.epoch, loop.time())
                return ack
            self._inbox.forget(sending.reply)
            sending.begin(self._inbox)
            lane.put_back(sending, loop.time(), is_stored=is_stored)

    async def _send(self, lane: Lane[_Sending], sending: _Sending) -> None:
        """Publish, unless there is no connection just now.

        Raises:
            DisconnectedError: the connection is closed for good.
            UsageError: NATS does not take such a message.
        """
        nats, loop = self._session.nats, asyncio.get_running_loop()
        size = len(sending.payload) + _headers_size(sending.options.get("headers"))
        if size > nats.max_payload > 0:  # nats-py does not count headers, and the server would close the connection
            text = f"a message of {size} bytes, key and headers included, is over what the NATS server takes"
            raise UsageError(f"{text} ({nats.max_payload})")
        lane.sent(sending, loop.time())
        try:
            if nats.is_connected or nats.is_closed:
                await nats.publish(sending.subject, sending.payload, **sending.options)
                return
        except MaxPayloadError:
            text = f"a message of {len(sending.payload)} bytes is over what the NATS server takes ({nats.max_payload})"
            raise UsageError(text) from None
        except OutboundBufferLimitError:
            pass  # nats-py gathers no more until there is a connection
        except (ConnectionClosedError, ConnectionDrainingError):
            raise DisconnectedError("the connection to NATS is closed") from None
        except NatsError as error:
            raise UsageError(f"NATS does not take the message for {sending.subject!r}: {error}") from error
        sending.trouble = " (the connection to NATS is lost)"
        lane.put_back(sending, loop.time(), is_stored=False)

    def _tick(self) -> None:
        """Look after all lanes; again soon, while anything waits."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for key, lane in list(self._lanes.items()):
            if lane.items:
                self._flush_soon(lane)
                if lane.is_in_trouble(now_s):
                    self._look_soon(key[0], now_s)
            elif lane.is_idle(now_s, _LANE_IDLE_S):
                del self._lanes[key]
                self._looked_s.pop(key[0], None)
        if any(lane.items for lane in self._lanes.values()):
            self._timer = loop.call_later(_TICK_S, self._tick)

    def _flush_soon(self, lane: Lane[_Sending]) -> None:
        if lane in self._flushing:
            return
        due = lane.due(asyncio.get_running_loop().time())
        if due:
            task = self._flushing[lane] = asyncio.create_task(self._flush(lane, due))
            task.add_done_callback(lambda _: self._flushing.pop(lane, None))

    async def _flush(self, lane: Lane[_Sending], due: list[_Sending]) -> None:
        """Send what is due, one after the other; whoever can not be sent is told."""
        loop = asyncio.get_running_loop()
        while due:
            is_probe = lane.is_stalled
            for sending in due:
                if lane.is_stalled and not is_probe:
                    break
                if sending not in lane.items or sending.acked.done():
                    continue
                try:
                    await self._send(lane, sending)
                except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                    sending.fail(error)
            due = [] if lane.is_stalled else lane.due(loop.time())

    def _look_soon(self, stream: str, now_s: float) -> None:
        if stream in self._looking or now_s - self._looked_s.get(stream, float("-inf")) < _LOOK_S:
            return
        self._looked_s[stream] = now_s
        task = self._looking[stream] = asyncio.create_task(self._look(stream))
        task.add_done_callback(lambda _: self._looking.pop(stream, None))

    async def _look(self, stream: str) -> None:
        """See whether a stream is still there, and tell those who wait for it when it is not."""
        cluster = self._session.cluster
        try:
            config = (await cluster.latest(stream)).config
        except NoStreamError:
            config = None
        except (NodeUnavailableError, AdminError, DisconnectedError) as error:
            logger.info("nobody tells where stream %s is: %s", stream, error)
            return
        waiting = [sending for key, lane in self._lanes.items() if key[0] == stream for sending in lane.items]
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
    known = "it may be stored or not" if sending.copies else "it is not stored"
    return PublishTimeoutError(
        f"{sending.parcel} was not acknowledged within {timeout_s:g} s{sending.trouble}; {known}"
    )


def _headers_size(headers: dict[str, str] | None) -> int:
    """Bytes of headers as NATS has them: a line that says the version, one for each, and an empty one."""
    if not headers:
        return 0
    return 14 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
