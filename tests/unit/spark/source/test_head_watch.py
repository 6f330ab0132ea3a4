"""Looking again and again at where streams end."""

from __future__ import annotations

import pytest

from liftpy_client.errors import AdminError
from liftpy_envelope.errors import ErrorCode
from liftpy_spark.errors import NatsError
from liftpy_spark.source.head_watch import HeadWatch


class Time:
    def __init__(self):
        self.now_s = 0.0
        self.pauses = []

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.pauses.append(seconds)
        self.now_s += seconds


def watch(answers, time=None):
    """Answers one after the other, the last one for ever; errors are raised."""
    left = list(answers)

    def ask():
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    time = time or Time()
    return HeadWatch(ask, clock=time, sleep=time.sleep), time


def test_it_waits_until_it_is_enough():
    looking, time = watch([["a"], ["a"], ["a", "b"]])
    assert looking.look_until(lambda heads: len(heads) == 2, 10.0) == looking.seen == ["a", "b"]
    assert time.pauses == [0.05, 0.1]


def test_it_waits_no_longer_than_it_should_and_asks_four_times_a_second():
    looking, time = watch([["a"]])
    assert looking.look_until(lambda heads: False, 2.0) == ["a"]
    assert time.now_s == pytest.approx(2.0)
    assert len(time.pauses) <= 11
    looking.look_until(lambda heads: False, 0.5)
    assert time.pauses[-2:] == [0.25, pytest.approx(0.25)], "it goes on as slowly where the last wait ended"
    looking.look_until(lambda heads: True, 0.5)
    looking.look_until(lambda heads: False, 0.05)
    assert time.pauses[-1] == pytest.approx(0.05), "and is quick again once there was something"
    looking, time = watch([["a"]])
    assert looking.look_until(lambda heads: False, 0.0) == ["a"]
    assert time.pauses == []


@pytest.mark.parametrize("error", [NatsError("nobody answers"), AdminError(ErrorCode.NOT_AVAILABLE, "a moment")])
def test_what_passes_is_waited_for(error):
    looking, _ = watch([["a"], error, error, ["b"]])
    assert looking.look() == ["a"]
    assert looking.look() == ["b"]


def test_what_does_not_pass_is_said_after_a_minute():
    looking, time = watch([["a"], NatsError("nobody answers")])
    looking.look()
    with pytest.raises(NatsError, match="nobody answers; it has been so for 60 s"):
        looking.look()
    assert 60 <= time.now_s < 61


def test_what_can_not_pass_is_said_at_once():
    looking, time = watch([["a"], AdminError(ErrorCode.INVALID_REQUEST, "what?")])
    looking.look()
    with pytest.raises(AdminError, match="what"):
        looking.look()
    assert time.now_s == 0


def test_at_the_first_look_nothing_is_waited_for():
    looking, time = watch([NatsError("nobody answers"), ["a"]])
    with pytest.raises(NatsError, match="nobody"):
        looking.look()
    assert time.now_s == 0
