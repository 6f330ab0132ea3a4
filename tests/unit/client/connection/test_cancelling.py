"""Cancellations reach whom they are meant for, whatever a library does with them."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_client.connection.cancelling import KeptCancellation, end_tasks


async def swallowing(pause_s=30.0):
    try:
        await asyncio.sleep(pause_s)
    except asyncio.CancelledError:
        return "as if nothing had been"


async def failing():
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise ValueError("as if it were an error") from None


async def kept(work):
    with KeptCancellation():
        return await work


@pytest.mark.parametrize("work", [swallowing, failing])
async def test_a_swallowed_cancellation_is_raised(work):
    task = asyncio.create_task(kept(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_swallowed_timeout_is_one():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await kept(swallowing())
    assert await kept(swallowing(0.0)) is None
    assert not asyncio.current_task().cancelling()


async def test_an_inner_timeout_is_not_the_callers_cancellation():
    async def timed_out():
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "in time"

    assert await kept(timed_out()) == "in time"


async def test_results_and_errors_pass():
    async def wrong():
        raise ValueError("of its own")

    assert await kept(asyncio.sleep(0, "slept")) == "slept"
    with pytest.raises(ValueError, match="of its own"):
        await kept(wrong())


async def test_who_swallows_one_cancellation_is_ended_by_the_next(monkeypatch):
    monkeypatch.setattr("liftpy_client.connection.cancelling._AGAIN_S", 0.01)

    async def stubborn():
        await swallowing()
        await swallowing()
        await asyncio.sleep(30)

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(30))]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await end_tasks(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_who_never_ends_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr("liftpy_client.connection.cancelling._AGAIN_S", 0.01)
    is_over = False

    async def endless():
        while not is_over:
            await swallowing(0.02)

    task = asyncio.create_task(endless())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await end_tasks([task], within_s=0.05)
    assert "did not end" in caplog.text
    is_over = True
    await task
