"""What a replica wants done. Effects are carried out in order; those that touch the log are reported back.

`Append`, `Truncate` and `Rebuild` are answered by `Appended`, `Truncated` and `Rebuilt`, or by `AppendFailed` and
`CutFailed`. Until then a replica asks for nothing else of its log, and takes no other role.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowResult
    from liftpy_server.replication.core.inputs import FetchAnswered

__all__ = [
    "AcceptingChanged",
    "AdvanceHighWatermark",
    "AnswerEpochEnd",
    "AnswerFetch",
    "Append",
    "AskEpochEnd",
    "Effect",
    "Fetch",
    "KeepCommitted",
    "LeadershipBegan",
    "LeadershipEnded",
    "ProposeIsr",
    "ProposeLeader",
    "Rebuild",
    "ReportFailure",
    "ReportLog",
    "ReportRecords",
    "ReportRenewal",
    "SuspectLeader",
    "Truncate",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipBegan:
    """This replica leads; what it appends from now on has this epoch, from `first_offset` on."""

    leader_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipEnded:
    """This replica no longer leads in that epoch; the outcome of what waits for an ack is unknown."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptingChanged:
    """Whether enough replicas are in sync. If not, messages that wait for `all` get `outcome unknown`."""

    accepting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceHighWatermark:
    """Records below `offset` are committed: show them, and as a leader acknowledge them."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Answer a follower. Where `answer` refuses nothing the shell adds records, and may wait for some."""

    answer: FollowResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEpochEnd:
    """Answer a follower."""

    answer: FollowEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEpochEnd:
    """Ask the leader."""

    leader: str
    question: FollowQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetch from the leader. A later fetch takes the place of an earlier one that still waits."""

    leader: str
    request: FollowFetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append what a leader sent, unchanged; or only take note of what it says of ordered producers."""

    fetched: FetchAnswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Drop the records from `end` on.

    Attributes:
        end: The new log end offset.
        loses_committed: Some were committed, or may have been: only after an unclean election. The log is to be set
            aside whole, and copied anew; it is to be counted and logged.
    """

    end: int
    loses_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCommitted:
    """The leader lacks records that were committed here, and no unclean election is known that would explain it.

    Nothing is dropped; the leader is asked again after a while. An operator must decide.

    Attributes:
        leader: Id of the node that lacks them.
        end: The first offset from which on it does.
        high_watermark: Offset up to which they were committed.
    """

    leader: str
    end: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """Drop the whole log and go on at `start`: the leader keeps no record that this log could be continued by.

    Attributes:
        start: The new log start and log end offset.
        loses_committed: Records from `start` on were committed, or may have been: as with `Truncate`.
    """

    start: int
    loses_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Propose another in-sync replica set (`change_isr`).

    Attributes:
        isr: The new set.
        incarnations: Incarnations of its members, as the leader knows them.
        leader_epoch: Leader epoch of the leader.
        version: Version of the partition that the proposal is about.
        attempt: Counts the proposals of this leader; a repetition has the number, and so the command id, of the first.
    """

    isr: tuple[str, ...]
    incarnations: dict[str, int]
    leader_epoch: int
    version: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeLeader:
    """Propose that another member of the ISR leads (`move_leader`)."""

    leader: str
    leader_epoch: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectLeader:
    """Tell the metadata that the leader of this epoch is silent (`suspect_leader`)."""

    leader: str
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecords:
    """Tell the metadata that the first records are committed, those below `end` (`report_records`)."""

    leader_epoch: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLog:
    """No clean member of the ISR is left: tell the metadata how far this log reaches (`report_log`).

    Attributes:
        leader_epoch: The last one that had a leader.
        last_epoch: Leader epoch of the last record; -1 when there is none.
        log_end: The offset after it.
        high_watermark: Records below it are known to have been committed.
    """

    leader_epoch: int
    last_epoch: int
    log_end: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFailure:
    """The log has failed: tell the metadata, so that nobody counts on it (`report_failure`).

    Attributes:
        high_watermark: Records below it are known to have been committed.
    """

    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRenewal:
    """There is a new copy in the place of a log that had failed: tell the metadata (`report_renewal`)."""


Effect = (
    LeadershipBegan
    | LeadershipEnded
    | AcceptingChanged
    | AdvanceHighWatermark
    | AnswerFetch
    | AnswerEpochEnd
    | AskEpochEnd
    | Fetch
    | Append
    | Truncate
    | KeepCommitted
    | Rebuild
    | ProposeIsr
    | ProposeLeader
    | ReportRecords
    | SuspectLeader
    | ReportLog
    | ReportFailure
    | ReportRenewal
)
