"""Messages and batches as they go over the wire, and how long to try to deliver them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from liftpy_client.errors import UsageError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.routes import find_route
from liftpy_envelope.ack import Ack, AckPolicy
from liftpy_envelope.envelope import COOKIE, encode_batch, encode_message_envelope
from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.headers import encode_header_block, with_all_values
from liftpy_envelope.stream_config import AckMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from liftpy_client.connection.session import Session
    from liftpy_client.publisher.options import PublisherOptions
    from liftpy_client.publisher.outgoing import OutgoingBatch
    from liftpy_client.publisher.resender import Parcel, Resender
    from liftpy_client.publisher.routes import Route

__all__ = ["RETRIABLE", "BatchDelivery", "BatchParcel", "MessageDelivery", "OutgoingMessage", "as_bytes"]

_MESSAGE_ID: Final = "Nats-Msg-Id"
_TOMBSTONE: Final = "Lift-Tombstone"
_HEADER_SAFE: Final = re.compile(rb"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
RETRIABLE: Final = frozenset(code for code in AckErrorCode if code.retriable)
"""Refusals of a batch after which it is sent again."""


def as_bytes(name: str, given: object) -> bytes | None:
    """A value or key, copied if whoever has it may change it.

    Raises:
        UsageError: it is not bytes.
    """
    if given is None or type(given) is bytes:
        return given
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise UsageError(f"{name} must be bytes, not {type(given).__name__}; encode text first")
    return bytes(given)


def _policy(route: Route, given: AckPolicy | None) -> AckPolicy | None:
    """The ack policy to ask for: whoever waits for an ack wants one, whatever the stream does without being asked."""
    if given is None and route.config.ack_policy is AckPolicy.NONE:
        return AckPolicy.ALL
    return given


class _HeaderLines(dict[str, Any]):
    """Headers for nats-py, which writes a line for each item: one item for each value of a header."""

    def items(self) -> Iterator[tuple[str, str]]:  # type: ignore[override]  # nats-py only goes through them
        for name, given in super().items():
            for value in [given] if isinstance(given, str) else given:
                yield name, value


class OutgoingMessage:
    """One message, and what is asked for it.

    Raises:
        HeaderError: a header cannot stand in a NATS header block.
        UsageError: the value is not bytes, or the expected offset none.
    """

    def __init__(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        message_id: str | None = None,
        expected_offset: int | None = None,
        ack_policy: AckPolicy | None = None,
    ) -> None:
        if expected_offset is not None and not 0 <= expected_offset < 2**63 - 1:
            raise UsageError(f"expected_offset: {expected_offset} is not an offset (a whole number from 0 on)")
        if headers is not None:
            headers = with_all_values(headers)
            encode_header_block(headers)  # nats-py would let a line break through, and with it another header
        self.value = as_bytes("value", value)
        self.key = as_bytes("key", key)
        self.headers = headers
        named = (headers or {}).get(_MESSAGE_ID) or ""
        self.message_id: str = message_id or (named if isinstance(named, str) else named[0]) or uuid4().hex
        self.expected_offset = expected_offset
        self.ack_policy = ack_policy

    def wrap(self, route: Route, reply: str) -> tuple[bytes, dict[str, Any]]:
        """Payload and options for nats-py: plain with headers where that can say it, else in an envelope."""
        value, policy = self.value, _policy(route, self.ack_policy)
        if value is not None and route.config.acks is AckMode.REPLY and self._fits_headers(value):
            return value, {"reply": reply, "headers": self._lines(policy)}
        headers = self.headers
        if not value and headers is not None and headers.get(_TOMBSTONE) == "true":  # in an envelope it is only stored
            value, headers = None, {name: given for name, given in headers.items() if name != _TOMBSTONE}
        payload = encode_message_envelope(
            value,
            key=self.key,
            headers=headers,
            ack_inbox=reply,
            ack_policy=policy,
            msg_id=self.message_id.encode(),
            expected_offset=self.expected_offset,
        )
        return payload, {}

    def wrap_plain(self, route: Route, reply: str) -> tuple[bytes, dict[str, Any]]:
        """As `wrap`, and never in an envelope; see `check_plain`."""
        lines = self._lines(_policy(route, self.ack_policy))
        if self.value is None:
            lines[_TOMBSTONE] = "true"
        return self.value or b"", {"reply": reply, "headers": lines}

    def check_plain(self, route: Route) -> None:
        """Refuse what only an envelope can carry.

        Raises:
            UsageError: it needs one.
        """
        if route.config.acks is not AckMode.REPLY:
            raise UsageError(
                f"envelope=False: stream {route.config.name!r} acknowledges envelopes only (acks = envelope)"
            )
        if not self._fits_headers(self.value or b""):
            raise UsageError(
                "envelope=False: a header carries only keys of printable ASCII without spaces at their ends, and the "
                "value must not begin as an envelope does"
            )

    def _lines(self, policy: AckPolicy | None) -> dict[str, str]:
        lines = _HeaderLines(self.headers or {})
        lines[_MESSAGE_ID] = self.message_id
        if self.key is not None:
            lines["Lift-Key"] = self.key.decode("ascii")
        if self.expected_offset is not None:
            lines["Lift-Expected-Offset"] = str(self.expected_offset)
        if policy is not None:
            lines["Lift-Ack"] = policy.value
        return lines

    def _fits_headers(self, value: bytes) -> bool:
        if value.startswith(COOKIE):
            return False  # it would be opened as an envelope
        texts = [self.message_id.encode()] + ([] if self.key is None else [self.key])
        return all(_HEADER_SAFE.fullmatch(text) for text in texts)


class _MessageParcel:
    """One message for one subject."""

    def __init__(self, message: OutgoingMessage, route: Route) -> None:
        self._message = message
        self.route = route

    @property
    def partition(self) -> int | None:
        """The partition it belongs to, where the stream has several."""
        return self.route.partition(self._message.key)

    def wrap(self, reply: str) -> tuple[str, bytes, dict[str, Any]]:
        """See `Parcel`."""
        return self.route.nats_subject(self.partition), *self._message.wrap(self.route, reply)

    def __str__(self) -> str:
        return f"a message for {self.route.subject!r}"


class MessageDelivery:
    """Delivers single messages.

    Args:
        session: Connections and the cluster's metadata.
        inbox: Where acks come back.
        resender: Sends messages, again where that is needed.
    """

    def __init__(self, session: Session, inbox: AckInbox, resender: Resender) -> None:
        self._session = session
        self._inbox = inbox
        self._resender = resender

    async def deliver(
        self, subject: str, message: OutgoingMessage, stream: str | None, timeout_s: float, retries: int
    ) -> Ack:
        """Send a message until it is acknowledged, for `timeout_s` times `1 + retries`.

        Raises:
            NoStreamError: no stream stores the subject.
            PublishRefusedError: the node refuses the message.
            PublishTimeoutError: no ack came.
        """
        route = await find_route(self._session.cluster, subject, stream)
        await self._inbox.open()
        return await self._resender.deliver(
            _MessageParcel(message, route),
            stream,
            retry_after_s=timeout_s,
            timeout_s=timeout_s * (1 + retries),
            may_repeat=retries > 0,
        )


class _PlainParcel(_MessageParcel):
    """One message for one subject, without an envelope."""

    def wrap(self, reply: str) -> tuple[str, bytes, dict[str, Any]]:
        """See `Parcel`."""
        return self.route.nats_subject(self.partition), *self._message.wrap_plain(self.route, reply)


class BatchParcel:
    """One batch of one publisher.

    Args:
        batch: Its messages.
        producer_id: 16 bytes, of the publisher.
        sequence: Number of the batch.
        policy: Ack policy to ask for.
        epoch: Above 0 for a batch of an ordered producer.
    """

    def __init__(
        self, batch: OutgoingBatch, producer_id: bytes, sequence: int, policy: AckPolicy | None, epoch: int = 0
    ) -> None:
        self._batch = batch
        self._producer_id = producer_id
        self._sequence = sequence
        self._policy = policy
        self._epoch = epoch
        self.route = batch.route
        self.partition = batch.partition

    def wrap(self, reply: str) -> tuple[str, bytes, dict[str, Any]]:
        """See `Parcel`."""
        payload = encode_batch(
            self._batch.columns(),
            producer_id=self._producer_id,
            producer_sequence=self._sequence,
            producer_epoch=self._epoch,
            ack_inbox=reply,
            ack_policy=_policy(self.route, self._policy),
            partition=self.partition,
        )
        # With a reply subject, NATS says that nobody listens, so that nothing that follows overtakes this batch.
        options = {} if self.route.config.keep_replies else {"reply": AckInbox.no_responders(reply)}
        return self.route.nats_subject(self.partition), payload, options

    def __str__(self) -> str:
        return f"a batch of {self._batch.count} messages for {self.route.subject!r}"


class BatchDelivery:
    """Delivers the batches of one publisher.

    Args:
        resender: Sends batches, again where that is needed.
        options: Options of the publisher.
        stream: The stream whose acks count; by default the first that answers.
        producer_id: 16 bytes, of the publisher.
    """

    def __init__(self, resender: Resender, options: PublisherOptions, stream: str | None, producer_id: bytes) -> None:
        self._resender = resender
        self._options = options
        self._stream = stream
        self._producer_id = producer_id

    async def deliver(self, batch: OutgoingBatch, sequence: int, message: OutgoingMessage | None = None) -> Ack:
        """Send a batch until it is acknowledged; or instead of it its one message, without an envelope.

        Raises:
            LiftError: it was refused for good, or the time for its delivery is over.
        """
        parcel: Parcel = (
            BatchParcel(batch, self._producer_id, sequence, self._options.ack_policy)
            if message is None
            else _PlainParcel(message, batch.route)
        )
        return await self._resender.deliver(
            parcel,
            self._stream,
            retry_after_s=self._options.ack_timeout_s,
            timeout_s=self._options.delivery_timeout_s,
            retriable=RETRIABLE,
        )
