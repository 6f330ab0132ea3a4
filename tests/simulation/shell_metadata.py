"""A node's way to the simulated metadata: the real store's proposals, retries and outcomes, without its consensus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from liftpy_server.consensus.proposals import Reason
from liftpy_server.consensus.proposing import Proposer
from liftpy_server.consensus.settings import RaftSettings, Voter
from liftpy_server.consensus.storage.journal import NO_OP
from liftpy_server.consensus.store import RaftMetadataStore
from liftpy_server.metadata.commands import Command
from simulation.metadata import META, SimMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.commands import Outcome
    from liftpy_server.metadata.state import MetadataState
    from simulation.metadata import Node
    from simulation.shell_node import ShellNode

__all__ = ["NodeMetadata", "ShellMetadata"]

_PROPOSE_TIMEOUT_S = 2.0
_VOTERS = (Voter("m1", "h", 1), Voter("m2", "h", 2), Voter("m3", "h", 3))


class ShellMetadata(SimMetadata):
    """Also answers what a voter that does not lead any more may answer: that it does not take a command.

    Attributes:
        late: while it is set, proposals about the ISR are on their way for long: what repeats them is not taken, and
            they arrive when `deliver_late` is called, or when the node that is named registers, just before.
    """

    late: str | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: dict[str, tuple[Any, ...]] = {}

    def deliver_late(self) -> None:
        """What was on its way arrives."""
        self.late = None
        held, self._held = self._held, {}
        for given in held.values():
            self._arrived(*given)

    @property
    def has_late(self) -> bool:
        """Whether anything is on its way so."""
        return bool(self._held)

    def read(self, node: Node, answer: Callable[[MetadataState], None]) -> None:
        """A node asks how things are."""
        self._network.send(node.node_id, META, self._read, node, answer)

    def _read(self, node: Node, answer: Callable[[MetadataState], None]) -> None:
        if not self.is_down:
            self._network.send(META, node.node_id, answer, self.state)

    def _arrived(
        self,
        node: Node,
        op: str,
        command_id: str,
        now_ns: int,
        answer: Callable[[Outcome | None], None] | None,
        args: dict[str, Any],
    ) -> None:
        if op == "register_node" and self.late == node.node_id and self._held:
            self.deliver_late()
        if self.late is not None and _changes_isr(op, args):
            name = _id_of(command_id, args)
            if name not in self._held:
                self._held[name] = (node, op, command_id, now_ns, answer, args)
            elif answer is not None:
                self._network.send(META, node.node_id, answer, None)
            return
        if self.is_down and answer is not None and self._rng.random() < 0.3:
            self._network.send(META, node.node_id, answer, None)
        else:
            super()._arrived(node, op, command_id, now_ns, answer, args)


def _changes_isr(op: str, args: dict[str, Any]) -> bool:
    return op == "change_isr" or (op == "batch" and any(each[1] == "change_isr" for each in args["commands"]))


def _id_of(command_id: str, args: dict[str, Any]) -> str:
    """A batch has another id whenever it is sent; what it holds has not."""
    return "".join(each[0] for each in args["commands"]) if "commands" in args else command_id


class NodeMetadata(RaftMetadataStore):
    """See the module. Who asks is the node; who answers is `SimMetadata`."""

    def __init__(self, node: ShellNode) -> None:
        settings = RaftSettings(
            node_id="m1",
            voters=_VOTERS,
            folder=Path("/nowhere"),
            cluster_key=bytes(32),
            propose_timeout_s=_PROPOSE_TIMEOUT_S,
        )
        super().__init__(settings, node.clock)
        self._node = node
        self._loop = node.loop
        self._heard_us = node.world.scheduler.now_us
        self._proposer = Proposer(self._submit, _PROPOSE_TIMEOUT_S)

    @property
    def voters(self) -> tuple[Voter, ...]:
        return _VOTERS

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def port(self) -> int:
        return 1

    def unheard_s(self) -> float:
        return (self._node.world.scheduler.now_us - self._heard_us) / 1e6

    def learned(self, state: MetadataState) -> None:
        """A state arrived, maybe out of order."""
        self._heard_us = self._node.world.scheduler.now_us
        if state.revision > self._machine.state.revision:
            self._machine.state = state
            self._state_changed()

    def _submit(self, entry: bytes, callback: Callable[[Any, int], None]) -> None:
        metadata, enter = self._node.world.metadata, self._node.entrance()
        if entry[0] == NO_OP:  # a barrier: an answer that was sent after the question came
            metadata.read(self._node, lambda state: enter(self._read, state, callback))
            return
        _, _, encoded = msgpack.unpackb(entry[1:])

        def answered(outcome: Outcome | None) -> None:
            if outcome is None:
                enter(callback, None, Reason.REQUEST_DENIED)
            else:
                enter(callback, outcome, Reason.SUCCESS)

        metadata.submit(self._node, Command.decode(encoded), answered)

    def _read(self, state: MetadataState, callback: Callable[[Any, int], None]) -> None:
        self.learned(state)
        callback(None, Reason.SUCCESS)
