"""One voter of three is damaged while the only other one with the newest entries is away, or comes back later.

n3 was away when the last entries were committed by n1 and n2; both are killed, one file of n1 is damaged, and n1 and n3
start before n2 does. Whatever the damage: n1 is repaired, or says what is wrong and stays away; nothing is lost.
"""

from __future__ import annotations

import logging
import random
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from pysyncobj import syncobj

from liftpy_server.consensus import raft as raft_module
from simulation.raft_world import S, World
from support.damage import disk_damage

SEED = 0


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def at_rest(seed, snapshot_every):
    world = World(seed, size=3)
    world.snapshot_every = snapshot_every
    world.is_calm = world.network.is_reliable = True
    return world


@contextmanager
def simulated(world):
    clock = patch.object(syncobj, "monotonicTime", world.clock)
    with clock, patch.object(raft_module, "check_pinned", lambda: None):
        yield world


def killed_cluster(snapshot_every):
    """By name, the disk and what the node was given; and what was committed."""
    world = at_rest(SEED, snapshot_every)
    with simulated(world):
        voters = tuple(node.voter for node in world.nodes.values())
        for node in world.nodes.values():
            node.given = (voters, "")
            node.start()
        world.network.start()
        world.run_until(3 * S)
        commit(world, 20)
        world.nodes["n3"].kill()
        world.run_until(world.now + 3 * S)
        commit(world, 10)
        for node in world.nodes.values():
            node.kill()
    return {name: (node.disk, node.given) for name, node in world.nodes.items()}, list(world.history)


def commit(world, count):
    wanted = len(world.acked) + count
    while len(world.acked) < wanted:
        leader = world.leader()
        if leader is not None:
            world.propose(world.nodes[leader.node_id])
        world.run_until(world.now + S // 20)


@pytest.mark.parametrize("snapshot_every", [8, 1_000])
@pytest.mark.parametrize(
    ("damaged", "share"),
    [("n1", 8), pytest.param("n1", 1, marks=pytest.mark.slow), pytest.param("n2", 1, marks=pytest.mark.slow)],
)
def test_damage_of_one_voter_loses_nothing(damaged, share, snapshot_every):
    disks, history = killed_cluster(snapshot_every)
    assert len(history) == 30
    repaired = named = 0
    rng = random.Random(1)
    for path in sorted(disks[damaged][0].files()):
        sound = disks[damaged][0].content(path)
        for number, (what, content) in enumerate(disk_damage(sound, rng, places=64)):
            if content == sound or number % share:
                continue
            with simulated(at_rest(SEED, snapshot_every)) as world:
                for name, node in world.nodes.items():
                    node.disk, node.given = disks[name][0].kill(), disks[name][1]
                world.nodes[damaged].disk.overwrite(path, content)
                world.damaged = world.nodes[damaged]
                world.history = list(history)
                world.network.start()
                other = "n2" if damaged == "n1" else "n1"
                world.nodes[damaged].start()
                world.nodes["n3"].start()
                world.run_until(4 * S)
                named += world.nodes[damaged].is_ruined
                repaired += not world.nodes[damaged].is_ruined
                assert world.nodes[damaged].is_ruined or world.leader() is not None, (path, what)
                world.nodes[other].start()
                world.run_until(8 * S)
                commit(world, 1)
                assert world.history[: len(history)] == history, (path, what)
                assert world.leader()._machine.applied == world.history
    assert repaired > 20 // share
    if snapshot_every == 8:
        assert named > 20 // share
