"""A NATS connection and a cluster that exist only here, for what a client does with acks that come late or never."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from liftpy_client.connection.cluster import StreamPlace
from liftpy_client.connection.permissions import Permissions
from liftpy_client.errors import NodeUnavailableError, NoStreamError
from liftpy_envelope.ack import Ack, encode_ack, encode_error_ack
from liftpy_envelope.envelope import decode_envelope
from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeNats:
    """Takes what is published, and answers as it is told.

    Attributes:
        published: (subject, payload) of everything.
        answer: called with each envelope; what it returns goes to the envelope's inbox.
    """

    def __init__(self) -> None:
        self.max_payload = 1024 * 1024
        self.is_connected = True
        self.is_closed = False
        self.published: list[tuple[str, bytes]] = []
        self.answer: Callable[..., bytes | None] = stored()
        self.refusal: Exception | None = None
        self._arrived = None

    def new_inbox(self) -> str:
        return "_INBOX.test"

    async def subscribe(self, _subject, cb):
        self._arrived = cb

    async def close(self):
        self.is_closed = True

    async def publish(self, subject, payload, reply="", headers=None):
        if self.refusal is not None:
            raise self.refusal
        self.published.append((subject, payload))
        envelope = decode_envelope(payload)
        data = self.answer(envelope)
        if data is not None:
            await self.give(envelope.options.ack_inbox.decode(), data)

    async def give(self, inbox, data):
        await self._arrived(SimpleNamespace(subject=inbox, data=data, headers=None))


def stored(stream="s"):
    """Answers that store everything in the order of arrival."""
    end = 0

    def answer(envelope):
        nonlocal end
        end += envelope.count
        return encode_ack(Ack(stream=stream, offset=end - 1, count=envelope.count))

    return answer


def refused(code, then):
    """Answers that refuse the first time."""
    answers = iter([lambda _: encode_error_ack(code, "not now", "s")])

    def answer(envelope):
        return next(answers, then)(envelope)

    return answer


class FakeCluster:
    """Knows one stream, or none, or does not answer."""

    def __init__(self, **config) -> None:
        self.config: StreamConfig | None = StreamConfig.from_plain({"name": "s", "subject": "s.>"} | config)
        self.is_away = False

    async def storing(self, _subject, *, fresh=False):
        if self.is_away:
            raise NodeUnavailableError("no node")
        if self.config is None:
            raise NoStreamError("the stream is gone")
        return [StreamPlace(bytes(16), self.config, (None,))]

    async def latest(self, _name):
        (place,) = await self.storing("")
        return place


def fake_session(nats: FakeNats, **config) -> SimpleNamespace:
    """A session of both."""
    cluster = FakeCluster(**config)
    return SimpleNamespace(nats=nats, cluster=cluster, running=set(), publishing=set(), permissions=Permissions())
