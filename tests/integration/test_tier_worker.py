"""The tier worker as a process, on a real store: it is killed amid uploads, and it keeps to its memory."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from liftpy_envelope.batch import encode_body, encode_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import nullable_column, values_column
from liftpy_envelope.settings import to_plain
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.worker.process import TierWorker, TierWorkError
from support.plain_worker import PlainCalls
from support.tier_slices import LogFile
from support.tier_workers import PATH, check_whole

MIB = 1024 * 1024
UPLOADS = 10


@pytest.fixture
async def worker(s3, tmp_path):
    with s3.in_environment():
        config = TierConfig(url=s3.url(tmp_path.name), endpoint=s3.endpoint, upload_memory_bytes=128 * MIB)
        made = PlainCalls(TierWorker(to_plain(config), "upload"))
        yield made
        await made.close()


async def claim(worker, epoch=0):
    return await worker.call(
        "claim", **PATH._asdict(), epoch=epoch, node="n1", log_start=0, epochs=[[0, 0]], create=True
    )


def upload(worker, slices, base, end):
    return worker.call(
        "upload",
        **PATH._asdict(),
        epoch=0,
        epochs=[[0, 0]],
        base=base,
        end=end,
        slices=slices,
        keeps_replies=False,
    )


async def test_a_bucket_is_probed_claimed_and_filled(worker, s3, tmp_path):
    assert await worker.call("probe") == {"cluster_id": None, "generation": 0}
    log = LogFile(tmp_path / "0.log")
    log.append(300)
    assert (await claim(worker))["end"] == 0
    before = (await worker.call("counts"))["counts"]
    for base in (0, 100, 200):
        assert (await upload(worker, log.slices(base, base + 100), base, base + 100))["records"] == 100
    after = (await worker.call("counts"))["counts"]
    assert {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]} == {
        "create": 3,
        "replace": 3,
    }
    assert await worker.call("probe") == {"cluster_id": None, "generation": 0}  # what is there is ours
    check_whole(s3.store(tmp_path.name), 300)


async def test_a_bucket_that_is_not_ours_is_told(worker, s3, tmp_path):
    s3.store(tmp_path.name).create("holiday/beach.jpg", b"sand", "n")
    with pytest.raises(TierWorkError, match=r"holiday/beach\.jpg") as caught:
        await worker.call("probe")
    assert caught.value.code == "foreign"


async def test_a_store_that_is_away_is_unavailable(s3):
    with s3.in_environment():
        config = TierConfig(url="s3://liftpy/x", endpoint="http://127.0.0.1:1")
        worker = PlainCalls(TierWorker(to_plain(config), "upload"))
        try:
            with pytest.raises(TierWorkError) as caught:
                await claim(worker)
        finally:
            await worker.close()
    assert (caught.value.code, caught.value.retriable) == ("unavailable", True)


@pytest.mark.parametrize(("kills_max", "count"), [(2, 2_000), pytest.param(12, 5_000, marks=pytest.mark.slow)])
async def test_a_worker_that_is_killed_again_and_again_loses_and_doubles_nothing(
    worker, s3, tmp_path, kills_max, count
):
    """There is more to be moved than is moved until the last kill, also where every one of them comes too late."""
    log = LogFile(tmp_path / "0.log")
    log.append(count)
    rng = random.Random(5)
    await worker.call("counts")
    end = kills = 0
    codes = set()
    while end < count:
        try:
            end = (await claim(worker))["end"]
            while end < count:
                until = min(count, end + 100)
                call = asyncio.create_task(upload(worker, log.slices(end, until), end, until))
                if kills < kills_max and rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.05)
                    with suppress(ProcessLookupError):  # the kill before came after the answer, and nobody knows yet
                        os.kill(worker._running._process.pid, signal.SIGKILL)
                        kills += 1
                end = (await call)["end"]
        except TierWorkError as error:
            codes.add(error.code)
    assert kills == kills_max
    assert codes <= {"unavailable", "lineage", "overtaken"}
    check_whole(s3.store(tmp_path.name), count)


def write_batches(path, base, size):
    """Records of bytes that can not be made smaller; the offset after the last one."""
    with path.open("wb") as file:
        while file.tell() < size:
            columns = [values_column([b"a.b"] * 500), nullable_column([os.urandom(2_048) for _ in range(500)])]
            body = encode_body(500, Column.SUBJECT | Column.VALUE, columns)
            header = encode_header(body, base_offset=base, leader_epoch=0, base_timestamp=1, max_timestamp=1)
            file.write(header + b"".join(bytes(part) for part in body.parts))
            base += 500
    return base


@pytest.mark.slow
async def test_memory_stays_within_its_bounds(worker, tmp_path):
    """Ten partitions at once, 64 MiB each, with room for two of them."""
    path = tmp_path / "0.log"
    end = write_batches(path, 0, 64 * MIB)
    slices = [{"path": str(path), "position": 0, "length": path.stat().st_size}]
    parts = [PATH._replace(partition=number) for number in range(UPLOADS)]
    for part in parts:
        await worker.call("claim", **part._asdict(), epoch=0, node="n1", log_start=0, epochs=[[0, 0]], create=True)
    idle = peak_bytes(worker)
    common = {"epoch": 0, "epochs": [[0, 0]], "base": 0, "end": end, "slices": slices, "keeps_replies": False}
    answers = await asyncio.gather(*[worker.call("upload", **part._asdict(), **common) for part in parts])
    assert all(answer["stored_bytes"] > 60 * MIB for answer in answers)
    print(f"peak {peak_bytes(worker) // MIB} MiB, before any upload {idle // MIB} MiB")
    assert peak_bytes(worker) - idle < 2 * 128 * MIB


def peak_bytes(worker):
    """The most memory that the process has had (ru_maxrss)."""
    pid = worker._running._process.pid
    assert psutil.pid_exists(pid)
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
