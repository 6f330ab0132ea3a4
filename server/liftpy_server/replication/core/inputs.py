"""What a replica is told. What other replicas say comes as the follow protocol has it (`liftpy_envelope.follow`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.follow import FollowEnd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.follow import FollowFetch, FollowQuestion, FollowResult
    from liftpy_server.replication.core.ranges import BatchRange
    from liftpy_server.replication.core.view import PartitionView

__all__ = [
    "AppendFailed",
    "CutFailed",
    "Durable",
    "FetchAnswered",
    "FollowerAsked",
    "FollowerFetched",
    "GaveUp",
    "Input",
    "IsrRefused",
    "LogAppended",
    "LogFailed",
    "Rebuilt",
    "StartAdvanced",
    "Tick",
    "Truncated",
    "ViewChanged",
]

_NOBODY_HEARD: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChanged:
    """The metadata says something about the partition."""

    view: PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. A replica wants one a few times per `leader_timeout_s`, unless it is quiet.

    Attributes:
        paused_s: This process stood still for so long since the replica's last tick; that is nobody's silence.
        heard_s: Time (monotonic clock of this process) at which the session was last heard that carries this
            partition's fetches, by node id; given only where a fetch waits: this follower's at its leader, or at this
            leader that of a follower.
    """

    paused_s: float = 0.0
    heard_s: Mapping[str, float] = field(default_factory=lambda: _NOBODY_HEARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAppended:
    """Records are in the log: what an `Append` asked for, or what the leader's own ingest wrote.

    Attributes:
        ranges: Ranges of the records.
        durable_end: Records below it are on disk already, as a `Durable` right after it would say.
    """

    ranges: tuple[BatchRange, ...]
    durable_end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed:
    """An `Append` could not be carried out, and left nothing behind (the disk is full)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFailed:
    """A `Truncate` or `Rebuild` could not be carried out, and left everything as it was (the disk is full)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """Everything below `end` that is in the log now is on disk; a sync begun before a truncation says nothing."""

    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """A `Truncate` was carried out, and no crash can undo it."""

    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A `Rebuild` was carried out, and no crash can undo it."""

    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAdvanced:
    """Retention removed the records below `start`."""

    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailed:
    """The log is broken (a write or a sync failed, or it is damaged): this replica tells so, and does nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """The shell met an error that nobody expected: this replica does nothing more. Its log may be well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrRefused:
    """Applying the ISR proposal that was made at this version, as this attempt, was refused: it never happens."""

    version: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerFetched:
    """A follower fetches from this replica."""

    node_id: str
    fetch: FollowFetch


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAsked:
    """A follower asks this replica where an epoch ends."""

    node_id: str
    question: FollowQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswered:
    """The leader has answered this follower's fetch. Its answer to a question is a `FollowEnd`.

    Attributes:
        result: What it says; the core looks neither at `body_bytes` nor at `leaps`.
        ranges: Ranges of the records that came with it, in order, the first from `result.offset` on.
        records: The records themselves, as the shell knows them.
    """

    result: FollowResult
    ranges: tuple[BatchRange, ...] = ()
    records: Any = None


Input = (
    ViewChanged
    | Tick
    | LogAppended
    | AppendFailed
    | CutFailed
    | Durable
    | Truncated
    | Rebuilt
    | StartAdvanced
    | LogFailed
    | GaveUp
    | IsrRefused
    | FollowerFetched
    | FollowerAsked
    | FetchAnswered
    | FollowEnd
)
