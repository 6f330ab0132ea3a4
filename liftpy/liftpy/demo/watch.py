"""What the nodes of the demonstration are doing, asked again and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.client import Lift
    from liftpy_client.details import PartitionDetails

__all__ = ["Copy", "Seen", "Watch", "copies_of"]

_EVERY_S: Final = 0.4
_WHOLE_TIMEOUT_S: Final = 60.0


class Copy(NamedTuple):
    """The copy of a stream on one node.

    Attributes:
        role: `leader`, `in sync` or `behind`.
        log_end: offset after its last durable record; None while nobody knows.
        lag: how many records it lacks; None while nobody knows.
    """

    role: str
    log_end: int | None
    lag: int | None


class Seen(NamedTuple):
    """One stream, as it was last seen.

    Attributes:
        leader: the node that leads it; None while nobody does.
        epoch: counts its leaders.
        is_whole: it has a leader, and all replicas are in sync.
        copies: by node.
    """

    leader: str | None
    epoch: int
    is_whole: bool
    copies: dict[str, Copy]


def copies_of(part: PartitionDetails) -> Seen:
    """What one partition tells of its replicas. Pure."""
    states = {state.node: state for state in part.replica_states}
    copies = {}
    for node in part.replicas:
        state = states.get(node)
        if node == part.leader:
            copies[node] = Copy("leader", part.log_end, 0)
        else:
            role = "in sync" if node in part.isr else "behind"
            copies[node] = Copy(role, state and state.log_end, state and state.lag_messages)
    is_whole = part.leader is not None and set(part.isr) == set(part.replicas) and not part.unreachable
    return Seen(part.leader, part.leader_epoch, is_whole, copies)


class Watch:
    """Asks for all streams some times a second, and hands on what it hears.

    Args:
        lift: whom to ask.
        on_seen: is called with all streams, by name.
    """

    def __init__(self, lift: Lift, on_seen: Callable[[dict[str, Seen]], None]) -> None:
        self._lift = lift
        self._on_seen = on_seen
        self.leaders: dict[tuple[str, int], str] = {}

    async def look(self) -> dict[str, Seen]:
        """Ask once.

        Raises:
            LiftError: no node answers.
        """
        seen = {stream.name: copies_of(stream.partitions[0]) async for stream in self._lift.streams()}
        for name, stream in seen.items():
            if stream.leader is not None:
                self.leaders[name, stream.epoch] = stream.leader
        self._on_seen(seen)
        return seen

    async def run(self) -> None:
        """Go on until cancelled. While no node answers nothing new is shown."""
        while True:
            try:
                await self.look()
            except LiftError:
                self._on_seen({})
            await asyncio.sleep(_EVERY_S)

    async def wait_whole(self) -> None:
        """Return when every replica of every stream is in sync.

        Raises:
            LiftError: that takes longer than a minute.
        """
        try:
            async with asyncio.timeout(_WHOLE_TIMEOUT_S):
                while not all(stream.is_whole for stream in (await self.look()).values()):
                    await asyncio.sleep(_EVERY_S / 4)
        except TimeoutError:
            raise LiftError(f"after {_WHOLE_TIMEOUT_S:g} s not all replicas are in sync again") from None
