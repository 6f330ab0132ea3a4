"""What two subscribers heard is told apart: everything is stored once, whatever the contents are."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from liftpy_server.handover.matching import stored_of_held

MARKS = 5


def deliver(rng, routed, late):
    """The order in which one subscriber hears what is routed: each publisher's messages keep theirs.

    A message can be overtaken by what others publish within the next `late` moments.
    """
    heard, after = [], {}
    for moment, (publisher, content) in enumerate(routed):
        at = max(moment + rng.randint(0, late), after.get(publisher, 0))
        after[publisher] = at
        heard.append((at, moment, publisher, content))
    return [(moment, publisher, content) for _, moment, publisher, content in sorted(heard)]


def segments_of(heard):
    segments = [[]]
    for moment, publisher, content in heard:
        if publisher == "mark":
            segments.append([])
        else:
            segments[-1].append((moment, publisher, content))
    return segments


def contents(segments):
    return [[content for _, _, content in segment] for segment in segments]


def hand_over(rng, content_of, late=0, publishers=3, length=400):
    """One handover. Returns the log after it and, by publisher, what was published, from what was stored before on."""
    began, ended = length // 4, 3 * length // 4
    marks = [began + 20 + (ended - began - 40) * n // (MARKS - 1) for n in range(MARKS)]
    sent = Counter()
    routed = []
    for moment in range(length):
        if moment in marks:
            routed.append(("mark", moment))
            continue
        publisher = rng.randrange(publishers)
        routed.append((publisher, content_of(rng, publisher, sent[publisher])))
        sent[publisher] += 1
    old = deliver(rng, routed, late)
    new = deliver(rng, routed, late)
    stored = segments_of([each for each in old if each[0] < ended])
    held = segments_of([each for each in new if each[0] >= began])
    both = stored_of_held(contents(stored), contents(held)[:-1])
    log = [(publisher, content) for segment in stored for _, publisher, content in segment]
    for segment in held:
        for _, publisher, content in segment:
            if both[content]:
                both[content] -= 1
            else:
                log.append((publisher, content))
    return log, [(publisher, content) for publisher, content in routed if publisher != "mark"]


def check_each_once(log, published):
    assert Counter(content for _, content in log) == Counter(content for _, content in published)


def check_in_order(log, published):
    for publisher in {publisher for publisher, _ in published}:
        assert [each for each in log if each[0] == publisher] == [each for each in published if each[0] == publisher]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("late", [0, 1, 8, 19])
def test_different_contents_are_stored_once_and_in_order_however_the_subscribers_hear_them(seed, late):
    log, published = hand_over(Random(seed), lambda _rng, publisher, number: (publisher, number), late)
    check_each_once(log, published)
    check_in_order(log, published)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("contents_of_each", [1, 2, 7])
def test_equal_contents_are_counted_by_the_marks(seed, contents_of_each):
    def content(_rng, _publisher, number):
        return number % contents_of_each

    check_each_once(*hand_over(Random(seed), content))


@pytest.mark.parametrize("seed", range(40))
def test_each_publishers_equal_contents_stay_in_order(seed):
    def content(_rng, publisher, number):
        return publisher, number % 3

    log, published = hand_over(Random(seed), content, late=6)
    by_publisher = [[content for _, (publisher, content) in each if publisher == 0] for each in (log, published)]
    # Those of equal content can not be told apart, and need not be.
    assert abs(len(by_publisher[0]) - len(by_publisher[1])) <= 6
    exact, all_published = hand_over(Random(seed), content)
    check_each_once(exact, all_published)
    check_in_order(exact, all_published)


def test_a_content_that_comes_again_after_a_while_is_another_message():
    """As a tick does: once before the next leader holds, and once after the old one has ceased to store."""
    assert stored_of_held([["tick"], [], []], [[], []]) == {}


def test_a_message_on_different_sides_of_marks_is_one():
    assert stored_of_held([["a"], [], []], [[], ["a"]]) == {"a": 1}
    assert stored_of_held([[], ["a"], []], [["a"], []]) == {"a": 1}
    assert stored_of_held([[], ["a"], []], [[], []]) == {"a": 1}


def test_what_is_stored_after_the_first_mark_is_held_and_what_is_held_before_the_last_is_stored():
    assert stored_of_held([[], ["tick"] * 2, []], [[], []]) == {"tick": 2}
    assert stored_of_held([["tick"] * 2, [], []], [[], ["tick"] * 2]) == {"tick": 2}


def test_nothing_is_taken_for_stored_that_is_not_in_the_log():
    assert stored_of_held([["a"], [], []], [["a", "a", "b"], ["a"]]) == {"a": 1}


def test_one_mark_that_a_message_overtakes_does_not_count():
    stored = [["tick"] * 3, ["tick"] * 5, ["tick"] * 5, ["tick"] * 5]
    held = [["tick"] * 2, ["tick"] * 6, ["tick"] * 4]  # one passed the second mark at one of the two
    assert stored_of_held(stored, held) == {"tick": 17}
