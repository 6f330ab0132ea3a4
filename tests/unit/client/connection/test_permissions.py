"""What NATS does not permit is told to whoever waits for an answer, and soon."""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import Error

from liftpy_client.connection.cluster import Cluster
from liftpy_client.connection.permissions import Permissions
from liftpy_client.errors import NotPermittedError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import MessageDelivery, OutgoingMessage
from liftpy_client.publisher.resender import Resender
from support.fake_nats import FakeNats, fake_session


class SilentNats:
    """Says of a request what nats-server says, in the words of nats-py, and answers nothing."""

    is_connected = True
    max_payload = 2**20

    def __init__(self, permissions, *said):
        self._permissions = permissions
        self._said = said

    async def request(self, _subject, _data, timeout):
        for text in self._said:
            self._permissions.note(Error(f"nats: {text}"))
        await asyncio.sleep(timeout)
        raise TimeoutError


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('permissions violation for publish to "lift.api.stream.list"', "publish to LIFT.API.STREAM.LIST:"),
        ('permissions violation for subscription to "_inbox.abc.*"', "subscribe to _INBOX.>, where answers arrive"),
    ],
)
async def test_a_request_that_is_not_permitted(said, told):
    permissions = Permissions()
    cluster = Cluster(SilentNats(permissions, said), 100.0, permissions)
    async with asyncio.timeout(20):
        with pytest.raises(NotPermittedError, match=told):
            await cluster.request("STREAM.LIST", {})


async def test_what_others_may_not_do_is_no_matter():
    permissions = Permissions()
    said = ('permissions violation for publish to "lift.api.stream"', "stale connection",
            'permissions violation for subscription to "orders.>"')  # fmt: skip
    with pytest.raises(TimeoutError):
        async with permissions.needed("LIFT.API.STREAM.LIST"):
            await SilentNats(permissions, *said).request("", b"", 0.01)


async def test_it_ends_with_a_cancellation_all_the_same():
    permissions = Permissions()

    async def wait():
        async with permissions.needed("LIFT.API.X"):
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    permissions.note(Error('nats: permissions violation for publish to "lift.api.x"'))  # nobody waits any more


async def test_a_message_that_is_not_permitted():
    nats = FakeNats()
    nats.answer = lambda _: None
    session = fake_session(nats)
    inbox = AckInbox(nats)
    delivery = MessageDelivery(session, inbox, Resender(session, inbox))
    message = OutgoingMessage(None, key=b"k")
    publishing = asyncio.ensure_future(delivery.deliver("x", message, None, 100.0, 0))
    async with asyncio.timeout(20):
        while not nats.published:
            await asyncio.sleep(0)
        subject, _ = nats.published[0]
        session.permissions.note(Error(f'nats: permissions violation for publish to "{subject}.other"'))
        session.permissions.note(Error(f'nats: permissions violation for publish to "{subject.lower()}"'))
        with pytest.raises(NotPermittedError, match=f"publish to {subject}:"):
            await publishing
