"""What each replica of a stream has, and what an operator's decision about its leaders would come to. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.metadata.recovery import needs_recovery, plan_recovery
from liftpy_server.metadata.state import LogReport
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from liftpy_server.admin.cluster.requests import RecoverRequest
    from liftpy_server.metadata.recovery import Recovery
    from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo
    from liftpy_server.requests.between_nodes import Body

__all__ = ["InBucket", "PartitionRecovery", "plan_stream", "what_follows", "with_bucket"]


class InBucket(NamedTuple):
    """What the bucket has of a partition.

    Attributes:
        end: The offset after the last record: the recovery point. None where the bucket does not tell.
        newest_ns: Timestamp of that record; 0 when there is none.
        problem: Why it is not as it should be, or does not tell; "" when nothing is wrong.
        last_epoch: Leader epoch of that record; -1 when there is none.
    """

    end: int | None
    newest_ns: int = 0
    problem: str = ""
    last_epoch: int = -1

    def beyond(self, log: LogReport) -> str | None:
        """What it has that a log lacks: later offsets, or records of a later leader at offsets that the log has, too.

        Where a log has no record, as where all of them are in the bucket alone, its end tells.
        """
        if self.end is None:
            return None
        if self.last_epoch > log.last_epoch >= 0:
            return f"records of leader epochs after {log.last_epoch}, up to offset {self.end - 1},"
        return f"records from offset {log.log_end} to {self.end - 1}" if self.end > log.log_end else None


class PartitionRecovery(NamedTuple):
    """One partition of which an operator may decide.

    Attributes:
        number: Number of the partition.
        info: State of the partition.
        told: How far the log of each node reaches.
        given_up: Those of its replicas that are given up.
        plan: What it would come to.
        logs: What there is to show of each replica.
        bucket: What the bucket has; None for a stream that is in none.
    """

    number: int
    info: PartitionInfo
    told: dict[str, LogReport]
    given_up: list[str]
    plan: Recovery
    logs: list[dict[str, Any]]
    bucket: InBucket | None = None

    @property
    def loss(self) -> str | None:
        """What is given up by it, and has to be accepted in words: also what only the bucket has."""
        chosen = self.plan.leader
        beyond = None if chosen is None or self.bucket is None else self.bucket.beyond(chosen)
        if beyond is None:
            return self.plan.loss
        only_there = (
            f"{beyond} are in the bucket and not in the log that would lead, "
            "which goes on with others under their offsets, and is not uploaded any more; to keep them, make a stream "
            "of what the bucket has before you decide (liftpy tier fork), or restore the bucket to an empty cluster "
            "(liftpy restore)"
        )
        return only_there if self.plan.loss is None else f"{self.plan.loss}; {only_there}"

    def to_plain(self) -> dict[str, Any]:
        """The fields as JSON values."""
        info, plan = self.info, self.plan
        return {
            "partition": self.number,
            "leader": info.leader,
            "leader_epoch": info.leader_epoch,
            "version": info.version,
            "isr": list(info.isr),
            "logs": self.logs,
            "known_end": plan.known_end,
            "chosen": None if plan.leader is None else plan.leader.node_id,
            "chosen_end": None if plan.leader is None else plan.leader.log_end,
            "lost": plan.lost,
            "loss": self.loss,
            "refusal": plan.refusal,
            "bucket": None if self.bucket is None else self.bucket._asdict(),
        }


def plan_stream(
    state: MetadataState, stream: StreamInfo, request: RecoverRequest, answers: Mapping[str, Body | LiftError]
) -> list[PartitionRecovery]:
    """The partitions that are asked for; where none is, those that need a decision.

    Args:
        state: State of the metadata.
        stream: Name of the stream.
        request: What the operator says.
        answers: What each node tells of its logs of the stream, or why it does not.

    Raises:
        AdminError: there is no such partition, or what is given up has nothing to do with the stream.
    """
    count = len(stream.partitions)
    if request.partition is not None and request.partition >= count:
        text = f"stream {stream.name!r} has no partition {request.partition}; its last one is {count - 1}"
        raise AdminError(ErrorCode.INVALID_REQUEST, text)
    if request.leader is not None and request.partition is None and count > 1:
        raise AdminError(ErrorCode.INVALID_REQUEST, "leader: name a partition, since the stream has several")
    keeping = {node for partition in stream.partitions for node in partition.replicas}
    strangers = [node for node in request.give_up if node not in keeping]
    if strangers:
        text = f"give_up: {', '.join(strangers)} keeps no replica of stream {stream.name!r}"
        raise AdminError(ErrorCode.INVALID_REQUEST, text)
    numbers = range(count) if request.partition is None else [request.partition]
    found = [_partition(state, stream.partitions[number], number, request, answers) for number in numbers]
    if request.partition is not None:
        return found
    return [each for each in found if needs_recovery(each.info, each.told)]


def _partition(
    state: MetadataState,
    info: PartitionInfo,
    number: int,
    request: RecoverRequest,
    answers: Mapping[str, Body | LiftError],
) -> PartitionRecovery:
    told: dict[str, LogReport] = {}
    failed = set(info.failed)
    logs = []
    for node_id in info.replicas:
        log, why = _told_of(state, node_id, number, answers.get(node_id))
        if log is not None:
            if log["failure"] is not None:  # the metadata may not have heard of it yet
                failed.add(node_id)
            last_epoch, log_end = (-1, 0) if node_id in failed else (log["last_epoch"], log["log_end"])
            incarnation = state.nodes[node_id].incarnation
            told[node_id] = LogReport(node_id, incarnation, last_epoch, log_end, log["high_watermark"])
        logs.append(_show(state, info, node_id, log, why))
    given_up = [node for node in request.give_up if node in info.replicas]
    info = replace(info, failed=tuple(sorted(failed)))
    plan = plan_recovery(state.nodes, info, told, given_up, request.leader)
    return PartitionRecovery(number, info, told, given_up, plan, logs)


def _told_of(
    state: MetadataState, node_id: str, number: int, answer: Body | LiftError | None
) -> tuple[dict[str, Any] | None, str | None]:
    """What a node tells of its log, or why it does not."""
    known = state.nodes.get(node_id)
    if known is None or known.expired:
        return None, "the node is down, or cut off"
    if not isinstance(answer, dict):
        return None, str(answer)
    if answer["incarnation"] != known.incarnation:
        return None, "the node has just started again"
    log = next((log for log in answer["logs"] if log["partition"] == number), None)
    return log, None if log is not None else "the node has not opened it"


def _show(
    state: MetadataState, info: PartitionInfo, node_id: str, log: dict[str, Any] | None, why: str | None
) -> dict[str, Any]:
    known = state.nodes.get(node_id)
    shown = {
        "node": node_id,
        "up": known is not None and not known.expired,
        "in_last_isr": node_id in info.isr or node_id in info.unproven,
        "observer": node_id in info.observers,
    }
    if log is None:
        numbers = dict.fromkeys(("log_start", "log_end", "last_epoch", "high_watermark", "last_timestamp_ns"))
        return shown | {"state": "unknown", "why": why} | numbers
    numbers = {name: value for name, value in log.items() if name not in {"partition", "failure", "torn_tail"}}
    return shown | _state_of(info, node_id, log) | numbers


def _state_of(info: PartitionInfo, node_id: str, log: dict[str, Any]) -> dict[str, Any]:
    if log["failure"] is not None or node_id in info.failed:
        return {
            "state": "failed",
            "why": log["failure"] or "it had failed, and the metadata has not heard of its new copy",
        }
    if node_id in info.lost:
        why = (
            "records may be missing: the log was gone when the node started, or the replica left the in-sync set early"
        )
        return {"state": "missing", "why": why}
    if log["last_epoch"] == -1:
        return {"state": "empty", "why": None}
    if node_id in info.unproven:
        tail = log["torn_tail"]
        why = "the end of the log may be missing since an unclean stop"
        if tail is not None:
            why += f"; {tail['bytes']} bytes from offset {tail['offset']} on were cut off when the node started"
        return {"state": "unproven", "why": why}
    return {"state": "ok", "why": None}


def with_bucket(found: Iterable[PartitionRecovery], told: Sequence[Body] | str) -> list[PartitionRecovery]:
    """The partitions, with what the bucket has of them.

    Args:
        found: Partitions of a stream in the bucket.
        told: What it has of each, as `PartitionPlan.to_plain` gives it, or why nobody knows.
    """
    if isinstance(told, str):
        return [each._replace(bucket=InBucket(None, problem=told)) for each in found]
    ends = {
        row["partition"]: InBucket(
            row["end"] if row["is_readable"] else None, row["newest_ns"], row["problem"], row["record_epoch"]
        )
        for row in told
    }
    return [each._replace(bucket=ends[each.number]) for each in found]


def what_follows(stream: StreamInfo, decided: Iterable[PartitionRecovery]) -> list[str]:
    """Warnings of the partitions that have too few replicas left to commit."""
    wanted = stream.config.min_isr_effective
    few = [each for each in decided if len(each.told.keys() - {*each.info.failed, *each.info.observers}) < wanted]
    if not few:
        return []
    text = (
        f"{len(few)} partitions have fewer replicas that are up than min_isr, which is {wanted}: they refuse messages "
        f"that want to be safe. Give them others with liftpy stream reassign {stream.name}, or lower min_isr until then"
    )
    return [text]
