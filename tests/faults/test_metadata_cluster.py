"""Three metadata voters and what may befall them: whatever was acknowledged is there afterwards, exactly once.

Every command registers a node of its own, so the state tells which were applied, and by the incarnation, how often.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
import trustme

from liftpy_envelope.errors import LiftError
from liftpy_log.clock import SystemClock
from liftpy_server.consensus.settings import RaftSettings
from liftpy_server.consensus.storage.journal import JOURNAL_NAMES
from liftpy_server.consensus.store import MetadataUnknownError, RaftMetadataStore
from liftpy_server.consensus.ticker import EXIT_CODE
from liftpy_server.metadata.errors import JournalError, MetadataRefusedError, MetadataUnavailableError
from support.cluster import eventually
from support.raft_kit import PATIENCE_S, Cluster, cluster, tls_files
from support.raft_process import VoterProcess, register


async def register_all(store, label, count):
    """Propose many at once. Returns (acknowledged ids, errors)."""
    ids = [f"{label}-{number}" for number in range(count)]
    found = await asyncio.gather(
        *(store.propose("register_node", **register(node_id)) for node_id in ids), return_exceptions=True
    )
    errors = [result for result in found if isinstance(result, BaseException)]
    return [node_id for node_id, result in zip(ids, found, strict=True) if result == 1], errors


def assert_once(state, acked):
    missing = [node_id for node_id in acked if node_id not in state.nodes]
    twice = [node.node_id for node in state.nodes.values() if node.incarnation != 1]
    assert (missing, twice) == ([], [])


@contextmanager
def impatient(store, timeout_s=2.0):
    """What is proposed here meanwhile is given up soon; all else has time, on a machine that is busy."""
    before, store._proposer._timeout_s = store._proposer._timeout_s, timeout_s
    try:
        yield
    finally:
        store._proposer._timeout_s = before


def term_of(store):
    return store._raft._core.term


def said(caplog, text):
    """What was logged that has this text."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


async def test_any_node_proposes_and_reads_what_was_answered_before(tmp_path):
    async with cluster(tmp_path) as voters:
        await voters.leader()
        for name, store in voters.stores.items():
            assert await store.propose("register_node", **register(name)) == 1
            for other in voters.stores.values():
                assert name in (await other.read()).nodes


async def test_the_same_id_is_applied_once_wherever_it_is_proposed(tmp_path):
    async with cluster(tmp_path) as voters:
        values = [
            await store.propose("register_node", command_id="one", **register("x")) for store in voters.stores.values()
        ]
        assert values == [1, 1, 1]
        with pytest.raises(MetadataRefusedError, match="there is no stream"):
            await voters.stores["n2"].propose("delete_stream", name="none")


async def test_a_leader_goes_and_the_others_go_on(tmp_path):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        acked, _ = await register_all(voters.stores[leader], "before", 50)
        await voters.stop(leader)
        other = next(iter(voters.stores.values()))
        more, errors = await register_all(other, "after", 50)
        assert (len(acked), len(more), errors) == (50, 50, [])
        await voters.start(leader)
        assert_once(await voters.agreed(), acked + more)


async def test_a_cut_off_leader_acknowledges_nothing_and_all_agree_afterwards(tmp_path):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        rest = sorted(set(voters.stores) - {leader})
        acked, _ = await register_all(voters.stores[leader], "before", 20)
        voters.cut(leader)
        with impatient(voters.stores[leader]):
            (lost, errors), stale = await asyncio.gather(
                register_all(voters.stores[leader], "cut", 20),
                asyncio.gather(voters.stores[leader].read(), return_exceptions=True),
            )
        assert lost == []
        assert len(errors) == 20
        assert all(isinstance(error, MetadataUnknownError) for error in errors)
        assert isinstance(stale[0], MetadataUnavailableError)
        await voters.leader(among=rest)
        more, errors = await register_all(voters.stores[rest[0]], "majority", 20)
        assert (len(more), errors) == (20, [])
        voters.heal()
        await voters.leader()
        assert_once(await voters.agreed(), acked + more)


async def test_an_old_leader_with_a_tail_of_its_own_takes_a_snapshot(tmp_path):
    async with cluster(tmp_path, snapshot_every_entries=50) as voters:
        leader = await voters.leader()
        rest = sorted(set(voters.stores) - {leader})
        voters.cut(leader)
        with impatient(voters.stores[leader], 3.0):
            lost, _ = await register_all(voters.stores[leader], "cut", 10)
        assert lost == []
        await voters.leader(among=rest)
        acked = []
        for number in range(5):
            more, errors = await register_all(voters.stores[rest[0]], f"majority{number}", 40)
            acked += more
            assert errors == []
        await eventually(lambda: all(voters.stores[name]._raft._journal.first > 100 for name in rest))
        voters.heal()
        state = await voters.agreed()
        assert_once(state, acked)
        assert len(state.nodes) in range(200, 211)


async def test_a_node_that_was_away_takes_the_snapshot_and_the_log_after_it(tmp_path):
    async with cluster(tmp_path, snapshot_every_entries=60) as voters:
        await voters.leader()
        await voters.stop("n3")
        acked = []
        for number in range(6):
            more, errors = await register_all(voters.stores["n1"], f"r{number}", 50)
            acked += more
            assert errors == []
        store = await voters.start("n3")
        assert_once(await store.read(), acked)
        assert store._raft._journal.first > 50
        await voters.stop("n3")
        store = await voters.start("n3")  # from its own snapshot
        assert_once(await voters.agreed(), acked)


async def test_a_node_that_comes_back_does_not_depose_the_leader(tmp_path):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        await voters.stores[leader].propose("register_node", **register("x"))
        away = next(name for name in voters.stores if name != leader)
        voters.cut(away)
        own_term = term_of(voters.stores[away])
        await asyncio.sleep(2.0)  # several of its election timeouts
        assert term_of(voters.stores[away]) == own_term, "it asks before it stands"
        # On a machine that stood still for a moment the others may have chosen anew: that is not what is asked here.
        leader = await voters.leader(among=sorted(set(voters.stores) - {away}))
        term = term_of(voters.stores[leader])
        voters.heal()
        await voters.stores[away].propose("register_node", **register("y"))
        assert await voters.leader() == leader
        assert term_of(voters.stores[leader]) == term


async def test_a_full_disk_stops_one_node_and_no_other(tmp_path):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        store = voters.stores[leader]
        acked, _ = await register_all(store, "before", 20)
        await store.read()  # the journal was written anew by then, with the id of the cluster
        store._raft._journal._files[0].write = Mock(side_effect=OSError(28, "No space left on device"))
        more, errors = await register_all(store, "full", 300)
        store._ticker._thread.join(PATIENCE_S)  # the proposers are told first, and the node stops after that
        assert not store._ticker._thread.is_alive()
        assert isinstance(voters.failures[leader], JournalError)
        assert errors
        assert {type(error) for error in errors} <= {MetadataUnknownError, MetadataUnavailableError}
        other = next(voters.stores[name] for name in voters.stores if name != leader)
        rest, errors = await register_all(other, "after", 20)
        assert (len(rest), errors) == (20, [])
        await voters.stop(leader)
        await voters.start(leader)
        assert_once(await voters.agreed(), acked + more + rest)


async def test_a_damaged_journal_keeps_its_node_from_starting(tmp_path):
    async with cluster(tmp_path) as voters:
        await register_all(voters.stores["n1"], "x", 50)
        await voters.agreed()
        await voters.stop("n2")
        for name in JOURNAL_NAMES:
            path = tmp_path / "n2" / name
            data = bytearray(path.read_bytes())
            data[data.rindex(b"register_node")] ^= 1
            path.write_bytes(data)
        with pytest.raises(
            JournalError, match=r"damaged: both copies, .*n2/raft\.journal and .*n2/raft\.journal\.copy"
        ):
            await voters.start("n2")


async def test_a_fourth_voter_joins_and_an_old_one_leaves(tmp_path):
    async with cluster(tmp_path, spare=1) as voters:
        leader = await voters.leader()
        acked, _ = await register_all(voters.stores[leader], "three", 20)
        await voters.stores[leader].add_voter(voters.voters[3])
        await voters.join("n4")
        more, errors = await register_all(voters.stores["n4"], "four", 20)
        assert (len(more), errors) == (20, [])
        await eventually(lambda: len(voters.stores["n4"].voters) == 4)
        gone = next(name for name in ("n1", "n2", "n3") if name != leader)
        await voters.stores[leader].remove_voter(gone)
        await voters.stop(gone)
        assert_once(await voters.stores["n4"].read(), acked + more)
        for name in [*voters.stores]:
            await voters.stop(name)
        remaining = sorted({"n1", "n2", "n3", "n4"} - {gone})
        for name in remaining:  # the voters are those of the log, whatever the settings say
            await voters.start(name, voters=voters.voters if name == "n4" else None)
        await voters.leader()
        assert {voter.node_id for voter in voters.stores[remaining[0]].voters} == set(remaining)
        assert_once(await voters.agreed(), acked + more)


async def test_a_leader_hands_over_and_goes(tmp_path):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        acked, stop = [], asyncio.Event()
        name = next(name for name in voters.stores if name != leader)
        with impatient(voters.stores[name]):  # it may be the one that goes
            load = asyncio.create_task(register_for_ever(voters, name, "load", acked, stop))
            await eventually(lambda: len(acked) > 5)
            await handed_over(voters.stores[leader])
            second = await voters.leader()
            assert second != leader
            await voters.stores[leader].transfer_leadership()  # it leads no more, and does nothing
            await voters.stores[leader].remove_voter(second)  # by whichever node: it hands over first
            await eventually(lambda: second not in {voter.node_id for voter in voters.stores[leader].voters})
            count = len(acked)
            if name != second:
                await eventually(lambda: len(acked) > count + 5)
            stop.set()
            await load
        await voters.stop(second)
        assert_once(await voters.stores[leader].read(), acked)
        assert await voters.leader() != second


async def handed_over(store):
    """Wait until another leads: each try has few election timeouts only."""

    async def is_over():
        try:
            await store.transfer_leadership()
        except MetadataUnavailableError:
            return False
        return True

    await eventually(is_over)


async def test_one_becomes_three_and_one_that_never_comes_harms_nobody(tmp_path):
    async with cluster(tmp_path, size=1, spare=3) as voters:
        first = voters.stores["n1"]
        acked, _ = await register_all(first, "one", 20)
        await first.add_voter(voters.voters[3])  # never comes
        for position in (1, 2):
            voter = voters.voters[position]
            await first.add_voter(voter)
            assert voter.node_id not in {each.node_id for each in first.voters}
            more, _ = await register_all(first, voter.node_id, 20)
            acked += more
            store = await voters.join(voter.node_id)
            await eventually(lambda wanted=position + 1: len(first.voters) == wanted)
            assert_once(await store.read(), acked)
            assert store.cluster_id == first.cluster_id
        assert [learner.node_id for learner in first.learners] == ["n4"]
        await voters.stop("n1")
        more, errors = await register_all(voters.stores["n3"], "without the first", 20)
        assert (len(more), errors) == (20, [])


async def test_a_sixth_node_follows_and_votes_when_there_is_room(tmp_path):
    async with cluster(tmp_path, size=5, spare=1) as voters:
        leader = await voters.leader()
        await voters.stores[leader].add_voter(voters.voters[5])
        sixth = await voters.join("n6")
        acked, errors = await register_all(sixth, "six", 10)
        assert (len(acked), errors) == (10, [])
        assert [learner.node_id for learner in sixth.learners] == ["n6"]
        gone = next(name for name in voters.stores if name not in {leader, "n6"})
        await voters.stores[leader].remove_voter(gone)
        await eventually(lambda: "n6" in {voter.node_id for voter in sixth.voters})


async def test_one_that_joins_and_is_no_member_yet_disturbs_nobody(tmp_path):
    async with cluster(tmp_path, spare=1, election_timeout_min_s=2.0) as voters:  # the members have time
        leader = await voters.leader()
        term = term_of(voters.stores[leader])
        voters.settings["election_timeout_min_s"] = 0.4
        store = await voters.join("n4")
        await asyncio.sleep(2.0)  # several of its election timeouts
        assert (store.leader_id, store.state.revision, term_of(store)) == (None, 0, 0)
        assert term_of(voters.stores[leader]) == term
        await voters.stores[leader].add_voter(voters.voters[3])
        await eventually(lambda: len(store.voters) == 4)


async def test_a_node_that_missed_a_change_of_members_hears_its_new_leader(tmp_path):
    """n3 was away while n1 and n2 were replaced by nodes that it has never heard of."""
    async with cluster(tmp_path, spare=2) as voters:
        await voters.leader()
        await voters.stop("n3")
        for name in ("n4", "n5"):
            store = voters.stores[await voters.leader()]
            await store.add_voter(next(voter for voter in voters.voters if voter.node_id == name))
            await voters.join(name)
            await eventually(lambda name=name: name in {v.node_id for v in voters.stores[name].voters})
        for name in ("n1", "n2"):
            await voters.stores["n4"].remove_voter(name)
            await voters.stop(name)
        acked, errors = await register_all(voters.stores["n4"], "new", 10)
        assert (len(acked), errors) == (10, [])
        store = await voters.start("n3")
        assert_once(await store.read(), acked)
        assert {voter.node_id for voter in store.voters} == {"n3", "n4", "n5"}


async def bound(voters):
    """Every voter's data directory is known to all."""
    await eventually(lambda: all(v.instance for store in voters.stores.values() for v in store.voters))


async def test_a_wiped_node_under_its_old_name_is_refused_until_it_joins_again(tmp_path, caplog):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        acked, _ = await register_all(voters.stores[leader], "x", 20)
        await bound(voters)
        wiped = next(name for name in ("n1", "n2", "n3") if name != leader)
        await voters.stop(wiped)
        shutil.rmtree(tmp_path / wiped)
        store = await voters.start(wiped)
        other = next(name for name in ("n1", "n2", "n3") if name not in {leader, wiped})
        await voters.stop(other)  # now a vote of the wiped node would make a majority
        with impatient(voters.stores[leader], 3.0), pytest.raises(MetadataUnavailableError):
            await voters.stores[leader].read()
        assert (store.leader_id, store.state.revision) == (None, 0)
        text = f"'{wiped}' with another data directory"
        # The one is told by the wiped node, the other by those that it asked.
        await eventually(lambda: {"refuses this node" in message for message in said(caplog, text)} == {True, False})
        assert len(said(caplog, text)) < 10
        await voters.start(other)
        await voters.leader(among=[leader, other])
        await voters.stop(wiped)
        shutil.rmtree(tmp_path / wiped)
        await voters.stores[other].remove_voter(wiped)
        await voters.stores[other].add_voter(next(voter for voter in voters.voters if voter.node_id == wiped))
        store = await voters.join(wiped)
        await eventually(lambda: len(store.voters) == 3)
        assert_once(await store.read(), acked)


async def test_a_second_node_of_the_same_name_is_refused(tmp_path, caplog):
    async with cluster(tmp_path) as voters:
        await voters.leader()
        await bound(voters)
        copy = tmp_path / "copy"
        double = RaftMetadataStore(
            RaftSettings(node_id="n3", voters=voters.voters, folder=copy, **voters.settings), SystemClock()
        )
        copy.mkdir()
        await double.start()
        try:
            await eventually(lambda: said(caplog, "refuses this node"))
            acked, errors = await register_all(voters.stores["n3"], "x", 20)
            assert (len(acked), errors, double.state.revision) == (20, [], 0)
        finally:
            await double.stop()


async def test_the_data_of_another_cluster_is_refused_by_both(tmp_path, caplog):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with cluster(tmp_path / "one") as one, cluster(tmp_path / "two") as two:
        for voters in (one, two):
            await register_all(voters.stores[await voters.leader()], "x", 5)
            await voters.agreed()  # so that each knows its cluster
        await one.stop("n3")
        shutil.rmtree(tmp_path / "one" / "n3")
        await two.stop("n3")
        shutil.copytree(tmp_path / "two" / "n3", tmp_path / "one" / "n3")
        caplog.clear()
        store = await one.start("n3")
        with impatient(store, 3.0), pytest.raises(MetadataUnavailableError):
            await store.read()
        await eventually(lambda: {"n1", "n3"} <= unconnected(caplog, "belongs to cluster"))
        assert len(said(caplog, "belongs to cluster")) < 10


def unconnected(caplog, text):
    """With which nodes there is no connection, for a reason that has this text."""
    return {name for name in ("n1", "n2", "n3") for message in said(caplog, text) if says_no_to(message, name)}


def says_no_to(message, name):
    return message.startswith(f"no connection with {name!r}")


async def test_another_cluster_key_is_told_by_both(tmp_path, caplog):
    async with cluster(tmp_path) as voters:
        await voters.leader()
        await voters.stop("n3")
        store = await voters.start("n3", cluster_key=b"another key, of thirty-two bytes!")
        with impatient(store), pytest.raises(MetadataUnavailableError):
            await store.read()
        text = "does not know the cluster key"
        await eventually(lambda: unconnected(caplog, text) == {"n1", "n2", "n3"})
        assert len(said(caplog, text)) < 10
        acked, errors = await register_all(voters.stores["n1"], "x", 5)
        assert (len(acked), errors) == (5, [])


async def test_a_cluster_over_mutual_tls(tmp_path):
    authority = trustme.CA()
    tls = {name: tls_files(tmp_path, authority, name) for name in ("n1", "n2", "n3")}
    async with cluster(tmp_path, tls=tls, cluster_key=None, snapshot_every_entries=60) as voters:
        leader = await voters.leader()
        acked, errors = await register_all(voters.stores[leader], "x", 50)
        assert (len(acked), errors) == (50, [])
        away = next(name for name in voters.stores if name != leader)
        await voters.stop(away)
        for number in range(4):
            more, _ = await register_all(voters.stores[leader], f"more{number}", 50)
            acked += more
        store = await voters.start(away)
        assert_once(await store.read(), acked)
        await voters.stop(leader)
        more, errors = await register_all(store, "last", 20)
        assert (len(more), errors) == (20, [])


async def test_a_silent_node_is_told_from_one_that_speaks(tmp_path):
    async with cluster(tmp_path) as voters:
        leader = await voters.leader()
        store = voters.stores[leader]
        silent, speaking = (name for name in voters.stores if name != leader)
        assert [store.is_leader for store in voters.stores.values()].count(True) == 1
        await voters.stop(silent)
        await eventually(lambda: store.silent_s(silent) > 1.0 and store.silent_s(speaking) < 1.0)
        assert store.silent_s(leader) == 0
        await voters.start(silent)
        await eventually(lambda: store.silent_s(silent) < 0.5)


async def register_for_ever(voters, name, label, acked, stop):
    """One command after the other through this node, whatever becomes of them."""
    number = 0
    while not stop.is_set():
        number += 1
        node_id = f"{label}-{number}"
        try:
            await voters.stores[name].propose("register_node", **register(node_id))
        except LiftError:
            continue
        except KeyError:  # it is being restarted
            await asyncio.sleep(0.05)
            continue
        acked.append(node_id)


async def troubled(tmp_path, seed, rounds):
    """Cut, one-way cut and restart nodes at random under load, and look at what is left."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    acked, stop = [], asyncio.Event()
    async with cluster(tmp_path, propose_timeout_s=1.0, snapshot_every_entries=60) as voters:
        names = sorted(voters.stores)
        await voters.leader()
        loads = [
            asyncio.create_task(register_for_ever(voters, name, f"{name}-{load}", acked, stop))
            for name in names
            for load in range(3)
        ]
        for _ in range(rounds):
            victim, other = choose.sample(names, 2)
            match choose.choice(["cut", "mute", "restart", "heal"]):
                case "cut":
                    voters.cut(victim)
                case "mute":
                    voters.transports[victim].mute = {other}
                case "restart":
                    await voters.stop(victim)
                    await voters.start(victim)
                case "heal":
                    voters.heal()
            await asyncio.sleep(choose.uniform(0.1, 1.2))
            if choose.random() < 0.5:
                voters.heal()
        voters.heal()
        await eventually(lambda: len(acked) > 20 * rounds, 60.0, "hardly anything is acknowledged")
        stop.set()
        await asyncio.gather(*loads)
        await voters.leader()
        for store in voters.stores.values():
            store._proposer._timeout_s = PATIENCE_S
        await voters.stores["n1"].propose("register_node", **register("last"))
        assert_once(await voters.agreed(), acked)
        assert voters.failures == {}


async def test_cuts_and_restarts_lose_nothing(tmp_path):
    await troubled(tmp_path, seed=3, rounds=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_cuts_and_restarts_for_long(tmp_path, seed):
    await troubled(tmp_path, seed=seed, rounds=40)


async def killed_under_load(tmp_path, seed, rounds, acked_per_round):
    """Kill one, two or all of three processes again and again, and look at what is left."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    made = Cluster(tmp_path, snapshot_every_entries=100)
    names = [voter.node_id for voter in made.voters]
    every = []

    def start(name):
        every.append(VoterProcess(made, name, len(every), snapshot_every_entries=100))
        return every[-1]

    running = {name: start(name) for name in names}
    try:
        for number in range(rounds):
            before = sum(len(process.acked()) for process in every)
            await eventually(
                lambda wanted=before + acked_per_round: sum(len(process.acked()) for process in every) >= wanted, 40
            )
            victims = names if number == rounds - 2 else choose.sample(names, choose.choice([1, 1, 2]))
            for name in victims:
                running[name].process.kill()
            for name in victims:
                running[name].kill()
                running[name] = start(name)
    finally:
        for process in running.values():
            process.kill()
    acked = [node_id for process in every for node_id in process.acked()]
    try:
        for name in names:
            await made.start(name)
        await made.leader()
        await made.stores["n1"].propose("register_node", **register("last"))
        assert_once(await made.agreed(), acked)
    finally:
        for store in made.stores.values():
            await store.stop()
    assert len(acked) >= (rounds - 1) * acked_per_round


async def test_processes_killed_under_load_lose_nothing(tmp_path):
    await killed_under_load(tmp_path, seed=1, rounds=5, acked_per_round=100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_processes_killed_under_load_for_long(tmp_path, seed):
    await killed_under_load(tmp_path, seed=seed, rounds=20, acked_per_round=300)


async def test_a_process_whose_disk_is_full_exits_and_has_lost_nothing(tmp_path):
    made = Cluster(tmp_path, size=1)
    process = VoterProcess(made, "n1", 0, file_bytes_max=40_000)
    await eventually(lambda: process.process.poll() is not None, 60.0)
    assert process.process.returncode == EXIT_CODE
    store = await made.start("n1")
    try:
        acked = process.acked()
        assert len(acked) > 10
        assert_once(store.state, acked)
    finally:
        await store.stop()


async def test_two_of_three_are_gone_and_nothing_is_answered(tmp_path):
    async with cluster(tmp_path) as voters:
        await voters.leader()
        await voters.stop("n2")
        await voters.stop("n3")
        with impatient(voters.stores["n1"]):
            acked, errors = await register_all(voters.stores["n1"], "x", 5)
            assert acked == []
            assert all(isinstance(error, LiftError) for error in errors)
            with pytest.raises(MetadataUnavailableError):
                await voters.stores["n1"].read()
        await voters.start("n2")
        acked, errors = await register_all(voters.stores["n1"], "y", 5)
        assert (len(acked), errors) == (5, [])
