"""Nobody subscribes for the system's own streams, and they are ready all the same."""

from __future__ import annotations

from types import SimpleNamespace

from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.streams.listening import Listening
from liftpy_server.streams.opening import LocalStream


def local(name, subject):
    config = StreamConfig(name=name, subject=subject, partitions=2)
    state = SimpleNamespace(config=config, name=name, uuid=name)
    partitions = {number: SimpleNamespace(is_leading=True) for number in range(2)}
    return LocalStream(SimpleNamespace(uuid=name), state, partitions)


class Ingest:
    def __init__(self):
        self.bound = []

    async def bind(self, bindings):
        self.bound += bindings

    def refusal(self, _bindings):
        return None


async def test_the_systems_own_streams_are_ready_without_a_subscription():
    listening, ingest = Listening(), Ingest()
    ours, theirs = local("__offsets", ""), local("orders", "orders.>")
    assert [binding.subject for binding in listening.connect(ingest, [ours, theirs])] == ["orders.>"]
    later = local("__later", "")
    await listening.bind([later])
    assert ingest.bound == []
    await listening.wait_ready("__later")
