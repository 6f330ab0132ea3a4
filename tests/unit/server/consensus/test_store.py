"""The store of a cluster of one: what it promises, and what becomes of it when its voter fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pysyncobj
import pytest

from liftpy_envelope.errors import ConfigError, ErrorCode
from liftpy_server.consensus.pinned import PinnedVersionError, check_pinned
from liftpy_server.consensus.settings import COMMAND_BYTES_MAX, RaftSettings, Voter
from liftpy_server.consensus.storage.journal import JOURNAL_NAMES, RaftJournal
from liftpy_server.consensus.store import MetadataUnknownError, RaftMetadataStore
from liftpy_server.consensus.ticker import EXIT_CODE, exit_process
from liftpy_server.metadata.errors import JournalError, MetadataRefusedError, MetadataUnavailableError
from support.metadata_commands import NODE, UUIDS, config
from support.raft_kit import KEY, VOTERS
from support.server_kit import SetClock


@asynccontextmanager
async def running(folder, failures=None, **settings):
    given = {"node_id": "a", "voters": (Voter("a", "127.0.0.1", 1),), "folder": folder} | settings
    on_fatal = exit_process if failures is None else failures.append
    store = RaftMetadataStore(RaftSettings(**given), SetClock(now_ns=55), on_fatal=on_fatal)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def create(store, name="orders", **more):
    arguments = {"uuid": UUIDS[0], "config": config(name), "assignment": [["n1"]]} | more
    return await store.propose("create_stream", **arguments)


async def test_proposals_refusals_and_reads(tmp_path):
    async with running(tmp_path) as store:
        assert await store.propose("register_node", node=NODE) == 1
        assert await create(store) == {"uuid": UUIDS[0], "created": True}
        assert store.state.streams["orders"].created_ns == 55
        with pytest.raises(MetadataRefusedError, match="there is no stream 'x'") as refused:
            await store.propose("delete_stream", name="x")
        assert refused.value.code is ErrorCode.UNKNOWN_STREAM
        assert (await store.read()) is store.state
        assert (await store.read(linearizable=False)) is store.state
        assert store.leader_id == "a"


async def test_a_restart_gives_the_same_state(tmp_path):
    async with running(tmp_path, snapshot_every_entries=10) as store:
        for number in range(45):
            await store.propose("register_node", node=NODE | {"node_id": f"n{number}"})
        state = store.state
    async with running(tmp_path) as store:
        assert store.state == state
        assert await store.propose("register_node", node=NODE | {"node_id": "n7"}) == 2


async def test_the_same_id_is_applied_once_also_after_a_restart(tmp_path):
    for _ in range(3):
        async with running(tmp_path) as store:
            assert await store.propose("register_node", command_id="one", node=NODE) == 1


async def test_what_can_not_be_written_down_or_is_too_large_is_refused(tmp_path):
    async with running(tmp_path) as store:
        for args in ({"node": object()}, {"node": "x" * COMMAND_BYTES_MAX}):
            with pytest.raises(MetadataRefusedError) as refused:
                await store.propose("register_node", **args)
            assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert await store.propose("register_node", node=NODE) == 1


async def test_watchers_get_the_newest_state(tmp_path):
    async with running(tmp_path) as store:
        seen = []

        async def watch():
            async for state in store.watch():
                seen.append(state.revision)  # noqa: PERF401 - it never ends

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(store.propose("register_node", node=NODE | {"node_id": f"n{n}"}) for n in range(50)))
        async with asyncio.timeout(30):
            while not seen or seen[-1] != 50:
                await asyncio.sleep(0.01)
        assert seen == sorted(set(seen))
        watching.cancel()


async def test_readers_share_barriers(tmp_path):
    async with running(tmp_path) as store:
        before = store._raft._journal.last
        await asyncio.gather(*(store.read() for _ in range(500)))
        assert store._raft._journal.last - before <= 3


async def test_a_reader_that_gives_up_does_not_take_the_others_with_it(tmp_path):
    async with running(tmp_path) as store:
        first, second = (asyncio.create_task(store.read()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second is store.state


async def test_a_proposal_given_up_is_applied_all_the_same(tmp_path):
    async with running(tmp_path) as store:
        given_up = asyncio.create_task(store.propose("register_node", node=NODE))
        await asyncio.sleep(0)
        given_up.cancel()
        async with asyncio.timeout(30):
            while "n1" not in (await store.read()).nodes:
                await asyncio.sleep(0.01)


async def test_stop_answers_what_waits(tmp_path):
    async with running(tmp_path) as store:
        waiting = [
            asyncio.create_task(store.propose("register_node", node=NODE | {"node_id": f"n{n}"})) for n in range(20)
        ]
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting) == [1] * 20
    with pytest.raises(MetadataUnavailableError, match="stopping"):
        await store.propose("register_node", node=NODE)


async def test_a_failed_tick_stops_the_voter_for_good(tmp_path):
    failures = []
    async with running(tmp_path, failures) as store:
        await store.propose("register_node", node=NODE)
        with patch.object(RaftJournal, "flush", side_effect=JournalError("broken")) as flush:
            with pytest.raises(MetadataUnknownError, match="broken; it may have been applied"):
                await store.propose("register_node", node=NODE)
            calls = flush.call_count
            with pytest.raises(MetadataUnavailableError, match="broken; nothing changed"):
                await store.propose("register_node", node=NODE)
            with pytest.raises(MetadataUnavailableError):
                await store.read()
            assert flush.call_count == calls
        store._ticker._thread.join(5)  # the proposers are told first, and the node stops after that
        assert [str(failure) for failure in failures] == ["broken"]
        assert store.state.nodes["n1"].incarnation == 1


def test_the_process_exits_also_when_logging_fails():
    script = (
        "import logging\n"
        "from liftpy_server.consensus.ticker import exit_process\n"
        "class Full(logging.Handler):\n"
        "    def emit(self, record): raise OSError(28, 'no space left on device')\n"
        "logging.getLogger().addHandler(Full())\n"
        "exit_process(ValueError('x'))\n"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path}, check=False)
    assert done.returncode == EXIT_CODE


async def test_a_journal_that_can_not_be_used_keeps_the_store_from_starting(tmp_path):
    (tmp_path / JOURNAL_NAMES[0]).write_bytes(b"garbage" * 100)
    for _ in range(2):  # and leaves neither port nor thread behind
        with pytest.raises(JournalError):
            async with running(tmp_path, bind_port=0):
                pass


async def test_a_node_that_is_taken_in_and_does_not_come_harms_nobody(tmp_path):
    async with running(tmp_path, cluster_key=KEY, propose_timeout_s=2.0) as store:
        await store.add_voter(Voter("b", "127.0.0.1", 9))
        assert [voter.node_id for voter in store.learners] == ["b"]
        await store.add_voter(Voter("b", "127.0.0.1", 10))
        assert [voter.port for voter in store.learners] == [10]
        assert await store.propose("register_node", node=NODE) == 1
        assert [voter.node_id for voter in store.voters] == ["a"]
        with pytest.raises(MetadataRefusedError, match="a member already"):
            await store.add_voter(Voter("a", "127.0.0.1", 9))
        await store.remove_voter("b")
        assert store.learners == ()
        with pytest.raises(MetadataRefusedError, match="no member"):
            await store.remove_voter("b")
        with pytest.raises(MetadataRefusedError, match="the only one"):
            await store.remove_voter("a")


async def test_a_lone_leader_can_not_hand_over(tmp_path):
    async with running(tmp_path) as store:
        assert store.is_leader
        with pytest.raises(MetadataUnavailableError, match="no other voter took over"):
            await store.transfer_leadership()
        assert await store.propose("register_node", node=NODE) == 1


async def test_the_cluster_keeps_its_id(tmp_path):
    async with running(tmp_path) as store:
        cluster_id = store.cluster_id
        assert len(bytes.fromhex(cluster_id)) == 16
    async with running(tmp_path, snapshot_every_entries=2) as store:
        assert store.cluster_id == cluster_id
        for number in range(10):
            await store.propose("register_node", node=NODE | {"node_id": f"n{number}"})
    async with running(tmp_path) as store:
        assert store.cluster_id == cluster_id
        assert store.silent_s("a") == 0


async def test_many_proposals_share_entries_and_each_has_its_outcome(tmp_path):
    async with running(tmp_path) as store:
        before = store._raft._journal.last
        proposals = [("register_node", None, {"node": NODE | {"node_id": f"n{n}"}}) for n in range(3000)]
        proposals[5] = ("delete_stream", None, {"name": "none"})
        proposals[6] = ("register_node", None, {"node": object()})
        proposals[7] = ("register_node", None, {"node": "x" * COMMAND_BYTES_MAX})
        proposals[8] = ("register_node", "twice", {"node": NODE | {"node_id": "again"}})
        proposals[9] = proposals[8]
        outcomes = await store.propose_many(proposals)
        assert [outcome.value for outcome in outcomes if not outcome.error] == [1] * 2997
        assert [outcome.error for outcome in outcomes[5:8]] == [
            ErrorCode.UNKNOWN_STREAM,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert len(store.state.nodes) == 2996
        assert store._raft._journal.last - before < 100  # of 3,000; a machine that is busy takes fewer at once
        assert await store.propose_many([]) == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"node_id": "x"}, "voters"),
        ({"voters": (VOTERS[0], VOTERS[0])}, "voters"),
        ({"voters": tuple(Voter(name, "h", 1) for name in "abcdef")}, "voters"),
        ({"cluster_key": None}, "cluster_key"),
        ({"cluster_key": b"short"}, "cluster_key"),
        ({"heartbeat_s": 0.5}, "heartbeat_s"),
        ({"propose_timeout_s": 0}, "propose_timeout_s"),
    ],
)
def test_wrong_settings_are_named(tmp_path, wrong, field):
    given = {"node_id": "a", "voters": VOTERS, "folder": tmp_path, "cluster_key": KEY}
    RaftSettings(**given)
    with pytest.raises(ConfigError) as raised:
        RaftSettings(**given | wrong)
    assert raised.value.field == field


def test_the_key_is_not_shown(tmp_path):
    assert "kkk" not in repr(RaftSettings(node_id="a", voters=VOTERS, folder=tmp_path, cluster_key=KEY))


def test_the_consensus_library_is_the_one_this_was_written_for(tmp_path):
    check_pinned()
    with pytest.raises(PinnedVersionError, match=r"0\.3\.17 is needed, and 0\.3\.18 is installed"):
        check_pinned(version="0.3.18")
    with pytest.raises(PinnedVersionError, match="can not be read"):
        check_pinned(tmp_path)
    for source in Path(pysyncobj.__file__).parent.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    check_pinned(tmp_path)
    with (tmp_path / "syncobj.py").open("a") as file:
        file.write("\n")
    with pytest.raises(PinnedVersionError, match=r"syncobj\.py is not that of pysyncobj"):
        check_pinned(tmp_path)
