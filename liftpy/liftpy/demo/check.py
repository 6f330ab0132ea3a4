"""Whether what a stream holds is what was published to it: all of it, once, unchanged, and in order. Pure.

What was sent again may stand behind what was published later: a new leader stores what comes next, and knows nothing of
what was lost on its way to the one before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from liftpy.demo.flights import Flight

__all__ = ["CheckFailedError", "Record", "check_records"]

_EXAMPLES_MAX: Final = 3


class CheckFailedError(LiftError):
    """What was replayed is not what was published."""


class Record(NamedTuple):
    """A record as it was read.

    Attributes:
        number: The message id that it was published with, which is the number of its flight.
    """

    offset: int
    subject: str
    number: str
    value: bytes | None


class _Faults:
    """What is wrong, counted, with the first examples of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._examples: list[str] = []

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= _EXAMPLES_MAX:
            self._examples.append(f"{kind}: {example}")

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"{counts}. For example: {'; '.join(self._examples)}"


def check_records(
    stream: str,
    records: Sequence[Record],
    flights: Sequence[Flight],
    expected: AbstractSet[int],
    acked_at: Mapping[int, int],
    sent_again: AbstractSet[int] = frozenset(),
) -> dict[str, int]:
    """Compare all records of a stream with what was published.

    Args:
        stream: Stream for messages.
        records: Records in the order of reading.
        flights: All of them.
        expected: Numbers of the flights that belong to the stream.
        acked_at: The offset that the ack of a flight gave, by its number.
        sent_again: Numbers of the flights that were sent more than once.

    Returns:
        How many records are `lost`, `doubled`, `changed`, `strange`, `out of order` and `misplaced`: 0 of each. And how
        many are `late`: they were sent again, and stand behind later ones of their subject.

    Raises:
        CheckFailedError: one of these is not 0.
    """
    faults = _Faults()
    seen: set[int] = set()
    last_of_subject: dict[str, int] = {}
    late = 0
    for place, record in enumerate(records):
        where = f"offset {record.offset}"
        if record.offset != place:
            faults.add("misplaced", f"{where} stands where {place} must")
        number = int(record.number) if record.number.isdigit() else -1
        if number not in expected:
            faults.add("strange", f"{where} is flight {record.number!r}, which is none of ours")
            continue
        if number in seen:
            faults.add("doubled", f"{where} is flight {number} once more")
            continue
        seen.add(number)
        if flights[number] != (record.subject, record.value):
            faults.add("changed", f"{where} is not flight {number} as it was published")
        last = last_of_subject.setdefault(record.subject, number)
        last_of_subject[record.subject] = max(last, number)
        is_late = last > number
        late += is_late and number in sent_again
        if is_late and number not in sent_again:
            faults.add("out of order", f"{where}, flight {number}, comes after {last}")
        if acked_at.get(number) != record.offset:
            faults.add("misplaced", f"{where} is flight {number}, whose ack said {acked_at.get(number)}")
    for number in sorted(expected - seen):
        faults.add("lost", f"flight {number}, acknowledged at offset {acked_at.get(number)}")
    if faults.counts:
        raise CheckFailedError(f"{stream}: {faults}")
    kinds = ("lost", "doubled", "changed", "strange", "out of order", "misplaced")
    return {kind: faults.counts[kind] for kind in kinds} | {"late": late}
