"""The connections between simulated voters, and the thread that writes their snapshots.

A run has either connections as TCP makes them, which lose only what is under way when they end, or worse ones, which
lose, double and reorder at will. Whether two nodes let each other in is decided by the code under test.
"""

from __future__ import annotations

import random
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from liftpy_server.consensus.messages import decode_message, encode_message
from liftpy_server.consensus.wire.admission import PeerRefusedError, check_peer
from liftpy_server.consensus.wire.session import PeerIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_server.consensus.settings import Voter
    from simulation.raft_world import Node, World

MS = 1_000_000
_CONNECT_NS = 40 * MS
_OF_ONE_RUN = frozenset({"apply_command", "apply_command_response"})  # their numbers mean nothing to another process


class Network:
    """All connections.

    Attributes:
        blocked: (from, to) of the ways that lose everything.
        is_reliable: nothing is lost any more.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.blocked: set[tuple[str, str]] = set()
        self.is_reliable = False
        self._links: dict[tuple[str, str], int] = {}
        self._made = 0
        self._randoms: dict[tuple[str, str], random.Random] = {}
        self._free_at: dict[tuple[str, str], int] = {}
        chance = random.Random(f"{world.seed} network")
        self._is_tcp = chance.random() < 0.5
        self._loss = chance.choice((0.0, 0.02, 0.1))
        self._doubling = chance.choice((0.0, 0.05, 0.2))
        self._late = chance.choice((0.0, 0.05, 0.2))

    def start(self) -> None:
        self._connect_all()

    def _connect_all(self) -> None:
        self._world.after(_CONNECT_NS, "connect", self._connect_all)
        running = [
            node for node in self._world.nodes.values() if node.raft is not None and not node.stopped and node.transport
        ]
        for one in running:
            for other in running:
                if one.name < other.name and (one.name, other.name) not in self._links:
                    self._connect(one, other)

    def _connect(self, one: Node, other: Node) -> None:
        if {(one.name, other.name), (other.name, one.name)} & self.blocked:
            return
        ends = [(one, other), (other, one)]
        if not any(there.name in here.transport.admitted for here, there in ends):
            return
        try:
            for here, there in ends:
                check_peer(
                    there.name, there.transport.identity(), here.transport.identity(), here.transport.admitted, None
                )
        except PeerRefusedError:
            self._world.saw("refused")
            return
        self._made += 1
        self._links[one.name, other.name] = self._made
        for here, there in ends:
            with here.guarded():
                here.transport.on_connected(there.name)
            here.wake()

    def link(self, one: str, other: str) -> int | None:
        return self._links.get((min(one, other), max(one, other)))

    def cut(self, one: str, other: str) -> None:
        if self._links.pop((min(one, other), max(one, other)), None) is None:
            return
        for here, there in ((one, other), (other, one)):
            node = self._world.nodes[here]
            if node.raft is not None and node.transport is not None:
                with node.guarded():
                    node.transport.on_disconnected(there)

    def gone(self, name: str) -> None:
        """All connections of a node end."""
        for ends in sorted(self._links):
            if name in ends:
                self.cut(*ends)

    def forget(self, name: str) -> None:
        """Nothing that is under way to or from a node arrives."""
        self.gone(name)

    def send(self, sender: Node, target: str, message: dict[str, Any]) -> bool:
        link = self.link(sender.name, target)
        if link is None:
            return False
        way = (sender.name, target)
        rng = self._randoms.setdefault(way, random.Random(f"{self._world.seed} {way}"))
        data = encode_message(message)
        if way in self.blocked:
            return True
        delay = rng.randint(MS // 5, 5 * MS)
        copies = 1
        if self._is_tcp or self.is_reliable:
            at = max(self._world.now + delay, self._free_at.get(way, 0) + 1)
            self._free_at[way] = at
            delay = at - self._world.now
        else:
            if rng.random() < self._loss:
                return True
            copies += rng.random() < self._doubling
        receiver = self._world.nodes[target]
        of_run = (sender.run, receiver.run)
        instances = (self._instance(sender), self._instance(receiver))
        for _ in range(copies):
            late = 0 if self.is_reliable or self._is_tcp else rng.random() < self._late and rng.randint(0, 1_500 * MS)
            self._world.after(
                delay + late,
                f"{sender.name} to {target}",
                self._arrive,
                sender,
                receiver,
                data,
                link,
                of_run,
                instances,
            )
            delay = rng.randint(MS // 5, 50 * MS)
        return True

    @staticmethod
    def _instance(node: Node) -> str:
        return "" if node.raft is None else node.raft._journal.instance

    def _arrive(
        self, sender: Node, receiver: Node, data: bytes, link: int, runs: tuple[int, int], instances: tuple[str, str]
    ) -> None:
        """Late messages reach a process that was started meanwhile, but never another member of the same name."""
        if receiver.raft is None or (sender.name, receiver.name) in self.blocked:
            return
        if self._is_tcp and link != self.link(sender.name, receiver.name):
            return
        message = decode_message(data)
        if message["type"] in _OF_ONE_RUN and runs != (sender.run, receiver.run):
            return
        if self._instance(receiver) != instances[1] or self._instance(sender) not in {"", instances[0]}:
            return
        receiver.digest.update(b"%d %s %s" % (self._world.now, sender.name.encode(), data))
        receiver.transport.inbox.append((sender.name, message))
        receiver.wake()


class SimTransport:
    """The transport of one run of a voter."""

    def __init__(self, network: Network, node: Node) -> None:
        self._network = network
        self._node = node
        self.admitted: dict[str, Voter] = {}
        self.inbox: list[tuple[str, dict[str, Any]]] = []
        self.before_send: Callable[[], None] = lambda: None
        self.identity: Callable[[], PeerIdentity] = PeerIdentity
        self.on_message: Callable[[str, dict[str, Any]], None]
        self.on_connected: Callable[[str], None]
        self.on_disconnected: Callable[[str], None]

    def admit(self, members: Mapping[str, Voter]) -> None:
        before = self.admitted
        self.admitted = {name: voter for name, voter in members.items() if name != self._node.name}
        for name in sorted(set(before) - set(self.admitted)):
            self._network.cut(self._node.name, name)
        for name in sorted(self.admitted):
            peer = self._network._world.nodes[name]
            if self._network.link(self._node.name, name) is not None and peer.transport is not None:
                try:
                    check_peer(name, peer.transport.identity(), self.identity(), self.admitted, None)
                except PeerRefusedError:
                    self._network.cut(self._node.name, name)

    def send(self, node: str, message: dict[str, Any]) -> bool:
        if self._network.link(self._node.name, node) is None:
            return False
        self.before_send()
        return self._network.send(self._node, node, message)

    def instance_of(self, node: str) -> str:
        peer = self._network._world.nodes[node]
        is_linked = self._network.link(self._node.name, node) is not None
        return Network._instance(peer) if is_linked else ""

    def backlog_bytes(self, node: str) -> int:
        return 0

    def wake(self) -> None:
        self._node.wake()

    def poll(self, timeout: float) -> None:
        inbox, self.inbox = self.inbox, []
        for name, message in inbox:
            self.on_message(name, message)


class _Job(Future):
    """A snapshot that is being written; whoever needs its result waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work

    def run(self) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self.set_result(work())
        except Exception as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)


class SimWriter(Executor):
    """Writes snapshots after a while, of the process that was running when they were begun."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._run = node.run

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        job = _Job(lambda: work(*args, **kwargs))
        delay = self._node.random.randint(1 * MS, 200 * MS)
        self._node.world.after(delay, f"{self._node.name} snapshot", self._write, job)
        return job

    def _write(self, job: _Job) -> None:
        if self._node.run == self._run and self._node.raft is not None:
            with self._node.guarded():
                job.run()
            self._node.wake()
