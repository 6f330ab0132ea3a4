"""What goes wrong with NATS: its servers, the routes between them, and the connections of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.scheduler import MS, S
from simulation.shell_faults import ShellFaults

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.nats_world import NatsWorld

__all__ = ["FAULTS", "NatsFaults"]

FAULTS = (
    *("kill_server", "pause_server", "lame_duck", "cut_route", "silence", "deafen", "flood", "deny", "overload"),
    *("kill", "kill_leader", "pause", "stop_cleanly", "move_leader", "isolate", "cut_one_way", "metadata_failover"),
    *("power_loss", "power_loss_of_all", "slow_disk"),
    *("hand_over", "kill_in_handover", "error_in_handover", "error_in_delivery", "clock_jump"),
)
_PLANNED = frozenset({"hand_over", "stop_cleanly"})  # these cost nobody a message
_RESTARTS = frozenset({"kill", "kill_leader", "stop_cleanly", "power_loss", "power_loss_of_all", "kill_in_handover"})


class NatsFaults(ShellFaults):
    """See the module; what goes wrong with nodes goes wrong as well."""

    def __init__(self, world: NatsWorld) -> None:
        super().__init__(world)
        self._nats_world = world
        chosen = world.rng.sample(FAULTS, world.rng.choice((2, 4, len(FAULTS))))
        self._kinds = [name for name in FAULTS if name in (world.only or chosen) and name not in world.without]
        if "clock_jump" in self._kinds:  # how long a node was down, it does not know then
            self._kinds = [name for name in self._kinds if name not in _RESTARTS]

    def _bring(self, kind: str) -> None:
        if kind not in _PLANNED:
            self._nats_world.trouble()
        super()._bring(kind)

    def _later(self, longest_us: int, act: Callable[[], None]) -> None:
        def told() -> None:
            self._nats_world.trouble()
            act()

        super()._later(longest_us, told)

    def heal(self) -> None:
        world = self._nats_world
        world.trouble()
        world.wires.heal(set(world.wires.silent))
        for pair in sorted(world.nats.cut, key=sorted):
            world.nats.heal_route(pair)
        for node in world.nodes.values():
            node.is_overloaded = node.fails_append = node.fails_held = False
        for server in world.nats.all.values():
            server.deny(())
            if server.is_paused:
                server.resume()
            self._replace(server.name)
        super().heal()

    def _start_server(self, name: str) -> None:
        if not self._nats_world.nats.all[name].is_up:
            self._nats_world.nats.start(name)

    def _hand_over(self) -> None:
        """Another in-sync replica is to lead one partition, or all that a node leads."""
        world = self._nats_world
        leader = world.infos[self._any_number()].leader
        others = [name for name in world.nodes if name != leader]
        if leader is None:
            return
        node, to = world.nodes[leader], world.rng.choice(others)
        for number, info in enumerate(world.infos):
            if info.leader == leader and to in info.isr:
                node.enter(node.run, node.hand_over, number, to, info.leader_epoch, info.version)
                if world.rng.random() < 0.5:
                    return

    def _kill_in_handover(self) -> None:
        """The old leader dies while it holds, and the metadata may name another than the one that was to be next.

        As a rule just after NATS has answered it, so that others have heard what it says of its log.
        """
        world, until_us = self._nats_world, self._world.scheduler.now_us + 2 * S
        is_patient = world.rng.random() < 0.7
        whole_s: dict[str, float] = {}
        self._hand_over()

        def look() -> None:
            for node in world.nodes.values():
                holds = any(partition.is_leading and partition.held is not None for partition in node.partitions)
                if not holds or node.ingest is None:
                    whole_s.pop(node.node_id, None)
                elif not is_patient or node.ingest.whole_s > whole_s.setdefault(node.node_id, node.ingest.whole_s):
                    self._later(30 * MS, lambda node=node: self._down([node], power=False))
                    return
            if world.scheduler.now_us < until_us and not self._is_over:
                world.scheduler.after(1 * MS, look)

        look()

    def _error_in_handover(self) -> None:
        """What a node holds meets an error when it is appended."""
        self._any().fails_held = True

    def _error_in_delivery(self) -> None:
        """What one of the next messages meets is an error that nobody expected, before it is in the log."""
        self._any().fails_append = True

    def _clock_jump(self) -> None:
        super()._clock_jump()
        self._nats_world.has_jumped = True

    def _kill_server(self) -> None:
        world = self._nats_world
        name = world.rng.choice(list(world.nats.all))
        world.nats.kill(name)
        self._later(2 * S, lambda: self._start_server(name))

    def _pause_server(self) -> None:
        world = self._nats_world
        server = world.nats.all[world.rng.choice(list(world.nats.all))]
        run = server.run

        def resume() -> None:
            if server.run == run and server.is_paused:
                server.resume()

        if server.is_up and not server.is_paused:
            server.pause()
            self._later(world.rng.choice((500 * MS, 10 * S)), resume)

    def _lame_duck(self) -> None:
        world = self._nats_world
        server = world.nats.all[world.rng.choice(list(world.nats.all))]
        if world.nats.lag_us and any(each.is_lame for each in world.nats.all.values()):
            return  # a node that leaves one of two can not ask the other, and a slow route makes that matter
        if server.is_up and not server.is_paused and not server.is_lame:
            server.lame_duck()
            self._later(server.settings.lame_duck_us + S, lambda: self._replace(server.name))

    def _replace(self, name: str) -> None:
        """It ends, if it is about to, and another comes in its place, if there is none."""
        server = self._nats_world.nats.all[name]
        if server.is_lame:
            server.retire()
            self._nats_world.scheduler.after(S, lambda: self._start_server(name))
        else:
            self._start_server(name)

    def _cut_route(self) -> None:
        world = self._nats_world
        pair = frozenset(world.rng.sample(list(world.nats.all), 2))
        world.nats.cut_route(pair)
        world.cut_off(pair)
        self._later(4 * S, lambda: world.nats.heal_route(pair))

    def _silence(self) -> None:
        """Nothing passes between a node and a server, and nobody is told."""
        world = self._nats_world
        node = world.rng.choice(list(world.nodes.values()))
        self._silent({frozenset((node.node_id, world.rng.choice(node.servers or list(world.nats.all))))})

    def _silent(self, pairs: set[frozenset[str]]) -> None:
        world = self._nats_world
        pairs -= world.wires.silent
        world.wires.silent |= pairs
        self._later(world.rng.choice((500 * MS, 12 * S)), lambda: world.wires.heal(pairs))

    def _deafen(self) -> None:
        """Nothing passes between a node, as a rule one that leads, and all servers; other nodes still hear it."""
        world = self._nats_world
        leaders = [info.leader for info in world.infos if info.leader is not None]
        node = world.rng.choice(leaders or list(world.nodes))
        self._silent({frozenset((node, server)) for server in world.nats.all})

    def _overload(self) -> None:
        """A node does not read for a while, and servers hold what is for it."""
        node = self._nats_world.rng.choice(list(self._nats_world.nodes.values()))
        node.is_overloaded = True

        def relieve() -> None:
            node.is_overloaded = False

        self._later(2 * S, relieve)

    def _flood(self) -> None:
        """More at once than servers hold for nodes, or nodes read in time."""
        world = self._nats_world
        for publisher in world.plain:
            publisher.burst = world.rng.choice((20, 200))

    def _deny(self) -> None:
        """The configuration of a server changes, and nobody may subscribe to the stream's subject any more."""
        world = self._nats_world
        server = world.nats.all[world.rng.choice(list(world.nats.all))]

        def allow() -> None:
            server.deny(())

        server.deny((f"{world.subjects}.*".encode(),))
        self._later(2 * S, allow)
