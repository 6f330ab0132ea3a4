"""The metadata service of the simulation: the real commands, slow answers, failovers, sessions that end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from liftpy_envelope.pull import PartitionKey
from liftpy_server.metadata.commands import Command, apply_command
from liftpy_server.metadata.state import MetadataState
from simulation.scheduler import MS, S

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_server.metadata.commands import Outcome
    from liftpy_server.metadata.state import PartitionInfo
    from simulation.network import Network
    from simulation.scheduler import Scheduler

META = "meta"
UUID = f"{7:032x}"
KEY = PartitionKey(bytes.fromhex(UUID), 0)
SESSION_US = 3 * S


class Node(Protocol):
    """A node, as the metadata knows it."""

    node_id: str

    def wall_ns(self) -> int:
        """What its wall clock says."""

    def metadata_changed(self, state: MetadataState) -> None:
        """A state arrives."""


class Model(Protocol):
    """Who watches a partition."""

    def configured(self, info: PartitionInfo) -> None:
        """The metadata says something else of its partition."""


class SimMetadata:
    """Commands reach it, and states reach nodes, over the network."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        rng: random.Random,
        models: Sequence[Model],
        trace: list[Any],
        seen: Counter[str],
    ) -> None:
        self._seen = seen
        self._models = models
        self.state = MetadataState()
        self.nodes: Mapping[str, Node] = {}
        self.is_down = False
        self.elected: Callable[[PartitionInfo, PartitionInfo, str], None] = lambda *_: (
            None
        )  # by reports, or an operator
        self.elections = 0
        self.proposals = 0
        self._scheduler = scheduler
        self._network = network
        self._rng = rng
        self._trace = trace
        self._heard: dict[str, int] = {}
        self._commands = 0

    def start(self, nodes: list[str], replicas: int, observers: int, min_isr: int) -> None:
        for node in nodes:
            self.apply("register_node", node=_node(node))
            self._heard[node] = 0
        config = {"name": "s", "subject": "s", "replicas": replicas, "observers": observers, "min_isr": min_isr}
        self.create(config, [nodes[: replicas + observers]])
        self.watch()

    def create(self, config: dict[str, Any], assignment: list[list[str]], now_ns: int | None = None) -> None:
        """Make the stream, with these nodes for each partition."""
        outcome = self.apply("create_stream", now_ns=now_ns, uuid=UUID, config=config, assignment=assignment)
        assert not outcome.error, outcome

    def watch(self) -> None:
        """Begin to look after sessions."""
        self._scheduler.after(500 * MS, self._watch_sessions)

    def apply(self, op: str, *, command_id: str | None = None, now_ns: int | None = None, **args: Any) -> Outcome:
        self._commands += 1
        command = Command(
            id=command_id or f"own-{self._commands}",
            op=op,
            now_ns=self._scheduler.now_us * 1_000 if now_ns is None else now_ns,
            args=args,
        )
        before = self.state.streams.get("s")
        self.state, outcome = apply_command(self.state, Command.decode(command.encode()))
        after = self.state.streams.get("s")
        self._seen[op] += not outcome.error
        for number, info in enumerate(() if after is None else after.partitions):
            known = None if before is None else before.partitions[number]
            if info is not known:
                self._changed(op, self._models[number], known, info)
        return outcome

    def _changed(self, op: str, model: Model, before: PartitionInfo | None, info: PartitionInfo) -> None:
        model.configured(info)
        if before is not None:
            if not before.isr and info.leader is not None:
                self._seen["election by reports"] += 1
                self.elected(before, info, op)
            self._seen["unclean election"] += info.unclean_elections > before.unclean_elections
            self.elections += info.leader_epoch > before.leader_epoch
        self._trace.append((self._scheduler.now_us, op, info.leader, info.leader_epoch, info.isr, info.version))

    def propose(
        self, node: Node, op: str, command_id: str, answer: Callable[[Outcome], None] | None, args: dict[str, Any]
    ) -> None:
        """From a node, stamped with its wall clock."""
        self.submit(node, Command(id=command_id, op=op, now_ns=node.wall_ns(), args=args), answer)

    def submit(self, node: Node, command: Command, answer: Callable[[Outcome], None] | None) -> None:
        """A command is on its way; the answer may be lost, and so may it."""
        self._network.send(
            *(node.node_id, META, self._arrived, node),
            *(command.op, command.id, command.now_ns, answer, command.args),
        )

    def _arrived(
        self,
        node: Node,
        op: str,
        command_id: str,
        now_ns: int,
        answer: Callable[[Outcome], None] | None,
        args: dict[str, Any],
    ) -> None:
        if self.is_down:
            if self._rng.random() < 0.5:  # committed by the next leader, and nobody is told
                self.apply(op, command_id=command_id, now_ns=now_ns, **args)
            return
        outcome = self.apply(op, command_id=command_id, now_ns=now_ns, **args)
        self.proposals += 1
        if op == "register_node":
            self._heard[node.node_id] = self._scheduler.now_us
        if answer is not None:
            self._network.send(META, node.node_id, answer, outcome)
        self.broadcast()

    def broadcast(self) -> None:
        """Tell all nodes how things are."""
        for node_id, node in self.nodes.items():
            self._network.send(META, node_id, node.metadata_changed, self.state)

    def heartbeat(self, node: Node, incarnation: int) -> None:
        if self.is_down:
            return
        if self.state.nodes[node.node_id].incarnation == incarnation:
            self._heard[node.node_id] = self._scheduler.now_us
        self._network.send(META, node.node_id, node.metadata_changed, self.state)

    def _watch_sessions(self) -> None:
        self._scheduler.after(500 * MS, self._watch_sessions)
        if self.is_down:  # a new leader gives every session its full time
            self._heard = dict.fromkeys(self._heard, self._scheduler.now_us)
            return
        for node_id, heard in self._heard.items():
            info = self.state.nodes[node_id]
            if self._scheduler.now_us - heard > SESSION_US and not info.expired:
                self.apply("expire_node", node_id=node_id, incarnation=info.incarnation)
                self.broadcast()


def _node(node_id: str) -> dict[str, Any]:
    return {"node_id": node_id, "pull_host": "h", "pull_port": 1}
