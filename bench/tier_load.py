"""Load for workloads with a bucket, each a process of its own: `python -m bench.tier_load NAME JSON-ARGUMENTS`.

Values are drawn by chance and differ from each other: what is the same in every message would be nothing once it is
compressed.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import liftpy
from bench.load import say
from bench.wire import connect, ping
from liftpy.demo.flights import load_flights
from liftpy_bucket.store.s3 import S3Store
from liftpy_bucket.store.s3_settings import S3Settings

_INBOX = b"_INBOX.tier.%d"
_ACK = b"MSG _INBOX.tier."
_POOL_BYTES = 32 << 20  # of values that differ
_AT_ONCE = 1_000
_OBJECT_BYTES = 48 << 20  # as a node uploads them
_GET_BYTES = 8 << 20
_REQUESTS_AT_ONCE = 2


def publish(port, subjects, size, count, window, bytes_per_s=0, puts=None):
    """Publish with acks, `window` of them on their way, round robin over the subjects; 0 bytes per second: flat out.

    With `puts`, arguments of `put`, objects are put meanwhile, by a process that begins when this does.
    """
    variants = max(1, min(count, _POOL_BYTES // size)) // len(subjects) * len(subjects) or len(subjects)
    values = os.urandom(variants * size)
    names = [subject.encode() for subject in subjects]
    frames = [
        b"PUB %b %b %d\r\n%b\r\n"
        % (names[number % len(names)], _INBOX % number, size, values[number * size : (number + 1) * size])
        for number in range(variants)
    ]
    with _beside("put", puts) as put_figures:
        figures = _acked(port, lambda number: frames[number % variants], count, window, bytes_per_s / size)
    say(**figures, **put_figures)


@contextmanager
def _beside(name, arguments):
    """What `put` or `get` tells once it is through; nothing without arguments for it."""
    figures = {}
    if arguments is None:
        yield figures
        return
    command = [sys.executable, "-m", "bench.tier_load", name, json.dumps(arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["ready"]
        process.stdin.write("begin\n")
        process.stdin.flush()
        yield figures
        figures |= json.loads(process.stdout.readline())


def flights(port, window):
    """All flights as the demo publishes them: their subjects, their JSON, and a Nats-Msg-Id. Tells bytes of payload."""
    found = load_flights()

    def frame(number):
        flight = found[number]
        header = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number
        sizes = (len(header), len(header) + len(flight.payload))
        subject = flight.subject.encode()
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, _INBOX % number, *sizes, header, flight.payload)

    figures = _acked(port, frame, len(found), window, 0)
    say(**figures, count=len(found), payload_bytes=sum(len(flight.payload) for flight in found))


def _acked(port, frame_of, count, window, per_s):
    """Publish and count acks. Returns the rate, and how long the longest silence was while acks were due, in s."""
    sock = connect(port)
    sock.sendall(b"SUB _INBOX.tier.* 1\r\n")
    ping(sock)
    sent = done = 0
    tail = b""
    started = heard = time.perf_counter()
    silence = 0.0
    while done < count:
        now = time.perf_counter()
        due = count if not per_s else min(count, int((now - started) * per_s) + 1)
        room = min(window - (sent - done), due - sent, _AT_ONCE)
        if room > 0:
            sock.sendall(b"".join(map(frame_of, range(sent, sent + room))))
            heard = now if sent == done else heard
            sent += room
            if sent - done < window and sent < due:
                continue
        if not select.select([sock], [], [], 0.005 if per_s else 30.0)[0]:
            if not per_s:
                raise TimeoutError(f"{done} of {sent} messages were acknowledged, and no more for 30 s")
            continue
        data = tail + sock.recv(1 << 18)
        end = data.rfind(b"\n") + 1
        if b'"error"' in data[:end]:
            raise RuntimeError(f"a message was refused: {data[:500]!r}")
        found = data.count(_ACK, 0, end)
        tail = data[end:]
        if found:
            done += found
            now = time.perf_counter()
            silence, heard = max(silence, now - heard), now
    return {"rate": count / (time.perf_counter() - started), "silence_s": silence}


def put(settings, total):
    """Put that many bytes, which nobody has to encode or to sum up, when told to begin. Tells how long it took."""
    store = S3Store(S3Settings(**settings))
    content = memoryview(os.urandom(_OBJECT_BYTES))
    sizes = [min(_OBJECT_BYTES, total - at) for at in range(0, total, _OBJECT_BYTES)]
    taken_s = _when_told(lambda each: store.create(f"{each[0]}", content[: each[1]], "limit"), list(enumerate(sizes)))
    say(put_s=taken_s)


def get(settings, sizes):
    """Get objects, whose sizes are given by key, and drop what comes, when told to begin. Tells how long it took."""
    store = S3Store(S3Settings(**settings))
    ranges = [(key, at, min(_GET_BYTES, size - at)) for key, size in sizes.items() for at in range(0, size, _GET_BYTES)]
    say(get_s=_when_told(lambda each: len(store.get_range(*each)), ranges))


def _when_told(ask, requests):
    """Seconds that requests to the store take."""
    say(ready=True)
    sys.stdin.readline()
    began = time.perf_counter()
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        list(pool.map(ask, requests))
    return time.perf_counter() - began


async def consume(url, stream, count, skip, *, batches, gets=None):
    """Read a stream from its beginning.

    Args:
        url: of the nats-server.
        stream: its name.
        count: of its messages.
        skip: so many come before the rate is measured, so that what reads ahead is under way.
        batches: in Arrow record batches instead of message by message.
        gets: arguments of `get`, which does its work meanwhile.
    """
    with _beside("get", gets) as get_figures:
        figures = await _consume(url, stream, count, skip, batches=batches)
    say(**figures, **get_figures)


async def _consume(url, stream, count, skip, *, batches):
    async with liftpy.connect(url) as lift:
        asked = time.perf_counter()
        first_s = warm = None
        taken = warm_at = 0
        if batches:
            async for batch in lift.consume_batches(stream, start=0, stop=count):
                first_s = first_s or time.perf_counter() - asked
                taken += batch.num_rows
                if warm is None and taken >= skip:
                    warm, warm_at = time.perf_counter(), taken
        else:
            async for _ in lift.consume(stream, start=0, stop=count):
                if not taken:
                    first_s = time.perf_counter() - asked
                taken += 1
                if taken == skip:
                    warm, warm_at = time.perf_counter(), taken
        ended = time.perf_counter()
        rate = (taken - warm_at) / (ended - warm)
        return {"rate": rate, "taken": taken, "first_s": first_s, "all_s": ended - asked}


async def restore(url, stream, count):
    """Bring a cluster back from its bucket, and read a stream of it. Tells when what was done, in s."""
    async with liftpy.connect(url) as lift:
        began = time.perf_counter()
        plan = await lift.restore_plan()
        planned = time.perf_counter()
        outcomes = await lift.restore(plan)
        restored = time.perf_counter()
        problems = [outcome.problem for outcome in outcomes if outcome.problem]
        if problems:
            raise RuntimeError(f"not everything came back: {problems}")
        readable, taken = None, 0
        async for _ in lift.consume(stream, start=0, stop="latest"):
            readable = readable or time.perf_counter()
            taken += 1
        ended = time.perf_counter()
        if taken != count:
            raise RuntimeError(f"{taken:,} records came back of {count:,}")
        times = {"plan_s": planned, "restore_s": restored, "readable_s": readable, "all_s": ended}
        say(**{name: at - began for name, at in times.items()})


if __name__ == "__main__":
    work = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    if asyncio.iscoroutine(work):
        asyncio.run(work)
