"""The client libraries under load, each in a process of its own: `python -m bench.clients NAME JSON-ARGUMENTS`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import nats
import numpy as np
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

import liftpy


def say(**figures):
    print(json.dumps(figures), flush=True)


def peak_bytes():
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


async def publish_calls(url, subject, size, count):
    """liftpy's batching publisher, called once per message."""
    payload = os.urandom(size)
    async with liftpy.connect(url) as lift:
        started = time.perf_counter()
        async with lift.publisher() as publisher:
            for _ in range(count):
                await publisher.publish(subject, payload)
        say(rate=count / (time.perf_counter() - started))


async def publish_arrow(url, subject, size, count, rows):
    """liftpy's batching publisher, fed with Arrow."""
    records = {"value": pa.array([os.urandom(size)] * rows, pa.binary())}
    async with liftpy.connect(url) as lift:
        started = time.perf_counter()
        async with lift.publisher() as publisher:
            for _ in range(count // rows):
                await publisher.publish_batch(subject, records)
        say(rate=count / (time.perf_counter() - started))


async def publish_keys(url, subject, size, count, keys, rows):
    """liftpy's batching publisher, fed with Arrow: every record has a key that was drawn by chance."""
    values = pa.array([os.urandom(size)] * rows, pa.binary())
    rng = np.random.default_rng(1)
    names = pa.array([b"user-%08d" % number for number in range(keys)], pa.binary())
    async with liftpy.connect(url) as lift:
        started = time.perf_counter()
        async with lift.publisher() as publisher:
            for _ in range(count // rows):
                drawn = names.take(pa.array(rng.integers(0, keys, rows)))
                await publisher.publish_batch(subject, {"key": drawn, "value": values})
        say(rate=count / (time.perf_counter() - started))


async def create_streams(url, count, outstanding):
    """Replicated streams through the admin API, several requests at once; all of them must be taken."""
    numbers = iter(range(count))
    async with liftpy.connect(url) as lift:

        async def create():
            for number in numbers:
                await lift.create_stream(f"idle-{number}", subject=f"idle.{number}", replicas=3)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(outstanding):
                group.create_task(create())
        say(rate=count / (time.perf_counter() - started))


async def consume_messages(url, stream, count):
    """liftpy's consumer, message by message, looking at every value."""
    async with liftpy.connect(url) as lift:
        started, taken, size = time.perf_counter(), 0, 0
        async for message in lift.consume(stream, start=0, stop=count):
            taken += 1
            size += len(message.value)
        say(rate=taken / (time.perf_counter() - started), taken=taken, bytes=size, peak_bytes=peak_bytes())


async def consume_group(url, stream, count, group):
    """liftpy's consumer as the only member of a group, with automatic checkpoints; from the first message on."""
    options = liftpy.GroupOptions(commit_interval_s=1.0)
    async with liftpy.connect(url) as lift:
        started, taken, size = 0.0, 0, 0
        async with lift.consume(stream, group=group, group_options=options) as consumer:
            async for message in consumer:
                if not taken:
                    started = time.perf_counter()
                taken += 1
                size += len(message.value)
                if taken == count:
                    break
            elapsed = time.perf_counter() - started
            await consumer.commit({(stream, 0): count})
        committed = sum(row.offset for row in (await lift.committed(group, stream)).values())
        say(rate=taken / elapsed, taken=taken, bytes=size, committed=committed)


async def consume_batches(url, stream, count):
    """liftpy's consumer in Arrow record batches."""
    async with liftpy.connect(url) as lift:
        started, taken = time.perf_counter(), 0
        async for batch in lift.consume_batches(stream, start=0, stop=count):
            taken += batch.num_rows
        say(rate=taken / (time.perf_counter() - started), taken=taken, peak_bytes=peak_bytes())


async def consume_jetstream(url, stream, count):
    """nats-py's pull consumer, 1,000 at a time, without acks."""
    client = await nats.connect(url)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
    subscription = await client.jetstream().pull_subscribe("", stream=stream, config=config)
    started, taken, size = time.perf_counter(), 0, 0
    while taken < count:
        for message in await subscription.fetch(1_000, timeout=10):
            taken += 1
            size += len(message.data)
    say(rate=taken / (time.perf_counter() - started), taken=taken, bytes=size, peak_bytes=peak_bytes())
    await client.close()


async def consume_acked(url, stream, count):
    """nats-py's pull consumer, 1,000 at a time, with an ack per message."""
    client = await nats.connect(url)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL, max_ack_pending=-1)
    subscription = await client.jetstream().pull_subscribe("", stream=stream, config=config)
    started, taken = time.perf_counter(), 0
    while taken < count:
        for message in await subscription.fetch(1_000, timeout=10):
            taken += 1
            await message.ack()
    await client.flush()
    say(rate=taken / (time.perf_counter() - started), taken=taken)
    await client.close()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](**json.loads(sys.argv[2])))
