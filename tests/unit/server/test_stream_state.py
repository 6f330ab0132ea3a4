"""Gaps are told as they were: when nothing could be heard, and how many messages were refused without an answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import AckErrorCode
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.limits import GAPS_KEPT_MAX, LOG_REPEAT_S
from liftpy_server.metadata.state import StreamInfo
from liftpy_server.stream_state import Gap, StreamState
from support.examples import examples

SECOND = 10**9
START = 1_700_000_000 * SECOND
INFO = StreamInfo(uuid="0" * 32, config=StreamConfig(name="orders", subject="orders.>"), created_ns=0)


class Notes:
    """Keeps what a stream says of its gaps, every time it does."""

    def __init__(self):
        self.kept = []

    def __call__(self, stream):
        self.kept.append([replace(gap) for gap in stream.gaps])


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def stream(notes):
    return StreamState(INFO, notes)


def refuse(stream, at_s, code=AckErrorCode.PAUSED, *, answered=False):
    stream.count_refused(code, "why", answered=answered, now_ns=START + int(at_s * SECOND))


def shown(stream):
    return [
        (
            gap.cause,
            (gap.since_ns - START) / SECOND,
            None if gap.until_ns is None else (gap.until_ns - START) / SECOND,
            gap.messages,
        )
        for gap in stream.gaps
    ]


def test_gap_opens_and_closes(stream, notes):
    stream.open_gap(START, "the connection was lost")
    assert (shown(stream), stream.lapse_ongoing()) == ([("the connection was lost", 0, None, None)], True)
    stream.close_gap(START + 3 * SECOND)
    assert (shown(stream), stream.lapse_ongoing()) == ([("the connection was lost", 0, 3, None)], False)
    assert (stream.counters.gaps, len(notes.kept)) == (1, 2)


def test_gap_that_is_open_stays_the_same(stream, notes):
    stream.open_gap(START, "first")
    stream.open_gap(START + SECOND, "second")
    assert (shown(stream), stream.counters.gaps, len(notes.kept)) == ([("first", 0, None, None)], 1, 1)


def test_closing_what_is_not_open_does_nothing(stream, notes):
    stream.close_gap(START)
    stream.open_gap(START, "x")
    stream.close_gap(START + SECOND)
    stream.close_gap(START + 2 * SECOND)
    assert (shown(stream), len(notes.kept)) == ([("x", 0, 1, None)], 2)


def test_next_gap_is_another(stream):
    for start in (0, 10):
        stream.open_gap(START + start * SECOND, "x")
        stream.close_gap(START + (start + 1) * SECOND)
    assert shown(stream) == [("x", 0, 1, None), ("x", 10, 11, None)]


def test_answered_refusal_is_no_gap(stream, notes):
    refuse(stream, 0, answered=True)
    assert (shown(stream), dict(stream.counters.refused), notes.kept) == ([], {"paused": 1}, [])


def test_silent_refusals_are_one_gap_of_known_size(stream):
    for at in (0, 1, 2.5):
        refuse(stream, at)
    assert shown(stream) == [("paused", 0, 2.5, 3)]
    assert (dict(stream.counters.refused), stream.counters.gaps) == ({"paused": 3}, 1)


def test_silent_refusals_long_apart_are_two_gaps(stream):
    refuse(stream, 0)
    refuse(stream, LOG_REPEAT_S - 0.1)
    refuse(stream, 3 * LOG_REPEAT_S)
    assert shown(stream) == [("paused", 0, LOG_REPEAT_S - 0.1, 2), ("paused", 3 * LOG_REPEAT_S, 3 * LOG_REPEAT_S, 1)]


def test_causes_are_told_apart(stream):
    for at, code in ((0, AckErrorCode.PAUSED), (1, AckErrorCode.TOO_LARGE), (2, AckErrorCode.PAUSED)):
        refuse(stream, at, code)
    counts = Counter()
    for gap in stream.gaps:
        counts[gap.cause] += gap.messages
    assert counts == {"paused": 2, "too_large": 1}


def test_refusals_for_two_reasons_in_turn_do_not_push_other_gaps_out(stream):
    stream.open_gap(START, "the connection was lost")
    stream.close_gap(START + SECOND)
    for number in range(2 * GAPS_KEPT_MAX):
        refuse(stream, 2 + number / 1_000, (AckErrorCode.TOO_LARGE, AckErrorCode.MALFORMED)[number % 2])
    assert ("the connection was lost", 0, 1, None) in shown(stream)


def test_gap_that_is_open_closes_also_after_a_refusal(stream):
    """Messages of some subscriptions come, and are refused, while another one does not stand yet."""
    stream.open_gap(START, "the node was stopped")
    refuse(stream, 1)
    assert stream.lapse_ongoing()
    stream.close_gap(START + 2 * SECOND)
    assert {("the node was stopped", 0, 2, None), ("paused", 1, 1, 1)} == set(shown(stream))
    assert not stream.lapse_ongoing()


def test_gap_is_not_opened_twice_with_a_refusal_between(stream):
    stream.open_gap(START, "lost")
    refuse(stream, 1)
    stream.open_gap(START + 2 * SECOND, "lost")
    stream.close_gap(START + 3 * SECOND)
    assert [gap for gap in shown(stream) if gap[0] == "lost"] == [("lost", 0, 3, None)]


def test_every_new_gap_is_kept_at_once(stream, notes):
    for at, code in ((0, AckErrorCode.PAUSED), (1, AckErrorCode.TOO_LARGE), (2, AckErrorCode.PAUSED)):
        refuse(stream, at, code)
        assert [gap.cause for gap in stream.gaps] == [gap.cause for gap in notes.kept[-1]]


def test_refusals_do_not_write_a_file_each(stream, notes):
    for number in range(1_000):
        refuse(stream, number / 1_000)
    assert 1 <= len(notes.kept) <= 3


def test_growing_gap_is_kept_from_time_to_time(stream, notes):
    for number in range(41):
        refuse(stream, number)
    assert notes.kept[-1][-1].messages >= 40


def test_only_so_many_gaps_are_kept(stream):
    for number in range(GAPS_KEPT_MAX + 5):
        stream.open_gap(START + number, "x")
        stream.close_gap(START + number)
    assert (len(stream.gaps), stream.counters.gaps) == (GAPS_KEPT_MAX, GAPS_KEPT_MAX + 5)
    assert stream.gaps[0].since_ns == START + 5


def test_gap_that_lasts_is_never_pushed_out(stream):
    stream.open_gap(START, "lost")
    for number in range(2 * GAPS_KEPT_MAX):
        refuse(stream, number * 2 * LOG_REPEAT_S)
    assert len(stream.gaps) == GAPS_KEPT_MAX
    stream.close_gap(START + SECOND)
    assert shown(stream)[0] == ("lost", 0, 1, None)


def test_count_goes_on_when_its_gap_was_pushed_out(stream):
    refuse(stream, 0)
    for number in range(GAPS_KEPT_MAX):
        stream.open_gap(START + number, "x")
        stream.close_gap(START + number)
    refuse(stream, 1)
    assert shown(stream)[-1] == ("paused", 1, 1, 1)


def test_gaps_of_earlier_runs(notes):
    known = [
        Gap(since_ns=START, until_ns=START + SECOND, cause="a"),
        Gap(since_ns=START + 2 * SECOND, until_ns=None, cause="b"),
        Gap(since_ns=START + 3 * SECOND, until_ns=START + 4 * SECOND, cause="paused", messages=2),
    ]
    stream = StreamState(INFO, notes, known)
    assert (stream.lapse_ongoing(), stream.counters.gaps, notes.kept) == (True, 0, [])
    assert stream.whole_until_ns() == START + 4 * SECOND
    stream.open_gap(START + 8 * SECOND, "the node died")
    stream.close_gap(START + 9 * SECOND)
    assert shown(stream) == [("a", 0, 1, None), ("b", 2, 9, None), ("paused", 3, 4, 2)]


def test_nothing_known_of_when_it_listened(stream):
    assert stream.whole_until_ns() == 0


def test_last_refusals_are_kept_at_the_end(stream, notes):
    stream.keep_gaps()
    assert notes.kept == []
    for _ in range(5):
        refuse(stream, 0)
    stream.keep_gaps()
    assert notes.kept[-1][-1].messages == 5


def test_clock_that_went_back_makes_no_gap_of_negative_length(stream):
    stream.open_gap(START, "lost")
    stream.close_gap(START - SECOND)
    assert shown(stream) == [("lost", 0, 0, None)]


def test_settings_are_taken_over(stream):
    config = StreamConfig(name="orders", subject="orders.>", message_bytes_max=5)
    stream.update(replace(INFO, config=config, paused=True, read_only=True))
    assert (config, True, True, "orders") == (stream.config, stream.paused, stream.read_only, stream.name)


def test_gap_for_json():
    expected = {"since_ns": 1, "until_ns": None, "cause": "x", "messages": None}
    assert expected == Gap(since_ns=1, until_ns=None, cause="x").to_plain()


actions = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "refuse", "answered"]),
        st.sampled_from([AckErrorCode.PAUSED, AckErrorCode.TOO_LARGE]),
        st.integers(0, 15),
    ),
    max_size=25,
)


@given(actions)
@examples(150)
def test_silent_refusals_are_never_lost_or_counted_twice(given_actions):
    stream = StreamState(INFO, Notes())
    now = START
    silent = 0
    is_open = False
    for action, code, seconds in given_actions:
        now += seconds * SECOND
        if action == "open":
            stream.open_gap(now, "lost")
            is_open = True
        elif action == "close":
            stream.close_gap(now)
            is_open = False
        else:
            stream.count_refused(code, "why", answered=action == "answered", now_ns=now)
            silent += action == "refuse"
        assert is_open == stream.lapse_ongoing()
    assert silent == sum(gap.messages or 0 for gap in stream.gaps)
    assert len(stream.gaps) == stream.counters.gaps
