"""Who is who in a simulated world, and what an operator does to it: for worlds with a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_server.replication.core.effects import LeadershipBegan
from simulation.metadata import UUID
from simulation.world import World
from support.examples import first

if TYPE_CHECKING:
    from simulation.node import SimNode

SEEDS = first(5, range(25))


def leader_of(world: World) -> SimNode:
    leader = world.info.leader
    assert leader is not None
    return world.nodes[leader]


def follower_of(world: World) -> SimNode:
    return next(node for node in world.node_list if node is not leader_of(world))


def isr_of(world: World) -> tuple[str, ...]:
    return world.info.isr


def kill_leader(world: World) -> None:
    leader_of(world).kill()


def start_all(world: World) -> None:
    for node in world.node_list:
        if not node.is_up:
            node.start()


def begun(world: World) -> list[tuple[int, int]]:
    """(when, epoch) of every leadership that began."""
    return [(entry[0], entry[2].leader_epoch) for entry in world.trace if isinstance(entry[-1], LeadershipBegan)]


def command(world: World, op: str, **args: Any) -> None:
    outcome = world.metadata.apply(op, name="s", uuid=UUID, **args)
    assert not outcome.error, outcome


def move(world: World, nodes: str, observers: str = "") -> None:
    command(world, "reassign_partitions", moves=[[0, list(nodes), list(observers)]])


def term(world: World) -> dict[str, int]:
    return {"leader_epoch": world.info.leader_epoch, "version": world.info.version}


def three_of_five(seed: int, **how: Any) -> World:
    """Three replicas, of which two commit, on five nodes."""
    return World(seed, shape=(3, 2, 0, 2), **how)
