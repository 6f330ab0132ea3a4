"""What is done in the bucket besides uploads: looked at, starts moved, merged, compacted, garbage collected. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from liftpy_bucket.layout import SLOTS
from liftpy_server.tier.schedule.places import Found, Job, Phase, Place

if TYPE_CHECKING:
    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.tier.schedule.places import Limits

__all__ = ["Upkeep"]

_AGED_S: Final = 7 * 86_400.0  # what is in shared objects longer moves out when it has a part of `merge_bytes`
_AGED_PART: Final = 16
_LISTED_S: Final = 86_400.0  # between two listings of a partition of which only retention takes something
_PASSED_MAX: Final = 64  # that can not go on now, in one look for the next job
_ORDER: Final = (Job.LOOK, Job.CONFIRM, Job.RETAIN, Job.MERGE, Job.COMPACT, Job.COLLECT)


class Upkeep:
    """Says what is to be done in the bucket besides uploads.

    Args:
        limits: When things are due.
        now_s: Current time in seconds.

    Attributes:
        running: How many of its jobs run.
        are_sets_written: Shared objects may have been written since those of no use were collected last.
        set_room: Which part of `merge_bytes` partitions may have in shared objects: less than 1 once the manifest of
            these is half full.
    """

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self.running = 0
        self._wanted: dict[Job, dict[PartitionKey, Place]] = {job: {} for job in _ORDER}
        self._garbage: dict[
            PartitionKey, tuple[Place, float, float]
        ] = {}  # and when it may have got some, first and last
        self._listed_s: dict[PartitionKey, float] = {}  # when its garbage was looked for last
        self._pinned: dict[PartitionKey, tuple[Place, float]] = {}  # and when to look again
        self.are_sets_written = False
        self.set_room = 1.0
        self._sets_again_s = float("inf")  # when what is of no use in sets will have been so for the grace period
        self._collected_s = now_s
        self._failures: dict[PartitionKey, tuple[int, float]] = {}  # one after the other, and until when to rest

    def failed(self, place: Place, now_s: float) -> int:
        """A job of a partition failed; its uploads go on. Returns how many did, one after the other."""
        failures = self._failures.get(place.key, (0, 0.0))[0] + 1
        self._failures[place.key] = (failures, now_s + self._limits.rest_s(failures))
        return failures

    def went_well(self, place: Place) -> None:
        """A job of a partition went well."""
        self._failures.pop(place.key, None)

    def wants(self, place: Place, job: Job) -> None:
        """A job is to be done for a partition."""
        self._wanted[job][place.key] = place

    def retains(self, place: Place) -> None:
        """The start of a partition is to come to its `wanted_start`, as soon as it is known where it is."""
        if place.wanted_start > place.start and place.phase in {Phase.KNOWN, Phase.CLAIMED}:
            place.is_claim_wanted = place.phase is Phase.KNOWN
            self.wants(place, Job.RETAIN)

    def grown(self, place: Place, size: int, *, is_shared: bool, now_s: float) -> None:
        """A partition has so many more bytes of record batches in the bucket now."""
        place.new_bytes += size
        if is_shared:
            self.are_sets_written = True
            self._shares(place, place.set_bytes + size, now_s)
        else:
            place.object_bytes += size + place.set_bytes  # which has been moved with it
            self._shares(place, 0, now_s)
        if self._is_large(place, now_s) or place.object_bytes >= self._limits.object_bytes:
            self.wants(place, Job.MERGE)

    def _shares(self, place: Place, size: int, now_s: float) -> None:
        place.set_bytes = size
        if not size:
            place.set_since_s = None
        elif place.set_since_s is None:
            place.set_since_s = now_s

    def _is_large(self, place: Place, now_s: float) -> bool:
        """Whether what it has in shared objects is to become an object of its own, so that their manifest stays short.

        Partitions that began together do not become too old together: of each half a period's time is its own.
        """
        if place.set_since_s is None:
            return False
        bytes_max = self._limits.merge_bytes * self.set_room
        if now_s - place.set_since_s >= _AGED_S * (0.5 + place.slot / SLOTS / 2):
            bytes_max /= _AGED_PART
        return place.set_bytes >= bytes_max

    def looked(self, place: Place, found: Found, now_s: float) -> None:
        """What the leaders before have left that nothing names is in the way of nobody, claimed or not."""
        if found.may_have_garbage:
            self._littered(place, now_s)

    def claimed(self, place: Place, found: Found, now_s: float) -> None:
        """What the leaders before have left to be done is done by who claims: nobody keeps a list of it."""
        place.new_bytes = found.new_bytes
        self._shares(place, found.set_bytes, now_s)
        if found.merges or self._is_large(place, now_s):
            self.wants(place, Job.MERGE)
        if found.may_have_garbage:
            self._littered(place, now_s)
            self.are_sets_written = True  # by this node before it was started again, perhaps

    def pinned(self, place: Place, now_s: float) -> None:
        """A pin may hold what nobody else wants: look again when it may have ended, however often this is said."""
        self._pinned.setdefault(place.key, (place, now_s + self._limits.grace_s))

    def look_at_sets(self, now_s: float) -> None:
        """Those of this node hold something, of which others may let go without telling it."""
        self._sets_again_s = min(self._sets_again_s, now_s + self._limits.grace_s + self._limits.gc_interval_s)

    def failed_upload(self, place: Place, job: Job, now_s: float) -> None:
        """Nobody knows whether an upload that failed has left an object that nothing names."""
        if job is Job.UPLOAD_SET:
            self.are_sets_written = True
        elif job in {Job.UPLOAD, Job.RETAIN}:
            self._littered(place, now_s)

    def _littered(self, place: Place, now_s: float) -> None:
        """There may be objects of a partition by now that nothing names."""
        first_s = self._garbage[place.key][1] if place.key in self._garbage else now_s
        self._garbage[place.key] = (place, first_s, now_s)

    def kept_up(self, place: Place, job: Job, now_s: float) -> None:
        """A job was done for a partition."""
        if job is Job.MERGE:
            place.object_bytes = 0
            self._shares(place, 0, now_s)
        elif job is Job.COMPACT:
            place.new_bytes = 0
        elif job is Job.RETAIN:
            self.retains(place)  # it may have to come further by now
        elif job is Job.COLLECT:
            self._listed_s[place.key] = now_s
        # A retention deletes what it leaves; what uploads have replaced of manifests waits for a day.
        is_listed = now_s - self._listed_s.get(place.key, float("-inf")) < _LISTED_S
        if job in {Job.MERGE, Job.COMPACT} or (job is Job.RETAIN and not is_listed):
            self._littered(place, now_s)
        if job in {Job.MERGE, Job.COMPACT, Job.RETAIN}:
            self.are_sets_written = True  # what they held of it counts there no more

    def forget(self, place: Place) -> None:
        """A partition is led by another node now, or stopped."""
        for wanted in self._wanted.values():
            wanted.pop(place.key, None)
        self._garbage.pop(place.key, None)
        self._pinned.pop(place.key, None)
        self._listed_s.pop(place.key, None)
        self._failures.pop(place.key, None)

    def next(self, now_s: float) -> tuple[Job, tuple[Place, ...]] | None:
        """The next job, and for which partition; None while there is none."""
        if now_s - self._collected_s >= self._limits.gc_interval_s:
            self._collected_s = now_s
            self._collect(now_s)
            if self.are_sets_written or now_s >= self._sets_again_s:
                # What they hold no more goes at once, but objects that nothing names only after the grace period.
                again_s = now_s + self._limits.grace_s + self._limits.gc_interval_s
                self._sets_again_s = again_s if self.are_sets_written else float("inf")
                self.are_sets_written = False
                return Job.COLLECT_SETS, ()
        for job in _ORDER:
            place = self._next_of(job, now_s)
            if place is not None:
                return job, (place,)
        return None

    def _next_of(self, job: Job, now_s: float) -> Place | None:
        wanted = self._wanted[job]
        if not wanted:
            return None
        passed: list[Place] = []
        found = None
        for place in islice(wanted.values(), _PASSED_MAX):
            until_s = place.until_s if job is Job.LOOK else self._failures.get(place.key, (0, 0.0))[1]
            if not place.is_busy and now_s >= until_s and _may(job, place):
                found = place
                break
            passed.append(place)
        for place in passed:  # to the end, or away where it is not to be done any more
            del wanted[place.key]
            if job is not Job.LOOK or place.phase is Phase.UNKNOWN:
                wanted[place.key] = place
        if found is not None:
            del wanted[found.key]
        return found

    def _collect(self, now_s: float) -> None:
        """Have garbage looked for, once the grace period is over for it, and once more where there was some since."""
        for key, (place, again_s) in list(self._pinned.items()):
            if now_s >= again_s:
                del self._pinned[key]
                self.wants(place, Job.COLLECT)
                if place.wanted_start:
                    self.wants(place, Job.RETAIN)
        for key, (place, first_s, last_s) in list(self._garbage.items()):
            if now_s - first_s <= self._limits.grace_s + self._limits.gc_interval_s:
                continue
            self.wants(place, Job.COLLECT)
            if last_s > first_s:
                self._garbage[key] = (place, last_s, last_s)
            else:
                del self._garbage[key]


def _may(job: Job, place: Place) -> bool:
    """Nothing that counts is changed before it is claimed; what is claimed need not be looked at. Merges can wait."""
    if job is Job.LOOK:
        return place.phase is Phase.UNKNOWN
    if job is Job.MERGE and place.is_behind:
        return False
    return place.phase is Phase.CLAIMED or (job is Job.COLLECT and place.phase is Phase.KNOWN)
