"""What the nodes of the demonstration are doing, asked again and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.admin.details import PartitionDetails
    from liftpy_client.client import Lift

__all__ = ["Copy", "Seen", "Watch", "copies_of"]

_EVERY_S: Final = 0.4
_TIMEOUT_S: Final = 60.0


class Copy(NamedTuple):
    """The copy of a stream on one node.

    Attributes:
        role: `leader`, `in sync` or `behind`.
        log_end: Offset after its last durable record; None while nobody knows.
        lag: How many records it lacks; None while nobody knows.
    """

    role: str
    log_end: int | None
    lag: int | None


class Seen(NamedTuple):
    """One stream, as it was last seen.

    Attributes:
        leader: The node that leads it; None while nobody does.
        epoch: Counts its leaders.
        is_whole: Whether it has a leader, and all replicas are in sync.
        copies: Copies, by node.
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
        role = "in sync" if node in part.isr else "behind"
        if node == part.leader:
            copies[node] = Copy("leader", part.log_end, 0)
        elif state is None:
            copies[node] = Copy(role, None, None)
        else:
            copies[node] = Copy(role, state.log_end, state.lag_messages)
    is_whole = part.leader is not None and set(part.isr) == set(part.replicas) and not part.unreachable
    return Seen(part.leader, part.leader_epoch, is_whole, copies)


class Watch:
    """Asks for all streams some times a second, and hands on what it hears.

    Args:
        lift: Whom to ask.
        on_seen: Called with all streams, by name; with none while no node answers.

    Attributes:
        leaders: Nodes that led a stream, by its name and the epoch.
    """

    def __init__(self, lift: Lift, on_seen: Callable[[dict[str, Seen]], None]) -> None:
        self._lift = lift
        self._on_seen = on_seen
        self._is_over = False
        self.leaders: dict[tuple[str, int], str] = {}

    async def run(self) -> None:
        """Ask until `stop` is called."""
        while not self._is_over:
            await self._look()
            await asyncio.sleep(_EVERY_S)

    def stop(self) -> None:
        """Ask no more. A cancellation might be lost on the way: `asyncio.wait_for` of Python 3.11 swallows some."""
        self._is_over = True

    async def _look(self) -> dict[str, Seen]:
        try:
            seen = {stream.name: copies_of(stream.partitions[0]) async for stream in self._lift.streams()}
        except LiftError:  # nodes come and go here: whoever waits for an answer says so when none comes
            seen = {}
        for name, stream in seen.items():
            if stream.leader is not None:
                self.leaders[name, stream.epoch] = stream.leader
        self._on_seen(seen)
        return seen

    async def until(self, what: str, is_so: Callable[[dict[str, Seen]], bool]) -> dict[str, Seen]:
        """Ask until the streams are as they should be.

        Args:
            what: Name for the message.
            is_so: Whether they are.

        Returns:
            The streams, by name.

        Raises:
            LiftError: that takes longer than a minute.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while True:
                    seen = await self._look()
                    if seen and is_so(seen):
                        return seen
                    await asyncio.sleep(_EVERY_S / 4)
        except TimeoutError:
            raise LiftError(f"{what}: not within {_TIMEOUT_S:g} s") from None
