"""How an effect becomes a metadata command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_server.replication.core import effects as fx
from simulation.metadata import UUID

if TYPE_CHECKING:
    from liftpy_server.replication.core.replica import Replica


def command_of(effect: fx.Effect, replica: Replica, unique: str) -> tuple[str, str, dict[str, Any]]:
    """(operation, command id, arguments). A repeated ISR proposal has the id of the first: it is decided once."""
    where = {"name": "s", "uuid": UUID, "partition": 0}
    me = {"node_id": replica.node_id, "incarnation": replica.incarnation}
    match effect:
        case fx.ProposeIsr():
            plain = {"isr": list(effect.isr), "incarnations": effect.incarnations, "leader": replica.node_id}
            term = {"leader_epoch": effect.leader_epoch, "version": effect.version}
            command_id = f"isr-{replica.node_id}-{effect.leader_epoch}-{effect.version}-{effect.attempt}"
            return "change_isr", command_id, where | plain | term
        case fx.ProposeLeader():
            term = {"leader_epoch": effect.leader_epoch, "version": effect.version}
            return "move_leader", unique, where | term | {"leader": effect.leader}
        case fx.SuspectLeader():
            return "suspect_leader", unique, where | me | {"leader_epoch": effect.leader_epoch}
        case fx.ReportRecords():
            term = {"leader": replica.node_id, "leader_epoch": effect.leader_epoch, "end": effect.end}
            return "report_records", unique, where | term
        case fx.ReportLog():
            log: dict[str, Any] = {"leader_epoch": effect.leader_epoch, "last_epoch": effect.last_epoch}
            log |= {"log_end": effect.log_end, "high_watermark": effect.high_watermark}
            return "report_log", unique, where | me | log
        case fx.ReportFailure():
            return "report_failure", unique, where | me | {"high_watermark": effect.high_watermark}
        case fx.ReportRenewal():
            return "report_renewal", unique, where | me
        case _:
            raise AssertionError(f"{effect} is no proposal")
