"""Gaps are told as they were: when nothing could be heard, and how many messages were refused without an answer."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.gaps.gap import GAPS_KEPT_MAX, Gap
from liftpy_server.gaps.partition_gaps import PartitionGaps
from liftpy_server.partition.stream_state import StreamCounters
from liftpy_server.settings.limits import LOG_REPEAT_S
from support.examples import examples
from support.gap_notes import GapNotes
from support.server_kit import NOW_NS, SetClock

SECOND = 10**9


class Node:
    """One partition's gaps, and the clock and the keeper of its node."""

    def __init__(self, created_ns=0):
        self.clock, self.notes, self.counters = SetClock(), GapNotes(), StreamCounters()
        self.gaps = PartitionGaps("0" * 32, "orders", 0, self.clock, self.notes, self.counters, created_ns)

    @property
    def now_s(self):
        return self.clock.elapsed()

    def refuse(self, reason="paused"):
        self.gaps.count_refused(reason, "why")

    def shown(self):
        """Cause, begin, end and count of what is not recorded, in seconds since the test began."""
        return [
            (
                gap.cause,
                (gap.since_ns - NOW_NS) / SECOND,
                None if gap.until_ns is None else (gap.until_ns - NOW_NS) / SECOND,
                gap.messages,
            )
            for gap in self.gaps.unrecorded()
        ]

    def record(self):
        known = self.gaps.unrecorded()
        self.gaps.were_recorded(known)
        return known


@pytest.fixture
def node():
    return Node()


def test_gap_opens_and_closes(node):
    node.gaps.open(node.now_s, "lost")
    assert (node.shown(), node.gaps.cause) == ([("lost", 0, None, None)], "lost")
    node.clock.advance(3)
    node.gaps.close()
    assert (node.shown(), node.gaps.cause) == ([("lost", 0, 3, None)], None)
    assert (node.counters.gaps, node.notes.asked) == (1, [(0, 0.0), (0, 0.0)])


@pytest.mark.parametrize(("created_s", "since"), [(-60, -30), (-10, -10), (5, 0)])
def test_gap_begins_when_the_stream_was_there_at_the_earliest(created_s, since):
    """By the clock of the node that created it, which may be ahead."""
    node = Node(NOW_NS + created_s * SECOND)
    node.gaps.open(node.now_s - 30, "a route was lost")
    node.gaps.close()
    assert node.shown() == [("a route was lost", since, 0, None)]


def test_gap_that_lasts_begins_with_the_earliest_loss(node):
    """A second cause that reaches further back makes it longer, a later one does not make it shorter."""
    for ago_s, cause in ((2, "first"), (1, "later"), (5, "earlier")):
        node.gaps.open(node.now_s - ago_s, cause)
    node.gaps.close()
    assert (node.shown(), node.counters.gaps) == ([("first", -5, 0, None)], 1)


def test_closing_what_is_not_open_does_nothing(node):
    node.gaps.close()
    assert (node.shown(), node.notes.asked) == ([], [])


def test_clock_that_went_back_leaves_a_gap_its_length(node):
    node.gaps.open(node.now_s, "lost")
    node.clock.advance(4)
    node.clock.ns -= 3_600 * SECOND
    node.gaps.close()
    assert node.shown() == [("lost", -3_600, -3_596, None)]


def test_clock_that_went_back_behind_the_streams_creation_leaves_a_gap_its_length():
    node = Node(NOW_NS - 60 * SECOND)
    node.gaps.open(node.now_s - 2, "lost")
    node.clock.advance(4)
    node.clock.ns -= 3_600 * SECOND
    node.gaps.close()
    node.gaps.open(node.now_s - 90, "a route was lost")
    node.gaps.close()
    back = 4 - 3_600
    assert node.shown() == [("lost", back - 6, back, None), ("a route was lost", back - 64, back, None)]


def test_clock_that_leapt_leaves_no_time_out(node):
    node.gaps.open(node.now_s, "lost")
    node.clock.advance(4)
    node.clock.ns += 3_600 * SECOND
    node.gaps.close()
    assert node.shown() == [("lost", 0, 3_604, None)]


def test_messages_that_were_read_and_lost_are_a_gap_until_the_next_answer(node):
    heard_s = node.now_s
    node.clock.advance(2)
    for _ in range(100):
        node.gaps.missed(heard_s, "an error")
    asked_s = node.now_s
    node.gaps.heard(asked_s)
    assert node.shown() == [("an error", 0, None, None)], "asked before the last of them, maybe"
    node.clock.advance(1)
    node.gaps.heard(node.now_s)
    assert (node.shown(), node.gaps.cause) == ([("an error", 0, 3, None)], None)


def test_messages_that_are_lost_while_nothing_is_heard_are_part_of_that_gap(node):
    node.gaps.open(node.now_s, "lost")
    node.gaps.missed(node.now_s - 1, "an error")
    node.clock.advance(1)
    node.gaps.heard(node.now_s)
    assert node.shown() == [("lost", -1, None, None)], "an answer says nothing of the subscription"


def test_messages_that_are_lost_before_any_answer(node):
    node.gaps.close()
    node.clock.advance(1)
    node.gaps.missed(None, "an error")
    assert node.shown() == [("an error", 0, None, None)]


def test_messages_that_are_lost_before_any_answer_were_published_since_the_last_gap_maybe(node):
    node.gaps.open(node.now_s - 1, "lost")
    node.gaps.close()
    for _ in range(2):
        node.clock.advance(1)
        node.gaps.close()  # as its subscription is confirmed once more
    node.gaps.missed(None, "an error")
    assert node.shown() == [("lost", -1, 0, None), ("an error", 0, None, None)]


def test_a_connection_that_is_lost_meanwhile_ends_no_gap_early(node):
    node.gaps.missed(node.now_s, "an error")
    node.gaps.open(node.now_s, "the connection was lost")
    node.clock.advance(1)
    node.gaps.heard(node.now_s)
    assert node.gaps.cause == "an error", "nobody listens until the subscription is confirmed"


def test_silent_refusals_are_one_gap_of_known_size(node):
    for _ in range(3):
        node.refuse()
        node.clock.advance(1)
    assert node.shown() == [("paused", 0, 2, 3)]
    assert node.counters.gaps == 1


def test_silent_refusals_long_apart_are_two_gaps(node):
    node.refuse()
    node.clock.advance(LOG_REPEAT_S - 1)
    node.refuse()
    node.clock.advance(LOG_REPEAT_S)
    node.refuse()
    again = 2 * LOG_REPEAT_S - 1
    assert node.shown() == [("paused", 0, LOG_REPEAT_S - 1, 2), ("paused", again, again, 1)]


def test_causes_are_told_apart(node):
    for reason in ("paused", "too_large", "paused"):
        node.refuse(reason)
    assert Counter({cause: count for cause, _, _, count in node.shown()}) == {"paused": 2, "too_large": 1}


def test_a_growing_count_is_told_from_time_to_time(node):
    for _ in range(1_000):
        node.refuse()
    assert node.notes.asked == [(0, 0.0)], "and what came meanwhile is told with it"
    node.record()
    for _ in range(1_000):
        node.refuse()
    assert node.notes.asked == [(0, 0.0), (0, LOG_REPEAT_S)]
    assert node.shown() == [("paused", 0, 0, 2_000)]


def test_refusals_when_the_clock_went_back(node):
    node.refuse()
    node.record()
    node.clock.ns -= 60 * SECOND
    node.refuse()
    assert node.shown() == [("paused", -60, -60, 2)]


def test_nothing_is_certain_before_all_is_recorded(node):
    assert node.gaps.are_recorded
    node.gaps.open(node.now_s, "lost")
    node.record()
    assert not node.gaps.are_recorded, "it lasts"
    node.gaps.close()
    assert not node.gaps.are_recorded
    node.record()
    assert node.gaps.are_recorded
    node.refuse()
    assert not node.gaps.are_recorded
    node.record()
    assert node.gaps.are_recorded


def test_what_changed_while_it_was_recorded_is_recorded_again(node):
    node.gaps.open(node.now_s, "lost")
    known = node.gaps.unrecorded()
    node.clock.advance(1)
    node.gaps.close()
    node.gaps.were_recorded(known)
    assert node.shown() == [("lost", 0, 1, None)]


def test_a_metadata_outage_is_no_leak(node):
    for _ in range(3 * GAPS_KEPT_MAX):
        node.gaps.open(node.now_s, "lost")
        node.clock.advance(1)
        node.gaps.close()
    assert len(node.shown()) == GAPS_KEPT_MAX
    assert node.shown()[0][1:3] == (0, 2 * GAPS_KEPT_MAX + 1)


LASTS = Gap(id="n1.1.1", version=3, since_ns=NOW_NS - 5 * SECOND, until_ns=None, cause="the NATS connection was lost")


def test_a_successor_goes_on_with_the_gap_that_lasts(node):
    node.gaps.take_over([LASTS], node.now_s - 1, "another led")
    assert (node.gaps.cause, node.shown()) == (LASTS.cause, [])
    node.clock.advance(2)
    node.gaps.close()
    (gap,) = node.gaps.unrecorded()
    assert (gap.id, gap.version, gap.since_ns, gap.until_ns) == ("n1.1.1", 4, LASTS.since_ns, NOW_NS + 2 * SECOND)
    assert node.counters.gaps == 0


def test_a_gap_that_lasts_reaches_back_as_far_as_its_successor_lacks_messages(node):
    node.gaps.take_over([LASTS], node.now_s - 9, "another led")
    node.gaps.close()
    assert node.shown() == [(LASTS.cause, -9, 0, None)]


AHEAD = Gap(id="n1.1.1", version=3, since_ns=NOW_NS + 60 * SECOND, until_ns=None, cause="a route was lost")


def test_a_gap_of_a_node_whose_clock_is_ahead_keeps_its_begin_and_lasts(node):
    """By this node's clock it begins in the future; a gap from now until now would tell of nothing."""
    node.gaps.take_over([AHEAD], None, "another led")
    assert node.gaps.cause == AHEAD.cause
    node.clock.advance(2)
    node.clock.ns -= 10 * SECOND
    node.gaps.open(node.now_s - 5, "lost here")
    node.gaps.close()
    assert node.shown() == [("lost here", -13, -8, None), (AHEAD.cause, 60, 62, None)]


def test_a_gap_of_a_node_whose_clock_is_ahead_that_is_told_late_keeps_its_begin(node):
    node.gaps.take_over([], None, "another led")
    node.clock.advance(2)
    node.gaps.recorded_elsewhere([AHEAD])
    assert node.shown() == [(AHEAD.cause, 60, 60, None)]


def test_a_gap_that_is_told_late_ends_with_that_of_the_successor(node):
    node.gaps.take_over([], node.now_s - 1, "another led")
    node.gaps.recorded_elsewhere([LASTS])
    node.clock.advance(2)
    node.gaps.close()
    assert node.shown() == [("another led", -1, 2, None), (LASTS.cause, -5, 2, None)]


def test_a_gap_that_is_told_when_the_successor_listens_ends_when_it_began_to(node):
    node.gaps.take_over([], node.now_s - 1, "another led")
    node.clock.advance(2)
    node.gaps.close()
    node.record()
    node.clock.advance(60)
    node.gaps.recorded_elsewhere([LASTS])
    assert node.shown() == [(LASTS.cause, -5, 2, None)]
    node.record()
    node.gaps.recorded_elsewhere([Gap(id="over", since_ns=1, until_ns=2, cause="x")])
    assert node.gaps.are_recorded


def test_a_gap_of_the_leader_before_that_handed_over_ends_when_this_one_leads(node):
    """It listened before that, and held what the other one stored; not what the other one missed."""
    node.gaps.close()
    node.clock.advance(2)
    node.gaps.take_over([], None, "another led")
    node.clock.advance(1)
    node.gaps.recorded_elsewhere([LASTS])
    assert node.shown() == [(LASTS.cause, -5, 2, None)]


def test_a_gap_that_lasts_here_goes_on_when_the_leader_before_tells_late_that_it_ended_it(node):
    node.gaps.take_over([LASTS], node.now_s - 3, "another led")
    over = Gap(id=LASTS.id, version=5, since_ns=LASTS.since_ns, until_ns=NOW_NS - 2 * SECOND, cause=LASTS.cause)
    node.clock.advance(4)
    for _ in range(2):
        node.gaps.recorded_elsewhere([over])
    assert node.shown() == [(LASTS.cause, -2, None, None)]
    node.clock.advance(1)
    node.gaps.close()
    assert node.shown() == [(LASTS.cause, -2, 5, None)]
    (gap,) = node.gaps.unrecorded()
    assert gap.id != LASTS.id


def test_its_own_gap_is_not_taken_for_anothers(node):
    node.gaps.open(node.now_s, "lost")
    known = node.record()
    node.gaps.recorded_elsewhere(known)
    node.clock.advance(1)
    node.gaps.close()
    node.gaps.recorded_elsewhere(known)
    assert node.shown() == [("lost", 0, 1, None)]


def test_who_leads_no_longer_leaves_what_lasts_to_the_next(node):
    node.gaps.open(node.now_s, "lost")
    node.refuse()
    node.gaps.leave()
    node.clock.advance(5)
    node.gaps.close()
    assert node.shown() == [("lost", 0, None, None), ("paused", 0, 0, 1)]


def test_who_leads_again_goes_on_with_its_own_gap(node):
    node.gaps.open(node.now_s, "lost")
    node.gaps.take_over(node.gaps.unrecorded(), node.now_s, "another led")
    node.gaps.close()
    assert [cause for cause, *_ in node.shown()] == ["lost"]


def test_who_leads_again_begins_a_gap_anew_when_the_metadata_have_not_heard_that_its_last_one_is_over(node):
    node.gaps.open(node.now_s, "lost")
    recorded = node.record()
    node.clock.advance(1)
    node.gaps.close()
    node.gaps.leave()
    node.clock.advance(5)
    node.gaps.take_over(recorded, node.now_s - 1, "another led")
    node.clock.advance(1)
    node.gaps.close()
    assert node.shown() == [("lost", 0, 1, None), ("another led", 5, 7, None)]


def test_what_is_known_only_when_another_leads_is_a_gap_until_then_and_not_twice(node):
    node.clock.advance(10)
    node.gaps.take_over([], None, "another led")
    node.clock.advance(5)
    node.gaps.leave()
    node.clock.advance(60)
    node.gaps.leave(was_leading=False)  # it follows yet another leader
    assert node.gaps.missed_before(node.now_s - 62, "a route was lost")
    assert node.gaps.missed_before(node.now_s - 90, "a route was lost"), "as it is silent and not down"
    assert not node.gaps.missed_before(node.now_s - 90, "a route was lost")
    assert node.shown() == [("a route was lost", 13, 15, None), ("a route was lost", 10, 13, None)]
    assert node.gaps.cause is None


def test_what_another_node_missed_is_not_told(node):
    node.gaps.leave(was_leading=False)
    assert not node.gaps.missed_before(node.now_s - 90, "a route was lost")
    node.clock.advance(1)
    node.gaps.take_over([], None, "another led")
    node.gaps.leave()
    node.clock.advance(1)
    assert not node.gaps.missed_before(node.now_s - 0.5, "a route was lost")
    assert node.shown() == []


actions = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "refuse", "record", "step"]),
        st.sampled_from(["paused", "too_large"]),
        st.integers(-15, 15),
    ),
    max_size=25,
)


@given(actions)
@examples(200)
def test_whatever_happens_gaps_are_ordered_cover_the_loss_and_count_once(given_actions):
    node = Node()
    recorded = {}
    silent = 0
    for action, reason, seconds in given_actions:
        node.clock.advance(abs(seconds))
        if action == "open":
            node.gaps.open(node.now_s - abs(seconds), "lost")
        elif action == "close":
            node.gaps.close()
        elif action == "refuse":
            node.refuse(reason)
            silent += 1
        elif action == "step":
            node.clock.ns += seconds * 60 * SECOND
        else:
            recorded |= {gap.id: gap for gap in node.record()}
            assert not node.gaps.unrecorded()
        for gap in node.gaps.unrecorded():
            assert gap.since_ns <= (gap.until_ns if gap.until_ns is not None else gap.since_ns)
            assert gap.id not in recorded or recorded[gap.id].version < gap.version
    known = recorded | {gap.id: gap for gap in node.gaps.unrecorded()}
    assert silent == sum(gap.messages or 0 for gap in known.values())
    assert len(known) == node.counters.gaps
