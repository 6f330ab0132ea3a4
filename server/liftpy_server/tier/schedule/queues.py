"""The queues in which partitions wait to be uploaded. Pure.

One that waits stands in exactly one of them: while it is young, to be claimed, to be uploaded into an object of its
own, to share one, or until its back-off is over. It keeps its turn while more of it is written.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from liftpy_server.tier.schedule.places import Job, Phase, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.tier.schedule.places import Limits

    _Queue = dict[PartitionKey, Place]
    _Heap = list[tuple[float, int, Place]]

__all__ = ["Queues"]

_HOLD_S_MAX: Final = 5.0  # a shared object waits so long for partitions that are being claimed


class Queues:
    """The partitions that wait to be uploaded.

    Args:
        limits: When things are due.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._young: _Queue = {}
        self._unclaimed: _Queue = {}
        self._large: _Queue = {}
        self._small: _Queue = {}  # those that are due, and those that go with them
        self._in_order: list[Place] = []  # of these, where they are too many for one object
        self._resting: _Queue = {}
        self._ages: _Heap = []
        self._rests: _Heap = []
        self._count = 0
        self._small_bytes = 0
        self._small_due_s: float | None = None
        self._is_claims_turn = True

    def leave(self, place: Place) -> None:
        """It waits no longer."""
        self._stand(place, None)

    def file(self, place: Place, now_s: float) -> None:
        """Put a place where it belongs now."""
        self._stand(place, self._queue_of(place, now_s))

    def _queue_of(self, place: Place, now_s: float) -> _Queue | None:
        if place.is_busy or place.phase is Phase.STOPPED:
            return None
        needs_claim = place.phase is not Phase.CLAIMED
        if place.since_s is None and not (place.is_claim_wanted and needs_claim):
            return None
        if now_s < place.until_s:
            return self._resting
        if place.since_s is None:
            return self._unclaimed
        is_due = now_s >= self._due_s(place) or place.bytes >= self._limits.upload_bytes
        if not needs_claim and self._is_small(place):
            return self._small
        if not is_due:
            return self._young
        return self._unclaimed if needs_claim else self._large

    def _due_s(self, place: Place) -> float:
        assert place.since_s is not None
        return place.since_s + self._limits.upload_age_s

    def _is_small(self, place: Place) -> bool:
        return place.bytes <= self._limits.set_member_bytes_max and not (place.is_alone or place.has_producers)

    def _stand(self, place: Place, queue: _Queue | None) -> None:
        is_new = queue is not place.queue
        self._small_bytes -= place.counted_bytes
        place.counted_bytes = place.bytes if queue is self._small else 0
        self._small_bytes += place.counted_bytes
        place.stand_in(queue)
        if not self._small:
            self._small_due_s = None
        elif queue is self._small and is_new:
            due_s = self._due_s(place)
            self._small_due_s = due_s if self._small_due_s is None else min(due_s, self._small_due_s)
        if is_new and queue is self._young:
            self._push(self._ages, self._due_s(place), place)
        elif is_new and queue is self._resting:
            self._push(self._rests, place.until_s, place)

    def _push(self, heap: _Heap, at_s: float, place: Place) -> None:
        self._count += 1  # places have no order
        heappush(heap, (at_s, self._count, place))

    def ripen(self, now_s: float) -> None:
        """Let those go on whose time has come; entries of those that went on before are dropped."""
        for heap, queue in ((self._ages, self._young), (self._rests, self._resting)):
            while heap and heap[0][0] <= now_s:
                place = heappop(heap)[2]
                if place.queue is queue:
                    self.file(place, now_s)
                    if place.queue is queue:  # it waits anew, for something later
                        self._push(heap, self._due_s(place) if queue is self._young else place.until_s, place)

    def next_single(self) -> tuple[Job, Place] | None:
        """Next partition to claim, or to upload by itself; claims and uploads alternate."""
        queues = [(Job.CLAIM, self._unclaimed), (Job.UPLOAD, self._large)]
        for job, queue in queues if self._is_claims_turn else reversed(queues):
            if queue:
                self._is_claims_turn = job is not Job.CLAIM
                return job, next(iter(queue.values()))
        return None

    def next_shared(self, now_s: float, *, are_claimed: bool) -> tuple[Place, ...]:
        """Who shares the next object; nobody while none of them is due.

        Args:
            now_s: Current time in seconds.
            are_claimed: Partitions are being claimed, which may go with the others in a moment.
        """
        limits = self._limits
        is_full = self._small_bytes >= limits.upload_bytes or len(self._small) >= limits.members_max
        if not is_full:
            if self._small_due_s is None or now_s < self._small_due_s:
                return ()
            if are_claimed and now_s < self._small_due_s + min(_HOLD_S_MAX, limits.upload_age_s):
                return ()
        chosen: list[Place] = []
        size = 0
        for place in self._sharing():
            size += place.bytes
            if chosen and (len(chosen) >= limits.members_max or size > limits.upload_bytes):
                break
            chosen.append(place)
        return tuple(chosen)

    def _sharing(self) -> Iterable[Place]:
        """Whose turn it is to share an object, one after the other.

        Those that are too many for one go by slot, so that each object changes few pages of the set manifest. Their
        order stays until all of them have gone: nobody is overtaken for ever.
        """
        if len(self._small) <= self._limits.members_max:
            self._in_order.clear()
            return self._small.values()
        self._in_order = [place for place in self._in_order if place.queue is self._small]
        if not self._in_order:
            self._in_order = sorted(self._small.values(), key=lambda place: place.slot)
        return self._in_order
