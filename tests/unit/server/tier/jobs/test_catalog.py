"""The catalog says what the metadata say, is one cluster's, and is written no more often than it must be."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_bucket.errors import ForeignBucketError, OvertakenError
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_envelope.events import EVENTS_STREAM
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.catalog_keeper import CatalogKeeper
from liftpy_server.tier.jobs.catalog import put_catalog
from liftpy_server.tier.jobs.parts.catalog_content import Description, merged, taken
from liftpy_server.tier.requests import PutCatalogJob
from support.cluster import eventually
from support.metadata_commands import UUIDS, Author
from support.plain_worker import PlainWorker, plainly
from support.tier_bucket import CLUSTER, Bucket, stream

OTHER = "d" * 32


@pytest.fixture
def author():
    given = Author()
    given.register()
    return given


@pytest.fixture
def bucket():
    return Bucket()


def put(bucket, author, *, collected=(), now_ns=100, cluster_id=CLUSTER):
    arguments = {"cluster_id": cluster_id, "collected": list(collected), "now_ns": now_ns}
    return plainly(PutCatalogJob, put_catalog)(bucket.store, arguments | Description().of(author.state))


def test_it_says_what_the_metadata_say(bucket, author):
    author.create(leaders=("n1", "n1"))
    author.create("__groups", uuid=UUIDS[1], subject="", acks="off")
    author.create(EVENTS_STREAM, uuid=UUIDS[2], subject="", acks="off")  # of this cluster alone: not for a restore
    assert put(bucket, author) == {"version": 1, "written": True, "deleted": []}
    catalog = bucket.catalog()
    assert catalog.cluster_id == CLUSTER
    assert {(uuid, each.name, each.partitions) for uuid, each in catalog.streams.items()} == {
        (UUIDS[0], "orders", 2),
        (UUIDS[1], "__groups", 1),
    }
    info = author.state.streams["orders"]
    kept = catalog.streams[UUIDS[0]]
    assert (kept.config, kept.created_ns, kept.deleted_ns) == (info.config.to_plain(), info.created_ns, None)


def test_no_catalog_is_begun_beside_objects_that_are_not_ours(bucket, author):
    """A node writes the first one whether or not it has looked at the bucket before."""
    bucket.store.create("holiday.jpg", b"a beach", "nonce")
    author.create()
    with pytest.raises(ForeignBucketError, match=r"holiday\.jpg, which is not ours"):
        put(bucket, author)
    assert [entry.key for entry in bucket.store.list("")] == ["holiday.jpg"]


def test_nothing_is_written_where_nothing_has_changed(bucket, author):
    author.create()
    put(bucket, author)
    author.do("set_stream_state", name="orders", paused=True)  # of which it says nothing
    assert put(bucket, author) == {"version": 1, "written": False, "deleted": []}
    author.do("update_stream", name="orders", changes={"retention_bytes": 7})
    assert put(bucket, author)["version"] == 2


def test_a_stream_that_was_created_again_stands_beside_the_one_before(bucket, author):
    author.create()
    put(bucket, author)
    author.do("delete_stream", name="orders")
    author.create(uuid=UUIDS[1])
    assert put(bucket, author)["deleted"] == [{"uuid": UUIDS[0], "partitions": 1, "deleted_ns": 100}]
    assert put(bucket, author, now_ns=200)["written"] is False  # it was deleted when it was deleted
    streams = bucket.catalog().streams
    assert {uuid: (each.name, each.deleted_ns) for uuid, each in streams.items()} == {
        UUIDS[0]: ("orders", 100),
        UUIDS[1]: ("orders", None),
    }
    assert put(bucket, author, collected=[UUIDS[0], UUIDS[1]])["deleted"] == []
    assert set(bucket.catalog().streams) == {UUIDS[1]}  # what is there is not collected


def test_what_the_metadata_do_not_know_yet_is_not_marked_as_deleted(bucket, author):
    bucket.put_catalog(**{UUIDS[5]: stream("flights")})
    author.create()
    put(bucket, author)
    assert bucket.catalog().streams[UUIDS[5]].deleted_ns is None


def test_the_bucket_of_another_cluster_is_left_alone(bucket, author):
    bucket.put_catalog(OTHER)
    with pytest.raises(ForeignBucketError) as caught:
        put(bucket, author)
    assert OTHER in str(caught.value)
    assert CLUSTER in str(caught.value)
    assert bucket.catalog().version == 1


def test_of_two_writers_one_is_overtaken(bucket, author, monkeypatch):
    bucket.put_catalog()
    author.create()
    load = CatalogFile.load

    def slow(self):
        loaded = load(self)
        monkeypatch.setattr(CatalogFile, "load", load)
        put(bucket, author, now_ns=5)
        return loaded

    monkeypatch.setattr(CatalogFile, "load", slow)
    with pytest.raises(OvertakenError):
        put(bucket, author)
    assert bucket.catalog().version == 2


def test_content_is_a_function_of_what_was_and_what_is(author):
    author.create()
    description = Description()
    first = description.of(author.state)
    author.create("flights", uuid=UUIDS[1])
    second = description.of(author.state)
    assert second["streams"][UUIDS[0]] is first["streams"][UUIDS[0]]  # thousands of streams cost nothing
    catalog = merged(None, CLUSTER, second["streams"], (), (), 5)
    assert merged(catalog, CLUSTER, second["streams"], (), (), 6) is None
    own = taken(catalog, OTHER)
    assert (own.cluster_id, own.version, own.streams) == (OTHER, 2, catalog.streams)


class Metadata:
    """The metadata of a node that leads them, or not."""

    cluster_id = CLUSTER

    def __init__(self, author):
        self.author = author
        self.is_leader = True
        self.changed = asyncio.Event()

    @property
    def state(self):
        return self.author.state

    async def read(self):
        return self.author.state

    async def watch(self):
        while True:
            yield self.state
            await self.changed.wait()
            self.changed.clear()


class Worker(PlainWorker):
    """Does jobs at once."""

    def __init__(self, bucket):
        self.bucket = bucket
        self.calls = []
        self.error = None
        self.pinned = False

    async def answer(self, job, /, **arguments):
        self.calls.append((job, arguments))
        if self.error is not None:
            raise self.error
        if job == "drop_stream":
            return {"deleted": 0, "freed": 0, "pinned": self.pinned}
        try:
            return plainly(PutCatalogJob, put_catalog)(self.bucket.store, arguments) if job == "catalog" else {}
        except ForeignBucketError as error:
            raise TierWorkError("foreign", str(error)) from error

    @property
    def jobs(self):
        return [job for job, _ in self.calls]


class Time:
    """Stands still."""

    ns = 1_000
    passed_ns = 0

    def now_ns(self):
        return self.ns

    def monotonic(self):
        return self.passed_ns / 1e9

    def advance(self, ns):
        self.ns += ns
        self.passed_ns += ns


@pytest.fixture
def kept(bucket, author):
    """A keeper that was not started, and what it works with."""
    metadata, worker, clock, told = Metadata(author), Worker(bucket), Time(), []
    keeper = CatalogKeeper(metadata, worker, clock, grace_s=1.0, on_error=told.append, debounce_s=0.01, look_s=30.0)
    return keeper, metadata, worker, clock, told


async def test_the_keeper_writes_what_changed_and_else_nothing(kept, author, bucket):
    keeper, _, worker, _, told = kept
    author.create()
    for _ in range(3):
        assert await keeper.look()
    assert (worker.jobs, keeper.version, told) == (["catalog"], 1, [None])
    author.create("flights", uuid=UUIDS[1])
    assert await keeper.look()
    assert set(bucket.catalog().streams) == {UUIDS[0], UUIDS[1]}


async def test_who_does_not_lead_the_metadata_writes_nothing(kept, author):
    keeper, metadata, worker, _, _ = kept
    author.create()
    metadata.is_leader = False
    assert await keeper.look()
    assert worker.calls == []


async def test_what_is_wrong_with_the_bucket_is_told_until_it_is_not(kept, author, bucket):
    keeper, _, worker, _, told = kept
    author.create()
    worker.error = TierWorkError("foreign", "another's")
    assert not await keeper.look()
    worker.error = TierWorkError("overtaken", "somebody was quicker", retriable=True)
    assert not await keeper.look()
    worker.error = None
    assert await keeper.look()
    assert told == [told[0], None, None]
    assert told[0].code == "foreign"
    assert set(bucket.catalog().streams) == {UUIDS[0]}


async def test_the_objects_of_a_deleted_stream_go_after_the_grace_period(kept, author, bucket):
    keeper, _, worker, clock, _ = kept
    author.create(leaders=("n1", "n1"))
    await keeper.look()
    author.do("delete_stream", name="orders")
    await keeper.look()
    clock.advance(999_999_999)
    await keeper.look()
    clock.ns += 10**15
    await keeper.look()
    assert worker.jobs == ["catalog", "catalog"], "the clock says so, but so much time has not passed"
    clock.advance(1)
    assert not await keeper.look()
    assert worker.calls[-1] == ("drop_stream", {"uuid": UUIDS[0], "partitions": 2})
    assert bucket.catalog().streams[UUIDS[0]].deleted_ns == 1_000  # until it is known that they are gone
    assert await keeper.look()
    assert bucket.catalog().streams == {}


async def test_what_can_not_be_dropped_stays_listed(kept, author, bucket):
    keeper, _, worker, clock, _ = kept
    author.create()
    await keeper.look()
    author.do("delete_stream", name="orders")
    await keeper.look()
    clock.advance(10**9)
    worker.error = TierWorkError("unavailable", "away", retriable=True)
    assert await keeper.look()
    worker.error = None
    assert set(bucket.catalog().streams) == {UUIDS[0]}
    assert not await keeper.look()
    assert await keeper.look()
    assert bucket.catalog().streams == {}


async def test_a_deleted_stream_stays_listed_while_a_pin_holds_something_of_it(kept, author, bucket):
    """Nobody else would look for it when the pin ends."""
    keeper, _, worker, clock, _ = kept
    author.create()
    await keeper.look()
    author.do("delete_stream", name="orders")
    await keeper.look()
    worker.pinned = True
    for dropped in (1, 2):
        clock.advance(10**9)
        assert await keeper.look()
        assert await keeper.look()
        assert worker.jobs.count("drop_stream") == dropped, "once in a grace period is enough"
        assert set(bucket.catalog().streams) == {UUIDS[0]}
    assert set(keeper._pinned_s) == {UUIDS[0]}
    worker.pinned = False
    clock.advance(10**9)
    assert not await keeper.look()
    await keeper.look()
    assert keeper._pinned_s == {}, "what is gone needs no memory"
    assert await keeper.look()
    assert bucket.catalog().streams == {}


async def test_started_it_follows_changes(kept, author, bucket):
    keeper, metadata, worker, _, _ = kept
    author.create()
    keeper.start()
    await eventually(lambda: bool(worker.calls))
    author.create("flights", uuid=UUIDS[1])
    metadata.changed.set()
    await eventually(lambda: len(bucket.catalog().streams) == 2)
    await keeper.stop()


async def test_a_new_stream_is_written_at_once_and_other_changes_wait(kept, author, bucket):
    keeper, metadata, _, _, _ = kept
    keeper._debounce_s = 60.0
    author.create()
    keeper.start()
    await eventually(lambda: keeper.version == 1 and not keeper._appeared.is_set())  # it has come to rest
    keeper._changed.clear()
    author.do("update_stream", name="orders", changes={"retention_bytes": 7})
    metadata.changed.set()
    await eventually(keeper._changed.is_set)
    assert not keeper._appeared.is_set()  # only that would wake it before its time
    assert keeper.version == 1
    author.create("flights", uuid=UUIDS[1])
    metadata.changed.set()
    await eventually(lambda: len(bucket.catalog().streams) == 2)
    await keeper.stop()


async def test_it_looks_now_and_then_without_a_change(kept, author, bucket):
    keeper, _, worker, _, told = kept
    keeper._look_s = 0.02
    author.create()
    keeper.start()
    await eventually(lambda: bool(worker.calls))
    bucket.put_catalog(OTHER)
    await eventually(lambda: told[-1] is not None)
    await keeper.stop()
    assert told[-1] is not None
