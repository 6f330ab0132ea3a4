"""Ranges read from a bucket in memory: exactly the records asked for, whatever happens to objects meanwhile."""

from __future__ import annotations

import random
from itertools import count, pairwise
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from liftpy_bucket.errors import StoreDeniedError, StoreUnavailableError
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.objects.read import ObjectReader
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.store.counting import CountingStore
from liftpy_client.errors import NodeUnavailableError, OffsetLostError
from liftpy_envelope.subject import matches
from liftpy_spark.connections import BucketAddress, OpenBucket
from liftpy_spark.errors import BucketError, BucketUnreachableError, DataLossError, NatsError, NatsSilentError
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.reading import cold, hot, ranges
from liftpy_spark.reading.cold import Step
from liftpy_spark.reading.planning import BatchTask, Range
from liftpy_spark.reading.ranges import ReadCounts, read_ranges
from liftpy_spark.reading.retry_deadline import RetryDeadline
from liftpy_spark.reading.schema import source_schema
from liftpy_spark.source.batch_reader import LiftpyReader
from support.examples import examples
from support.tier_history import PATH, TierHistory
from support.tier_rows import UUID, Record

SCHEMA = source_schema(include_headers=True)
SUBJECTS = st.sampled_from([b"a.x", b"a.y", b"b", b"\xff\xfe", "\ufffdab".encode()])
KEYS = st.sampled_from([None, b"", b"1", b"2", b"3"])


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


class Details(NamedTuple):
    """What a node says of the partition."""

    local_start: int | None = None
    tiered_end: int | None = None
    uuid: str = UUID
    partition: int = 0


class World:
    """A bucket, and a node that has records behind it."""

    def __init__(self, monkeypatch):
        self.history = TierHistory()
        self.hot: list[Record] = []
        self.log_start = 0
        self.asked: list[tuple[int, int]] = []
        self.counts = ReadCounts()
        self.use(self.history.store)
        self.opened = 0
        self.says: Details | Exception = Details()
        self.infos = 0
        self.now_s = 0.0
        self.pauses = 0
        self.silences: dict[int, int] = {}  # how often a node is silent before it hands out an offset
        monkeypatch.setattr(ranges, "open_bucket", self.open_bucket)
        monkeypatch.setattr(ranges, "lift", lambda _: self)
        monkeypatch.setattr(hot, "read_hot", self.read_hot)

    def use(self, store):
        counting = CountingStore(store)
        self.bucket = OpenBucket(counting, ReadingCache(counting), "s3://memory")

    def open_bucket(self, _connection, address):
        self.opened += 1
        self.address = address
        return self.bucket

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        self.pauses += 1
        self.now_s += seconds

    def stream_info(self, _name):
        self.infos += 1
        if isinstance(self.says, Exception):
            raise self.says
        return SimpleNamespace(uuid=self.says.uuid, partitions=[self.says])

    def read_hot(self, _lift, wanted, projection, _chosen):
        self.asked.append((wanted.start, wanted.end))
        if wanted.start < self.log_start:
            raise OffsetLostError(wanted.stream, 0, wanted.start, self.log_start, wanted.end)
        found = [each for each in self.hot if wanted.start <= each.offset < wanted.end]
        for each in found:
            if self.silences.get(each.offset):
                self.silences[each.offset] -= 1
                raise NatsSilentError("no node answers")
            columns = {name: pa.array([getattr(each, name)], pa.binary()) for name in ("key", "value", "headers")}
            columns |= {"offset": pa.array([each.offset]), "subject": pa.array([each.subject], pa.binary())}
            columns["timestamp"] = pa.array([each.timestamp // 1_000], pa.timestamp("us", "UTC"))
            yield Step(projection.apply(columns, 1, wanted.stream, 0), each.offset + 1)
        yield Step(None, wanted.end)

    def read(self, start, end, *names, asks_nodes=False, **options):
        given = {"servers": "nats://nowhere", "subscribe": "orders"} | options
        fields = [field for field in SCHEMA.fields if not names or field.name in names]
        ranges = [Range("orders", UUID, 0, start, end)]
        self.counts = ReadCounts()
        source = SourceOptions.read(given, streaming=False)
        deadline = RetryDeadline(clock=self.clock, sleep=self.sleep)
        how = {"asks_nodes": asks_nodes, "deadline": deadline}
        read = read_ranges(ranges, source, type(SCHEMA)(fields), self.counts, **how)
        return [row for batch in read for row in batch.to_pylist()]

    def offsets(self, start, end, **options):
        return [row["offset"] for row in self.read(start, end, "offset", **options)]


def records(start, end, step=1):
    return [Record(at, at * 1_000, b"a.x", key=b"%d" % at, value=b"v%d" % at) for at in range(start, end, step)]


class Scripted:
    """A store in which something happens before some of the reads."""

    def __init__(self, store, before):
        self._store = store
        self._before = before
        self._reads = count(1)

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get_range(self, key, start, length):
        self._before(next(self._reads), key)
        return self._store.get_range(key, start, length)


def test_columns_are_those_of_the_records(world):
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    world.history.append([Record(0, 1_999, b"\xff\xfe", headers=block), Record(1, 5_000, b"a", key=b"", value=b"")])
    first, second = world.read(0, 2)
    assert (first["key"], first["value"], first["subject"]) == (None, None, "\ufffd\ufffd")
    assert first["headers"] == [{"key": "A", "value": b"b"}]
    assert first["timestamp"].microsecond == 1
    assert (second["key"], second["value"], second["headers"]) == (b"", b"", None)
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in (first, second)} == {("orders", 0, 1)}


def test_the_seam(world):
    for start in range(0, 30, 10):
        world.history.append(records(start, start + 10))
    world.hot = records(25, 50)
    assert world.offsets(3, 50) == list(range(3, 50))
    assert world.asked == [(30, 50)]
    assert (world.counts.cold_rows, world.counts.hot_rows, world.counts.objects) == (27, 20, 3)
    assert world.offsets(4, 9) == list(range(4, 9))
    assert world.offsets(35, 40) == list(range(35, 40))
    assert world.offsets(7, 7) == []


def test_holes_at_every_end(world):
    world.history.append(records(2, 8, 2), end=10)
    world.history.append([], end=20)
    world.history.append(records(20, 25, 3), end=30)
    world.hot = records(31, 40, 4)
    assert world.offsets(0, 45) == [2, 4, 6, 20, 23, 31, 35, 39]
    assert world.offsets(8, 20) == []
    assert world.asked == [(30, 45)]


@examples(60)
@given(
    rows=st.lists(st.tuples(st.integers(1, 3), SUBJECTS, KEYS), min_size=1, max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=5),
    span=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    subject=st.sampled_from([None, "a.*", "b", "a.x", ">", "*.y,b"]),
    key=st.sampled_from([None, "1", "9"]),
    names=st.sampled_from([(), ("offset",), ("value", "offset"), ("offset", "subject", "key")]),
)
def test_any_history_any_range_any_choice(rows, cuts, span, subject, key, names):
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World(monkeypatch)
        offset, all_of_it = 0, []
        for step, name, each in rows:
            offset += step
            all_of_it.append(Record(offset - 1, offset * 7_000, name, key=each, value=b"%d" % offset))
        edges = sorted({0, len(all_of_it), *(at for at in cuts if at < len(all_of_it))})
        for first, last in pairwise(edges):
            world.history.append(all_of_it[first:last])
        options = {"subject": subject, "keyEquals": key}
        found = world.read(*span, *names, **{name: text for name, text in options.items() if text is not None})
        patterns = subject.split(",") if subject else [">"]
        expected = [
            each
            for each in all_of_it
            if span[0] <= each.offset < span[1]
            and any(matches(pattern, each.subject.decode("latin-1")) for pattern in patterns)
            and (key is None or each.key == key.encode())
        ]
        assert [row["offset"] for row in found] == [each.offset for each in expected]
        if "value" in (names or ("value",)):
            assert [row["value"] for row in found] == [each.value for each in expected]


def test_objects_that_are_merged_away_while_they_are_read(world):
    pointers = [world.history.append(records(start, start + 10)) for start in range(0, 60, 10)]
    store = world.history.store

    def before(_number, key):
        if key.endswith(pointers[3].name) and len(world.history.root.fragments) == len(pointers):
            merged = world.history.fragment(records(20, 60), 20, 60)
            root = world.history.root
            change = root_changes.replace(root, pointers[2:], [merged], collected=NO_RECORDS, snapshots={})
            world.history.commit(change)
            store.delete([PATH.fragment(each.name) for each in pointers[2:]])

    world.use(Scripted(store, before))
    assert world.offsets(0, 60) == list(range(60))
    assert world.asked == []


def test_objects_that_are_gone_for_good(world):
    world.history.append(records(0, 10))
    world.history.append_blank(1, 10)
    with pytest.raises(BucketError, match=r"can not be read from offset 10 on .*`liftpy tier verify`"):
        world.offsets(0, 20)


def failing(error):
    """What a store does before every request, that answers none."""

    def before(_number, _key):
        raise error

    return before


def test_a_bucket_that_goes_away(world):
    world.history.append(records(0, 10))

    world.use(Scripted(world.history.store, failing(StoreUnavailableError("no answer"))))
    with pytest.raises(BucketError, match=r"s3://memory can not be read from the driver: no answer; it .* for 60 s"):
        world.offsets(0, 10)
    assert 60 <= world.now_s < 61


def test_a_bucket_that_is_away_for_a_while_is_waited_for(world):
    for start in range(0, 40, 10):
        world.history.append(records(start, start + 10))

    def before(number, _key):
        if 5 <= number < 100:
            raise StoreUnavailableError("no answer")

    world.use(Scripted(world.history.store, before))
    assert world.offsets(0, 40) == list(range(40))
    assert world.pauses > 10


@pytest.mark.parametrize("ever_answered", [True, False])
def test_a_query_that_keeps_up_goes_on_without_a_bucket_that_is_away(world, monkeypatch, ever_answered):
    world.history.append(records(0, 20))
    world.hot = records(5, 40)
    world.says = Details(local_start=5, tiered_end=20)

    def unreachable(_connection, _address):
        world.opened += 1
        raise BucketUnreachableError("no way there")

    if ever_answered:
        world.use(Scripted(world.history.store, failing(StoreUnavailableError("no answer"))))
    else:
        monkeypatch.setattr(ranges, "open_bucket", unreachable)
    assert world.offsets(10, 40, asks_nodes=True) == list(range(10, 40)), "the node has all of it"
    assert (world.asked, world.pauses, world.opened) == ([(10, 40)], 0, 1)
    with pytest.raises(BucketError, match=r"no answer|no way there"):
        world.offsets(4, 40, asks_nodes=True)
    assert world.asked == [(10, 40)], "what it has not is not looked for there"
    with pytest.raises(BucketError, match=r"no answer|no way there"):
        world.offsets(10, 40)


def test_a_node_that_is_away_for_a_while_is_waited_for(world):
    world.history.append(records(0, 10))
    world.hot = records(10, 20)
    world.silences = {10: 200, 15: 200, 19: 200}
    assert world.offsets(0, 20) == list(range(20)), "a minute begins anew when something comes"
    assert world.now_s == pytest.approx(150)
    world.silences = {15: 300}
    with pytest.raises(NatsError, match="no node answers; it has been so for 60 s"):
        world.offsets(0, 20)


def test_what_will_not_pass_is_not_waited_for(world):
    world.history.append(records(0, 10))

    world.use(Scripted(world.history.store, failing(StoreDeniedError("not for you"))))
    with pytest.raises(BucketError, match="not for you"):
        world.offsets(0, 10)
    assert world.pauses == 0


def test_records_below_the_start_of_the_bucket(world):
    world.history = TierHistory(start=10)
    world.use(world.history.store)
    world.history.append(records(10, 20))
    world.hot = records(5, 30)
    assert world.offsets(5, 25) == list(range(5, 25))
    assert world.asked == [(5, 10), (20, 25)]
    world.log_start = 8
    with pytest.raises(DataLossError, match="the records from 5 to 8 are gone"):
        world.offsets(5, 25)
    assert world.offsets(5, 25, failOnDataLoss="false") == list(range(8, 25))


def test_without_the_bucket(world):
    world.history.append(records(0, 10))
    world.hot = records(0, 10)
    assert world.offsets(0, 10, cold="false") == list(range(10))
    assert (world.asked, world.counts.requests) == ([(0, 10)], 0)


@pytest.mark.parametrize("tiered_end", [None, 0, 10])
def test_what_only_a_node_has_is_read_without_a_look_at_the_bucket(world, tiered_end):
    world.history.append(records(0, 10))
    world.hot = records(10, 20)
    world.says = Details(local_start=10, tiered_end=tiered_end)
    assert world.offsets(10, 20, asks_nodes=True) == list(range(10, 20))
    assert (world.opened, world.counts.requests) == (0, 0)
    assert world.offsets(10, 20) == list(range(10, 20))
    assert world.opened == 1
    assert world.counts.requests


def test_a_task_asks_about_a_stream_once(world):
    world.history.append(records(0, 10))
    world.hot = records(10, 40)
    ranges = [Range("orders", UUID, 0, *span) for span in ((10, 20), (20, 25), (30, 40))]
    source = SourceOptions.read({"servers": "nats://nowhere", "subscribe": "orders"}, streaming=False)
    for says in (Details(local_start=10, tiered_end=10), Details(local_start=0, tiered_end=30), NodeUnavailableError()):
        world.says, world.infos = says, 0
        read = read_ranges(ranges, source, SCHEMA, asks_nodes=True)
        assert [row["offset"] for batch in read for row in batch.to_pylist()] == [*range(10, 25), *range(30, 40)]
        assert world.infos == 1


def test_whoever_was_told_where_the_bucket_is_opens_that(world):
    world.history.append(records(0, 10))
    source = SourceOptions.read({"servers": "nats://nowhere", "subscribe": "orders"}, streaming=False)
    reader = LiftpyReader(source, SCHEMA)
    told = BucketAddress("s3://of-nodes", None, None)
    task = BatchTask((Range("orders", UUID, 0, 0, 10),), told)
    assert sum(batch.num_rows for batch in reader.read(InputPartition(task))) == 10
    assert world.address == told
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    "says",
    [
        Details(local_start=0, tiered_end=10),
        Details(local_start=6, tiered_end=None),
        Details(local_start=None, tiered_end=None),
        Details(local_start=0, tiered_end=0, uuid="another"),
        Details(local_start=0, tiered_end=0, partition=1),
        NodeUnavailableError("nobody answers"),
    ],
)
def test_what_the_bucket_has_or_may_have_is_read_from_there(world, says):
    world.history.append(records(0, 10))
    world.hot = records(0, 20)
    world.says = says
    assert world.offsets(5, 20, asks_nodes=True) == list(range(5, 20))
    assert world.asked == [(10, 20)]
    assert world.opened == 1


def test_neighbours_are_fetched_together_where_nearly_all_of_them_is_needed(world, monkeypatch):
    rng = random.Random(1)
    wide = [Record(at, at * 1_000, b"a.x", value=rng.randbytes(60_000)) for at in range(40)]
    pointer = world.history.append(wide, row_group_bytes=600_000)
    fetched = []
    scripted = Scripted(world.history.store, lambda _number, key: fetched.append(key))

    def values(start, end):
        world.use(scripted)
        fetched.clear()
        found = [row["value"] for row in world.read(start, end)]
        return found, sum(key.endswith(pointer.name) for key in fetched) - 1  # the footer

    everything = [each.value for each in wide]
    groups = len(ObjectReader(scripted, PATH.fragment(pointer.name), pointer.extent).row_groups)
    assert groups >= 4
    assert values(0, 40) == (everything, 1)
    assert values(1, 39) == (everything[1:39], 3)  # those at both ends are cut
    monkeypatch.setattr(cold, "_TOGETHER_BYTES", 1_300_000)
    assert values(0, 40) == (everything, -(-groups // 2))
    world.use(scripted)
    assert world.offsets(0, 40) == list(range(40))
    assert world.counts.bytes < pointer.size / 10


def test_what_was_fetched_together_is_decoded_row_group_by_row_group(world, monkeypatch):
    rng = random.Random(2)
    wide = [Record(at, at * 1_000, b"a.x", value=rng.randbytes(60_000)) for at in range(40)]
    world.history.append(wide, row_group_bytes=600_000)
    decoded = []
    decode = ObjectReader.decode

    def counted(reader, fetched, index, columns=None):
        decoded.append(index)
        return decode(reader, fetched, index, columns)

    monkeypatch.setattr(ObjectReader, "decode", counted)
    source = SourceOptions.read({"servers": "nats://nowhere", "subscribe": "orders"}, streaming=False)
    batches = read_ranges([Range("orders", UUID, 0, 0, 40)], source, SCHEMA)
    rows = 0
    for taken, batch in enumerate(batches, 1):
        rows += batch.num_rows
        assert decoded == list(range(taken))
    assert rows == 40
    assert len(decoded) >= 4
