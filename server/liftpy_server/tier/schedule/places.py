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
        set_bytes: of it, in shared objects.
        new_bytes: of it, that key compaction has not looked at.
        merges: there are objects of its own to be merged.
        may_have_garbage: somebody has written it before.
        proven_end: what is below counts for good, see `Place`.
    """

    set_bytes: int = 0
    new_bytes: int = 0
    merges: bool = False
    may_have_garbage: bool = False
    proven_end: int = 0


class Trouble(NamedTuple):
    """What is wrong with one partition.

    Attributes:
        job: that met it.
        code: of the worker's error.
        message: Error text.
        since_s: when it was met first.
        stops: it is not tried again in this leadership.
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
        jobs_max: claims and uploads at once.
        upkeep_max: other jobs at once.
        members_max: partitions that share an object.
        back_off_s: after a first failure; it doubles with each further one.
        back_off_s_max: never longer than this.
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
        slot: where it stands in a set manifest.
        epoch: leader epoch of this leadership.
        phase: see `Phase`.
        tiered_end: the bucket has what is below, as far as this leadership knows.
        proven_end: what is below counts in the bucket whoever leads next. What a leader shares after it was deposed,
            which it may not know of, does not: so disks keep what lies above.
        start: the first offset that the bucket keeps, as far as this leadership knows.
        wanted_start: nobody wants what is below; the bucket's start is to come here.
        end: records below are committed and durable.
        bytes: Bytes of record batches between `tiered_end` and `end`, about.
        since_s: since when the oldest of them waits; None where there are none.
        is_busy: a job of it runs.
        is_claim_wanted: it is to be claimed although nothing of it waits.
        is_alone: it is not to share an object: the last that it was to share failed.
        has_producers: it is not to share an object: roots remember ordered producers, and manifests of sets do not.
        failures: one after the other.
        until_s: no job before this, after a failure.
        set_bytes: Bytes of record batches in shared objects since it got an object of its own.
        object_bytes: Bytes of record batches in objects of its own since these were merged.
        new_bytes: Bytes of record batches since key compaction looked at it last.
        trouble: what is wrong; None while all is well.
        counted_bytes: what the queue counts of its bytes.
        queue: the one queue of the schedule in which it stands.
    """

    __slots__ = (
        "bytes",
        "counted_bytes",
        "end",
        "epoch",
        "failures",
        "has_producers",
        "is_alone",
        "is_busy",
        "is_claim_wanted",
        "key",
        "new_bytes",
        "object_bytes",
        "phase",
        "proven_end",
        "queue",
        "set_bytes",
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
        self.has_producers = False
        self.is_claim_wanted = False
        self.failures = 0
        self.until_s = 0.0
        self.set_bytes = 0
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
        places: of which partitions; of one but for shared objects, and of none where it concerns the bucket as a whole.
            What becomes of it counts only while they are those of the schedule.
        began_s: Start time in seconds.
    """

    job: Job
    places: tuple[Place, ...]
    began_s: float
