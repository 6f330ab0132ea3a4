"""Rows that Spark staged in the bucket are read by the leader, and appended once however often they are asked for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from liftpy_bucket.staging.section import RowChunk
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.envelope import StagedSection, encode_staged
from liftpy_envelope.errors import AckErrorCode, ErrorCode
from liftpy_server.tier.errors import TierWorkError, plain_error
from liftpy_server.tier.host import staged_rows
from liftpy_server.tier.host.staged_rows import StagedRows
from liftpy_server.tier.jobs.reads import staged
from liftpy_server.tier.jobs.reads.staged import read_staged
from liftpy_spark.sink.directory import DirectoryPlace
from liftpy_spark.sink.place import BucketPlace
from liftpy_spark.sink.staging import stage
from support.cluster import eventually
from support.envelopes import PRODUCER
from support.nats_frames import msg
from support.server_kit import UUID, Kit

SUBJECT = "orders.a"
OURS = f"spark/staging/{UUID.hex()}/app/{0:020d}/00000-{'ab' * 16}.arrows"


class Worker:
    """What reads the bucket, in threads, once it may."""

    def __init__(self, store):
        self.store = store
        self.may = asyncio.Event()
        self.may.set()
        self.asked = []
        self.at_once = self.at_once_max = 0

    async def call(self, request):
        self.asked.append(request)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await self.may.wait()
            return await asyncio.to_thread(read_staged, self.store, request)
        except Exception as error:
            raise TierWorkError(**plain_error(error)) from None
        finally:
            self.at_once -= 1

    async def close(self):
        pass


class World:
    """A node that leads a stream, and a bucket in which rows are staged."""

    def __init__(self, directory, staging=None, **settings):
        self.kit = Kit(directory / "logs", **settings)
        self.store = MemoryStore()
        self.worker = Worker(self.store)
        self.directory = directory / "staged"
        self.executor = ThreadPoolExecutor(1)
        self.rows = StagedRows(
            *(self.worker, self.kit.disk, self.executor, self.directory, self.kit.clock, self.kit.outbox.flush),
            staging,
        )
        self.directory.mkdir()
        (self.directory / "left.rows").write_bytes(b"by a node that was killed")
        self.rows.start()
        for partition in self.kit.partitions.values():
            partition.staged = self.rows

    def stage(self, *chunks, key=OURS, subject=SUBJECT, subjects=None):
        """Chunks of values, as one section, under one subject, or each under its own."""
        named = zip(subjects or [subject] * len(chunks), chunks, strict=True)
        rows = [RowChunk(0, name, pa.record_batch({"value": pa.array(chunk, pa.binary())})) for name, chunk in named]
        (section,) = stage(BucketPlace(self.store), key, rows, "ab" * 16)
        return StagedSection(key, section.start, section.length, section.chunks, section.crc)

    def message(self, section, chunk, *, subject=SUBJECT, stream="orders", sequence=None, reply=None, **options):
        """A message for one chunk; its ack goes to `r.<chunk>`."""
        number = chunk if sequence is None else sequence
        inbox = f"r.{chunk}" if reply is None else reply
        staged = encode_staged(
            *(section, chunk),
            stream=stream,
            producer_id=PRODUCER,
            producer_sequence=number,
            **{"ack_inbox": inbox or None} | options,
        )
        return msg(subject.encode(), staged)

    def receive(self, section, *chunks, **options):
        self.kit.receive(*(self.message(section, chunk, **options) for chunk in chunks))

    async def finish(self):
        """Wait until nothing is read any more."""
        await eventually(lambda: not self.rows._tasks)
        self.kit.sync()

    async def close(self):
        await self.rows.stop()
        self.executor.shutdown()
        self.kit.close()


@pytest.fixture
async def make(tmp_path):
    made = []

    def make(**settings):
        made.append(World(tmp_path / str(len(made)), **settings))
        return made[-1]

    tmp_path_of = tmp_path
    for number in range(3):
        (tmp_path_of / str(number)).mkdir()
    yield make
    for world in made:
        await world.close()


@pytest.fixture
def world(make):
    return make()


async def test_each_chunk_is_appended_once_with_its_ack_and_the_file_goes(world):
    section = world.stage([b"a", None, b"c"], [b"d"], [b"e" * 70_000])
    world.receive(section, 0, 1)
    world.receive(section, 2)
    await world.finish()
    assert world.kit.stored() == [b"a", None, b"c", b"d", b"e" * 70_000]
    assert [(subject, ack["offset"], ack["count"]) for subject, ack in world.kit.acks()] == [
        (b"r.0", 2, 3),
        (b"r.1", 3, 1),
        (b"r.2", 4, 1),
    ]
    assert {record.subject for record in world.kit.records()} == {b"orders.a"}
    assert len(world.worker.asked) == 1, "a section is read at once"
    assert list(world.directory.iterdir()) == []
    assert (world.rows.sections, world.rows.bytes, world.rows.failures) == (1, section.length, 0)


@pytest.mark.parametrize(("at_once", "passes"), [(1, 3), (staged_rows._APPENDED_BYTES, 1)])
async def test_chunks_that_wait_are_appended_at_once_each_under_its_subject(world, monkeypatch, at_once, passes):
    monkeypatch.setattr(staged_rows, "_APPENDED_BYTES", at_once)
    section = world.stage([b"a"], [b"b"], [b"c"], [b"d"], subjects=["orders.a", "orders.b", "orders.b", "orders.c"])
    (partition,) = world.kit.partitions.values()
    ended, end_pass = [], partition.end_pass
    world.worker.may.clear()
    for chunk, subject in enumerate(("orders.a", "orders.b", "orders.a", "orders.c")):
        world.receive(section, chunk, subject=subject)
    monkeypatch.setattr(partition, "end_pass", lambda: ended.append(1) or end_pass())
    world.worker.may.set()
    await world.finish()
    assert [(record.subject, record.value) for record in world.kit.records()] == [
        (b"orders.a", b"a"),
        (b"orders.b", b"b"),
        (b"orders.c", b"d"),
    ]
    refused = [ack for subject, ack in world.kit.acks() if subject == b"r.2"]
    assert "staged for subject 'orders.b'" in refused[0]["error"]["description"]
    assert len(ended) == passes


async def test_what_is_stored_is_acknowledged_again_and_not_read_again(world):
    section = world.stage([b"a", b"b"])
    world.receive(section, 0)
    await world.finish()
    world.receive(section, 0)
    await world.finish()
    assert world.kit.stored() == [b"a", b"b"]
    assert [(ack["offset"], ack.get("duplicate", False)) for _, ack in world.kit.acks()] == [(1, False), (1, True)]
    assert len(world.worker.asked) == 1


async def test_copies_that_come_while_it_is_read(world):
    section = world.stage([b"a"], [b"b"])
    world.worker.may.clear()
    world.receive(section, 0, 1, 0)
    world.receive(section, 0)
    world.receive(section, 0, reply="r.again")
    world.worker.may.set()
    await world.finish()
    assert world.kit.stored() == [b"a", b"b"]
    found = sorted((subject, ack["offset"], ack.get("duplicate", False)) for subject, ack in world.kit.acks())
    assert found == [(b"r.0", 0, False), (b"r.1", 1, False), (b"r.again", 0, True)]


async def test_a_section_that_nobody_asks_for_any_more_is_read_again_when_somebody_does(world, monkeypatch):
    monkeypatch.setattr(staged_rows, "_IDLE_S", 0.01)
    section = world.stage([b"a"], [b"b"])
    world.receive(section, 1)
    await world.finish()
    assert list(world.directory.iterdir()) == []
    world.receive(section, 0)
    await world.finish()
    assert world.kit.stored() == [b"b", b"a"]
    assert len(world.worker.asked) == 2


async def test_few_sections_are_read_at_once(world):
    sections = [world.stage([b"%d" % number], key=OURS.replace("/00000-", f"/{number:05d}-")) for number in range(8)]
    world.worker.may.clear()
    for number, section in enumerate(sections):
        world.receive(section, 0, sequence=number)
    await eventually(lambda: world.worker.at_once == 3)
    world.worker.may.set()
    await world.finish()
    assert sorted(world.kit.stored()) == [b"%d" % number for number in range(8)]
    assert world.worker.at_once_max == 3


def damage(store):
    body = bytearray(store.get(OURS).body)
    body[-1] ^= 1
    store.delete([OURS])
    store.create(OURS, bytes(body), "cd" * 16)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda store: store.delete([OURS]), "it is gone"),
        (damage, "its checksum does not match"),
        (lambda _: None, "more than 100 bytes of records"),
    ],
)
async def test_what_can_not_be_read_is_refused_and_nothing_is_stored(world, monkeypatch, harm, said):
    if said.startswith("more"):
        monkeypatch.setattr(staged, "_FILE_BYTES_MAX", 100)
    section = world.stage([b"a"], [b"b" * 200])
    harm(world.store)
    world.receive(section, 0, 1)
    await world.finish()
    refused = world.kit.acks()
    assert [(subject, ack["error"]["err_code"]) for subject, ack in refused] == [
        (b"r.0", AckErrorCode.STAGED_UNREADABLE),
        (b"r.1", AckErrorCode.STAGED_UNREADABLE),
    ]
    assert said in refused[0][1]["error"]["description"]
    assert (world.rows.sections, world.rows.failures) == (0, 1)
    assert world.kit.stored() == []
    assert list(world.directory.iterdir()) == []


async def test_another_subject_than_that_of_the_message_is_not_stored(world):
    """NATS says who may publish to a subject; a message to one brings nothing to another."""
    section = world.stage([b"a"], subject="orders.secret")
    world.receive(section, 0)
    await world.finish()
    ((_, ack),) = world.kit.acks()
    assert ack["error"]["err_code"] == AckErrorCode.MALFORMED
    assert "'orders.secret'" in ack["error"]["description"]
    assert world.kit.stored() == []


@pytest.mark.parametrize(
    ("changes", "options", "code"),
    [
        ({"key": OURS.replace(UUID.hex(), "cd" * 16)}, {}, AckErrorCode.MALFORMED),
        ({"key": f"spark/staging/{UUID.hex()}/../../catalog.json"}, {}, AckErrorCode.MALFORMED),
        ({"length": 1 << 40}, {}, AckErrorCode.STAGED_UNREADABLE),
        ({}, {"stream": "others"}, AckErrorCode.WRONG_STREAM),
    ],
)
async def test_what_is_not_staged_for_this_stream_is_not_even_looked_up(world, changes, options, code):
    section = world.stage([b"a"])._replace(**changes)
    world.receive(section, 0, **options)
    assert world.kit.errors() == [(b"r.0", code)]
    assert world.worker.asked == []


async def test_rows_in_the_directory_that_the_node_was_told(make, tmp_path):
    world = make(staging=str(tmp_path))
    rows = [RowChunk(0, SUBJECT, pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())}))]
    (section,) = stage(DirectoryPlace(str(tmp_path)), OURS, rows, "ab" * 16)
    staged = StagedSection(OURS, section.start, section.length, section.chunks, section.crc, str(tmp_path))
    world.receive(staged, 0)
    await world.finish()
    assert world.kit.stored() == [b"a", b"b"]
    DirectoryPlace(str(tmp_path)).delete([OURS])
    world.receive(staged, 0, sequence=1)
    await world.finish()
    assert "is its directory mounted here" in world.kit.acks()[-1][1]["error"]["description"]


@pytest.mark.parametrize("staging", [None, "/srv/staging"])
async def test_no_other_directory_is_read(make, staging):
    world = make(staging=staging)
    section = world.stage([b"a"])._replace(directory="/etc")
    world.receive(section, 0)
    assert world.kit.errors() == [(b"r.0", AckErrorCode.UNSUPPORTED)]
    assert world.worker.asked == []


async def test_without_an_ack_it_is_refused_and_counted(world):
    section = world.stage([b"a"])
    world.receive(section, 0, reply="")
    await world.finish()
    assert world.kit.stream.counters.refused == {"malformed": 1}
    assert (world.worker.asked, world.kit.acks(), world.kit.stored()) == ([], [], [])


async def test_a_node_without_a_bucket_says_so(world):
    world.kit.partition.staged = None
    section = world.stage([b"a"])
    world.receive(section, 0)
    assert world.kit.errors() == [(b"r.0", AckErrorCode.UNSUPPORTED)]


async def test_too_many_that_wait_are_refused(world, monkeypatch):
    monkeypatch.setattr(staged_rows, "_WAITING_MAX", 2)
    section = world.stage([b"a"], [b"b"], [b"c"])
    world.worker.may.clear()
    world.receive(section, 0, 1, 2)
    assert world.kit.errors() == [(b"r.2", AckErrorCode.STAGED_UNREADABLE)]
    world.worker.may.set()
    await eventually(lambda: world.kit.stored() == [b"a", b"b"])
    world.receive(section, 2)
    await world.finish()
    assert world.kit.stored() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("waited_s", "is_stored"), [(9.0, True), (11.0, False)])
async def test_what_took_so_long_that_its_id_may_be_forgotten_soon_is_refused(make, waited_s, is_stored):
    world = make(dedupe_window_s=100.0)
    section = world.stage([b"a"])
    world.worker.may.clear()
    world.receive(section, 0)
    world.kit.clock.advance(waited_s)
    world.worker.may.set()
    await world.finish()
    assert world.kit.stored() == ([b"a"] if is_stored else [])
    ((_, ack),) = world.kit.acks()
    assert ("error" in ack) is not is_stored


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_node_that_leads_no_longer_neither_stores_nor_answers(world, is_readable):
    section = world.stage([b"a"])
    world.worker.may.clear()
    world.receive(section, 0)
    world.kit.partition.is_leading = False
    if not is_readable:
        world.store.delete([OURS])
    world.worker.may.set()
    await world.finish()
    assert (world.kit.stored(), world.kit.acks()) == ([], [])


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_partition_that_was_closed_meanwhile_is_not_touched(world, is_readable):
    section = world.stage([b"a"])
    world.worker.may.clear()
    world.receive(section, 0)
    world.kit.partition.close(ErrorCode.UNKNOWN_STREAM)
    if not is_readable:
        world.store.delete([OURS])
    world.worker.may.set()
    await world.finish()
    assert (world.kit.log.log_end, world.kit.acks()) == (0, [])


async def test_a_stream_that_takes_nothing_refuses_what_was_read(world):
    section = world.stage([b"a"])
    world.worker.may.clear()
    world.receive(section, 0)
    world.kit.stream.read_only = True
    world.worker.may.set()
    await world.finish()
    assert world.kit.errors() == [(b"r.0", AckErrorCode.READ_ONLY)]


async def test_a_record_that_the_stream_does_not_take_is_refused(make):
    world = make(message_bytes_max=1_024)
    section = world.stage([b"a" * 2_000])
    world.receive(section, 0)
    await world.finish()
    assert world.kit.errors() == [(b"r.0", AckErrorCode.TOO_LARGE)]


async def test_the_partition_that_the_message_names(make):
    world = make(partitions=3, spread="hash")
    section = world.stage([b"a", b"b"])
    world.receive(section, 0, partition=2)
    await world.finish()
    assert [world.kit.stored(number) for number in range(3)] == [[], [], [b"a", b"b"]]


async def test_keys_and_headers_come_along(world):
    columns = {"value": [b"v", None], "key": [b"k", b"l"], "headers": [b"NATS/1.0\r\nA: b\r\n\r\n", None]}
    rows = pa.record_batch({name: pa.array(column, pa.binary()) for name, column in columns.items()})
    (section,) = stage(BucketPlace(world.store), OURS, [RowChunk(0, SUBJECT, rows)], "ab" * 16)
    world.receive(StagedSection(OURS, section.start, section.length, section.chunks, section.crc), 0)
    await world.finish()
    assert [(each.key, each.headers, each.value) for each in world.kit.records()] == [
        (b"k", b"NATS/1.0\r\nA: b\r\n\r\n", b"v"),
        (b"l", None, None),
    ]


async def test_a_node_that_stops_gives_up_what_waits(world):
    section = world.stage([b"a"])
    world.worker.may.clear()
    world.receive(section, 0)
    await asyncio.sleep(0)
    await world.rows.stop()
    await eventually(lambda: not world.rows._tasks)
    assert (world.kit.stored(), world.kit.acks()) == ([], [])
