"""What goes wrong with processes and links, whatever it is that runs in them: drawn from the seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from simulation.metadata import META
from simulation.scheduler import MS, S

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Trouble"]


class Trouble(ABC):
    """From `begin` on something happens every `_every_us` on average, until it is over.

    Args:
        world: where; its nodes have a `Process`.
    """

    _every_us: int

    def __init__(self, world: Any) -> None:
        self._world = world
        self._is_over = False

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        self._world.scheduler.after(int(self._world.rng.random() * 2 * self._every_us) + 1, self._strike)

    def _strike(self) -> None:
        if not self._is_over:
            self._happen()
            self._next()

    @abstractmethod
    def _happen(self) -> None:
        """Something goes wrong now."""

    def _later(self, longest_us: int, act: Callable[[], None]) -> None:
        def unless_over() -> None:
            if not self._is_over:
                act()

        self._world.scheduler.after(int(self._world.rng.random() * longest_us) + 1, unless_over)

    def _any(self) -> Any:
        return self._world.rng.choice(self._world.node_list)

    @staticmethod
    def _up(node: Any) -> None:
        if not node.is_up:
            node.start()

    def _pause(self) -> None:
        node = self._any()
        if node.is_up and not node.is_paused:
            node.pause()
            self._later(self._world.rng.choice((500 * MS, 5 * S)), lambda: self._resume(node))

    @staticmethod
    def _resume(node: Any) -> None:
        if node.is_paused:
            node.resume()

    def _cut_one_way(self) -> None:
        a, b = self._world.rng.sample([*self._world.nodes, META], 2)
        self._cut([(a, b)])

    def _isolate(self) -> None:
        """From the other nodes, from the metadata, or from both."""
        node = self._any().node_id
        others = [other for other in self._world.nodes if other != node]
        far = self._world.rng.choice((others, [META], [*others, META]))
        self._cut([(node, other) for other in far] + [(other, node) for other in far])

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        cut = self._world.network.cut
        cut.update(pairs)
        self._later(4 * S, lambda: cut.difference_update(pairs))

    def _metadata_failover(self) -> None:
        metadata = self._world.metadata
        metadata.is_down = True

        def back() -> None:
            metadata.is_down = False

        self._later(2 * S, back)
