"""Sessions between nodes, as TCP gives them: in order and complete, until nothing passes any more.

A follower keeps one session to every node that it fetches from. A request is always under way in it, so that both ends
hear each other also when there is nothing new; fetches of a partition wait at the leader for as long as it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion
from liftpy_server.replication.core.inputs import FetchAnswered
from simulation.scheduler import MS, S

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.network import Network
    from simulation.node import SimNode

HEARTBEAT_US = 250 * MS
SILENCE_US = 1 * S


class Stream:
    """One direction of a connection. A cut stops it for good; what the network would lose comes late instead."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network = network
        self._path = (source, target)
        self._is_stuck = False
        self._last_us = 0

    def send(self, deliver: Callable[..., None], *args: Any) -> None:
        if self._path in self._network.cut:
            self._is_stuck = True
        if not self._is_stuck:
            self._last_us = self._network.in_order(self._last_us, self._arrive, deliver, args)

    def _arrive(self, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._path in self._network.cut:
            self._is_stuck = True
        if not self._is_stuck:
            deliver(*args)


class Connection:
    """Between one process of the follower's node and one of the leader's."""

    def __init__(self, follower: SimNode, leader: SimNode, link: Link) -> None:
        network = follower.world.network
        self.follower = follower.node_id
        self.run = leader.run
        self._leader = leader
        self._link = link
        self._enter_follower = follower.entrance()
        self._up = Stream(network, follower.node_id, leader.node_id)
        self._down = Stream(network, leader.node_id, follower.node_id)

    def ask(self, message: FollowFetch | FollowQuestion | None) -> None:
        """Towards the leader; None is a request that asks for nothing new."""
        self._up.send(self._leader.enter, self.run, self._leader.asked, self, message)

    def answer(self, message: FetchAnswered | FollowEnd | None) -> None:
        """Towards the follower."""
        self._down.send(self._enter_follower, self._link.answered, self, message)


class Link:
    """The follower's end: connects, connects again after silence, and says again then what was not answered."""

    def __init__(self, node: SimNode, leader: SimNode) -> None:
        self.heard_us = node.world.scheduler.now_us
        self._node = node
        self._leader = leader
        self._open: FollowFetch | FollowQuestion | None = None
        self._connect()

    @property
    def is_parked(self) -> bool:
        """A fetch was sent on the connection that is open now, and not answered."""
        return isinstance(self._open, FollowFetch)

    def send(self, message: FollowFetch | FollowQuestion) -> None:
        self._open = message
        self._connection.ask(message)

    def drop(self) -> None:
        """Nothing is asked any more."""
        self._open = None

    def look(self) -> None:
        """From time to time: is anybody there?"""
        silent_us = self._node.world.scheduler.now_us - max(self.heard_us, self._connected_us)
        was_reset = self._leader.is_up and self._leader.run != self._connection.run
        if was_reset or silent_us > SILENCE_US:
            self._connect()

    def _connect(self) -> None:
        self._connected_us = self._node.world.scheduler.now_us
        self._connection = Connection(self._node, self._leader, self)
        self._connection.ask(None)
        if self._open is not None:
            self._connection.ask(self._open)

    def answered(self, connection: Connection, message: FetchAnswered | FollowEnd | None) -> None:
        if connection is not self._connection:
            return
        self.heard_us = self._node.world.scheduler.now_us
        if message is None:
            connection.ask(None)
        else:
            if isinstance(message, FetchAnswered) == self.is_parked:
                self._open = None
            self._node.step(message)
