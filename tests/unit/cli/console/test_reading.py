"""What the console reads stays within its bounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy.cli.console import messages
from liftpy.cli.console.messages import Query, find_messages, get_message
from liftpy_client.errors import ConsumerEndedError
from liftpy_client.message import Message
from liftpy_envelope.errors import LiftError


class Batches:
    """A consumer that has some batches; then it ends, or waits."""

    def __init__(self, batches, *, ends=True):
        self._batches = iter(batches)
        self._ends = ends

    def consume(self, *_args, **_options):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def next_batch(self, _count, _timeout_s):
        found = next(self._batches, [])
        if not found and self._ends:
            raise ConsumerEndedError("the end")
        return found

    async def next(self, _timeout_s):
        found = await self.next_batch(1, _timeout_s)
        return found[0] if found else None


def large(offset, size):
    return Message("orders", 0, offset, offset, "orders.a", None, None, bytes(size))


PART = SimpleNamespace(partition=0, log_start=0, high_watermark=1_000)
STREAM = SimpleNamespace(name="orders", partitions=[PART])


async def test_the_newest_messages_are_kept_up_to_a_size(monkeypatch):
    monkeypatch.setattr(messages, "_BYTES_MAX", 10_000)
    batches = [[large(10 * batch + each, 1_000) for each in range(10)] for batch in range(10)]
    found = await find_messages(Batches(batches), STREAM, Query(limit=500))
    offsets = [each.offset for each in found.messages]
    assert offsets == list(range(offsets[0], 100)), "the newest, without a hole"
    assert sum(len(each.value) for each in found.messages) <= 20_000
    assert not found.is_whole, "the page says that there is more"


async def test_a_message_that_is_not_read_in_time_is_not_said_to_be_missing():
    with pytest.raises(LiftError, match="offset 5 was not read within"):
        await get_message(Batches([], ends=False), "orders", 0, 5)
    assert await get_message(Batches([]), "orders", 0, 5) is None
    assert (await get_message(Batches([[large(5, 1)]]), "orders", 0, 5)).offset == 5
