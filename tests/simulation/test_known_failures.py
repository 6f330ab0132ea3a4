"""The ways in which replicated logs before this one lost data or stood still, each as a script, over many seeds.

Each script says what goes wrong; that nothing acked is lost and that all is well again in the end the model checks.
"""

from __future__ import annotations

import pytest

from liftpy_server.replication.effects import LeadershipBegan, LeadershipEnded
from simulation.metadata import META
from simulation.scheduler import MS, S
from simulation.world import World

SEEDS = range(25)


def leader_of(world: World):
    leader = world.metadata.state.streams["s"].partitions[0].leader
    assert leader is not None
    return world.nodes[leader]


def follower_of(world: World):
    return next(node for node in world.node_list if node is not leader_of(world))


def isr_of(world: World):
    return world.metadata.state.streams["s"].partitions[0].isr


def kill_leader(world: World) -> None:
    leader_of(world).kill()


def start_all(world: World) -> None:
    for node in world.node_list:
        if not node.is_up:
            node.start()


def begun(world: World) -> list[tuple[int, int]]:
    """(when, epoch) of every leadership that began."""
    return [(entry[0], entry[2].leader_epoch) for entry in world.trace if isinstance(entry[-1], LeadershipBegan)]


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_are_acked_again_within_two_seconds_of_a_kill(seed):
    world = World(seed)
    world.publish_every_us = 50 * MS
    epochs = []

    def kill(world: World) -> None:
        epochs.append(leader_of(world).replica.leader.view.leader_epoch)
        kill_leader(world)

    world.run([(3 * S, kill)])
    assert min(when for epoch, when in world.first_ack_us.items() if epoch > epochs[0]) - 3 * S < 2 * S


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_are_acked_on_while_a_follower_is_dead(seed):
    world = World(seed, trouble_us=8 * S)
    acked = []

    def kill(world: World) -> None:
        follower_of(world).kill()

    def count(world: World) -> None:
        acked.append(len(world.model.acked))

    world.run([(1 * S, kill), (4_800 * MS, count), (7_900 * MS, count)])
    assert acked[0] < acked[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_two_fast_failovers_in_a_row(seed):
    world = World(seed)

    def kill_the_next(world: World) -> None:
        if leader_of(world).is_up:
            kill_leader(world)
            start_all(world)

    result = world.run([(2 * S, kill_leader), (3_400 * MS, kill_the_next), (3_700 * MS, kill_the_next)])
    assert result.elections >= 3


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_restart_within_the_timeout_with_a_shorter_log(seed, role):
    """The disk is slow, so the killed process had records that it had sent on, or said to have, but not synced."""
    world = World(seed)
    find = leader_of if role == "leader" else follower_of

    def slow(world: World) -> None:
        find(world).disk.sync_us = 700 * MS

    def restart(world: World) -> None:
        node = find(world)
        node.kill()
        node.disk.sync_us = 1 * MS
        node.start()

    world.run([(1 * S, slow), (2 * S, restart), (2_300 * MS, slow), (3_100 * MS, restart)])
    epochs = [epoch for _, epoch in begun(world)]
    assert len(set(epochs)) == len(epochs)  # a restarted leader never goes on in its epoch


@pytest.mark.parametrize("seed", SEEDS)
def test_a_joiner_is_elected_right_after_it_was_added(seed):
    world = World(seed)
    absent = []

    def kill_follower(world: World) -> None:
        absent.append(follower_of(world))
        absent[0].kill()

    def elect_joiner_soon(world: World) -> None:
        if absent[0].node_id not in isr_of(world):
            world.scheduler.after(1 * MS, elect_joiner_soon, world)
        else:
            kill_leader(world)

    def come_back(world: World) -> None:
        absent[0].start()
        elect_joiner_soon(world)

    world.publish_every_us = 20 * MS
    result = world.run([(500 * MS, kill_follower), (4 * S, come_back)])
    assert result.elections >= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_does_not_flap_under_steady_load(seed):
    """Its disk needs longer than the time between two messages, so it never has quite what its leader has."""
    world = World(seed)
    world.publish_every_us = 10 * MS
    for node in world.node_list:
        node.disk.sync_us = 150 * MS

    world.run([])
    assert world.seen["ProposeIsr"] == 0
    assert world.seen["SuspectLeader"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_nobody_hears_is_deposed_and_flapping_dies_down(seed):
    """One way: the two can not hear each other for a minute, and each would depose the other for ever."""
    world = World(seed, trouble_us=60 * S)
    world.publish_every_us = world.consume_every_us = 400 * MS

    def leave_two(world: World) -> None:
        for node in world.node_list[2:]:
            node.kill()

    def cut(world: World) -> None:
        a, b = (node.node_id for node in world.node_list[:2])
        world.network.cut |= {(a, b), (b, a)}

    result = world.run([(100 * MS, leave_two), (6 * S, cut)])
    assert result.elections <= 12


@pytest.mark.parametrize("target", ["leader", "follower"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_is_stopped_for_longer_than_every_timeout(seed, target):
    world = World(seed, trouble_us=10 * S)
    stopped = []

    def stop(world: World) -> None:
        stopped.append(leader_of(world) if target == "leader" else follower_of(world))
        stopped[0].pause()

    world.run([(1 * S, stop), (7 * S, lambda world: stopped[0].resume())])
    if target == "leader":
        ended = [entry for entry in world.trace if isinstance(entry[-1], LeadershipEnded)]
        assert ended


@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_was_stopped_for_less_than_the_timeout_accuses_nobody(seed):
    """Its own pause is nobody's silence."""
    world = World(seed)
    script = [
        (when, act)
        for round_s in (1, 2, 3, 4)
        for when, act in (
            (round_s * S, lambda world: follower_of(world).pause()),
            (round_s * S + 990 * MS, lambda world: [node.resume() for node in world.node_list if node.is_paused]),
        )
    ]
    world.run(script)
    assert world.seen["SuspectLeader"] == 0


@pytest.mark.parametrize("target", ["leader", "follower"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk(seed, target):
    world = World(seed)

    def fill(world: World) -> None:
        (leader_of if target == "leader" else follower_of)(world).disk.is_full = True

    world.run([(1 * S, fill)])
    if target == "follower":
        assert world.seen["AppendFailed"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_whose_disk_was_replaced_is_out_before_it_serves(seed):
    world = World(seed)

    def replace_disk(world: World) -> None:
        node = leader_of(world)
        node.kill()
        node.disk.lose_tail(world.rng)
        node.start()

    if world.min_isr == 1:  # one lost disk is more than this world promises to survive
        return
    world.run([(2 * S, replace_disk)])
    assert world.seen["unclean election"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_jump(seed):
    world = World(seed)

    def jump(world: World) -> None:
        for node in world.node_list:
            node.clock_offset_ns += world.rng.choice((-1, 1)) * 86_400_000_000_000

    world.run([(1 * S, jump), (2 * S, kill_leader), (3 * S, jump), (4 * S, start_all), (5 * S, kill_leader)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_is_cut_off_does_not_commit_and_the_others_do(seed):
    world = World(seed)
    cut_off = []

    def isolate(world: World) -> None:
        leader = leader_of(world).node_id
        others = [node for node in world.nodes if node != leader]
        world.network.cut |= {(leader, other) for other in [*others, META]}
        world.network.cut |= {(other, leader) for other in [*others, META]}
        cut_off.append(world.nodes[leader])

    def look(world: World) -> None:
        node = cut_off[0]
        assert node.replica is not None
        assert node.replica.leader is not None  # it does not know better
        assert leader_of(world) is not node
        assert node.replica.log.high_watermark < len(world.model.committed)

    world.publish_every_us = 100 * MS
    world.run([(2 * S, isolate), (5 * S, look)])
