"""Waiting for what runs in the background loop: results, errors, and interrupts at the worst moment."""

from __future__ import annotations

import asyncio
import threading

import pytest

from liftpy_client.errors import DisconnectedError
from liftpy_client.sync.background import BackgroundLoop


@pytest.fixture
def background():
    loop = BackgroundLoop("test background")
    yield loop
    loop.close()


async def raising(error):
    raise error


def test_results_and_errors_reach_the_caller(background):
    assert background.run(asyncio.sleep(0, "slept")) == "slept"
    with pytest.raises(ValueError, match="of its own"):
        background.run(raising(ValueError("of its own")))
    assert background.call(lambda: 7) == 7


def test_a_closed_loop_runs_nothing():
    loop = BackgroundLoop("test background")
    loop.close()
    never = asyncio.sleep(0)
    with pytest.raises(DisconnectedError, match="is closed"):
        loop.run(never)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        never.send(None)


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_what_was_interrupted_while_it_was_scheduled_runs_no_more(background, monkeypatch, is_scheduled):
    """The generator is free again at once, so that whoever catches the interrupt can close it or go on."""

    async def endless():
        begun.set()
        try:
            while True:
                await asyncio.sleep(3_600)
                yield
        finally:
            left.append(True)

    left, begun = [], threading.Event()
    items = endless()
    schedule = background._loop.call_soon_threadsafe

    def interrupted(step):
        monkeypatch.undo()
        if is_scheduled:
            schedule(step)
            begun.wait(10)
        raise KeyboardInterrupt

    async def first():
        return await anext(items)

    monkeypatch.setattr(background._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.run(first())
    background.run(items.aclose())
    assert left == ([True] if is_scheduled else [])
