"""A command is durable before its proposer hears of it, and a restart gives the same state."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from unittest.mock import patch

import pytest

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.metadata import store as store_module
from liftpy_server.metadata.journal import Journal, JournalError
from liftpy_server.metadata.store import MetadataRefusedError, MetadataStore, MetadataUnavailableError
from support.metadata_commands import NODE, UUIDS, config
from support.server_kit import SetClock

PATIENCE_S = 2.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.db"


@asynccontextmanager
async def running(path):
    store = MetadataStore(path, SetClock(now_ns=55))
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def create(store, name="orders", **more):
    arguments = {"uuid": UUIDS[0], "config": config(name), "assignment": [["n1"]]} | more
    return await store.propose("create_stream", **arguments)


async def in_time(awaitable):
    """What comes of it; a proposal that is never answered is a failure, not a test that hangs."""
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


async def test_proposal_is_applied_and_answered(path):
    async with running(path) as store:
        assert await store.propose("register_node", node=NODE) == 1
        assert {"uuid": UUIDS[0], "created": True} == await create(store)
        assert (list(store.state.streams), store.state.revision) == (["orders"], 2)
        assert store.state.streams["orders"].created_ns == 55
        assert store.state is await store.read()


async def test_refusal_is_raised(path):
    async with running(path) as store:
        with pytest.raises(MetadataRefusedError, match="there is no stream 'x'") as refused:
            await store.propose("delete_stream", name="x")
        assert (refused.value.code, store.state.revision) == (ErrorCode.UNKNOWN_STREAM, 1)


async def test_restart_gives_the_same_state(path):
    async with running(path) as store:
        await store.propose("register_node", node=NODE)
        await create(store)
        with pytest.raises(MetadataRefusedError):
            await store.propose("delete_stream", name="x")
        before = store.state
    async with running(path) as store:
        assert before == store.state
        assert await store.propose("register_node", node=NODE) == 2
        assert store.state.streams["orders"].partitions[0].leader_epoch == 2


async def test_restart_after_compaction_gives_the_same_state(path):
    with patch.object(store_module, "_COMPACT_AFTER_COMMANDS", 3):
        async with running(path) as store:
            for _ in range(7):
                await store.propose("register_node", node=NODE)
            before = store.state
    assert (before.nodes["n1"].incarnation, before.revision) == (7, 7)
    async with running(path) as store:
        assert before == store.state
        assert await store.propose("register_node", node=NODE) == 8
    with closing(Journal(path)) as journal:
        snapshot, commands = journal.load()
    assert snapshot is not None
    assert len(commands) <= 3


async def test_same_id_is_applied_once(path):
    async with running(path) as store:
        answers = [await store.propose("register_node", command_id="c", node=NODE) for _ in range(3)]
        assert (answers, store.state.revision) == ([1, 1, 1], 1)
    async with running(path) as store:
        assert await store.propose("register_node", command_id="c", node=NODE) == 1
        assert store.state.nodes["n1"].incarnation == 1


async def test_proposals_at_once_are_applied_in_order(path):
    async with running(path) as store:
        answers = await asyncio.gather(*(store.propose("register_node", node=NODE) for _ in range(50)))
        assert (list(range(1, 51)), 50) == (answers, store.state.revision)


async def test_command_is_on_disk_before_its_proposer_hears_of_it(path):
    seen = []
    append = Journal.append

    def note(journal, commands):
        append(journal, commands)
        seen.append(len(commands))

    with patch.object(Journal, "append", note):
        async with running(path) as store:
            await store.propose("register_node", node=NODE)
            assert seen == [1]


async def test_command_that_can_not_be_made_durable_changes_nothing(path):
    async with running(path) as store:
        await store.propose("register_node", node=NODE)
        before = store.state
        with (
            patch.object(Journal, "append", side_effect=JournalError("the disk is full")),
            pytest.raises(MetadataUnavailableError, match="the disk is full"),
        ):
            await store.propose("register_node", node=NODE)
        assert before == store.state
        assert await store.propose("register_node", node=NODE) == 2


async def test_compaction_that_fails_is_tried_again(path):
    with patch.object(store_module, "_COMPACT_AFTER_COMMANDS", 2):
        async with running(path) as store:
            with patch.object(Journal, "compact", side_effect=JournalError("no")):
                for _ in range(3):
                    await store.propose("register_node", node=NODE)
            for _ in range(2):  # the second is answered when the compaction after the first is through
                await store.propose("register_node", node=NODE)
        with closing(Journal(path)) as journal:
            assert journal.load()[0] is not None


UNSPEAKABLE = {
    "half a character": {"name": "\ud800"},
    "a number beyond 64 bits": {"name": "orders", "expected_version": 2**64, "changes": {"subject": "a"}},
    "a number far below zero": {"name": "orders", "expected_version": -(2**63) - 1, "changes": {"subject": "a"}},
    "a key that is half a character": {"name": "orders", "changes": {"\udfff": 1}},
    "a deep nest": {"name": "orders", "changes": {"subject": [[[]]]}},
}


@pytest.mark.parametrize("name", UNSPEAKABLE)
async def test_command_that_can_not_be_written_down_is_refused_and_stops_nothing(path, name):
    arguments = dict(UNSPEAKABLE[name])
    if name == "a deep nest":
        nest = []
        for _ in range(600):
            nest = [nest]
        arguments["changes"] = {"subject": nest}
    async with running(path) as store:
        with pytest.raises(LiftError):
            await in_time(store.propose("update_stream", **({"changes": {"subject": "a"}} | arguments)))
        assert await in_time(store.propose("register_node", node=NODE)) == 1


async def test_command_that_can_not_be_written_down_does_not_take_others_with_it(path):
    async with running(path) as store:
        proposals = [
            store.propose("register_node", node=NODE),
            store.propose("delete_stream", name="\ud800"),
            store.propose("register_node", node=NODE),
        ]
        first, middle, last = await in_time(asyncio.gather(*proposals, return_exceptions=True))
        assert (first, last) == (1, 2)
        assert isinstance(middle, LiftError)


async def test_watcher_sees_the_state_now_and_after_changes(path):
    async with running(path) as store:
        watching = store.watch()
        assert (await anext(watching)).revision == 0
        await store.propose("register_node", node=NODE)
        assert (await in_time(anext(watching))).revision == 1
        await watching.aclose()


async def test_slow_watcher_skips_states_and_gets_the_newest(path):
    async with running(path) as store:
        watching = store.watch()
        await anext(watching)
        for _ in range(5):
            await store.propose("register_node", node=NODE)
        assert (await in_time(anext(watching))).revision == 5
        waiting = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        assert not waiting.done()
        await store.propose("register_node", node=NODE)
        assert (await in_time(waiting)).revision == 6
        await watching.aclose()


async def test_stopping_answers_those_who_wait(path):
    begun, go_on = threading.Event(), threading.Event()

    def slow(_journal, _commands):
        begun.set()
        go_on.wait(PATIENCE_S)

    store = MetadataStore(path, SetClock())
    await store.start()
    with patch.object(Journal, "append", slow):
        under_way = asyncio.ensure_future(store.propose("register_node", node=NODE))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        waiting = asyncio.ensure_future(store.propose("register_node", node=NODE))
        stopping = asyncio.ensure_future(store.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
    done, left_alone = await asyncio.wait({under_way, waiting}, timeout=PATIENCE_S)
    assert ({under_way, waiting}, set()) == (done, left_alone)


async def test_proposal_after_the_end_is_refused(path):
    store = MetadataStore(path, SetClock())
    await store.start()
    await store.stop()
    with pytest.raises(MetadataUnavailableError, match="stopping"):
        await in_time(store.propose("register_node", node=NODE))


async def test_more_proposals_than_can_wait_are_refused(path):
    with patch.object(store_module, "_WAITING_MAX", 2):
        async with running(path) as store:
            proposals = [store.propose("register_node", node=NODE) for _ in range(5)]
            answers = await in_time(asyncio.gather(*proposals, return_exceptions=True))
    refused = [answer for answer in answers if isinstance(answer, MetadataUnavailableError)]
    assert (len(refused), [answer for answer in answers if isinstance(answer, int)]) == (3, [1, 2])


def spoil(path, statement, *values):
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement, values)
        database.commit()


@pytest.mark.parametrize("entry", [b"", b"\xc1", b"\x80", b"\x01", b"\x81\xa1v\x01"])
async def test_entry_that_is_no_command_is_a_clear_error(path, entry):
    Journal(path).close()
    spoil(path, "INSERT INTO entries (term, command) VALUES (1, ?)", entry)
    store = MetadataStore(path, SetClock())
    with pytest.raises(LiftError):
        await store.start()


async def test_damaged_snapshot_is_a_clear_error(path):
    with closing(Journal(path)) as journal:
        journal.append([b"1"])
        journal.compact(b"state")
    spoil(path, "UPDATE snapshot SET state = ?", b"other")
    with pytest.raises(JournalError, match="damaged"):
        await MetadataStore(path, SetClock()).start()
