"""A mark stands among the messages where NATS has it, however chunks end."""

from __future__ import annotations

from random import Random

import pytest

from liftpy_server.ingest.marks import MARK_SUBJECT, Marks
from support.nats_frames import encode_all, msg
from support.server_kit import Kit

MARK = MARK_SUBJECT.encode()


@pytest.fixture
def kit(tmp_path):
    kit = Kit(tmp_path)
    kit.ingest.marks = kit.ingest.bindings[9] = Marks()
    yield kit
    kit.close()


def expect(kit):
    """The end of the log at each mark, by its token."""
    ends = []
    kit.ingest.marks.expect("change", lambda token: ends.append((token, kit.log.log_end)))
    return ends


@pytest.mark.parametrize("seed", range(40))
def test_a_mark_comes_behind_all_before_it_and_before_all_behind_it(kit, seed):
    rng = Random(seed)
    ends, frames, expected = expect(kit), [], []
    for number in range(rng.randint(1, 200)):
        if rng.random() < 0.05:
            expected.append((str(number), len(frames) - len(expected)))
            frames.append(msg(MARK, b"change %d" % number, sid=9))
        else:
            value = rng.choice([b"v", b"x" * 100, b"MSG LIFT.NODE.MARK 9 5\r\nfalse\r\n"])
            frames.append(msg(b"orders.x", value))
    data = encode_all(frames)
    while data:
        size = rng.randint(1, len(data) if rng.random() < 0.5 else 40)
        kit.ingest.receive(data[:size])
        data = data[size:]
    assert ends == expected
    assert len(kit.stored()) == len(frames) - len(expected)


def test_marks_that_nobody_expects_are_passed_over(kit):
    ends = expect(kit)
    kit.ingest.marks.forget("change")
    kit.receive(msg(b"orders.x", b"a"), msg(MARK, b"change 1", sid=9), msg(MARK, b"", sid=9), msg(b"orders.x", b"b"))
    assert ends == []
    assert kit.stored() == [b"a", b"b"]


def test_marks_of_another_name_and_tokens_that_are_no_text_do_no_harm(kit):
    ends = expect(kit)
    kit.receive(msg(MARK, b"other 1", sid=9), msg(MARK, b"change \xff", sid=9))
    assert ends == [("\ufffd", 0)]
