"""Consumers, group consumers, processes, tables and publishers that are closed at a random moment: none of them hangs.

NATS answers in the very tick, which is where a cancellation is lost most easily. By hand, with many seeds:

    cd tests && python -m unit.client.test_random_closes 1000
"""

from __future__ import annotations

import asyncio
import random
import sys
from types import SimpleNamespace

import pytest

from liftpy_client.connection.cluster import Cluster
from liftpy_client.connection.permissions import Permissions
from liftpy_client.consumer.consumer import ConsumeOptions, Consumer
from liftpy_client.group.consumer import GroupConsumer
from liftpy_client.group.offsets import committed
from liftpy_client.group.options import GroupOptions
from liftpy_client.processing.options import ProcessOptions
from liftpy_client.processing.process import Process
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.options import PublisherOptions
from liftpy_client.publisher.publisher import Publisher
from liftpy_client.publisher.resender import Resender
from liftpy_client.table.table import Table
from liftpy_client.tracing.interceptors import Interceptors
from liftpy_envelope.errors import LiftError
from support.fake_groups import FakeGroups
from support.fake_log import FakeLogs
from support.fake_nats import FakeNats
from support.tick_nats import TickNats

_SEEDS = 60
_HUNG_S = 5.0
_MEMBER = GroupOptions(session_timeout_s=6.0, rebalance_timeout_s=6.0, commit_interval_s=0.01)


def _session(rng, **fakes):
    """A session with the cluster of a client, over NATS that answers in the very tick."""
    logs = FakeLogs(s=[rng.randrange(200) for _ in range(4)])
    place = logs.places["s"]
    node = {"node_id": "n0", "pull_host": "h", "pull_port": 1, "pull_tls": False, "pull_token": "t"}
    partitions = [{"partition": number, "leader": "n0"} for number in range(4)]
    stream = {"uuid": place.uuid.hex(), "config": place.config.to_plain(), "partitions": partitions}

    def answer(endpoint, _body):
        return {"streams": [{"name": "s"}]} if endpoint == "STREAM.FIND" else {"nodes": [node], "streams": [stream]}

    nats = TickNats(answer, rng)
    session = SimpleNamespace(
        nats=nats,
        permissions=Permissions(),
        running=set(),
        publishing=set(),
        interceptors=Interceptors(),
        name="test",
        options=SimpleNamespace(timeout_s=5.0),
        cluster=Cluster(nats, 5.0),
        open_pull=logs.open_pull,
    )
    session.__dict__.update(fakes)
    return session


async def _turns(rng):
    for _ in range(rng.choice([rng.randrange(12), rng.randrange(80)])):
        await asyncio.sleep(0)


async def _ends_at_random(rng, entering, use):
    """Enter, use and leave: by itself, cancelled, or timed out, at a random moment."""

    async def work():
        async with entering as entered:
            await use(entered)

    task = asyncio.create_task(work())
    await _turns(rng)
    if rng.random() < 0.5:
        task.cancel()
    closing = [asyncio.create_task(entering.close())] if hasattr(entering, "close") and rng.random() < 0.7 else []
    await _turns(rng)
    task.cancel()
    _, hung = await asyncio.wait({task, *closing}, timeout=_HUNG_S)
    assert not hung, "it hangs"
    for each in (task, *closing):
        if not each.cancelled() and not isinstance(each.exception(), (LiftError, type(None))):
            raise each.exception()


async def _reading(consumer):
    async for _ in consumer:
        await asyncio.sleep(0)


async def _consumer(rng):
    await _ends_at_random(
        rng, Consumer(_session(rng), ["s"], "earliest", None, None, ConsumeOptions(wait_ms=50)), _reading
    )


async def _of_group(rng):
    """A session with a coordinator, too."""
    session = _session(rng)
    logs, groups = session.open_pull, FakeGroups()
    groups.serve(await session.cluster.stream("s"))

    async def open_pull(node_id):
        return _Both(await groups.open_pull(node_id), await logs(node_id))

    session.open_pull = open_pull
    return session


async def _group(rng):
    await _ends_at_random(
        rng,
        GroupConsumer(await _of_group(rng), ["s"], "g", ConsumeOptions(wait_ms=50), _MEMBER, batches=False),
        _reading,
    )


class _Processing:
    """A process as what is entered and closed."""

    def __init__(self, session, handle):
        options = ProcessOptions(concurrency=4, shutdown_timeout_s=0.1, handler_timeout_s=0.05, dead_letter="d")
        self._process = Process(
            session, self._publish, ["s"], "g", handle, options, ConsumeOptions(wait_ms=50), _MEMBER
        )
        self.close = self._process.close

    async def _publish(self, *_, **__):
        await asyncio.sleep(0)

    async def __aenter__(self):
        return self._process

    async def __aexit__(self, *_):
        pass


async def _process(rng):
    async def handle(_):
        dice = rng.random()
        await asyncio.sleep(0 if dice < 0.9 else 0.001)
        if dice < 0.05:
            raise ValueError
        if dice > 0.99:
            await asyncio.Event().wait()

    await _ends_at_random(rng, _Processing(await _of_group(rng), handle), Process.run)


class _Both:
    """A connection to a node that serves streams and coordinates groups."""

    def __init__(self, groups, logs):
        self._groups, self._logs = groups, logs
        self.node = groups.node

    @property
    def heard_s(self):
        return self._logs.heard_s

    def close(self):
        self._groups.close()
        self._logs.close()

    async def request(self, api, body):
        is_log = api.name in {"FETCH", "EPOCH_END_OFFSET", "LIST_OFFSETS"}
        return await (self._logs if is_log else self._groups).request(api, body)


async def _table(rng):
    table = Table(
        _session(rng), "s", decode=None, partitions=None, bytes_max=2**20, fill_timeout_s=60.0,
        options=ConsumeOptions(wait_ms=50),
    )  # fmt: skip

    async def use(entered):
        await entered.refresh()
        await asyncio.Event().wait()

    await _ends_at_random(rng, table, use)


async def _publisher(rng):
    wire = FakeNats()
    publish = wire.publish

    async def publish_and_flush(*args, **kwargs):
        await TickNats.flush(None, rng.randrange(4))
        if rng.random() < 0.9:
            await publish(*args, **kwargs)

    wire.publish = publish_and_flush
    session = _session(rng)
    session.nats = wire
    inbox = AckInbox(wire)
    options = PublisherOptions(linger_s=0.0, ack_timeout_s=0.05, delivery_timeout_s=0.2)
    publisher = Publisher(session, inbox, Resender(session, inbox), options)

    async def use(entered):
        for _ in range(rng.randrange(8)):
            await entered.publish("s", b"x")
            await asyncio.sleep(0)

    await _ends_at_random(rng, publisher, use)


_KINDS = {"consumer": _consumer, "group": _group, "process": _process, "table": _table, "publisher": _publisher}


@pytest.mark.parametrize("kind", _KINDS)
async def test_none_hangs(kind):
    for seed in range(_SEEDS):
        try:
            await _KINDS[kind](random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


async def test_a_close_at_any_moment_commits_what_was_processed():
    seen = 0
    for seed in range(_SEEDS // 2):
        rng = random.Random(seed)
        session = await _of_group(rng)
        options = GroupOptions(session_timeout_s=6.0, rebalance_timeout_s=6.0, commit_interval_s=100.0)
        consumer = GroupConsumer(session, ["s"], "g", ConsumeOptions(wait_ms=50), options, batches=False)
        processed, delivered = {}, {}

        async def read(consumer=consumer, processed=processed, delivered=delivered):
            last = None
            async for message in consumer:
                if last is not None:
                    processed[last.partition] = last.offset + 1
                last = message
                delivered[message.partition] = message.offset + 1

        reading = asyncio.create_task(read())
        for _ in range(rng.randrange(300)):
            await asyncio.sleep(0)
        await asyncio.wait_for(consumer.close(), _HUNG_S)
        await asyncio.wait({reading}, timeout=_HUNG_S)
        stored = {number: row.offset for number, row in (await committed(session, "g", "s")).items()}
        for number, end in processed.items():
            assert end <= stored[number] <= delivered[number], f"seed {seed}"
        seen += len(processed)
    assert seen, "some were closed in the midst of it"


def main(count: int) -> None:
    """Print how many of each hang."""
    for kind, run in _KINDS.items():
        hung = []
        for seed in range(count):
            try:
                asyncio.run(asyncio.wait_for(run(random.Random(seed)), 60))
            except AssertionError:
                hung.append(seed)
        print(f"{kind}: {count} closes, {len(hung)} hung {hung[:10]}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
