"""When what goes to the bucket: a pure core.

Inputs tell what was written and what became of jobs; `tasks` says what to do now. A pass costs what was written,
whatever the number of partitions; one that is quiet costs its `Place` alone.

A leadership claims a partition once, before its first upload. Those with little data share an object: when one of them
is due, all that have anything go with it. One that fails is left alone for a while, longer each time; where the store
as a whole does not work, everything waits for one that tries it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from liftpy_bucket.manifest.json import MANIFEST_BYTES_MAX
from liftpy_server.tier.schedule.alarms import STORE_CODES, StoreHealth
from liftpy_server.tier.schedule.pace import Pace
from liftpy_server.tier.schedule.places import Found, Job, Phase, Place, Task, Trouble
from liftpy_server.tier.schedule.queues import Queues
from liftpy_server.tier.schedule.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.tier.schedule.places import Limits

__all__ = ["Schedule"]

_NOTHING: Final = Found()
_STOPPING: Final = frozenset({"lineage", "sealed", "hole"})
# So many in a row are no trouble yet.
_QUIET_FAILURES: Final = {"gone": 3, "overtaken": 3, "unnamed": 5, "internal": 2, "busy": 5}
_UNNAMED_REST_S_MAX: Final = 5.0  # the catalog will name it in a moment, and to look costs one small request
_UPLOADS: Final = frozenset({Job.UPLOAD, Job.UPLOAD_SET})
_FOREGROUND: Final = frozenset({Job.CLAIM, Job.UPLOAD, Job.UPLOAD_SET})
_UPKEEP: Final = frozenset({Job.CONFIRM, Job.RETAIN, Job.MERGE, Job.COMPACT, Job.COLLECT, Job.COLLECT_SETS})


class Schedule:
    """Says what is to be done with the bucket next. Times are seconds of a clock that never goes back.

    Args:
        limits: When things are due.
        now_s: Current time in seconds.

    Attributes:
        places: The partitions that this node leads and that go to the bucket.
        health: Health of the store.
    """

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self.places: dict[PartitionKey, Place] = {}
        self.health = StoreHealth(now_s)
        self._queues = Queues(limits)
        self._upkeep = Upkeep(limits, now_s)
        self._pace = Pace(limits.jobs_max)
        self._running = 0
        self._claiming = 0
        self._is_set_running = False

    # -- what happens

    def led(self, key: PartitionKey, epoch: int, *, has_history: bool) -> None:
        """This node leads a partition in an epoch.

        Args:
            key: Key of the partition.
            epoch: Epoch of the leader.
            has_history: There is something in its log, or below its start, so that the bucket may have something.
        """
        before = self.places.get(key)
        if before is not None and before.epoch == epoch:
            return
        self.lost(key)
        place = self.places[key] = Place(key, epoch)
        if has_history:
            self._upkeep.wants(place, Job.LOOK)

    def lost(self, key: PartitionKey) -> None:
        """This node leads a partition no longer, or it is not to go to the bucket any more."""
        place = self.places.pop(key, None)
        if place is not None:
            self._queues.leave(place)
            self._upkeep.forget(place)

    def wrote(self, key: PartitionKey, end: int, waiting_bytes: int, now_s: float) -> None:
        """How much of a partition there is to upload now.

        Args:
            key: Key of the partition.
            end: Records below are committed and durable.
            waiting_bytes: Bytes of record batches between its tiered end and there, about.
            now_s: Current time in seconds.
        """
        place = self.places.get(key)
        if place is None:
            return
        place.end, place.bytes = end, waiting_bytes
        if end <= place.tiered_end:
            place.since_s, place.is_behind = None, False
        elif place.since_s is None:
            place.since_s = now_s
        self._queues.file(place, now_s)

    def wants_start(self, key: PartitionKey, start: int, now_s: float) -> None:
        """Nobody wants what a partition has below `start`."""
        place = self.places.get(key)
        if place is not None and start > place.wanted_start:
            place.wanted_start = start
            if place.phase is Phase.STOPPED and place.trouble is not None and place.trouble.code == "hole":
                place.phase, place.trouble = Phase.UNKNOWN, None  # what is missing may not be wanted any more
            if place.phase is Phase.UNKNOWN:
                self._upkeep.wants(place, Job.LOOK)
            self._upkeep.retains(place)
            self._queues.file(place, now_s)

    def wants_proof(self, key: PartitionKey, now_s: float) -> None:
        """Disks are to drop what lies below the tiered end of a partition, so that it must count for good."""
        place = self.places.get(key)
        if place is None or place.is_busy:
            return
        if place.phase is Phase.CLAIMED:
            self._upkeep.wants(place, Job.CONFIRM)
        elif place.phase is Phase.KNOWN:
            place.is_claim_wanted = True  # whoever claims takes over what counts then
            self._queues.file(place, now_s)
        elif place.phase is Phase.UNKNOWN:
            self._upkeep.wants(place, Job.LOOK)

    def moves_in(self, key: PartitionKey, now_s: float) -> None:
        """What a partition has in shared objects is to be moved into its own."""
        place = self.places.get(key)
        if place is None or place.is_busy or place.phase is Phase.STOPPED:
            return
        place.is_claim_wanted = place.phase is not Phase.CLAIMED
        self._upkeep.wants(place, Job.MERGE)
        self._queues.file(place, now_s)

    def looks(self, key: PartitionKey) -> None:
        """What the bucket has of a partition is to be known although nothing is uploaded; no-op where it is."""
        place = self.places.get(key)
        if place is not None and not place.is_busy and place.phase is Phase.UNKNOWN:
            self._upkeep.wants(place, Job.LOOK)

    def compacts(self, key: PartitionKey) -> None:
        """Whether the partition is compacted by key."""
        place = self.places.get(key)
        if place is not None and place.phase is Phase.CLAIMED:
            self._upkeep.wants(place, Job.COMPACT)

    def merges(self, key: PartitionKey) -> None:
        """There is more of a partition to be merged than was."""
        place = self.places.get(key)
        if place is not None and place.phase is Phase.CLAIMED:
            self._upkeep.wants(place, Job.MERGE)

    def collects(self, key: PartitionKey) -> None:
        """There is more that nobody names of a partition than was deleted."""
        place = self.places.get(key)
        if place is not None and place.phase in {Phase.KNOWN, Phase.CLAIMED}:
            self._upkeep.wants(place, Job.COLLECT)

    def collects_sets(self) -> None:
        """Shared objects were replaced by larger ones: what nothing names now is to be deleted when it is time."""
        self._upkeep.are_sets_written = True

    def manifest_has(self, size: int) -> None:
        """The manifest of shared objects has so many bytes: beyond half of what it may have, partitions leave it."""
        self._upkeep.set_room = min(1.0, 2 * max(0, MANIFEST_BYTES_MAX - size) / MANIFEST_BYTES_MAX)

    def pinned(self, key: PartitionKey, now_s: float) -> None:
        """A pin may hold what nobody else wants: it is looked at again, as pins end without anybody being told."""
        place = self.places.get(key)
        if place is not None:
            self._upkeep.pinned(place, now_s)

    def collects_sets_again(self, now_s: float) -> None:
        """Shared objects hold something: what other nodes let go of in them is to be looked for now and then."""
        self._upkeep.look_at_sets(now_s)

    # -- what is to be done

    def tasks(self, now_s: float) -> list[Task]:
        """What is to be started now; the caller says of each how it went."""
        self.health.calms_down(now_s)
        if not self.health.is_usable:
            return [_task(Job.PROBE, (), now_s)] if self.health.may_try(now_s) else []
        self._queues.ripen(now_s)
        found: list[Task] = []
        while self._running < self._pace.jobs and (task := self._next_upload(now_s)) is not None:
            found.append(self._start(task))
        upkeep_max = self._limits.upkeep_max if self._pace.is_full else 1
        while self._upkeep.running < upkeep_max and (due := self._upkeep.next(now_s)) is not None:
            found.append(self._start(_task(due[0], due[1], now_s)))
        return found

    def _next_upload(self, now_s: float) -> Task | None:
        single = self._queues.next_single()
        if single is not None:
            return _task(single[0], (single[1],), now_s)
        if self._is_set_running:
            return None
        shared = self._queues.next_shared(now_s, are_claimed=self._claiming > 0)
        return _task(Job.UPLOAD_SET, shared, now_s) if shared else None

    def _start(self, task: Task) -> Task:
        if task.job in _FOREGROUND:
            self._running += 1
            self._claiming += task.job is Job.CLAIM
            self._is_set_running |= task.job is Job.UPLOAD_SET
        else:
            self._upkeep.running += 1
        for place in task.places:
            place.is_busy = True
            if task.job in _UPLOADS:
                place.is_behind = place.bytes >= 2 * self._limits.upload_bytes
            self._queues.leave(place)
        return task

    # -- what became of it

    def proven(self, now_s: float) -> bool:
        """A `PROBE` went well. Returns whether people are to be told that the store is well again."""
        return self.health.succeeded(now_s, was_tried=True)

    def looked(
        self, task: Task, start: int, end: int, *, is_sealed: bool, now_s: float, found: Found = _NOTHING
    ) -> None:
        """A `LOOK` or a `CLAIM` said what the bucket has."""
        places = self._end(task)
        for place in places:
            place.start, place.tiered_end = start, end
            place.proven_end = max(place.proven_end, found.proven_end)
            if place.end <= end:
                place.since_s = None
            if task.job is Job.CLAIM:
                place.phase = Phase.CLAIMED
                place.is_claim_wanted = False
                self._upkeep.claimed(place, found, now_s)
            elif place.phase is Phase.UNKNOWN:
                place.phase = Phase.KNOWN
                self._upkeep.looked(place, found, now_s)
            self._upkeep.retains(place)
        self._went_well(task, places, now_s)
        if is_sealed and task.job is Job.CLAIM:
            for place in places:
                self._stop(place, task.job, "sealed", "it is sealed in the bucket, which takes no more of it", now_s)

    def counts(self, place: Place, end: int, size: int, now_s: float) -> None:
        """An object of an `UPLOAD` that goes on is in the bucket, and the root names it.

        Args:
            place: Place of the partition.
            end: End of the object.
            size: Bytes of record batches in it.
            now_s: Current time in seconds.
        """
        if end > place.tiered_end:
            place.tiered_end = place.proven_end = end
            place.bytes = max(0, place.bytes - size)
            self._upkeep.grown(place, size, is_shared=False, now_s=now_s)

    def uploaded(self, task: Task, ends: Mapping[PartitionKey, int], now_s: float) -> None:
        """An `UPLOAD` or `UPLOAD_SET` is in the bucket; `ends` are the new tiered ends.

        How much waits now is for the caller to say.
        """
        places = self._end(task)
        for place in places:
            end = ends.get(place.key, place.tiered_end)
            is_shared = task.job is Job.UPLOAD_SET
            is_new = end > place.tiered_end  # else what was shared counts for nothing, or each object has counted
            place.is_alone = is_shared and not is_new
            place.tiered_end = max(place.tiered_end, end)
            if not is_shared:  # the root names it
                place.proven_end = place.tiered_end
            place.since_s = task.began_s if place.end > place.tiered_end else None
            if is_new or is_shared:
                self._upkeep.grown(place, place.bytes, is_shared=is_shared, now_s=now_s)
            place.bytes = 0
        self._went_well(task, places, now_s)

    def kept_up(self, task: Task, start: int | None, now_s: float) -> None:
        """Any other job went well; `start` is the new one that a `RETAIN` has brought about."""
        places = self._end(task)
        for place in places:
            if start is not None:
                place.start = max(place.start, start)
                place.failures, place.until_s = 0, 0.0  # an upload may have waited for it
            self._upkeep.kept_up(place, task.job, now_s)
        self._went_well(task, places, now_s)

    def _went_well(self, task: Task, places: Iterable[Place], now_s: float) -> None:
        self.health.succeeded(now_s, was_tried=False)
        self._pace.went_well()
        if self._pace.is_full:
            self.health.takes_all(now_s)
        is_upkeep = task.job in _UPKEEP
        for place in places:
            if is_upkeep:
                self._upkeep.went_well(place)
            else:
                place.failures, place.until_s = 0, 0.0
            if place.trouble is not None and (place.trouble.job in _UPKEEP) is is_upkeep:
                place.trouble = None
            self._queues.file(place, now_s)

    def failed(self, task: Task, code: str, message: str, now_s: float) -> bool:
        """A job went wrong. Returns whether people are to be told something of the store or of the partition.

        Args:
            task: The task.
            code: Code of the worker's error.
            message: Error text.
            now_s: Current time in seconds.
        """
        if task.job is Job.PROBE:
            return self.health.failed(code if code in STORE_CODES else "unavailable", message, now_s, was_tried=True)
        places = self._end(task)
        if task.job is Job.COLLECT_SETS:
            self._upkeep.are_sets_written = True
        # One object of one partition may be of a newer version, while the store as a whole is well.
        is_of_store = code in STORE_CODES and code != "version"
        tells = is_of_store and self.health.failed(code, message, now_s, was_tried=False)
        if code == "busy":
            self._pace.slow_down(now_s)
            tells = self.health.asks_for_less(message, now_s)
        for place in places:
            self._upkeep.failed_upload(place, task.job, now_s)
            if task.job in _UPLOADS and (is_of_store or code in {"busy", "internal"}) and place.phase is Phase.CLAIMED:
                place.phase = Phase.UNKNOWN  # it may count, and only the answer was lost: see before anything is added
            if not is_of_store:
                tells |= self._fail(place, task.job, code, message, now_s)
            if (task.job in _UPKEEP or task.job is Job.LOOK) and place.phase is not Phase.STOPPED:
                self._upkeep.wants(place, task.job)
            self._queues.file(place, now_s)
        return tells

    def _fail(self, place: Place, job: Job, code: str, message: str, now_s: float) -> bool:
        # Of shared objects it is not said whose fault it is; each by itself will tell.
        place.is_alone |= job is Job.UPLOAD_SET and code != "busy"
        if code in _STOPPING and job is not Job.UPLOAD_SET:
            return self._stop(place, job, code, message, now_s)
        if code == "overtaken":
            place.phase = Phase.UNKNOWN
        if job in _UPKEEP:
            failures = self._upkeep.failed(place, now_s)
        else:
            failures = place.failures = place.failures + 1
            rest_s = self._limits.rest_s(failures)
            rest_s = min(rest_s, _UNNAMED_REST_S_MAX) if code == "unnamed" else rest_s
            place.until_s = now_s + (rest_s * _share_of(place, failures) if code == "busy" else rest_s)
        if failures <= _QUIET_FAILURES.get(code, 0) or job is Job.UPLOAD_SET:
            return False
        before = place.trouble
        place.trouble = Trouble(job, code, message, now_s if before is None else before.since_s, stops=False)
        return before is None or before.code != code

    def _stop(self, place: Place, job: Job, code: str, message: str, now_s: float) -> bool:
        place.phase = Phase.STOPPED
        place.trouble = Trouble(job, code, message, now_s, stops=True)
        self._upkeep.forget(place)
        self._queues.leave(place)
        return True

    def _end(self, task: Task) -> list[Place]:
        """A task is over. Returns its partitions for which it still counts."""
        if task.job in _FOREGROUND:
            self._running -= 1
            self._claiming -= task.job is Job.CLAIM
            self._is_set_running &= task.job is not Job.UPLOAD_SET
        else:
            self._upkeep.running -= 1
        for place in task.places:
            place.is_busy = False
        return [place for place in task.places if self.places.get(place.key) is place]


def _share_of(place: Place, failures: int) -> float:
    """Between a half and one and a half: those that were refused together do not come back together."""
    return 0.5 + crc32(b"%s/%d/%d" % (place.key.uuid, place.key.partition, failures)) / 2**32


def _task(job: Job, places: tuple[Place, ...], now_s: float) -> Task:
    return Task(job, places, now_s)
