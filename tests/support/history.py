"""What was published, acknowledged and read while things broke, and whether it fits together.

A history only grows, and takes note of nothing but what somebody outside the cluster saw. The checker is pure: it
knows no cluster, only the history and what is stored at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

AROUND_S = 3.0
TIMELINE_LINES_MAX = 200
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ")

Final = Mapping[tuple[str, int], list[bytes]]


class Place(NamedTuple):
    """Where a message was said to be."""

    partition: int
    offset: int
    epoch: int


@dataclass(slots=True)
class Publication:
    """One message, however often it was sent.

    Attributes:
        has_id: it carries an id, so that the cluster can tell when it is sent again.
        sent_s: when it was sent, each time.
        acks: what was answered, and when.
        refusals: error codes, and when.
        is_unknown: at least one try had no answer in time, or one that says nobody knows.
    """

    stream: str
    content: bytes
    has_id: bool
    sent_s: list[float] = field(default_factory=list)
    acks: list[tuple[float, Place]] = field(default_factory=list)
    refusals: list[tuple[float, int]] = field(default_factory=list)
    is_unknown: bool = False


class Sighting(NamedTuple):
    """A record that a consumer got."""

    at_s: float
    consumer: str
    stream: str
    partition: int
    offset: int
    content: bytes


class Violation(NamedTuple):
    """Something that must not be.

    Attributes:
        rule: which promise is broken: lost, doubled, misplaced, two contents, gap, step back, unknown content,
            consumer failed, replicas differ.
        text: what happened to what.
        times_s: when somebody noticed something of it.
        content: of the message that it is about, where it is about one.
    """

    rule: str
    text: str
    times_s: tuple[float, ...]
    content: bytes | None = None


class History:
    """See the module.

    Args:
        now: the wall clock, in seconds.

    Attributes:
        publications: by content.
        starts: where each consumer began, by (consumer, stream, partition); 0 where nothing else is said.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.publications: dict[bytes, Publication] = {}
        self.sightings: list[Sighting] = []
        self.starts: dict[tuple[str, str, int], int] = {}
        self.events: list[tuple[float, str]] = []
        self.failures: list[Violation] = []

    def sent(self, stream: str, content: bytes, *, has_id: bool) -> None:
        """A message leaves, for the first time or again."""
        known = self.publications.get(content)
        if known is None:
            known = self.publications[content] = Publication(stream, content, has_id)
        known.sent_s.append(self.now())

    def acked(self, content: bytes, place: Place) -> None:
        """The cluster says that it has a message."""
        self.publications[content].acks.append((self.now(), place))

    def refused(self, content: bytes, code: int, *, is_unknown: bool) -> None:
        """The cluster says that it does not take a message, or does not know whether it did."""
        publication = self.publications[content]
        publication.refusals.append((self.now(), code))
        publication.is_unknown |= is_unknown

    def unanswered(self, content: bytes) -> None:
        """Nothing was heard of a message in time."""
        self.publications[content].is_unknown = True

    def started(self, consumer: str, stream: str, partition: int, offset: int) -> None:
        """A consumer begins at an offset."""
        self.starts[consumer, stream, partition] = offset

    def saw(self, consumer: str, stream: str, partition: int, offset: int, content: bytes) -> None:
        """A consumer got a record."""
        self.sightings.append(Sighting(self.now(), consumer, stream, partition, offset, content))

    def broke(self, consumer: str, text: str) -> None:
        """A consumer was told what must not be: that its log diverged, or that records are gone."""
        self.failures.append(Violation("consumer failed", f"{consumer}: {text}", (self.now(),)))

    def happened(self, what: str) -> None:
        """A fault, or its end."""
        self.events.append((self.now(), what))

    @property
    def acked_count(self) -> int:
        """How many messages were acknowledged."""
        return sum(bool(publication.acks) for publication in self.publications.values())


def check(history: History, final: Final) -> Iterator[Violation]:
    """What does not fit together.

    Args:
        history: all of it.
        final: the content of every record of every partition at the end, from offset 0 on.
    """
    yield from history.failures
    yield from _check_publications(history, final)
    yield from _check_contents(history, final)
    yield from _check_consumers(history)


def _check_publications(history: History, final: Final) -> Iterator[Violation]:
    where: dict[bytes, list[tuple[int, int]]] = {}
    for (stream, partition), contents in final.items():
        for offset, content in enumerate(contents):
            publication = history.publications.get(content)
            if publication is None or publication.stream != stream:
                yield Violation("unknown content", f"{stream}[{partition}]@{offset} holds {content!r:.80}", ())
            where.setdefault(content, []).append((partition, offset))
    for publication in history.publications.values():
        yield from _check_publication(publication, where.get(publication.content, []))


def _check_publication(publication: Publication, where: list[tuple[int, int]]) -> Iterator[Violation]:
    acked = {(place.partition, place.offset) for _, place in publication.acks}
    times = (*publication.sent_s, *(at_s for at_s, _ in publication.acks))
    named = f"{publication.content!r:.80} of {publication.stream}"
    if acked and not where:
        yield Violation(
            "lost", f"{named} was acknowledged at {_places(acked)} and is nowhere", times, publication.content
        )
    elif missing := acked - set(where):
        text = f"{named} was acknowledged at {_places(missing)} and is at {_places(where)}"
        yield Violation("misplaced", text, times, publication.content)
    may_double = not publication.has_id and publication.is_unknown
    if (len(where) > 1 or len(acked) > 1) and not may_double:
        text = f"{named} is at {_places(where)}, acknowledged at {_places(acked)}"
        yield Violation("doubled", text, times, publication.content)


def _places(places: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"[{partition}]@{offset}" for partition, offset in sorted(places)) or "no place"


def _check_contents(history: History, final: Final) -> Iterator[Violation]:
    """An offset has one content, whoever looks at it and whenever."""
    seen: dict[tuple[str, int, int], Sighting] = {}
    for sighting in history.sightings:
        first = seen.setdefault(sighting[2:5], sighting)
        if first.content != sighting.content:
            text = f"{_named(sighting)}: {first.consumer} saw {first.content!r:.60}"
            text += f", {sighting.consumer} {sighting.content!r:.60}"
            yield Violation("two contents", text, (first.at_s, sighting.at_s))
    for (stream, partition, offset), sighting in seen.items():
        contents = final.get((stream, partition), [])
        if offset >= len(contents):
            text = f"{_named(sighting)} was seen by {sighting.consumer}, but the partition ends at {len(contents)}"
            yield Violation("two contents", text, (sighting.at_s,))
        elif contents[offset] != sighting.content:
            text = f"{_named(sighting)}: {sighting.consumer} saw {sighting.content!r:.60}"
            yield Violation("two contents", f"{text}, at the end it is {contents[offset]!r:.60}", (sighting.at_s,))


def _check_consumers(history: History) -> Iterator[Violation]:
    """A consumer gets every offset from its start on, each once and in order."""
    expected = dict(history.starts)
    for sighting in history.sightings:
        key = (sighting.consumer, sighting.stream, sighting.partition)
        wanted = expected.get(key, 0)
        if sighting.offset != wanted:
            rule = "gap" if sighting.offset > wanted else "step back"
            text = f"{sighting.consumer} got {_named(sighting)} where {wanted} was to come"
            yield Violation(rule, text, (sighting.at_s,))
        expected[key] = sighting.offset + 1


def _named(sighting: Sighting) -> str:
    return f"{sighting.stream}[{sighting.partition}]@{sighting.offset}"


def report(history: History, violations: Iterable[Violation], logs: Mapping[str, Path]) -> str:
    """What is to be said of violations: how many of each rule, and the first with what happened around it.

    Args:
        history: all of it.
        violations: at least one.
        logs: of the nodes, by name.
    """
    found = list(violations)
    first = found[0]
    counts = ", ".join(f"{count} {rule}" for rule, count in Counter(each.rule for each in found).items())
    lines = [f"{len(found)} violations ({counts}); the first: {first.rule}: {first.text}"]
    lines += [f"  more: {each.rule}: {each.text}" for each in found[1:6]]
    return "\n".join([*lines, *timeline(history, first.times_s, logs, first.content)])


def timeline(
    history: History, times_s: Iterable[float], logs: Mapping[str, Path], content: bytes | None = None
) -> list[str]:
    """What happened around these times, in order: to a message, to the cluster, and what the nodes logged."""
    times_s = list(times_s)
    spans = [(at_s - AROUND_S, at_s + AROUND_S) for at_s in times_s]

    def is_near(at_s: float) -> bool:
        return any(begin_s <= at_s <= end_s for begin_s, end_s in spans)

    entries = [(at_s, f"== {what}") for at_s, what in history.events if is_near(at_s)]
    entries += (
        _told_of(history, content) if content in history.publications else [(at_s, "-- seen") for at_s in times_s]
    )
    for name, path in logs.items():
        entries += [(at_s, f"{name}: {line}") for at_s, line in _stamped(path) if is_near(at_s)]
    entries.sort(key=lambda entry: entry[0])
    shown = [f"{datetime.fromtimestamp(at_s).astimezone():%H:%M:%S.%f} {text}" for at_s, text in entries]
    return shown[:TIMELINE_LINES_MAX]


def _told_of(history: History, content: bytes | None) -> Iterator[tuple[float, str]]:
    publication = history.publications[content or b""]
    yield from ((at_s, f"-- {content!r} is sent") for at_s in publication.sent_s)
    yield from ((at_s, f"-- {content!r} is acknowledged at {place}") for at_s, place in publication.acks)
    yield from ((at_s, f"-- {content!r} is refused with {code}") for at_s, code in publication.refusals)


def _stamped(path: Path) -> Iterator[tuple[float, str]]:
    at_s = 0.0
    for line in path.read_text(errors="replace").splitlines():
        if stamp := _STAMP.match(line):
            moment = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S").astimezone()
            at_s = moment.timestamp() + int(stamp[2]) / 1_000
        yield at_s, line[24:] if stamp else line
