"""A worker process: calls side by side, errors with their codes, and what happens when it dies, hangs or is closed."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from liftpy_server.tier.requests import UploadedObject
from liftpy_server.tier.worker import process as process_module
from liftpy_server.tier.worker.process import TierWorker, TierWorkError
from support.cluster import eventually
from support.plain_worker import Told

SETTINGS = {"url": "s3://bucket/prefix", "upload_memory_bytes": 1}


@pytest.fixture
async def worker(monkeypatch):
    monkeypatch.setattr(process_module, "_MODULE", "support.tier_child")
    made = TierWorker(SETTINGS, "upload", silence_max_s=20)
    yield made
    await made.close()


async def failure(call):
    with pytest.raises(TierWorkError) as caught:
        await call
    return caught.value


async def test_nothing_runs_before_the_first_call_nor_after_closing(worker):
    children = psutil.Process().children()
    assert worker._running is None
    pid = (await worker.call(Told("echo")))["pid"]
    assert psutil.pid_exists(pid)
    await worker.close()
    assert psutil.Process().children() == children
    assert (await worker.call(Told("echo")))["pid"] != pid


@pytest.mark.parametrize(
    ("name", "own", "found"), [("upload", None, "60000"), ("upload", "7", "7"), ("read", None, None)]
)
async def test_memory_of_arrow_goes_back_after_each_upload_unless_the_environment_says_otherwise(
    monkeypatch, name, own, found
):
    monkeypatch.setattr(process_module, "_MODULE", "support.tier_child")
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    if own is not None:
        monkeypatch.setenv("MIMALLOC_PURGE_DELAY", own)
    worker = TierWorker(SETTINGS, name)
    try:
        pid = (await worker.call(Told("echo")))["pid"]
        assert psutil.Process(pid).environ().get("MIMALLOC_PURGE_DELAY") == found
    finally:
        await worker.close()


async def test_settings_and_arguments_arrive(worker):
    assert await worker.call(Told("settings")) == SETTINGS
    arguments = {"path": "/d\xe4ta/\udcff/2.log", "slices": [{"position": 2**40}], "nothing": None}
    answer = await worker.call(Told("echo", **arguments))
    assert {name: answer[name] for name in arguments} == arguments


async def test_parts_of_a_job_are_told_in_their_order_before_its_result(worker):
    told = []
    assert await worker.call(Told("in_parts", ends=[3, 5, 9]), told.append) == {}
    assert told == [UploadedObject(end=end, bytes=2, stored_bytes=1) for end in (3, 5, 9)]
    assert await worker.call(Told("in_parts", ends=[3])) == {}, "who does not ask is not told"


async def test_an_error_has_its_code(worker):
    error = await failure(worker.call(Told("overtaken")))
    assert (error.code, error.retriable, str(error)) == ("overtaken", True, "another one was faster")
    error = await failure(worker.call(Told("broken")))
    assert (error.code, error.retriable) == ("internal", False)
    assert "KeyError: 'nothing'" in error.message
    assert (await failure(worker.call(Told("unspeakable")))).code == "internal"
    assert (await failure(worker.call(Told("no such job")))).code == "internal"


async def test_a_worker_that_dies_fails_its_calls_and_is_started_again(worker):
    pid = (await worker.call(Told("echo")))["pid"]
    others = [asyncio.create_task(failure(worker.call(Told("silent", seconds=60)))) for _ in range(2)]
    await eventually(lambda: len(worker._running._calls) == 2)
    errors = [await failure(worker.call(Told("die"))), *await asyncio.gather(*others)]
    assert {(error.code, error.retriable) for error in errors} == {("unavailable", True)}
    assert (await worker.call(Told("echo")))["pid"] != pid


async def test_a_worker_that_is_killed_between_calls_is_started_again(worker):
    pid = (await worker.call(Told("echo")))["pid"]
    os.kill(pid, signal.SIGKILL)
    errors = await asyncio.gather(*[worker.call(Told("echo")) for _ in range(3)], return_exceptions=True)
    assert {error.code for error in errors if isinstance(error, TierWorkError)} <= {"unavailable"}
    assert (await worker.call(Told("echo")))["pid"] != pid


async def test_a_worker_that_talks_nonsense_is_replaced(worker):
    error = await failure(worker.call(Told("nonsense")))
    assert error.code == "unavailable"
    assert "makes no sense" in error.message
    await worker.call(Told("echo"))


async def test_a_worker_that_is_silent_too_long_is_replaced(monkeypatch):
    monkeypatch.setattr(process_module, "_MODULE", "support.tier_child")
    worker = TierWorker(SETTINGS, "upload")
    try:
        pid = (await worker.call(Told("echo")))["pid"]
        worker._running._silence_max_s = 0.5
        worker._running._tasks.append(asyncio.create_task(worker._running._watch()))
        error = await failure(worker.call(Told("silent", seconds=60)))
        assert "said nothing for 0.5 s" in error.message
        assert (await worker.call(Told("echo")))["pid"] != pid
    finally:
        await worker.close()


async def test_a_job_that_says_that_it_runs_may_take_long(monkeypatch):
    monkeypatch.setattr(process_module, "_MODULE", "support.tier_child")
    worker = TierWorker(SETTINGS, "upload")
    try:
        await worker.call(Told("echo"))
        worker._running._silence_max_s = 1.0
        worker._running._tasks.append(asyncio.create_task(worker._running._watch()))
        waiting = [asyncio.create_task(worker.call(Told("talking", times=8, seconds=0.2))) for _ in range(4)]
        await asyncio.gather(*waiting, worker.call(Told("echo")))
    finally:
        await worker.close()


async def test_no_more_calls_than_may_be_under_way(monkeypatch):
    monkeypatch.setattr(process_module, "_MODULE", "support.tier_child")
    worker = TierWorker(SETTINGS, "upload", jobs_max=3)
    try:
        answers = await asyncio.gather(*[worker.call(Told("together", seconds=0.02)) for _ in range(12)])
        assert max(answer["most"] for answer in answers) == 3
    finally:
        await worker.close()


async def test_a_cancelled_call_keeps_its_place_until_it_is_done(monkeypatch):
    monkeypatch.setattr(process_module, "_MODULE", "support.tier_child")
    worker = TierWorker(SETTINGS, "upload", jobs_max=1)
    try:
        await worker.call(Told("echo"))
        call = asyncio.create_task(worker.call(Told("together", seconds=0.3)))
        await eventually(lambda: worker._running._calls)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await worker.call(Told("together", seconds=0)))["most"] == 1
    finally:
        await worker.close()


async def test_closing_ends_calls_at_once(worker):
    pid = (await worker.call(Told("echo")))["pid"]
    call = asyncio.create_task(failure(worker.call(Told("talking", times=1_000, seconds=0.1))))
    await eventually(lambda: worker._running._calls)
    await worker.close()
    assert (await call).code == "unavailable"
    assert not psutil.pid_exists(pid)
