"""What followers and leaders say to each other. How it looks on the wire is the pull protocol's business."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftpy_log.log_time import Leap

__all__ = ["BatchRange", "EpochEndAnswer", "EpochEndQuestion", "FetchAnswer", "FetchRequest", "Refusal", "ranges_up_to"]


class Refusal(StrEnum):
    """Why a leader does not answer a fetch or a question with what was asked for."""

    NOT_LEADER = "not_leader"  # or not in this epoch, or not known here yet
    STALE_INCARNATION = "stale_incarnation"  # the follower has restarted or renewed its log, or is not known here yet
    BELOW_START = "below_start"  # the leader no longer has what follows the follower's log
    DIVERGED = "diverged"  # the follower's log is no prefix of the leader's


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Records from `base` up to, and without, `end`, all of one leader epoch."""

    epoch: int
    base: int
    end: int


def ranges_up_to(ranges: tuple[BatchRange, ...], end: int) -> tuple[BatchRange, ...]:
    """What of the ranges was appended; a disk that fills on the way takes the first of several segments only."""
    if ranges[-1].end <= end:
        return ranges
    return tuple(
        part if part.end <= end else BatchRange(epoch=part.epoch, base=part.base, end=end)
        for part in ranges
        if part.base < end
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A follower fetches from its log end; what it says of itself is what the leader counts.

    Attributes:
        node_id: the follower.
        incarnation: of the follower.
        leader_epoch: in which it follows.
        offset: its log end offset.
        last_epoch: of its last record; -1 when it has none.
        durable_end: the offset after its last record that is on disk.
        high_watermark: that it knows of; a leader that knows more answers at once.
        version: of the partition, as the follower knows it; it tells a new copy's fetches from those of the one before.
    """

    node_id: str
    incarnation: int
    leader_epoch: int
    offset: int
    last_epoch: int
    durable_end: int
    high_watermark: int
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """Records that follow `offset`, and how far the leader is.

    Attributes:
        node_id: the follower that is answered.
        incarnation: the one that asked.
        leader_epoch: of the leader.
        offset: that was asked for.
        high_watermark: of the leader.
        log_start: of the leader.
        refusal: None, or why there are no records.
        ranges: of the records, in order, the first from `offset` on; empty when there is nothing new.
        records: the records themselves, as the shell knows them.
        gone_below: tombstones below this offset may be missing in the leader's log, with all that they deleted.
        leaps: what the leader knows of leaps of the log's time; the core does not look at them.
    """

    node_id: str
    incarnation: int
    leader_epoch: int
    offset: int
    high_watermark: int
    log_start: int
    refusal: Refusal | None = None
    ranges: tuple[BatchRange, ...] = ()
    records: Any = None
    gone_below: int = 0
    leaps: tuple[Leap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndQuestion:
    """Where does the largest epoch end that is not above `last_epoch`?

    Attributes:
        node_id: the follower.
        incarnation: of the follower.
        leader_epoch: in which it follows.
        question: a number that the answer repeats.
        last_epoch: of the follower's last record.
    """

    node_id: str
    incarnation: int
    leader_epoch: int
    question: int
    last_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndAnswer:
    """The answer.

    Attributes:
        node_id: the follower that is answered.
        incarnation: the one that asked.
        leader_epoch: of the leader.
        question: the number of the question.
        epoch: the largest epoch of the leader's log that is not above the asked one; -1 when there is none.
        end: the offset after its last record; for -1 the leader's first known offset.
        refusal: None, or why there is no answer.
    """

    node_id: str
    incarnation: int
    leader_epoch: int
    question: int
    epoch: int = -1
    end: int = 0
    refusal: Refusal | None = None
