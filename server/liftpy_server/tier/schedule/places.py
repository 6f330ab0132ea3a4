"""What the schedule of the bucket knows of a partition that this node leads, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.layout import slot_of

if TYPE_CHECKING:
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Found", "Job", "Limits", "Phase", "Place", "Task", "Trouble"]


class Job(Enum):
    """What a worker can be asked for; the values are the names of its jobs."""

    PROBE = "probe"
    LOOK = "look"
    CLAIM = "claim"
    UPLOAD = "upload"
    UPLOAD_SET = "upload_set"
    CONFIRM = "confirm"
    RETAIN = "retain"
    MERGE = "merge"
    COMPACT = "compact"
    COLLECT = "collect"
    COLLECT_SETS = "collect_sets"


class Phase(Enum):
    """How far a leadership has come with the bucket."""

    UNKNOWN = "unknown"  # what is there was not looked at
    KNOWN = "known"  # looked at, and nothing claimed
    CLAIMED = "claimed"
    STOPPED = "stopped"  # for this leadership, with an alarm


class Found(NamedTuple):
    """What a leadership finds of a partition in the bucket, besides where it begins and ends.

    Attributes:
        set_bytes: Size of what it has in shared objects, bytes.
        new_bytes: Size of what key compaction has not looked at, bytes.
        merges: There are objects of its own to be merged.
        may_have_garbage: Somebody has written it before.
        proven_end: What is below counts for good, see `Place`.
    """

    set_bytes: int = 0
    new_bytes: int = 0
    merges: bool = False
    may_have_garbage: bool = False
    proven_end: int = 0


class Trouble(NamedTuple):
    """What is wrong with one partition.

    Attributes:
        job: Job that met the trouble.
        code: Code of the worker's error.
        message: Error text.
        since_s: When it was met first.
        stops: Whether it is not tried again in this leadership.
    """

    job: Job
    code: str
    message: str
    since_s: float
    stops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When things are due; see `TierConfig` for the rest.

    Attributes:
        jobs_max: Claims and uploads at once.
        upkeep_max: Other jobs at once.
        members_max: Partitions that share an object.
        back_off_s: Time to wait after a first failure, seconds; it doubles with each further one.
        back_off_s_max: Never longer than this.
    """

    upload_bytes: int
    upload_age_s: float
    set_member_bytes_max: int
    merge_bytes: int
    object_bytes: int
    gc_interval_s: float
    grace_s: float
    jobs_max: int = 3
    upkeep_max: int = 2
    members_max: int = 4_096
    back_off_s: float = 1.0
    back_off_s_max: float = 300.0

    def rest_s(self, failures: int) -> float:
        """How long to leave something alone that failed so often, one time after the other."""
        return min(self.back_off_s * 2.0 ** min(failures - 1, 16), self.back_off_s_max)


class Place:
    """One partition in one leadership.

    Attributes:
        key: Key of the partition.
        slot: Where it stands in a set manifest.
        epoch: Leader epoch of this leadership.
        phase: See `Phase`.
        tiered_end: The bucket has what is below, as far as this leadership knows.
        proven_end: What is below counts in the bucket whoever leads next. What a leader shares after it was deposed,
            which it may not know of, does not: so disks keep what lies above.
        start: The first offset that the bucket keeps, as far as this leadership knows.
        wanted_start: Nobody wants what is below; the bucket's start is to come here.
        end: Records below are committed and durable.
        bytes: Bytes of record batches between `tiered_end` and `end`, about.
        since_s: Time since when the oldest of them waits, seconds; None where there are none.
        is_busy: A job of it runs.
        is_claim_wanted: Whether it is to be claimed although nothing of it waits.
        is_behind: Whether two objects' worth or more waited when its last upload began, and something does still. A
            merge would hold the next one up, and take of the cores and of the store what uploads need.
        is_alone: Whether it is not to share an object: the last that it was to share failed.
        has_producers: Whether it has ordered producers and may not share an object: roots remember them, and manifests
            of sets do not.
        failures: One after the other.
        until_s: No job before this, after a failure.
        set_bytes: Bytes of record batches in shared objects since it got an object of its own.
        set_since_s: Time since when there are some, or since when this leadership knows of them, seconds; None where
            there are none.
        object_bytes: Bytes of record batches in objects of its own since these were merged.
        new_bytes: Bytes of record batches since key compaction looked at it last.
        trouble: What is wrong; None while all is well.
        counted_bytes: What the queue counts of its bytes.
        queue: The one queue of the schedule in which it stands.
    """

    __slots__ = (
        "bytes",
        "counted_bytes",
        "end",
        "epoch",
        "failures",
        "has_producers",
        "is_alone",
        "is_behind",
        "is_busy",
        "is_claim_wanted",
        "key",
        "new_bytes",
        "object_bytes",
        "phase",
        "proven_end",
        "queue",
        "set_bytes",
        "set_since_s",
        "since_s",
        "slot",
        "start",
        "tiered_end",
        "trouble",
        "until_s",
        "wanted_start",
    )

    def __init__(self, key: PartitionKey, epoch: int) -> None:
        self.key = key
        self.slot = slot_of(key.uuid.hex(), key.partition)
        self.epoch = epoch
        self.phase = Phase.UNKNOWN
        self.tiered_end = 0
        self.proven_end = 0
        self.start = 0
        self.wanted_start = 0
        self.end = 0
        self.bytes = 0
        self.counted_bytes = 0
        self.since_s: float | None = None
        self.is_busy = False
        self.is_alone = False
        self.is_behind = False
        self.has_producers = False
        self.is_claim_wanted = False
        self.failures = 0
        self.until_s = 0.0
        self.set_bytes = 0
        self.set_since_s: float | None = None
        self.object_bytes = 0
        self.new_bytes = 0
        self.trouble: Trouble | None = None
        self.queue: dict[PartitionKey, Place] | None = None

    def stand_in(self, queue: dict[PartitionKey, Place] | None) -> None:
        """Leave the queue in which it stands, and go to the end of another, if any; no-op where it stands there."""
        if self.queue is queue:
            return
        if self.queue is not None:
            del self.queue[self.key]
        self.queue = queue
        if queue is not None:
            queue[self.key] = self


class Task(NamedTuple):
    """A job to be started now.

    Attributes:
        job: The job.
        places: Partitions that it is for: one but for shared objects, and none where it concerns the bucket as a whole.
            What becomes of it counts only while they are those of the schedule.
        began_s: Start time in seconds.
    """

    job: Job
    places: tuple[Place, ...]
    began_s: float
