"""What moves is waited for, however long it takes; what stands still is not."""

from __future__ import annotations

import time

import pytest

from support import progress
from support.progress import until_through


@pytest.fixture
def clock(monkeypatch):
    """Every look takes a second."""
    now_s = [0.0]

    async def sleep(_seconds):
        now_s[0] += 1.0

    monkeypatch.setattr(progress.asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    return now_s


def looks(*found):
    rest = iter(found)

    async def look():
        return next(rest)

    return look


async def test_what_moves_is_waited_for(clock):
    await until_through(looks(*(number // 2 for number in range(100)), None), 3.0, "it stalls")
    assert clock[0] == 100.0


async def test_what_is_through_is_not_waited_for(clock):
    await until_through(looks(None), 3.0, "it stalls")
    assert clock[0] == 0.0


async def test_what_stands_still_is_given_up(clock):
    with pytest.raises(AssertionError, match="the bucket gets no more: for 3 s it stays at 7"):
        await until_through(looks(5, 6, *[7] * 10), 3.0, "the bucket gets no more")
    assert clock[0] == 5.0
