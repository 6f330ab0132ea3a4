"""The checker of histories finds every kind of violation, and nothing where there is none."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from support.history import History, Place, check, report


class Ticks:
    """A clock that goes on by itself."""

    def __init__(self):
        self.now_s = datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp()

    def __call__(self):
        self.now_s += 0.01
        return self.now_s


def rules(history, final):
    return {violation.rule for violation in check(history, final)}


def sound(messages=6):
    """A history of one partition in which all is well, and what is stored at its end."""
    history = History(Ticks())
    contents = [b"m%d" % number for number in range(messages)]
    for offset, content in enumerate(contents):
        history.sent("s", content, has_id=True)
        history.acked(content, Place(0, offset, 1))
        history.saw("a", "s", 0, offset, content)
    history.started("b", "s", 0, 3)
    for offset in range(3, messages):
        history.saw("b", "s", 0, offset, contents[offset])
    return history, {("s", 0): contents}


def test_nothing_is_found_where_all_is_well():
    history, final = sound()
    assert rules(history, final) == set()
    assert history.acked_count == 6


def test_refused_and_unanswered_messages_may_be_there_or_not():
    history, final = sound()
    for content in (b"there", b"not there"):
        history.sent("s", content, has_id=True)
        history.refused(content, 20006, is_unknown=True)
    final["s", 0].append(b"there")
    assert rules(history, final) == set()


def test_a_message_that_is_lost():
    history, final = sound()
    final["s", 0].pop()
    history.sightings = [each for each in history.sightings if each.offset < 5]
    assert rules(history, final) == {"lost"}


def test_a_message_that_is_elsewhere():
    history, final = sound()
    history.sightings.clear()
    final["s", 0][2:4] = reversed(final["s", 0][2:4])
    assert rules(history, final) == {"misplaced"}


@pytest.mark.parametrize("has_id", [True, False])
def test_a_message_that_is_there_twice(has_id):
    history, final = sound()
    history.publications[b"m2"].has_id = has_id
    final["s", 0].append(b"m2")
    assert rules(history, final) == {"doubled"}


@pytest.mark.parametrize(("has_id", "found"), [(True, {"doubled"}), (False, set())])
def test_only_without_an_id_may_a_message_of_unknown_outcome_be_doubled(has_id, found):
    history, final = sound()
    history.sent("s", b"m6", has_id=has_id)
    history.unanswered(b"m6")
    history.sent("s", b"m6", has_id=has_id)
    history.acked(b"m6", Place(0, 7, 1))
    final["s", 0] += [b"m6", b"m6"]
    assert rules(history, final) == found


def test_a_message_that_was_acknowledged_at_two_offsets():
    history, final = sound()
    history.acked(b"m2", Place(0, 4, 2))
    assert rules(history, final) == {"doubled", "misplaced"}


def test_an_offset_with_two_contents_for_two_consumers():
    history, final = sound()
    history.sightings = [
        each._replace(content=b"m1") if each[1:5] == ("b", "s", 0, 4) else each for each in history.sightings
    ]
    assert rules(history, final) == {"two contents"}


def test_a_record_that_was_seen_and_is_not_there():
    history, final = sound()
    history.saw("a", "s", 0, 6, b"above the high watermark")
    assert rules(history, final) == {"two contents"}


def test_a_record_that_was_seen_and_is_another_at_the_end():
    history, final = sound()
    history.sent("s", b"old", has_id=True)
    history.sent("s", b"new", has_id=True)
    history.saw("a", "s", 0, 6, b"old")
    final["s", 0].append(b"new")
    assert rules(history, final) == {"two contents"}


def test_a_consumer_that_misses_a_record():
    history, final = sound()
    history.sightings = [each for each in history.sightings if each[1:5] != ("b", "s", 0, 4)]
    assert rules(history, final) == {"gap"}


def test_a_consumer_that_steps_back():
    history, final = sound()
    history.saw("a", "s", 0, 2, b"m2")
    assert rules(history, final) == {"step back"}


def test_a_consumer_that_begins_elsewhere():
    history, final = sound()
    history.started("b", "s", 0, 2)
    assert rules(history, final) == {"gap"}


def test_a_record_that_nobody_sent():
    history, final = sound()
    final["s", 0].append(b"out of the blue")
    assert rules(history, final) == {"unknown content"}


def test_a_record_of_another_stream():
    history, final = sound()
    final["t", 0] = [b"m1"]
    assert "unknown content" in rules(history, final)


@pytest.mark.parametrize("seed", range(20))
def test_one_planted_loss_among_many(seed):
    chance = random.Random(seed)
    history, final = sound(500)
    history.sightings.clear()
    history.sent("s", b"in its place", has_id=True)
    final["s", 0][chance.randrange(500)] = b"in its place"
    assert rules(history, final) == {"lost"}


def test_the_report_shows_what_happened_around_the_first_violation(tmp_path):
    history, final = sound()
    history.happened("node-1 is killed")
    final["s", 0][2] = b"m3"
    log = tmp_path / "node.log"
    noticed = datetime.fromtimestamp(history.now()).astimezone()
    log.write_text(
        f"{noticed:%Y-%m-%d %H:%M:%S},123 INFO    elected\n  a second line\n2020-01-01 00:00:00,000 INFO    long ago\n"
    )
    text = report(history, check(history, final), {"node-2": log})
    assert "the first: lost: b'm2' of s was acknowledged at [0]@2 and is nowhere" in text
    assert "b'm2' is sent" in text
    assert "b'm2' is acknowledged at Place(partition=0, offset=2, epoch=1)" in text
    assert "== node-1 is killed" in text
    assert "node-2: INFO    elected" in text
    assert "a second line" in text
    assert "long ago" not in text
