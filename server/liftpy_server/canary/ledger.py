"""What a canary published, and where it came out again. Pure.

Each message has a number, and says in its value which one it is. A message is settled in a way of reading when it was
read there, or is certain to be lost there, or is late. It is lost if what was read differs from what was published,
or if a later offset of its partition was read before it: readers deliver a partition in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BUCKET", "CanaryCounts", "Ledger", "WayCounts"]

BUCKET: Final = "bucket"
_OPEN_MAX: Final = 1_000
_KEPT_MAX: Final = 2 * _OPEN_MAX
_DIGITS_MAX: Final = 19
_SECONDS_MAX: Final = 1_000
_VALUE_BYTES: Final = 128


@dataclass(slots=True)
class WayCounts:
    """How messages came out one way of reading.

    Attributes:
        read: Number of messages that were read as they were published.
        late: Not in time.
        lost: Missing, or other than they were published.
        doubled: Stored more than once.
    """

    read: int = 0
    late: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass(slots=True)
class CanaryCounts:
    """What came of all messages.

    Attributes:
        acked: Messages with an ack.
        unacked: Messages without one.
        ways: Counts by way of reading.
        seconds: (what, duration) of acks, and from the publish until the message was read; the newest ones.
    """

    acked: int = 0
    unacked: int = 0
    ways: dict[str, WayCounts] = field(default_factory=dict)
    seconds: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_SECONDS_MAX))

    @property
    def is_well(self) -> bool:
        """Whether every message was acknowledged, and came out every way, once."""
        return not self.unacked and not any(way.late or way.lost or way.doubled for way in self.ways.values())

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        ways = {name: asdict(counts) for name, counts in self.ways.items()}
        return {"acked": self.acked, "unacked": self.unacked, "ways": ways, "seconds": list(self.seconds)}


@dataclass(slots=True, eq=False)
class _Sent:
    number: int
    value: bytes
    sent_s: float
    place: tuple[int, int] | None = None
    seen: dict[str, tuple[tuple[int, int], bytes | None, float]] = field(default_factory=dict)


class Ledger:
    """See the module.

    Args:
        run: A name that no other canary of the stream has.
        timeouts_s: Time after which a message is late, by way of reading, seconds.
    """

    def __init__(self, run: str, timeouts_s: Mapping[str, float]) -> None:
        self._prefix = b"liftpy canary %b " % run.encode()
        self._timeouts_s = dict(timeouts_s)
        self._sent: dict[int, _Sent] = {}
        self._open: dict[str, dict[int, _Sent]] = {way: {} for way in timeouts_s}
        self._fronts: dict[tuple[str, int], int] = {}
        self._next = 0
        self.counts = self._no_counts()

    def _no_counts(self) -> CanaryCounts:
        return CanaryCounts(ways={way: WayCounts() for way in self._timeouts_s})

    def take(self) -> CanaryCounts:
        """What was counted since the last call."""
        counts, self.counts = self.counts, self._no_counts()
        return counts

    @property
    def is_settled(self) -> bool:
        """Whether no message is waited for."""
        return not any(self._open.values())

    @property
    def is_full(self) -> bool:
        """Whether so many messages are waited for that no more may be published."""
        return any(len(waited_for) >= _OPEN_MAX for waited_for in self._open.values())

    def publishing(self, now_s: float) -> tuple[int, bytes]:
        """Number and value of the next message, which is published now."""
        number = self._next
        self._next += 1
        value = (self._prefix + b"%d " % number).ljust(_VALUE_BYTES, b".")
        sent = self._sent[number] = _Sent(number, value, now_s)
        for waited_for in self._open.values():
            waited_for[number] = sent
        if len(self._sent) > _KEPT_MAX:
            del self._sent[next(iter(self._sent))]  # settled long ago: fewer may be open
        return number, value

    def failed(self, number: int) -> None:
        """It was not acknowledged: whether it is stored is not known."""
        self.counts.unacked += 1
        self._sent.pop(number, None)
        for waited_for in self._open.values():
            waited_for.pop(number, None)

    def acked(self, number: int, partition: int, offset: int, now_s: float) -> None:
        """It is stored here."""
        sent = self._sent[number]
        self.counts.acked += 1
        self.counts.seconds.append(("ack", now_s - sent.sent_s))
        sent.place = partition, offset
        for way, (place, value, read_s) in sent.seen.items():
            self._judge(sent, way, place, value, read_s)
        for way, waited_for in self._open.items():
            if number in waited_for and self._fronts.get((way, partition), -1) > offset:
                self._settle(sent, way).lost += 1

    def read(self, way: str, partition: int, offset: int, value: bytes | None, now_s: float) -> None:
        """This was read."""
        waited_for = self._open[way]
        at = {sent.place[1]: sent for sent in waited_for.values() if sent.place and sent.place[0] == partition}
        for at_offset, passed in at.items():
            if at_offset < offset:
                self._settle(passed, way).lost += 1
        self._fronts[way, partition] = max(offset, self._fronts.get((way, partition), -1))
        sent = self._sent.get(self._number_of(value)) or at.get(offset)
        place = partition, offset
        if sent is None:
            return
        if sent.number in waited_for and way not in sent.seen:
            sent.seen[way] = place, value, now_s
            if sent.place is not None:
                self._judge(sent, way, place, value, now_s)
        else:
            known = sent.place or sent.seen[way][0]
            self.counts.ways[way].doubled += known != place

    def wanted_of_bucket(self) -> dict[int, list[int]]:
        """By partition, offsets that are to be looked for in the bucket, in order."""
        wanted: dict[int, list[int]] = {}
        for sent in self._open.get(BUCKET, {}).values():
            if sent.place is not None:
                wanted.setdefault(sent.place[0], []).append(sent.place[1])
        return {partition: sorted(offsets) for partition, offsets in wanted.items()}

    def in_bucket(self, partition: int, start: int, end: int, values: Mapping[int, bytes | None], now_s: float) -> None:
        """The bucket has the offsets from `start` up to `end`, and of those that are wanted these values."""
        for sent in tuple(self._open[BUCKET].values()):
            if sent.place is None or sent.place[0] != partition:
                continue
            offset = sent.place[1]
            if offset < start:
                self._settle(sent, BUCKET)  # retention was quicker
            elif offset < end:
                self._judge(sent, BUCKET, (partition, offset), values.get(offset), now_s)

    def expire(self, now_s: float) -> None:
        """What was not read in time is late."""
        for way, waited_for in self._open.items():
            for sent in tuple(waited_for.values()):
                if sent.place is not None and now_s - sent.sent_s > self._timeouts_s[way]:
                    self._settle(sent, way).late += 1

    def _judge(self, sent: _Sent, way: str, place: tuple[int, int], value: bytes | None, now_s: float) -> None:
        counts = self._settle(sent, way)
        if place == sent.place and value == sent.value:
            counts.read += 1
            self.counts.seconds.append((way, now_s - sent.sent_s))
        else:
            counts.lost += 1

    def _settle(self, sent: _Sent, way: str) -> WayCounts:
        self._open[way].pop(sent.number, None)
        return self.counts.ways[way]

    def _number_of(self, value: bytes | None) -> int:
        """Which message a value says that it is; -1 if it is none of this run."""
        if value is None or not value.startswith(self._prefix):
            return -1
        number = value[len(self._prefix) :].partition(b" ")[0]
        return int(number) if number.isdigit() and len(number) < _DIGITS_MAX else -1
