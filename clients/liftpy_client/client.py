"""`connect` and `Lift`, the client that users hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_client.admin.admin import Admin
from liftpy_client.connection.connecting import Connecting
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_client.connection.session import Session
from liftpy_client.consuming import Consumes
from liftpy_client.errors import UsageError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import MessageDelivery, OutgoingMessage
from liftpy_client.publisher.options import PublisherOptions, check_ack_policy
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.publisher.resender import Resender

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.client import Client

    from liftpy_envelope.ack import Ack, AckPolicy

__all__ = ["Lift", "connect", "connect_as"]


class Lift(Admin, Consumes):
    """A connection to liftpy: publish, consume, administer. Made by `connect`."""

    def __init__(self, session: Session) -> None:
        Admin.__init__(self, session.cluster)
        Consumes.__init__(self, session)
        self._inbox = AckInbox(session.nats)
        self._resender = Resender(session, self._inbox)
        self._delivery = MessageDelivery(session, self._inbox, self._resender)

    @property
    def nats(self) -> Client:
        """The connection to NATS, for whatever else one does with NATS."""
        return self._session.nats

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed: by `close`, or for good by NATS, where it takes our credentials no more."""
        return self._session.nats.is_closed

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

        It is sent again under the same id, and so stored once, while its partition does not answer, for instance
        because its leader fails: several times a second, for `timeout_s` times `1 + retries`. The same goes for a
        leader that does not know what became of it, or has too few replicas. With `retries=0`, and to streams that keep
        no ids, it is sent again only when nobody can have stored it.

        Args:
            subject: a literal subject that a stream stores.
            value: payload; None is a tombstone.
            key: of the record.
            headers: NATS headers.
            message_id: for deduplication; by default that of a `Nats-Msg-Id` header, else a random one.
            expected_offset: refuse the message unless it gets this offset.
            ack_policy: overrides that of the stream: `leader` or `all`.
            stream: the stream whose ack counts, where several store the subject.
            timeout_s: without an ack for so long it is sent again in any case.
            retries: how many times longer to try; 0 to send it only once.

        Returns:
            Where the message is.

        Raises:
            NoStreamError: no stream stores the subject.
            PublishRefusedError: the node refuses the message, and says why; what may pass is raised when time is up.
            PublishTimeoutError: no ack came; it says whether the message may be stored.
            UsageError: an argument has no meaning, or the message is larger than NATS takes.
        """
        if not timeout_s > 0 or retries < 0:
            raise UsageError(f"timeout_s must be above 0 and retries 0 or more, not {timeout_s} and {retries}")
        message = OutgoingMessage(
            value,
            key=key,
            headers=headers,
            message_id=message_id,
            expected_offset=expected_offset,
            ack_policy=check_ack_policy(ack_policy),
        )
        return await self._delivery.deliver(subject, message, stream, timeout_s, retries)

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
            ack_policy=check_ack_policy(ack_policy),
        )
        return Publisher(self._session, self._inbox, self._resender, options, stream)


def connect(
    url: str | None = None, *, name: str = "liftpy client", context: str | None = None, **options: Any
) -> Connecting[Lift]:
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
    return connect_as(NatsOptions.resolve(context=context, url=url, **options), name=name)


def connect_as(options: NatsOptions, *, name: str = "liftpy client") -> Connecting[Lift]:
    """Connect with these options alone, whatever environment variables and contexts say."""
    return Connecting(options, name, lambda nats: Lift(Session(nats, options, name)))
