"""The ways in which replicated logs before this one lost data or stood still, each as a script, over many seeds.

Each script says what goes wrong; that nothing acked is lost and that all is well again in the end the model checks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy_server.replication.core.effects import LeadershipEnded
from simulation.metadata import META
from simulation.scheduler import MS, S
from simulation.scripts import SEEDS, begun, follower_of, isr_of, kill_leader, leader_of, start_all, three_of_five
from simulation.world import World


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


@pytest.mark.parametrize("shape", [(3, 2, 0, 0), (3, 2, 1, 0), (1, 1, 0, 0)])
def test_an_idle_partition_proposes_nothing_and_is_hardly_ticked(shape):
    world = World(7, shape=shape)
    world.rest_us = 60 * S
    world.times = replace(world.times, replica_lag_max_s=10.0)
    ticks = []
    world.scheduler.after(20 * S, lambda: ticks.append(world.seen["Tick"]))
    world.run([])
    assert world.seen["ProposeIsr"] == world.seen["ProposeLeader"] == world.seen["SuspectLeader"] == 0
    per_node = (world.seen["Tick"] - ticks[0]) / len(world.node_list)
    assert per_node < 40 / 2.5 + 10


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_are_acked_again_soon_after_the_log_of_the_leader_failed(seed):
    """Its node lives on, and keeps its session."""
    world = three_of_five(seed, trouble_us=10 * S)
    world.publish_every_us = 50 * MS
    epochs = []

    def fail(world: World) -> None:
        epochs.append(world.info.leader_epoch)
        leader_of(world).fail_log()

    world.run([(3 * S, fail)])
    assert min(when for epoch, when in world.first_ack_us.items() if epoch > epochs[0]) - 3 * S < 2 * S


@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_is_stopped_for_longer_than_every_timeout_and_nobody_accuses_anybody(seed):
    """A virtual machine that is suspended, with all of its nodes."""
    world = World(seed, shape=(3, 2, 1, 0), trouble_us=15 * S)

    def stop(world: World) -> None:
        for node in world.node_list:
            node.pause()

    def resume(world: World) -> None:
        for node in world.node_list:
            node.resume()

    world.run([(2 * S, stop), (4_500 * MS, resume), (7 * S, stop), (9_700 * MS, resume)])
    assert world.seen["ProposeIsr"] == world.seen["SuspectLeader"] == world.seen["ProposeLeader"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_stops_where_messages_are_durable_before_they_are_on_disk(seed):
    world = three_of_five(seed, is_lazy=True)
    world.publish_every_us = 10 * MS

    def stop_kernel(world: World) -> None:
        node = leader_of(world)
        node.kill()
        node.disk.lose_tail(world.rng, node.disk.flushed_end)
        node.start()

    def kill_all(world: World) -> None:
        for node in world.node_list:
            node.kill()
            node.start()

    world.run([(2 * S, stop_kernel), (5 * S, kill_all)])
    assert world.seen["unclean election"] == 0
    assert any(disk.lost for disk in (node.disk for node in world.node_list))
