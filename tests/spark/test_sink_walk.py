"""A walk with real data through what befalls a query that writes: the lines of Python's own library, file by file.

Drivers, JVMs and workers are killed at random moments, drivers are stopped for longer than the node knows ids, and the
target keeps a megabyte of each partition on its disk. In the end the checkpoint is rolled back and copied. Every record
is compared, in its order.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sysconfig
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.spark_driver import drive, kill_all, said
from support.spark_system import eventually

pytestmark = pytest.mark.slow

PARTITIONS = 4
FILES = 100  # two of them are a micro-batch
LINES = 3_000  # of a file, at least
WINDOW_S = 20.0
BEGUN_S = 120.0
ENDED_S = 300.0

WRITES = """
frames = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 2).parquet(source)
writer = frames.writeStream.format("liftpy").options(**options, stream=stream)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""


def library():
    """(name of a file, its lines), of the library that Python comes with."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        yield str(path.relative_to(root)), path.read_text(encoding="utf-8", errors="replace").split("\n")


def write_files(directory, first, count, source):
    """Each is read by one task, so lines of a key keep their order. Returns all (key, line)."""
    directory.mkdir(exist_ok=True)
    written = []
    for number in range(first, first + count):
        rows = []
        while len(rows) < LINES:
            key, lines = next(source)
            rows += [(key, line) for line in lines]
        keys, values = zip(*rows, strict=True)
        pq.write_table(pa.table({"key": keys, "value": values}), directory / f"{number:04d}.parquet")
        written += rows
    return written


def by_key(pairs):
    found = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def wanted(rows):
    return by_key((key.encode(), value.encode()) for key, value in rows)


def stored(system, stream):
    table = system.records(stream)
    return by_key(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


def end_of(system, stream):
    return sum(each.high_watermark or 0 for each in system.partitions(stream))


def processes_of(driver):
    """The driver, its JVM, and its workers in Python."""
    jvms, workers = [], []
    for each in psutil.Process(driver.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself
            name, parent = each.name(), each.ppid()
            if name == "java":
                jvms.append(each)
            elif name.startswith("python") and parent != driver.pid:
                workers.append(each)
    return jvms, workers


def signal_all(processes, number):
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself
            each.send_signal(number)


def disturb(driver, what):
    """Do something to a driver that works."""
    if driver.poll() is not None:
        return
    jvms, workers = processes_of(driver)
    if what == "stopped":
        everybody = [psutil.Process(driver.pid), *jvms, *workers]
        signal_all(everybody, signal.SIGSTOP)
        time.sleep(1.2 * WINDOW_S)
        signal_all(everybody, signal.SIGCONT)
    signal_all({"jvm": jvms, "workers": workers}.get(what, []), signal.SIGKILL)
    if what == "driver":
        kill_all(driver)


def test_a_walk(system, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    stream, checkpoint, source = "walk", tmp_path / "checkpoint", tmp_path / "source"
    system.lift.create_stream(
        stream,
        subject=stream,
        partitions=PARTITIONS,
        dedupe_window_s=WINDOW_S,
        segment_bytes=256 * 1024,
        local_retention_bytes=1 << 20,
    )
    texts = library()
    rows = write_files(source, 0, FILES, texts)
    arguments = {"options": system.options, "source": str(source), "stream": stream}
    log = tmp_path / "driver.log"

    def start(checkpoint=checkpoint):
        return drive(WRITES, arguments | {"checkpoint": str(checkpoint)}, log)

    def interrupted(what):
        before = end_of(system, stream)
        driver = start()
        try:
            eventually(lambda: driver.poll() is not None or end_of(system, stream) > before, "it begins", BEGUN_S)
            time.sleep(rng.expovariate(1.5))
            assert driver.poll() in {None, 0}, said(log)
            disturb(driver, what)
            time.sleep(rng.uniform(0.0, 1.0))  # Spark may go on by itself, or give up
        finally:
            kill_all(driver)

    for what in rng.sample(("driver", "jvm", "workers", "stopped") * 2, 8):
        interrupted(what)
        print(f"{what}: {end_of(system, stream):,} of {len(rows):,} lines")

    def finish(checkpoint=checkpoint):
        driver = start(checkpoint)
        try:
            return driver.wait(ENDED_S)
        finally:
            kill_all(driver)

    assert finish() == 0, said(log)
    assert stored(system, stream) == wanted(rows)

    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    rows += write_files(source, FILES, 2, texts)
    assert finish() == 0, said(log)
    assert stored(system, stream) == wanted(rows)
    # The copy knows nothing of the last batch. What it would write for it now are other rows.
    for number in (FILES, FILES + 1):
        (source / f"{number:04d}.parquet").unlink()
    write_files(source, FILES + 2, 1, texts)
    assert finish(copy) != 0
    assert "other ones were to be written for it now" in said(log)
    assert stored(system, stream) == wanted(rows), "nothing is doubled"
