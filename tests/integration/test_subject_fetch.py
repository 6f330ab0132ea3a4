"""A node sends who filters by subject what is wanted, and little else; older versions are served as before."""

from __future__ import annotations

import asyncio
import random

import pytest

from liftpy_client.consumer.filtering import SubjectFilter
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import Api, FetchPartition, FetchRequest, FetchResponse, PartitionKey
from liftpy_envelope.subject import matches
from support.filter_kit import records_in
from support.log_batches import headers_of
from support.raw_nats import RawNats, pub
from support.raw_pull import RawPull, pull_token
from support.reading import stored

MIB = 1 << 20
SITES = 50


class Site:
    """A stream with messages of many subjects, and a peer that fetches them.

    Attributes:
        published: subject and payload of every message, by offset.
    """

    def __init__(self, name, raw, uuid, published):
        self.name = name
        self.raw = raw
        self.key = PartitionKey(uuid, 0)
        self.published = published

    async def fetch(self, offset=None, bytes_max=MIB, wait_ms=0, subjects=()):
        entries = () if offset is None else (FetchPartition(self.key, offset),)
        request = FetchRequest(bytes_max, wait_ms, entries, subjects=tuple(subjects))
        answer = await self.raw.request(Api.FETCH, request)
        assert answer.error == ErrorCode.NONE, answer.message
        results = answer.decoded(FetchResponse).results
        assert all(result.error is ErrorCode.NONE for result in results)
        return (results[0] if results else None), answer.body

    async def read(self, subjects, bytes_max=MIB):
        """(records, bytes) of everything there is, as a client reads it."""
        wanted = SubjectFilter(subjects or ">")
        found, size, position, entering = [], 0, 0, 0
        while position < len(self.published):
            result, body = await self.fetch(entering, bytes_max, 1_000, subjects)
            entering = None
            records = records_in(body)
            size += len(body)
            found += [record for record in records if wanted.matches(record.subject)]
            position = max([position, result.next_offset, *(header.next_offset for header in headers_of(body))])
        return found, size

    def wanted(self, subjects):
        return [
            (offset, subject, payload)
            for offset, (subject, payload) in enumerate(self.published)
            if not subjects or any(matches(pattern, subject.decode()) for pattern in subjects)
        ]


@pytest.fixture(params=["none", "lz4"])
async def site(shared_lift, shared_nats, shared_node, name, request):
    await shared_lift.create_stream(name, subject=f"{name}.>", compression=request.param, segment_bytes=MIB)
    generator = random.Random(5)
    published = [
        (f"{name}.{generator.randrange(SITES)}.{generator.choice('abc')}".encode(), b"%d." % number + bytes(100))
        for number in range(20_000)
    ]
    async with await RawNats.open(shared_nats.port) as nats:
        for start in range(0, len(published), 1_000):
            nats.write(b"".join(pub(*message) for message in published[start : start + 1_000]))
            await nats.flush()
    await stored(shared_lift, name, len(published))
    uuid = bytes.fromhex((await shared_lift.stream_info(name)).raw["uuid"])
    token = await pull_token(shared_lift)
    async with await RawPull.open(shared_node.pull_port) as raw:
        assert (await raw.hello(token)).error == ErrorCode.NONE
        yield Site(name, raw, uuid, published)


async def test_what_comes_is_what_was_published_on_the_subjects(site):
    name = site.name
    everything, all_bytes = await site.read([])
    assert len(everything) == len(site.published)
    for subjects, share in (
        ([f"{name}.7.a"], 0.05),
        ([f"{name}.7.*", f"{name}.8.>"], 0.15),
        ([f"{name}.*.b"], 0.6),
        ([f"{name}.>"], 1.0),
        (["nothing.of.it"], 0.0),
    ):
        for bytes_max in (1, 40_000, MIB) if share < 0.2 else (MIB,):
            records, size = await site.read(subjects, bytes_max)
            assert [(record.offset, record.subject, record.value) for record in records] == site.wanted(subjects)
            assert size <= all_bytes * share


async def test_a_message_that_is_wanted_wakes_a_reader_that_waits(site, shared_lift):
    subjects = [f"{site.name}.new"]
    records, _ = await site.read(subjects)
    assert records == []
    waiting = asyncio.ensure_future(site.fetch(wait_ms=30_000))
    await shared_lift.publish(f"{site.name}.other", b"1")
    await shared_lift.publish(f"{site.name}.other", b"2")
    assert not waiting.done()
    ack = await shared_lift.publish(f"{site.name}.new", b"3")
    _, body = await waiting
    assert ack.offset in [record.offset for record in records_in(body)]


async def test_subjects_that_are_none_are_refused_and_the_connection_goes_on(site):
    for subjects in (["a..b"], ["a b"], ["x"] * 65, [7], "x"):
        body = [*FetchRequest(MIB, 0)[:-1], subjects]
        answer = await site.raw.request(Api.FETCH, body)
        assert answer.error == ErrorCode.INVALID_REQUEST
        assert "subjects" in answer.message
    assert (await site.fetch(0, subjects=[f"{site.name}.7.a"]))[0].error is ErrorCode.NONE
