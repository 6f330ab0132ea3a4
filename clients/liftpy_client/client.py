"""`connect` and `Lift`, the client that users hold."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, Error

from liftpy_client.ack_inbox import AckInbox
from liftpy_client.admin import Admin
from liftpy_client.consumer import BatchConsumer, ConsumeOptions, Consumer
from liftpy_client.errors import DisconnectedError, PublishTimeoutError, UnreachableError, UsageError
from liftpy_client.nats_options import NatsOptions
from liftpy_client.publisher import Publisher, PublisherOptions
from liftpy_client.routes import find_route
from liftpy_client.session import Session
from liftpy_envelope.ack import Ack, AckPolicy
from liftpy_envelope.envelope import encode_message_envelope
from liftpy_envelope.stream_config import AckMode

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import TracebackType

    from liftpy_client.positions import Start, Stop
    from liftpy_client.routes import Route

__all__ = ["Lift", "connect"]

logger = logging.getLogger(__name__)

_HEADER_SAFE: Final = re.compile(rb"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class Lift(Admin):
    """A connection to liftpy: publish, consume, administer. Made by `connect`."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.cluster)
        self._session = session
        self._inbox = AckInbox(session.nats)

    @property
    def nats(self) -> Client:
        """The connection to NATS, for whatever else one does with NATS."""
        return self._session.nats

    async def close(self) -> None:
        """Close the connection."""
        if not self._session.nats.is_closed:
            await self._session.nats.close()

    async def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_offset: int | None = None,
        ack_policy: AckPolicy | str | None = None,
        stream: str | None = None,
        timeout_s: float = 5.0,
        retries: int = 2,
    ) -> Ack:
        """Publish one message and wait until it is stored.

        A message whose ack does not come in time is sent again under the same id, so it is stored once.

        Args:
            subject: a literal subject that a stream stores.
            value: payload; None is a tombstone.
            key: of the record.
            headers: NATS headers.
            message_id: for deduplication; by default a random one.
            expected_offset: refuse the message unless it gets this offset.
            ack_policy: overrides that of the stream.
            stream: the stream whose ack counts, where several store the subject.
            timeout_s: how long to wait for the ack each time.
            retries: how often to send it again.

        Returns:
            Where the message is.

        Raises:
            NoStreamError: no stream stores the subject.
            PublishRefusedError: the node refuses the message, and says why.
            PublishTimeoutError: no ack came: the message may be stored or not.
        """
        policy = None if ack_policy is None else _policy(ack_policy)
        if policy is AckPolicy.NONE:
            raise UsageError("ack_policy: none means no ack to wait for; use the NATS connection's own publish")
        route = await find_route(self._session.cluster, subject, stream)
        await self._inbox.open()
        target = route.nats_subject(route.partition(key))
        message_id = message_id or uuid4().hex
        reply, acked = self._inbox.expect(stream)
        payload, options = _wrap(route, reply, value, key, headers, message_id, expected_offset, policy)
        try:
            for _ in range(1 + retries):
                await self._session.nats.publish(target, payload, **options)
                try:
                    async with asyncio.timeout(timeout_s):
                        return await asyncio.shield(acked)
                except TimeoutError:
                    continue
        except ConnectionClosedError:
            raise DisconnectedError("the connection to NATS is closed") from None
        finally:
            self._inbox.forget(reply)
        waited = timeout_s * (1 + retries)
        raise PublishTimeoutError(f"no ack for {subject!r} within {waited:g} s; the message may be stored or not")

    def publisher(
        self,
        *,
        stream: str | None = None,
        linger_s: float = 0.005,
        batch_bytes: int = 512 * 1024,
        in_flight_bytes: int = 16 * 1024 * 1024,
        ack_timeout_s: float = 5.0,
        delivery_timeout_s: float = 60.0,
        ack_policy: AckPolicy | str | None = None,
    ) -> Publisher:
        """A publisher for many messages, to be used in an `async with`; see `PublisherOptions` for the arguments."""
        options = PublisherOptions(
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            in_flight_bytes=in_flight_bytes,
            ack_timeout_s=ack_timeout_s,
            delivery_timeout_s=delivery_timeout_s,
            ack_policy=None if ack_policy is None else _policy(ack_policy),
        )
        return Publisher(self._session, self._inbox, options, stream)

    def consume(
        self,
        stream: str,
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        options: ConsumeOptions | None = None,
    ) -> Consumer:
        """Consume a stream message by message, with `async for`.

        Args:
            stream: its name.
            start: `earliest`, `latest` (the last committed message), `new` (only what comes after now), an offset, a
                time with a time zone, or an offset per partition.
            stop: `latest` (what is committed now), an offset or a time to stop before; None goes on for ever.
            partitions: which; by default all.
            options: how to fetch.
        """
        return Consumer(self._session, stream, start, stop, partitions, options or ConsumeOptions())

    def consume_batches(
        self,
        stream: str,
        *,
        start: Start | Mapping[int, int] = "earliest",
        stop: Stop | None = None,
        partitions: Sequence[int] | None = None,
        options: ConsumeOptions | None = None,
    ) -> BatchConsumer:
        """Consume a stream in Arrow record batches; arguments as for `consume`."""
        return BatchConsumer(self._session, stream, start, stop, partitions, options or ConsumeOptions())


def _policy(given: AckPolicy | str) -> AckPolicy:
    try:
        return AckPolicy(given)
    except ValueError:
        raise UsageError(f"ack_policy: {given!r} is not one of leader, all, none") from None


def _wrap(
    route: Route,
    reply: str,
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[str, str] | None,
    message_id: str,
    expected_offset: int | None,
    policy: AckPolicy | None,
) -> tuple[bytes, dict[str, Any]]:
    """Payload and options for nats-py: plain with headers where that can say it, else in an envelope."""
    fits_headers = value is not None and (key is None or _HEADER_SAFE.fullmatch(key)) and message_id.isprintable()
    if fits_headers and route.config.acks is AckMode.REPLY:
        lines = dict(headers or {}) | {"Nats-Msg-Id": message_id}
        if key is not None:
            lines["Lift-Key"] = key.decode("ascii")
        if expected_offset is not None:
            lines["Lift-Expected-Offset"] = str(expected_offset)
        if policy is not None:
            lines["Lift-Ack"] = policy.value
        assert value is not None
        return value, {"reply": reply, "headers": lines}
    payload = encode_message_envelope(
        value,
        key=key,
        headers=headers,
        ack_inbox=reply,
        ack_policy=policy,
        msg_id=message_id.encode(),
        expected_offset=expected_offset,
    )
    return payload, {}


class _Connecting:
    """What `connect` returns: `async with` it, or `await` it and close it yourself."""

    def __init__(self, options: NatsOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._lift: Lift | None = None

    def __await__(self) -> Generator[Any, None, Lift]:
        return self._connect().__await__()

    async def __aenter__(self) -> Lift:
        self._lift = await self._connect()
        return self._lift

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lift is not None:
            await self._lift.close()

    async def _connect(self) -> Lift:
        client = Client()
        errors: list[Exception] = []

        async def note(error: Exception) -> None:
            errors.append(error)
            logger.debug("NATS: %s", error)

        arguments = self._options.connect_arguments() | {
            "name": self._name,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "allow_reconnect": True,
            "error_cb": note,
        }
        connecting = asyncio.ensure_future(client.connect(**arguments))
        try:
            await asyncio.wait({connecting}, timeout=self._options.timeout_s)
            if connecting.done():
                await connecting
        except (Error, OSError) as error:
            errors.append(error)
        finally:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        if not client.is_connected:
            why = str(errors[-1]) or type(errors[-1]).__name__ if errors else "no answer"
            raise UnreachableError(f"NATS at {self._options.shown_url} can not be reached: {why}")
        return Lift(Session(client, self._options, self._name))


def connect(
    url: str | None = None, *, name: str = "liftpy client", context: str | None = None, **options: Any
) -> _Connecting:
    """Connect to liftpy through NATS.

    What is not given comes from the nats CLI's environment variables (`NATS_URL`, `NATS_CREDS`, ...) and contexts.

    Args:
        url: one or more NATS addresses, separated by commas.
        name: of this client, as NATS shows it.
        context: name of a context of the nats CLI.
        options: fields of `NatsOptions`: user, password, token, creds, nkey, tls_ca, tls_cert, tls_key, timeout_s.

    Raises:
        ConfigError: an option can not be used.
        UnreachableError: NATS can not be reached (raised when entering or awaiting the result).
    """
    return _Connecting(NatsOptions.resolve(context=context, url=url, **options), name)
