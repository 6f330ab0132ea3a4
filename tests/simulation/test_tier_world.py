"""Random histories of two nodes and a bucket that fails: what is read is what was published, and nothing is left over.

A failure names its seed: `run(seed, home)` does exactly the same again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import pytest

from liftpy_bucket.errors import OvertakenError, TierError
from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.tier.jobs.parts import roots
from simulation.tier_bugs import BUGS, planted
from support.examples import first
from support.fault_store import Crash, FaultStore, crash_at
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, history
from support.tier_world import WEIGHTS, World, run

TESTS = Path(__file__).parents[1]
GRACE_NS = 10**9
SEEDS = 80
BUDGET_SEEDS = 400
PLOTS_OF = {"pins_and_root_not_read_again_before_deleting": 2}  # else it takes hundreds of seeds
BROKEN = (AssertionError, TierError)


def fingerprint(seed, home):
    """Of everything that was asked of the bucket, and of what was left in it."""
    world = run(seed, home)
    asked = [node.store.requests for node in world.nodes]
    left = [(entry.key, entry.size) for entry in world.store.list("")]
    return blake2b(repr((world.steps, asked, left)).encode()).hexdigest()


def failure_of(seed, home, plot=None):
    try:
        run(seed, home, plot=plot)
    except BROKEN as error:
        return f"{error}\n{error.__notes__}"
    return None


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def worlds(home):
    """Of all seeds, as they are at their ends; each is run once."""
    ran = {}

    def world_of(seed):
        if seed not in ran:
            print(f"seed {seed}")
            ran[seed] = run(seed, home)
        return ran[seed]

    return world_of


@pytest.mark.parametrize("part", first(3, range(8)))
def test_what_is_read_is_what_was_published(part, worlds):
    """P2, P4, P5, P6: read after every step, and every write and deletion is looked at, see `tier_world_watch`."""
    for seed in range(part, SEEDS, 8):
        worlds(seed)


@pytest.mark.parametrize("seed", [2025, 4062])
def test_histories_that_are_right_and_look_wrong(seed, tmp_path):
    """Retention of what is shared behind a seal; and what a deposed leader shares while another one claims."""
    run(seed, tmp_path, steps=80)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(1_000, 11_000, 200))
def test_what_is_read_is_what_was_published_in_many_more(first_seed, tmp_path):
    for seed in range(first_seed, first_seed + 200):
        run(seed, tmp_path, steps=80)


def test_every_kind_of_step_ends_well_and_badly(worlds):
    lines = [line for seed in range(SEEDS) for line in worlds(seed).steps[:-1]]
    seen = Counter(line.strip().split(" ", 1)[1].split(" before ")[0] for line in lines)
    steps = set(WEIGHTS) - {"plot", "wake", "seal"} | {"pause", "sleeps", "wakes"}
    assert steps <= set(seen), seen
    assert sum(count for step, count in seen.items() if "crashed" in step) > 10, seen
    assert sum(count for step, count in seen.items() if "Error" in step) > 50, seen
    assert {kind for line in lines if " sleeps before " in line for kind in [line.split()[3]]} >= {
        "create", "replace", "get", "list", "delete",
    }  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, home):
    plot = PLOTS_OF.get(bug)
    with planted(bug):
        found = next((seed for seed in range(BUDGET_SEEDS) if failure_of(seed, home, plot)), None)
        assert found is not None, f"not found with {BUDGET_SEEDS} seeds"
        failure = failure_of(found, home, plot)
        print(f"{bug}, seed {found}: {failure}")
        assert f"seed {found}" in failure
        assert failure == failure_of(found, home, plot)
    assert failure_of(found, home, plot) is None


def test_a_seed_does_the_same_in_another_process(tmp_path):
    code = "import sys, pathlib; from simulation.test_tier_world import fingerprint; "
    code += "print([fingerprint(seed, pathlib.Path(sys.argv[1])) for seed in range(5, 6)])"
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    here = str([fingerprint(seed, tmp_path) for seed in range(5, 6)])
    for salt in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={"PYTHONPATH": path, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == here


@pytest.fixture
def log(tmp_path):
    file = LogFile(tmp_path / "0.log")
    file.append(100)
    return file


def stalled(worker, faulty, key_part, meanwhile):
    """What happens just after a worker has created an object, and before it names it."""

    def after(request):
        if request.kind == "create" and key_part in request.key:
            faulty.after = None
            meanwhile()

    faulty.after = after


def clocked():
    now_ns = [GRACE_NS]
    store = MemoryStore(lambda: now_ns[0])
    return store, now_ns


def collecting(store, now_ns, node):
    """A worker that collects as soon as the grace period is over."""
    worker = Worker(store, node)
    worker.context.now_ns = lambda: now_ns[0]
    worker.context.grace_ns = GRACE_NS
    return worker


def test_a_round_that_waited_longer_than_the_grace_period_names_nothing_that_was_collected(log):
    store, now_ns = clocked()
    faulty = FaultStore(store)
    worker, other = Worker(faulty), collecting(store, now_ns, "n1")
    worker.claim()
    worker.upload_set([(log, 0, 10, 0)])

    def meanwhile():
        now_ns[0] += 2 * GRACE_NS
        assert other.call("collect_sets", node="n1", incarnation=1)["deleted"] == 1

    stalled(worker, faulty, "sets/", meanwhile)
    with pytest.raises(OvertakenError):
        worker.upload_set([(log, 10, 20, 0)])
    assert len(history(store)) == 10
    worker.upload_set([(log, 10, 20, 0)])
    assert len(history(store)) == 20


def test_an_upload_that_waited_longer_than_the_grace_period_names_nothing_that_was_collected(log, monkeypatch):
    store, now_ns = clocked()
    faulty = FaultStore(store)
    worker, other = Worker(faulty), collecting(store, now_ns, "n1")

    def meanwhile():
        now_ns[0] += 2 * GRACE_NS
        assert other.call("collect", **PATH._asdict(), grace_ns=GRACE_NS)["deleted"] == 1

    worker.claim()
    worker.upload(log, 0, 10)
    stalled(worker, faulty, "fragments/", meanwhile)
    with pytest.raises(OvertakenError, match="written anew"):
        worker.upload(log, 10, 20)
    assert len(history(store)) == 10
    worker.upload(log, 10, 20)
    assert len(history(store)) == 20
    monkeypatch.setattr(roots, "check", lambda *_: None)  # without the look at the boundary
    stalled(worker, faulty, "fragments/", meanwhile)
    worker.upload(log, 20, 30)
    with pytest.raises(Exception, match="no object"):
        history(store)


def test_what_a_node_left_that_died_before_its_first_round_stood_is_collected(log):
    store, now_ns = clocked()
    Worker(store).claim()
    with pytest.raises(Crash):
        Worker(FaultStore(store, before=crash_at(5))).upload_set([(log, 0, 10, 0)])
    assert [entry.key.split("/")[2] for entry in store.list("sets/")] == ["ROOT", "objects"]
    now_ns[0] += 2 * GRACE_NS
    other = collecting(store, now_ns, "n1")
    assert other.call("collect_sets", node="n1", incarnation=2)["deleted"] == 1
    assert list(store.list("sets/n1/objects/")) == []
    worker = Worker(store)
    worker.claim()
    worker.upload_set([(log, 0, 10, 0)], incarnation=2)
    assert len(history(store)) == 10


def test_a_deleted_stream_leaves_what_its_forks_hold(tmp_path):
    forked = 0
    for seed in range(100, 140):
        world: World = run(seed, tmp_path, steps=15)
        if not world.forks or world.reading.end == 0:
            continue
        forked += 1
        node = world.leader
        world.call(node, "drop_stream", None, uuid=world.reading.path.uuid, partitions=1)
        world.now_ns += 10 * 3_600 * 10**9
        world.call(node, "collect", grace_ns=3_600 * 10**9)
        for fork in world.forks:
            fork.reading.check_whole()
    assert forked > 5
