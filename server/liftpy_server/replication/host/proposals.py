"""What replicas propose to the metadata, gathered: a node that dies makes thousands of them have the same to say.

Nothing here is repeated: a replica whose proposal came to nothing proposes again when it is ticked.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core import inputs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftpy_server.metadata.commands import Outcome
    from liftpy_server.partition.partition import Partition
    from liftpy_server.replication.core.effects import Effect
    from liftpy_server.replication.host.local import LocalReplica

    ProposeMany = Callable[[list[tuple[str, str, dict[str, Any]]]], Awaitable[list[Outcome]]]

__all__ = ["FinishReassignment", "ReplicaProposals"]

logger = logging.getLogger(__name__)

_BATCH_MAX = 500


class FinishReassignment(NamedTuple):
    """All nodes that shall keep a copy, and count, are in sync: the others can go."""

    leader_epoch: int
    version: int


class _Waiting(NamedTuple):
    replica: LocalReplica | None  # None where the partition has no other replica
    partition: Partition
    effect: Effect | FinishReassignment


class ReplicaProposals:
    """Gathers what replicas propose to the metadata into few commands.

    Args:
        node_id: Id of this node.
        propose_many: Proposes several commands to the metadata store.
    """

    def __init__(self, node_id: str, propose_many: ProposeMany) -> None:
        self._node_id = node_id
        self._propose_many = propose_many
        self._waiting: dict[tuple[Partition, type], _Waiting] = {}
        self._sending: asyncio.Task[None] | None = None
        self._is_stopped = False

    def add(self, replica: LocalReplica, effect: Effect | FinishReassignment) -> None:
        """Propose what an effect wants; a newer one of the same replica takes the place of one that still waits."""
        self._add(_Waiting(replica, replica.partition, effect))

    def add_alone(self, partition: Partition, effect: fx.ReportRecords) -> None:
        """Add a proposal of a partition with one replica; nothing reports its outcome."""
        self._add(_Waiting(None, partition, effect))

    def _add(self, waiting: _Waiting) -> None:
        self._waiting[waiting.partition, type(waiting.effect)] = waiting
        if not self._is_stopped and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send(), name="replica proposals")

    async def stop(self) -> None:
        """Stop proposing."""
        self._is_stopped = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # the rest of a pass over many replicas
            keys = list(self._waiting)[:_BATCH_MAX]
            batch = [self._waiting.pop(key) for key in keys]
            suspicions = [each for each in batch if isinstance(each.effect, fx.SuspectLeader)]
            others = [each for each in batch if not isinstance(each.effect, fx.SuspectLeader)]
            commands = [self._command(each) for each in others]
            if suspicions:
                commands.insert(0, self._suspicion(suspicions))
            try:
                outcomes = await self._propose_many(commands)
            except LiftError as error:
                logger.info("%d proposals of replicas have no answer: %s", len(commands), error)
                continue
            for waiting, outcome in zip(others, outcomes[1:] if suspicions else outcomes, strict=True):
                self._decided(waiting, outcome)

    @staticmethod
    def _decided(waiting: _Waiting, outcome: Outcome) -> None:
        if outcome.error is ErrorCode.NONE:
            return
        logger.debug("%s of %s: %s", type(waiting.effect).__name__, waiting.partition.key, outcome.message)
        if isinstance(waiting.effect, fx.ProposeIsr) and waiting.replica is not None:
            refused = inputs.IsrRefused(version=waiting.effect.version, attempt=waiting.effect.attempt)
            waiting.replica.step(refused)

    def _suspicion(self, batch: list[_Waiting]) -> tuple[str, str, dict[str, Any]]:
        rows = [
            [*_place(each.partition), each.effect.leader_epoch]
            for each in batch
            if isinstance(each.effect, fx.SuspectLeader)
        ]
        incarnation = _incarnation(batch[0])
        return (
            "suspect_leaders",
            uuid4().hex,
            {"node_id": self._node_id, "incarnation": incarnation, "partitions": rows},
        )

    def _command(self, waiting: _Waiting) -> tuple[str, str, dict[str, Any]]:
        effect = waiting.effect
        name, uuid, partition = _place(waiting.partition)
        where: dict[str, Any] = {"name": name, "uuid": uuid, "partition": partition}
        incarnation = _incarnation(waiting)
        match effect:
            case fx.ProposeIsr():
                command_id = f"{uuid}-{partition}-{effect.leader_epoch}-{incarnation}-{effect.attempt}"
                args = {
                    "leader": self._node_id,
                    "leader_epoch": effect.leader_epoch,
                    "version": effect.version,
                    "isr": list(effect.isr),
                    "incarnations": effect.incarnations,
                }
                return "change_isr", command_id, where | args
            case fx.ProposeLeader():
                args = {"leader": effect.leader, "leader_epoch": effect.leader_epoch, "version": effect.version}
                return "move_leader", uuid4().hex, where | args
            case FinishReassignment():
                args = {"leader_epoch": effect.leader_epoch, "version": effect.version}
                return "finish_reassignment", uuid4().hex, where | args
            case fx.ReportRecords():
                args = {"leader": self._node_id, "leader_epoch": effect.leader_epoch, "end": effect.end}
                return "report_records", uuid4().hex, where | args
            case fx.ReportLog():
                args = {
                    "node_id": self._node_id,
                    "incarnation": incarnation,
                    "leader_epoch": effect.leader_epoch,
                    "last_epoch": effect.last_epoch,
                    "log_end": effect.log_end,
                    "high_watermark": effect.high_watermark,
                }
                return "report_log", uuid4().hex, where | args
            case fx.ReportFailure():
                args = {"node_id": self._node_id, "incarnation": incarnation, "high_watermark": effect.high_watermark}
                return "report_failure", uuid4().hex, where | args
            case fx.ReportRenewal():
                return "report_renewal", uuid4().hex, where | {"node_id": self._node_id, "incarnation": incarnation}
            case _:
                raise AssertionError(f"no command says {effect!r}")


def _place(partition: Partition) -> tuple[str, str, int]:
    stream = partition.stream
    return stream.name, stream.uuid, partition.number


def _incarnation(waiting: _Waiting) -> int:
    """What a partition with one replica says of itself depends on none."""
    return 0 if waiting.replica is None else waiting.replica.core.incarnation
