"""What the members of a group wrote down, what its log says and what was acknowledged, and whether it fits together.

Pure: it knows no cluster. Processing is at least once, so records may be read again; but only from the offset on that
was committed when the partition changed hands, and every commit is of what was processed, by who held the partition.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from support.group_log import CommitRow, Holding
from support.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from support.group_log import Row

LATE_READS_MAX = 1  # what a process had in hand when it was stopped
SHOWN_MAX = 3


class Read(NamedTuple):
    """A record that a process has handled."""

    at_s: float
    who: str
    content: str


class Try(NamedTuple):
    """A commit that a process was about to send."""

    at_s: float
    who: str
    member_id: str


@dataclass(slots=True)
class Stint:
    """A process that reads a partition from where it was told that the group is, until it loses it."""

    who: str
    at_s: float
    partition: int
    member_id: str
    generation: int
    begin: int
    next_offset: int
    again: int = 0
    late: int = 0
    is_over: bool = False


@dataclass(slots=True)
class Told:
    """What processes wrote down.

    Attributes:
        reads: by partition and offset, in the order of time.
        stints: all, each process' in the order of time.
        tries: by partition, offset, generation and sequence.
        commits: that were answered and not refused: when, who, and what.
        found: what is wrong by itself.
    """

    reads: dict[tuple[int, int], list[Read]] = field(default_factory=lambda: defaultdict(list))
    stints: list[Stint] = field(default_factory=list)
    tries: dict[tuple[int, int, int, int], list[Try]] = field(default_factory=lambda: defaultdict(list))
    commits: list[tuple[float, str, tuple[int, int, int, int]]] = field(default_factory=list)
    found: list[Violation] = field(default_factory=list)


class Figures(NamedTuple):
    """What is no violation.

    Attributes:
        records: that were handled.
        again: how often one was handled that had been before.
        takeovers: after which something was handled again, and how many records that were, each.
        late: records that a process finished after it had lost their partition.
        commits: in the log.
    """

    records: int
    again: int
    takeovers: list[int]
    late: int
    commits: int


def tell(stories: Mapping[str, Sequence[list[Any]]]) -> Told:
    """Put together what processes wrote down; by their names."""
    told = Told()
    for who, lines in stories.items():
        current: dict[int, Stint] = {}
        sent: dict[tuple[str, int, int], dict[str, int]] = {}
        for what, at_s, *more in lines:
            if what == "begin":
                _begin(told, current, who, at_s, more)
            elif what == "read":
                _read(told, current, who, at_s, *more)
            elif what == "try":
                member_id, generation, sequence, rows = more
                sent[member_id, generation, sequence] = rows
                for number, offset in rows.items():
                    told.tries[int(number), offset, generation, sequence].append(Try(at_s, who, member_id))
            elif what == "commit":
                member_id, generation, sequence, refused, error = more
                rows = sent[member_id, generation, sequence]
                done = {int(number): offset for number, offset in rows.items() if int(number) not in refused}
                if error == "NONE":
                    told.commits += [(at_s, who, (n, o, generation, sequence)) for n, o in done.items()]
            elif what in {"revoked", "lost"}:
                for number in more[1]:
                    if number in current:
                        current[number].is_over = True
            elif what == "failed":
                told.found.append(Violation("member failed", f"{who}: {': '.join(more)}", (at_s,)))
    for reads in told.reads.values():
        reads.sort()
    _count_again(told)
    return told


def _begin(told: Told, current: dict[int, Stint], who: str, at_s: float, more: list[Any]) -> None:
    member_id, generation, rows = more
    for number, offset in rows.items():
        at = offset or 0
        stint = Stint(who, at_s, int(number), member_id, generation, at, at)
        current[stint.partition] = stint
        told.stints.append(stint)


def _read(
    told: Told, current: dict[int, Stint], who: str, at_s: float, partition: int, offset: int, content: str
) -> None:
    place = f"[{partition}]@{offset}"
    told.reads[partition, offset].append(Read(at_s, who, content))
    stint = current.get(partition)
    if stint is None:
        told.found.append(Violation("not assigned", f"{who} read {place}, which it never got", (at_s,)))
        return
    if offset != stint.next_offset:
        rule = "gap" if offset > stint.next_offset else "step back"
        text = f"{who} read {place} where {stint.next_offset} was to come; it began at {stint.begin}"
        told.found.append(Violation(rule, text, (stint.at_s, at_s)))
    stint.next_offset = offset + 1
    if stint.is_over:
        stint.late += 1
        if stint.late > LATE_READS_MAX:
            text = f"{who} read {place} after it had lost the partition, and not as the first"
            told.found.append(Violation("read late", text, (stint.at_s, at_s)))


def _count_again(told: Told) -> None:
    """How many records that had been handled before each stint handled."""
    by_who: dict[tuple[str, int], list[Stint]] = defaultdict(list)
    for stint in told.stints:
        by_who[stint.who, stint.partition].append(stint)
    for (partition, _offset), reads in told.reads.items():
        for read in reads[1:]:
            mine = [stint for stint in by_who[read.who, partition] if stint.at_s <= read.at_s]
            if mine:
                mine[-1].again += 1


def check(acked: Mapping[tuple[int, int], str], told: Told, log: Sequence[Row]) -> Iterator[Violation]:
    """What does not fit together.

    Args:
        acked: the content of every record that was acknowledged, by partition and offset.
        told: by the processes.
        log: of the group, in its order.
    """
    yield from told.found
    yield from _check_reads(acked, told)
    yield from _check_log(told, log)
    yield from _check_stints(told, log)


def _check_reads(acked: Mapping[tuple[int, int], str], told: Told) -> Iterator[Violation]:
    for (partition, offset), content in acked.items():
        if not told.reads.get((partition, offset)):
            yield Violation("never processed", f"[{partition}]@{offset}", (), content.encode())
    for (partition, offset), reads in told.reads.items():
        contents = {read.content for read in reads} | ({acked[at]} if (at := (partition, offset)) in acked else set())
        if len(contents) > 1:
            times = tuple(read.at_s for read in reads)
            yield Violation("two contents", f"[{partition}]@{offset}: {sorted(contents)}", times)


def _check_log(told: Told, log: Sequence[Row]) -> Iterator[Violation]:
    holders: Mapping[int, frozenset[Holding]] = {}
    last: dict[int, CommitRow] = {}
    there = set()
    near_s: tuple[float, ...] = ()  # who holds what has no time in the log; commits have
    for row in log:
        if not isinstance(row, CommitRow):
            holders = row.holders
            for number, who in holders.items():
                if len(who) > 1:
                    yield Violation("two owners", f"[{number}] is held by {sorted(who)}", near_s)
            continue
        near_s = (row.at_s,)
        there.add(row[1:])
        before = last.get(row.partition)
        yield from _check_order(row, before)
        tries = told.tries.get(row[1:], [])
        owners = {holding.member_id for holding in holders.get(row.partition, ())}
        if not any(each.member_id in owners for each in tries):
            who = ", ".join(f"{each.who} as {each.member_id}" for each in tries) or "nobody"
            text = f"{_named(row)} was asked for by {who}, and held by {', '.join(owners) or 'nobody'}"
            yield Violation("not the owner's commit", text, (row.at_s, *(each.at_s for each in tries)))
        elif missing := _unprocessed(told, row, before.offset if before else 0, max(each.at_s for each in tries)):
            text = f"{_named(row)}, but {missing[:SHOWN_MAX]} had not been processed by then"
            yield Violation("committed unprocessed", text, (row.at_s,))
        last[row.partition] = row
    for at_s, who, commit in told.commits:
        if commit not in there:
            yield Violation("commit lost", f"{who} was told that {commit} is committed; the log has not", (at_s,))


def _check_order(row: CommitRow, before: CommitRow | None) -> Iterator[Violation]:
    if before is None:
        return
    if row.offset < before.offset:
        yield Violation("commit steps back", f"{_named(row)} after {_named(before)}", (before.at_s, row.at_s))
    if (row.generation, row.sequence) <= (before.generation, before.sequence):
        yield Violation("commit out of order", f"{_named(row)} after {_named(before)}", (before.at_s, row.at_s))


def _unprocessed(told: Told, row: CommitRow, begin: int, at_s: float) -> list[int]:
    places = ((offset, told.reads.get((row.partition, offset))) for offset in range(begin, row.offset))
    return [offset for offset, reads in places if not reads or reads[0].at_s > at_s]


def _check_stints(told: Told, log: Sequence[Row]) -> Iterator[Violation]:
    """Whoever begins with a partition does so where the group was when it got it."""
    starts = _starts(log)
    for stint in told.stints:
        possible = [
            (generation, offset)
            for generation, offset in starts.get((stint.partition, stint.member_id), [])
            if generation <= stint.generation
        ]
        if not possible:
            text = f"{stint.who} began with [{stint.partition}] as {stint.member_id}, which never held it"
            yield Violation("not assigned", text, (stint.at_s,))
        elif max(possible)[1] != stint.begin:
            text = f"{stint.who} began with [{stint.partition}] at {stint.begin}; committed was {max(possible)[1]}"
            yield Violation("begun elsewhere", text, (stint.at_s,))


def _starts(log: Sequence[Row]) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """By partition and member, the generations that gave it to it, and what was committed then."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    before: Mapping[int, frozenset[Holding]] = {}
    committed: dict[int, int] = {}
    for row in log:
        if isinstance(row, CommitRow):
            committed[row.partition] = row.offset
            continue
        for number, holdings in row.holders.items():
            for member_id, generation in holdings - before.get(number, frozenset()):
                found[number, member_id].append((generation, committed.get(number, 0)))
        before = row.holders
    return found


def _named(row: CommitRow) -> str:
    return f"commit of [{row.partition}] to {row.offset} in generation {row.generation} as {row.sequence}"


def figures(told: Told, log: Iterable[Row]) -> Figures:
    """See `Figures`."""
    reads = sum(map(len, told.reads.values()))
    takeovers = [stint.again for stint in told.stints if stint.again]
    late = sum(stint.late for stint in told.stints)
    commits = sum(isinstance(row, CommitRow) for row in log)
    return Figures(len(told.reads), reads - len(told.reads), takeovers, late, commits)


def tell_history(stories: Mapping[str, Sequence[list[Any]]]) -> list[tuple[float, str]]:
    """What processes wrote down but for single records, as events of a history."""
    return [
        (line[1], f"{who}: {line[0]} {line[2:]}")
        for who, lines in stories.items()
        for line in lines
        if line[0] != "read"
    ]
