"""What goes wrong, and when: drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.scheduler import MS, S
from simulation.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.state import PartitionInfo
    from simulation.node import SimNode
    from simulation.world import World


class Faults(Trouble):
    """Until `heal`; see `Trouble`."""

    _world: World

    def __init__(self, world: World) -> None:
        super().__init__(world)
        rng = world.rng
        self._every_us = rng.choice((250, 500, 1_000)) * MS
        self._disks_to_lose = world.min_isr - 1 if world.disks_to_lose is None else world.disks_to_lose
        kinds: list[Callable[[], None]] = [
            self._kill,
            self._kill_leader,
            self._power_loss,
            self._pause,
            self._cut_one_way,
            self._isolate,
            self._metadata_failover,
            self._fill_disk,
            self._slow_disk,
            self._clock_jump,
            self._lose_disk,
            self._damage_end,
            self._move_leader,
            self._reassign,
            self._cancel,
            self._fail_log,
        ]
        # Most runs see a few kinds only, so that rare combinations are not drowned.
        self._kinds = rng.sample(kinds, rng.choice((3, 6, len(kinds))))
        if world.disks_to_lose is not None or rng.random() < 0.3:
            self._kinds.append(self._lose_disk)

    def _happen(self) -> None:
        kind = self._world.rng.choice(self._kinds)
        self._world.trace.append((self._world.scheduler.now_us, kind.__name__))
        kind()

    def heal(self) -> None:
        """From now on everything works."""
        self._is_over = True
        world = self._world
        world.network.cut.clear()
        world.network.is_calm = True
        world.metadata.is_down = False
        for node in world.node_list:
            node.disk.is_full = False
            node.disk.sync_us = 1 * MS
            if node.is_up and node.disk.is_broken:
                node.kill()
            if not node.is_up:
                node.start()
            elif node.is_paused:
                node.resume()
        self._operate()

    def _operate(self) -> None:
        """An operator looks now and then, and decides where a leader is missing, or lacks what was committed.

        Where no promise may be broken there is one case to decide, and nothing is lost by it.
        """
        world = self._world
        may_lose = world.disks_to_lose is not None
        world.scheduler.after(2 * S, self._operate)
        nodes, info = world.metadata.state.nodes, world.info
        logs: list[list[Any]] = []
        for node_id in info.replicas:
            node, known = world.nodes[node_id], nodes[node_id]
            replica = node.replica
            if replica is None or known.expired or replica.incarnation != known.incarnation:
                return
            log, is_failed = replica.log, node.disk.is_failed
            reach = (-1, 0) if is_failed else (log.epochs.latest, log.end)
            logs.append([node_id, known.incarnation, *reach, max(log.high_watermark, log.known_end)])
        if may_lose or _waits_for_a_word(info, logs, world.min_isr):
            world.seen["an operator's word"] += not may_lose
            about = {"partition": 0, "version": info.version, "logs": logs, "given_up": []}
            self._command("recover_partition", **about, accept_data_loss=may_lose)

    def _kill(self) -> None:
        self._down([self._any()])

    def _kill_leader(self) -> None:
        leader = self._world.metadata.state.streams["s"].partitions[0].leader
        self._down([self._any() if leader is None else self._world.nodes[leader]])

    def _power_loss(self) -> None:
        self._down(self._world.node_list)

    def _down(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            if node.is_up:
                node.kill()
                self._later(self._world.rng.choice((200 * MS, 3 * S)), lambda node=node: self._up(node))

    def _lose_disk(self) -> None:
        """A disk comes back without what it held, or its kernel stops; as often as the promise allows."""
        if self._disks_to_lose == 0:
            return
        isr = self._world.model.isr
        node = self._world.nodes[self._world.rng.choice(isr)] if isr else self._any()
        self._disks_to_lose -= 1
        if node.is_up:
            node.kill()
        node.disk.lose_tail(self._world.rng, node.disk.flushed_end if node.disk.is_lazy else None)
        self._later(200 * MS, lambda: self._up(node))

    def _damage_end(self) -> None:
        """All lose power, and the end of one log turns bad; it counts as a disk that is lost."""
        if self._disks_to_lose == 0:
            return
        self._disks_to_lose -= 1
        world = self._world
        node = world.nodes[world.rng.choice(world.model.isr or tuple(world.nodes))]
        self._down(world.node_list)
        node.disk.damage_end(world.rng)

    def _fill_disk(self) -> None:
        disk = self._any().disk
        disk.is_full = True

        def free() -> None:
            disk.is_full = False

        self._later(3 * S, free)

    def _slow_disk(self) -> None:
        disk = self._any().disk
        disk.sync_us = self._world.rng.choice((50, 400, 1_500)) * MS

        def fast() -> None:
            disk.sync_us = 1 * MS

        self._later(4 * S, fast)

    def _clock_jump(self) -> None:
        self._any().clock_offset_ns += self._world.rng.choice((-3_600, -2, 2, 3_600)) * 1_000_000_000

    def _move_leader(self) -> None:
        """A drain: the leadership goes to another member of the ISR."""
        world = self._world
        info = world.metadata.state.streams["s"].partitions[0]
        if info.isr and not world.metadata.is_down:
            target = world.rng.choice(info.isr)
            term = {"leader_epoch": info.leader_epoch, "version": info.version}
            uuid = world.metadata.state.streams["s"].uuid
            world.metadata.apply("move_leader", name="s", uuid=uuid, partition=0, leader=target, **term)

    def _reassign(self) -> None:
        """Other nodes, or the same in another order, shall keep the replicas."""
        world = self._world
        voters = max(world.min_isr, world.rng.choice((world.replicas, world.replicas, world.replicas - 1)))
        nodes = world.rng.sample(list(world.nodes), min(len(world.nodes), voters + world.rng.choice((0, 0, 1))))
        self._command("reassign_partitions", moves=[[0, nodes, nodes[voters:]]])

    def _cancel(self) -> None:
        self._command("cancel_reassignment", partition=0)

    def _command(self, op: str, **args: object) -> None:
        """From an operator; it may be refused."""
        metadata = self._world.metadata
        if not metadata.is_down:
            metadata.apply(op, name="s", uuid=metadata.state.streams["s"].uuid, **args)

    def _fail_log(self) -> None:
        """A write or a sync fails; somebody starts the node again after a while. A copy is lost by it."""
        node = self._any()
        if not node.is_up or node.is_paused or self._disks_to_lose == 0:
            return
        self._disks_to_lose -= 1
        node.fail_log()

        def restart() -> None:
            if node.is_up and node.disk.is_broken:
                node.kill()
                node.start()

        self._later(4 * S, restart)


def _waits_for_a_word(info: PartitionInfo, logs: list[list[Any]], min_isr: int) -> bool:
    """Whether a log with records waits beside empty ones that were in sync to the last, and nobody knows of a commit.

    The metadata can not tell an empty log that never had a record from one that was begun anew.
    """
    has_records = {node for node, _, last_epoch, *_ in logs if last_epoch >= 0}
    is_new = info.committed_end <= info.empty_log_start
    in_sync_last = {*info.unproven[-min_isr:]} - {*info.lost, *info.failed}
    return info.leader is None and is_new and bool(has_records) and not has_records & in_sync_last
