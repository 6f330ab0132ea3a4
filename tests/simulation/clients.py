"""A publisher whose messages reach whoever believes to lead, and consumers that read from anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.model import ViolationError
from simulation.scheduler import MS

if TYPE_CHECKING:
    from simulation.disk import Record
    from simulation.world import World


class Publisher:
    """Numbers as messages, in bursts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._value = 0
        world.scheduler.after(50 * MS, self.publish)

    def publish(self) -> None:
        """And so on, until the world is idle."""
        world = self._world
        if world.is_idle:
            return
        world.scheduler.after(int(world.rng.random() * world.publish_every_us * 2) + 1, self.publish)
        values = tuple(range(self._value + 1, self._value + 1 + world.rng.choice((1, 1, 2, 5))))
        self._value = values[-1]
        for node in world.nodes.values():
            world.network.send("nats", node.node_id, node.published, values)


class Consumer:
    """Reads on from its position, and asks for the newest offset.

    It believes nobody of an epoch older than one it has heard of; beyond that, nothing may step back for it.
    """

    def __init__(self, world: World, name: str) -> None:
        self.position = 0
        self._world = world
        self._name = name
        self._epoch = 0
        self._latest = 0
        world.scheduler.after(70 * MS, self._poll)

    def _poll(self) -> None:
        world = self._world
        world.scheduler.after(int(world.rng.random() * world.consume_every_us * 2) + 1, self._poll)
        node = world.rng.choice(world.node_list)
        self._epoch = max(self._epoch, world.model.acked_epoch)  # it works for the publisher, too
        floor = max(self.position, self._latest, world.model.acked_end)
        world.network.send(self._name, node.node_id, node.consumed, self, self.position, floor, self._epoch)

    def answered(
        self, epoch: int, offset: int, records: list[Record], latest: int | None, floor: int, floor_epoch: int
    ) -> None:
        if epoch < max(self._epoch, floor_epoch):
            return
        self._epoch = epoch
        self._world.model.shown(offset, records)
        if offset == self.position:
            self.position += len(records)
        if latest is not None:
            if latest < floor and self._world.disks_to_lose is None:
                raise ViolationError(f"P3: the newest offset stepped back from {floor} to {latest} in epoch {epoch}")
            self._latest = max(self._latest, latest)
