"""Gets a message or a batch to its stream: sends it, waits for its ack, and sends it again as it was.

Sending again is harmless: a message carries an id and a batch the publisher's id with a sequence, so the node stores
each once. While NATS is being reconnected nothing is sent, since nats-py would only gather the copies.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from nats.errors import ConnectionClosedError, ConnectionDrainingError, MaxPayloadError, OutboundBufferLimitError
from nats.errors import Error as NatsError

from liftpy_client.errors import (
    AdminError,
    DisconnectedError,
    NobodyListensError,
    NodeUnavailableError,
    PublishTimeoutError,
    UsageError,
)
from liftpy_client.routes import find_route
from liftpy_envelope.ack import Ack, AckPolicy, PublishRefusedError
from liftpy_envelope.envelope import COOKIE, encode_batch, encode_message_envelope
from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.headers import encode_header_block
from liftpy_envelope.stream_config import AckMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.client import Client

    from liftpy_client.ack_inbox import AckInbox
    from liftpy_client.outgoing import OutgoingBatch
    from liftpy_client.publisher_options import PublisherOptions
    from liftpy_client.routes import Route
    from liftpy_client.session import Session

__all__ = ["BatchDelivery", "MessageDelivery", "OutgoingMessage"]

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
_MESSAGE_ID: Final = "Nats-Msg-Id"
_HEADER_SAFE: Final = re.compile(rb"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


async def _send(nats: Client, subject: str, payload: bytes, options: dict[str, Any]) -> bool:
    """Publish; False when there is no connection just now.

    Raises:
        DisconnectedError: the connection is closed for good.
        UsageError: NATS does not take such a message.
    """
    if not nats.is_connected and not nats.is_closed:
        return False
    try:
        await nats.publish(subject, payload, **options)
    except MaxPayloadError:
        raise UsageError(
            f"a message of {len(payload)} bytes is over what the NATS server takes ({nats.max_payload})"
        ) from None
    except OutboundBufferLimitError:
        return False
    except (ConnectionClosedError, ConnectionDrainingError):
        raise DisconnectedError("the connection to NATS is closed") from None
    except NatsError as error:
        raise UsageError(f"NATS does not take the message for {subject!r}: {error}") from error
    return True


def _policy(route: Route, given: AckPolicy | None) -> AckPolicy | None:
    """The ack policy to ask for: whoever waits for an ack wants one, whatever the stream does without being asked."""
    if given is None and route.config.ack_policy is AckPolicy.NONE:
        return AckPolicy.ALL
    return given


class OutgoingMessage:
    """One message, and what is asked for it.

    Raises:
        HeaderError: a header can not stand in a NATS header block.
        UsageError: the value is not bytes, or the expected offset none.
    """

    def __init__(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_offset: int | None = None,
        ack_policy: AckPolicy | None = None,
    ) -> None:
        for name, given in (("value", value), ("key", key)):
            if given is not None and not isinstance(given, (bytes, bytearray, memoryview)):
                raise UsageError(f"{name} must be bytes, not {type(given).__name__}; encode text first")
        if expected_offset is not None and not 0 <= expected_offset < 2**63 - 1:
            raise UsageError(f"expected_offset: {expected_offset} is not an offset (a whole number from 0 on)")
        if headers is not None:
            encode_header_block(headers)  # nats-py would let a line break through, and with it another header
        self.value = None if value is None else bytes(value)
        self.key = None if key is None else bytes(key)
        self.headers = headers
        self.message_id = message_id or (headers or {}).get(_MESSAGE_ID) or uuid4().hex
        self.expected_offset = expected_offset
        self.ack_policy = ack_policy

    def wrap(self, route: Route, reply: str) -> tuple[bytes, dict[str, Any]]:
        """Payload and options for nats-py: plain with headers where that can say it, else in an envelope."""
        value, policy = self.value, _policy(route, self.ack_policy)
        if value is not None and route.config.acks is AckMode.REPLY and self._fits_headers(value):
            lines = dict(self.headers or {}) | {_MESSAGE_ID: self.message_id}
            if self.key is not None:
                lines["Lift-Key"] = self.key.decode("ascii")
            if self.expected_offset is not None:
                lines["Lift-Expected-Offset"] = str(self.expected_offset)
            if policy is not None:
                lines["Lift-Ack"] = policy.value
            return value, {"reply": reply, "headers": lines}
        payload = encode_message_envelope(
            value,
            key=self.key,
            headers=self.headers,
            ack_inbox=reply,
            ack_policy=policy,
            msg_id=self.message_id.encode(),
            expected_offset=self.expected_offset,
        )
        return payload, {}

    def _fits_headers(self, value: bytes) -> bool:
        if value.startswith(COOKIE):
            return False  # it would be opened as an envelope
        texts = [self.message_id.encode()] + ([] if self.key is None else [self.key])
        return all(_HEADER_SAFE.fullmatch(text) for text in texts)


class MessageDelivery:
    """Delivers single messages.

    Args:
        session: connections and the cluster's metadata.
        inbox: where acks come back.
    """

    def __init__(self, session: Session, inbox: AckInbox) -> None:
        self._session = session
        self._inbox = inbox

    async def deliver(
        self, subject: str, message: OutgoingMessage, stream: str | None, timeout_s: float, retries: int
    ) -> Ack:
        """Send a message, up to `1 + retries` times, and wait `timeout_s` for its ack each time.

        Raises:
            NoStreamError: no stream stores the subject.
            PublishRefusedError: the node refuses the message.
            PublishTimeoutError: no ack came.
        """
        sending = _Sending(self._session, self._inbox, message, stream)
        sending.route = await find_route(self._session.cluster, subject, stream)
        await self._inbox.open()
        sending.expect()
        try:
            for attempt in range(1 + retries):
                try:
                    async with asyncio.timeout(timeout_s):
                        return await sending.until_answered()
                except TimeoutError:
                    if attempt < retries:
                        await sending.find_route_again()
        finally:
            sending.forget()
        raise PublishTimeoutError(
            f"no ack for {subject!r} within {timeout_s * (1 + retries):g} s{sending.trouble}; "
            "the message may be stored or not"
        )


class _Sending:
    """One message on its way. An ack that is late counts, so the inbox stays the same while it can."""

    route: Route
    trouble = ""

    def __init__(self, session: Session, inbox: AckInbox, message: OutgoingMessage, stream: str | None) -> None:
        self._session = session
        self._inbox = inbox
        self._message = message
        self._stream = stream

    def expect(self) -> None:
        self._reply, self._acked = self._inbox.expect(self._stream)

    def forget(self) -> None:
        self._inbox.forget(self._reply)

    async def find_route_again(self) -> None:
        self.route = await _route_again(self._session, self.route, self._stream)

    async def until_answered(self) -> Ack:
        """Send it, and again while there is no connection or nobody listens: the node may be starting."""
        while True:
            route, message = self.route, self._message
            payload, options = message.wrap(route, self._reply)
            target = route.nats_subject(route.partition(message.key))
            try:
                if await _send(self._session.nats, target, payload, options):
                    self.trouble = ""
                    return await asyncio.shield(self._acked)
                self.trouble = " (the connection to NATS is lost)"
            except NobodyListensError:
                self.trouble = " (no node listens to this subject)"
                self.forget()
                self.expect()
                await self.find_route_again()
            await asyncio.sleep(_RETRY_S)


async def _route_again(session: Session, route: Route, stream: str | None) -> Route:
    """The route as it is now, or the old one while nobody can tell.

    Raises:
        NoStreamError: the stream is gone.
        UsageError: it sends no acks any more.
    """
    if session.nats.is_connected:
        try:
            return await find_route(session.cluster, route.subject, stream, fresh=True)
        except (NodeUnavailableError, AdminError) as error:
            logger.info("sending to %r again: %s", route.subject, error)
    return route


class BatchDelivery:
    """Delivers the batches of one publisher.

    Args:
        session: connections and the cluster's metadata.
        inbox: where acks come back.
        options: of the publisher.
        stream: the stream whose acks count; by default the first that answers.
        producer_id: 16 bytes, of the publisher.
    """

    def __init__(
        self,
        session: Session,
        inbox: AckInbox,
        options: PublisherOptions,
        stream: str | None,
        producer_id: bytes,
    ) -> None:
        self._session = session
        self._inbox = inbox
        self._options = options
        self._stream = stream
        self._producer_id = producer_id

    async def deliver(self, batch: OutgoingBatch, sequence: int) -> Ack:
        """Send a batch until it is acknowledged.

        Raises:
            LiftError: it was refused for good, or the time for its delivery is over.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.delivery_timeout_s
        while True:
            # A refusal uses its inbox up; an ack that is merely late may still come on it.
            inbox, acked = self._inbox.expect(self._stream)
            try:
                return await self._send_until_answered(batch, self._encode(batch, sequence, inbox), acked, deadline)
            except PublishRefusedError as error:
                if not _is_retriable(error) or loop.time() >= deadline:
                    raise
                logger.info("sending a batch for %s again: %s", batch.route.subject, error)
            finally:
                self._inbox.forget(inbox)
            await asyncio.sleep(_RETRY_S)

    def _encode(self, batch: OutgoingBatch, sequence: int, inbox: str) -> bytes:
        return encode_batch(
            batch.columns(),
            producer_id=self._producer_id,
            producer_sequence=sequence,
            ack_inbox=inbox,
            ack_policy=_policy(batch.route, self._options.ack_policy),
            partition=batch.partition,
        )

    async def _send_until_answered(
        self, batch: OutgoingBatch, payload: bytes, acked: asyncio.Future[Ack], deadline: float
    ) -> Ack:
        loop = asyncio.get_running_loop()
        nats, subject = self._session.nats, batch.route.nats_subject(batch.partition)
        while True:
            sent = await _send(nats, subject, payload, {})
            patience = self._options.ack_timeout_s if sent else _RETRY_S
            try:
                async with asyncio.timeout(min(patience, max(0.0, deadline - loop.time()))):
                    return await asyncio.shield(acked)
            except TimeoutError:
                if loop.time() >= deadline:
                    raise PublishTimeoutError(
                        f"a batch of {batch.count} messages for {subject!r} was not acknowledged within "
                        f"{self._options.delivery_timeout_s:g} s; it may be stored or not"
                    ) from None
            if sent:
                logger.info("sending a batch for %s again: no ack yet", subject)
                await _route_again(self._session, batch.route, self._stream)


def _is_retriable(error: PublishRefusedError) -> bool:
    try:
        return AckErrorCode(error.code).retriable
    except ValueError:
        return False
