"""Waiting for what runs in the background loop: results, errors, and interrupts at the worst moment."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from random import Random

import pytest

from liftpy_client.consumer.consumer import ConsumeOptions, Consumer
from liftpy_client.consumer.prefetch import PrefetchBuffer
from liftpy_client.errors import DisconnectedError, UsageError
from liftpy_client.sync.background import BackgroundLoop, Facade, _Call
from liftpy_client.sync.client import _processing
from liftpy_client.sync.consumer import SyncConsumer
from liftpy_envelope.errors import LiftError
from support.fake_log import FakeLogs


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


def test_threads_that_call_while_the_loop_is_closed_end_with_an_error_of_the_client():
    """At any moment of the close: before it, amid it, and after it."""
    for _ in range(30):
        loop = BackgroundLoop("test background")
        errors, begun = [], threading.Barrier(5)

        def work(loop=loop, errors=errors, begun=begun):
            begun.wait()
            try:
                while True:
                    loop.run(asyncio.sleep(0.001))
            except BaseException as failure:
                errors.append(failure)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        loop.close()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
        assert [type(error) for error in errors] == [DisconnectedError] * 4


def test_what_runs_when_the_loop_is_closed_ends_with_an_error_of_the_client(background):
    waiting = threading.Event()
    errors = []

    async def wait():
        waiting.set()
        await asyncio.sleep(3_600)

    def work():
        try:
            background.run(wait())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert waiting.wait(10)
    background.close()
    thread.join(10)
    assert [type(error) for error in errors] == [DisconnectedError]


def test_after_a_fork_a_call_raises(background):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            background.run(asyncio.sleep(0))
        except UsageError as error:
            background.close()
            background.end(lambda: asyncio.sleep(0))
            code = 0 if "before a fork" in str(error) else 2
        finally:
            os._exit(code)
    for _ in range(1_000):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found, "it hangs"
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("of_connection", [False, True])
def test_one_thread_iterates_and_another_closes(background, of_connection):
    logs = background.call(lambda: FakeLogs(s=[20]))
    consumer = background.call(lambda: Consumer(logs, ["s"], "earliest", None, None, ConsumeOptions(wait_ms=50)))
    messages = SyncConsumer(background, consumer)
    found, errors, read = [], [], threading.Event()

    def iterate():
        try:
            for message in messages:
                found.append(message.offset)
                if message.offset == 19:
                    read.set()
        except LiftError as error:
            errors.append(error)

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    assert read.wait(10)
    (background if of_connection else messages).close()
    thread.join(10)
    assert not thread.is_alive()
    assert found == list(range(20))


def test_polls_with_a_time_limit_of_a_thread(background):
    logs = background.call(lambda: FakeLogs(s=[3]))
    consumer = background.call(lambda: Consumer(logs, ["s"], "earliest", None, None, ConsumeOptions(wait_ms=50)))
    messages = SyncConsumer(background, consumer)
    assert [message.offset for message in messages.next_batch(2, 5.0)] == [0, 1]
    assert messages.poll(5.0).offset == 2
    assert messages.poll(0.01) is None
    background.call(lambda: logs.grow("s", 0, 1))
    for _ in range(2):  # the loop was left
        for message in messages:
            assert message.offset == 3
            break
    assert messages.next(5.0).offset == 3
    messages.close()


@pytest.mark.parametrize("is_ready", [True, False])
def test_what_came_for_a_poll_that_ctrl_c_interrupted_comes_again(background, monkeypatch, is_ready):
    logs = background.call(lambda: FakeLogs(s=[2 if is_ready else 1]))
    consumer = background.call(lambda: Consumer(logs, ["s"], "earliest", None, None, ConsumeOptions(wait_ms=50)))
    messages = SyncConsumer(background, consumer)
    assert messages.poll(5.0).offset == 0
    with monkeypatch.context() as patch:

        def interrupted(call):
            if is_ready:
                original(call)  # the message is there, but not returned
            else:
                assert waiting.wait(10)
            raise KeyboardInterrupt

        original, take, waiting = _Call.result, PrefetchBuffer.take, threading.Event()

        async def taking(buffer):
            waiting.set()
            return await take(buffer)

        patch.setattr(PrefetchBuffer, "take", taking)
        patch.setattr(_Call, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            messages.poll(5.0)
    if not is_ready:
        background.call(lambda: logs.grow("s", 0, 1))
    assert [messages.poll(5.0).offset, messages.poll(0.01)] == [1, None]
    messages.close()


@pytest.mark.parametrize("has_own_stop", [False, True])
def test_a_signal_stops_a_process_also_with_a_stop_of_the_caller(background, has_own_stop):
    stop = background.call(asyncio.Event) if has_own_stop else None

    async def process(_lift, *, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await stop.wait()

    _processing(process)(Facade(background, None), stop=stop)
    assert stop is None or stop.is_set()


def test_no_lock_is_taken_by_who_waits_that_an_interrupt_could_leave_taken(background, monkeypatch):
    """An interrupt right after a condition took its lock leaves it taken, and the loop would wait for it for ever."""
    entered, enter = [], threading.Condition.__enter__

    def entering(condition):
        entered.append(threading.current_thread())
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", entering)
    assert background.run(asyncio.sleep(0.01, "result")) == "result"
    with pytest.raises(ZeroDivisionError):
        background.call(lambda: 1 // 0)
    assert threading.main_thread() not in entered


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before the call
# Python itself swallows an interrupt that comes while it calls back for a weak reference, and warns.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_of_the_waiting(background):
    """Also while the waiting begins, or ends: what comes out is the interrupt or the result, never something else."""
    random, seen = Random(5), Counter()

    async def work():
        await asyncio.sleep(random.random() * 4e-4)
        return "result"

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(1_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + random.random() * 3e-3)
                seen[background.run(work())] += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                seen["interrupt"] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert min(seen["interrupt"], seen["result"]) > 50
