"""Events are stored once and in order, whoever leads the stream; where they can not be, nothing waits for them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from liftpy_envelope.events import EVENTS_STREAM
from liftpy_log.errors import StorageFullError
from liftpy_server.events import publisher as publisher_module
from liftpy_server.events.backlog import Backlog
from liftpy_server.events.publisher import EventPublisher, events_stream
from liftpy_server.settings.events import EventsConfig
from support.metadata_commands import Author
from support.server_kit import NOW_NS

AGE_S = 3_600.0


@pytest.fixture
def kit(make_kit):
    return make_kit(dedupe_ids_max=0, retention_age_s=AGE_S)


def node(kit, backlog, *, executor=None):
    """What stores events on a node that leads their stream, whose log is that of the kit."""
    local = SimpleNamespace(partitions={0: kit.partition})
    state = SimpleNamespace(streams={EVENTS_STREAM: kit.info})
    return EventPublisher(
        EventsConfig(),
        backlog,
        SimpleNamespace(by_uuid={kit.info.uuid: local}),
        SimpleNamespace(state=state, is_leader=True),
        kit.files,
        executor,
        kit.clock,
    )


def happen(*backlogs, first=0, count=1, now_ns=NOW_NS):
    """Things that all these nodes see."""
    author = Author()
    author.register("n1")
    for number in range(first + count):
        before = author.state
        author.create(f"s{number}", f"{number:032x}")
        if number >= first:
            for backlog in backlogs:
                backlog.applied(before, author.state, now_ns)


def stored(kit):
    return [(record.subject.decode(), json.loads(record.value)["id"]) for record in kit.records()]


def subjects(kit):
    return [subject for subject, _ in stored(kit)]


def created(*numbers):
    return [f"stream.created.s{number}" for number in numbers]


async def test_events_are_stored_in_order_and_then_forgotten(kit):
    backlog = Backlog()
    publisher = node(kit, backlog)
    happen(backlog, count=3)
    await publisher._store()
    assert stored(kit) == list(zip(created(0, 1, 2), ["2.0", "3.0", "4.0"], strict=True))
    assert len(backlog) == 3, "nobody else may have them yet"
    kit.sync()
    assert len(backlog) == 0
    await publisher._store()
    assert len(stored(kit)) == publisher.stored == 3


async def test_the_next_leader_goes_on_where_the_log_ends(kit):
    """Whatever the one before had appended: all of it, some of it, nothing."""
    one, other = Backlog(), Backlog()
    happen(one, other, count=2)
    await node(kit, one)._store()
    kit.partition.follow(8)
    happen(one, other, first=2, count=3)
    await node(kit, one)._store()
    assert subjects(kit) == created(0, 1), "it does not lead"
    kit.partition.lead(9)
    successor = node(kit, other)
    await successor._store()
    assert subjects(kit) == created(0, 1, 2, 3, 4)
    assert (successor.stored, successor.lost) == (3, 0)


async def test_who_leads_again_reads_the_log_again(kit):
    """Meanwhile another may have stored more, and what it had itself may have been cut off."""
    backlog = Backlog()
    publisher = node(kit, backlog)
    happen(backlog)
    await publisher._store()
    happen(backlog, first=1, count=2)
    await publisher._store()
    kit.partition.follow(8)
    kit.log.truncate(1)
    await publisher._store()
    kit.partition.lead(9)
    await publisher._store()
    assert subjects(kit) == created(0, 1, 2)


@pytest.mark.parametrize("obstacle", ["storage_full", "is_accepting"])
async def test_where_nothing_can_be_stored_events_wait_and_are_bounded(kit, obstacle):
    backlog = Backlog(3)
    publisher = node(kit, backlog)
    happen(backlog)
    await publisher._store()
    kit.sync()
    setattr(kit.partition, obstacle, obstacle == "storage_full")
    happen(backlog, first=1, count=5)
    await publisher._store()
    assert subjects(kit) == created(0)
    setattr(kit.partition, obstacle, obstacle != "storage_full")
    await publisher._store()
    assert subjects(kit) == [*created(0), "events.lost", *created(3, 4, 5)]
    lost = json.loads(kit.records()[1].value)
    assert (lost["through"], lost["events_max"], publisher.lost) == ("4.0", 2, 2)
    kit.sync()
    await publisher._store()
    assert len(stored(kit)) == 5


async def test_what_others_have_stored_was_not_lost(kit):
    leader, follower = Backlog(), Backlog(2)
    happen(leader, follower, count=6)
    await node(kit, leader)._store()
    successor = node(kit, follower)
    kit.partition.lead(9)
    happen(follower, first=6)
    await successor._store()
    assert subjects(kit) == created(*range(7))
    assert successor.lost == 0


async def test_what_the_stream_has_forgotten_is_not_stored_again(kit):
    """After a restart the journal of the metadata tells of it, and the log has nothing any more."""
    backlog = Backlog()
    happen(backlog, now_ns=NOW_NS - int((AGE_S + 1) * 1e9))
    happen(backlog, first=1)
    await node(kit, backlog)._store()
    assert subjects(kit) == created(1)


async def test_an_error_ends_nothing(kit, monkeypatch):
    monkeypatch.setattr(publisher_module, "_TRY_AGAIN_S", 0.001)
    backlog = Backlog()
    publisher = node(kit, backlog)
    happen(backlog)
    append, errors = kit.partition.append_body, [StorageFullError("told to"), RuntimeError("told to"), None]

    def append_body(*args):
        error = errors.pop(0)
        if error is not None:
            raise error
        return append(*args)

    monkeypatch.setattr(kit.partition, "append_body", append_body)
    publisher.start()
    async with asyncio.timeout(20):
        while errors:
            await asyncio.sleep(0.001)
    await publisher.stop()
    assert subjects(kit) == created(0)


async def test_the_stream_is_created_by_the_leader_of_the_metadata_when_it_is_needed():
    proposed = []
    author, backlog = Author(), Backlog()

    async def propose(op, **args):
        proposed.append((op, args["config"]["replicas"]))
        author.do(op, **args)

    async def read():
        return author.state

    metadata = SimpleNamespace(state=author.state, is_leader=False, propose=propose, read=read)
    publisher = EventPublisher(EventsConfig(), backlog, SimpleNamespace(by_uuid={}), metadata, None, None, None)

    async def store():
        before, metadata.state = metadata.state, author.state
        backlog.applied(before, author.state, 5)
        await publisher._store()

    for name in ("n1", "n2"):
        author.register(name)
    metadata.is_leader = True
    await store()
    assert proposed == [], "nodes alone are worth no stream"
    author.create()
    metadata.is_leader = False
    await store()
    assert proposed == []
    metadata.is_leader = True
    await store()
    await store()
    assert proposed == [("create_stream", 2)]
    assert author.state.streams[EVENTS_STREAM].config == events_stream(EventsConfig(), 2)
