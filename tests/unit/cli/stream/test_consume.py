"""When `liftpy consume --idle` ends."""

from __future__ import annotations

from liftpy.cli.stream.consume import _of_member


class FakeMember:
    """A member of a group: for each request, the generation after it, and a message or None."""

    def __init__(self, *answers):
        self.generation = 0
        self._answers = list(answers)

    async def next(self, timeout_s):
        assert timeout_s == 5.0
        self.generation, message = self._answers.pop(0)
        return message


async def test_the_time_of_joining_and_of_a_rebalance_is_not_idle():
    member = FakeMember((0, None), (1, None), (1, "a"), (2, None), (2, "b"), (2, None), (2, "never"))
    assert [message async for messages in _of_member(member, 5.0) for message in messages] == ["a", "b"]
