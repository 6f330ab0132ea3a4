"""Sections come with few requests, and are what was staged, whoever asks for which of them in which order."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from liftpy_bucket.staging.section import Section
from liftpy_bucket.store.memory import MemoryStore
from liftpy_spark.sink.place import BucketPlace
from liftpy_spark.sink.read_ahead import ReadAhead
from support.fault_store import FaultStore
from support.sink_kit import SinkWorld, Target, batch_of

PARTITIONS = 300


def staged(tasks, bytes_each):
    rng = random.Random(tasks)
    store, sections = MemoryStore(), []
    for task in range(tasks):
        body = b""
        for partition in range(PARTITIONS):
            part = rng.randbytes(rng.randrange(1, 2 * bytes_each))
            sections.append(Section(f"k{task}", partition, len(body), len(part), 1, 1, 0))
            body += part
        store.create(f"k{task}", body, "n")
    return store, sections


@pytest.mark.parametrize(
    ("bytes_max", "requests_max"), [(1 << 26, 4), (4 * 32_768, 4 * 11), (4 * 1_024, 4 * PARTITIONS)]
)
def test_sections_come_block_by_block(bytes_max, requests_max):
    store, sections = staged(4, 1_000)
    reads = []
    counting = FaultStore(store, before=reads.append)
    ahead = ReadAhead(BucketPlace(counting), sections, bytes_max)
    for section in sorted(sections, key=lambda each: each.partition):
        body = ahead.read(section.key, section.start, section.length)
        assert body == store.get_range(section.key, section.start, section.length)
    assert len(reads) <= requests_max


def test_threads_that_are_at_different_places():
    store, sections = staged(3, 200)
    ahead = ReadAhead(BucketPlace(store), sections, 3 * 20_000)
    random.Random(1).shuffle(sections)
    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda each: ahead.read(each.key, each.start, each.length), sections))
    assert bodies == [store.get_range(each.key, each.start, each.length) for each in sections]


async def test_a_batch_of_many_partitions_reads_each_small_object_once():
    world = SinkWorld(partitions=64)
    requests = []
    store = world.store()
    counted = store.before
    store.before = lambda request: (requests.append(request), counted(request))
    rows = [(b"key-%d" % number, b"value-%d" % number) for number in range(1_000)]

    await world.commit(batch_of(), world.stage(batch_of(), rows, 4), store, Target(world))
    assert world.values().total() == 1_000
    assert sum("staging" in request.key and request.kind == "get_range" for request in requests) == 4
