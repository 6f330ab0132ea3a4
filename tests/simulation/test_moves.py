"""Replicas that are added and removed while messages come in, and replicas that only observe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from liftpy_server.metadata import reassignment
from simulation.bugs import planted
from simulation.metadata import META
from simulation.model import ViolationError
from simulation.scheduler import MS, S
from simulation.scripts import SEEDS, command, kill_leader, move, start_all, term, three_of_five
from simulation.world import World

if TYPE_CHECKING:
    from liftpy_server.metadata.state import PartitionInfo


@pytest.mark.parametrize("nodes", ["de", "ade", "cab", "dec", "abcde", "ebd"])
@pytest.mark.parametrize("seed", range(5))
def test_replicas_move_under_load(seed, nodes):
    world = three_of_five(seed)
    world.publish_every_us = 20 * MS
    world.run([(1 * S, lambda world: move(world, nodes))])
    assert world.info.voters == tuple(nodes)
    assert world.seen["finish_reassignment"] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_move_while_the_leader_dies(seed):
    world = three_of_five(seed, trouble_us=8 * S)
    world.publish_every_us = 20 * MS
    script = [(1 * S, lambda world: move(world, "dea")), (1_005 * MS + seed * 2 * MS, kill_leader), (5 * S, start_all)]
    world.run(script)
    assert world.info.voters == ("d", "e", "a")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_move_that_can_not_end_is_cancelled(seed):
    world = three_of_five(seed)

    def begin(world: World) -> None:
        move(world, "ade")
        world.nodes["d"].kill()

    world.run([(1 * S, begin), (4 * S, lambda world: command(world, "cancel_reassignment", partition=0))])
    assert world.info.voters == ("a", "b", "c")


@pytest.mark.parametrize("bug", ["", "remember_the_removed"])
def test_what_a_replica_had_before_it_was_removed_and_added_again_does_not_count(bug):
    """The leader hears nothing of the metadata while that happens, and nothing is published afterwards."""
    world = World(1, shape=(3, 1, 0, 0), trouble_us=9 * S)
    world.publish_every_us = 20 * MS

    def cut_off(world: World) -> None:
        world.is_idle = True
        world.network.cut.add((META, "a"))

    def slow(world: World) -> None:
        world.nodes["c"].disk.sync_us = 30 * S

    def hear_again(world: World) -> None:
        world.network.cut.clear()
        world.network.cut |= {("c", "a"), ("a", "c")}

    def again(world: World) -> None:
        world.publish_again()

    script = [
        (2 * S, cut_off),
        (2_400 * MS, lambda world: move(world, "ab")),
        (2_500 * MS, lambda world: command(world, "finish_reassignment", partition=0, **term(world))),
        (3_100 * MS, slow),
        (3_200 * MS, lambda world: move(world, "abc")),
        (3_800 * MS, hear_again),
        (8 * S, again),
    ]
    if not bug:
        world.run(script)
        return
    # The epoch that begins when such a node comes back would hide the bug.
    same_epoch = patch.object(reassignment, "_kept", _kept_and_forgotten)
    with planted(bug), same_epoch, pytest.raises(ViolationError, match="P1: c is in the ISR without"):
        world.run(script)


def _kept_and_forgotten(*args: Any, kept: Any = reassignment._kept) -> PartitionInfo:
    return replace(kept(*args), departed=())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dead_observer_is_waited_for_by_nobody(seed):
    world = World(seed, shape=(3, 2, 1, 0), trouble_us=8 * S)
    acked = []
    count = lambda world: acked.append(len(world.model.acked))
    world.run([(1 * S, lambda world: world.nodes["d"].kill()), (1_500 * MS, count), (7 * S, count)])
    assert acked[0] < acked[1]
    assert world.seen["ProposeIsr"] == world.seen["SuspectLeader"] == 0
