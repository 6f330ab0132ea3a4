"""What Spark makes of streams, beside what else it can read and write. Each workload starts a node and a bucket.

Every row has a peer from the same session: files that hold the same, or the very objects read by S3A, and a source or
sink in Python that has nothing to do, which no other in Python can be quicker than. All processes share the cores, the
node and the S3 server among them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
from itertools import chain
from pathlib import Path

from bench.rig import finish, spawn
from bench.row import Row
from bench.spark_s3a import PARQUET_BY_S3A, TABLE, jar_settings, s3a_settings, s3a_trouble
from bench.tier_rig import tier_rig

__all__ = ["SPARK_WORKLOADS", "spark_trouble"]

_SIZE = 128
_PARTITIONS = 2
_AGE_S = 1.0
_TIMEOUT_S = 1_800
_ALL_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "subject string"
)


def spark_trouble():
    """Why Spark can not run here; None where it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'liftpy[spark]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home) / "bin") if home else None) is None:
        return "there is no Java"
    return None


def _run(module, name, bucket, **arguments):
    """Run a load or a driver of Spark to its end; its figures."""
    with bucket.in_environment():
        process = spawn(module, name, arguments)
    try:
        return finish(process, _TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def _options(node, bucket, name):
    settings = bucket.settings(name)
    return {"servers": node.url, "bucket": settings["url"], "s3.endpoint": settings["endpoint"]}


def _publish(bucket, node, stream, plan):
    load = {"url": node.url, "stream": stream, "subject": stream, "size": _SIZE, "count": plan.spark_records}
    _run("spark_load", "publish", bucket, **load)


def cold(home, plan):
    """All of a stream from the bucket, against `spark.read.parquet` of the same objects, as files on the disk.

    And, where S3A can be had, against `spark.read.parquet` of the very objects in the bucket.
    """
    with tier_rig(home) as (bucket, start):
        node = start("cold", upload_age_s=_AGE_S)
        node.create("scan", "scan", partitions=_PARTITIONS)
        _publish(bucket, node, "scan", plan)
        node.wait_tiered()
        files = _fresh(home / "files")
        place = bucket.settings("cold")
        where = place | {"uuid": _uuid(node, "scan"), "partitions": _PARTITIONS}
        copied = _run("spark_load", "copy", bucket, **where, count=plan.spark_records, directory=str(files))
        options = _options(node, bucket, "cold") | {"subscribe": "scan"}
        arguments = {"options": options, "files": str(files), "count": plan.spark_records, "size": _SIZE}
        arguments |= {"home": str(home / "spark"), "runs": plan.runs, "store_pid": bucket.server.pid}
        if s3a_trouble(plan.s3a_jars) is None:
            settings = jar_settings(plan.s3a_jars) | s3a_settings(place["endpoint"])
            home_of_keys = place["url"].replace("s3://", "s3a://")
            arguments["s3a"] = {
                "settings": settings,
                "objects": [f"{home_of_keys}/{key}" for key in copied["keys"]],
            }
        what = f"{len(copied['keys'])} objects of {copied['bytes'] / 2**20:,.0f} MiB"
        figures = _run("spark_driver", "scan", bucket, **arguments)
        yield from _scanned_cold(figures, "cold", what)
        figures = _run("spark_driver", "scan", bucket, **arguments, column_types=_ALL_COLUMNS)
        yield from _scanned_cold(figures, "all columns cold", what)


def _scanned_cold(found, what_is_read, what):
    """Rows against files on the disk, and against S3A where it was measured; of the table, against S3A as well."""
    by_s3a = {action: _taken(figures, PARQUET_BY_S3A, TABLE) for action, figures in found["figures"].items()}
    yield from _scanned(found, f"spark, {what_is_read}, {{}}, 128 B", "spark.read.parquet", what)
    for action, theirs in by_s3a.items():
        if not theirs:
            continue
        parquet = {PARQUET_BY_S3A: theirs[PARQUET_BY_S3A]}
        for name, ours in (("", found["figures"][action]["liftpy"]), ("table ", theirs[TABLE])):
            row = Row(f"spark, {name}{what_is_read} against S3A, {action}, 128 B", "-", "records/s")
            row.peer, row.runs = PARQUET_BY_S3A, {"liftpy": ours} | parquet
            local = statistics.median(ours) / statistics.median(found["figures"][action]["spark.read.parquet"])
            row.note = f"{local:.2f} of spark.read.parquet of local files"
            yield row


def _taken(figures, *names):
    """Those of these contestants that were there, which are no part of `figures` any more."""
    return {name: figures.pop(name) for name in names if name in figures}


def hot(home, plan):
    """All of a stream from the disk of its node, against a source that yields ready Arrow batches."""
    with tier_rig(home) as (bucket, start):
        node = start("hot", is_tiered=False)
        node.create("scan", "scan", partitions=_PARTITIONS)
        _publish(bucket, node, "scan", plan)
        options = {"servers": node.url, "subscribe": "scan"}
        arguments = {"options": options, "files": None, "count": plan.spark_records, "size": _SIZE}
        figures = _run("spark_driver", "scan", bucket, **arguments, home=str(home / "spark"), runs=plan.runs)
        yield from _scanned(figures, "spark, hot, {}, 128 B", "ready batches", "", is_absolute=True)


def _scanned(found, name, peer, what, **kind):
    for action, figures in found["figures"].items():
        row = Row(name.format(action), "-", "records/s", peer=peer, runs=figures, note=what, **kind)
        ratio = row.median("liftpy") / row.median("ready batches")
        row.note += f"{', ' if what else ''}{ratio:.2f} of ready batches"
        row.note += f" ({row.median('ready batches'):,.0f}/s); {_cpu_text(found['cpu'][action])}"
        yield row


def _cpu_text(by_contestant):
    """What each took in a run, in the median."""
    medians = {
        name: {kind: statistics.median(run[kind] for run in runs) for kind in runs[0]}
        for name, runs in by_contestant.items()
        if runs
    }
    of_each = (
        f"{name} {', '.join(f'{kind} {seconds:.1f}' for kind, seconds in cpu.items())}" for name, cpu in medians.items()
    )
    return f"s of CPU: {'; '.join(of_each)}"


def sink(home, plan):
    """Records appended to a stream exactly once, until all of them can be read."""
    with tier_rig(home) as (bucket, start):
        node = start("sink", upload_age_s=_AGE_S, staging_directory=home / "spark" / "staging")
        kinds = ("sink", "files", "driver")
        streams = [tuple(f"{kind}{number}" for kind in kinds) for number in range(plan.runs + 1)]
        for stream in chain(*streams):
            node.create(stream, stream, partitions=_PARTITIONS, tier=False)
        files = _fresh(home / "files")
        _run("spark_load", "write", bucket, directory=str(files), size=_SIZE, count=plan.spark_records)
        arguments = {"url": node.url, "options": _options(node, bucket, "sink"), "streams": streams}
        arguments |= {"files": str(files), "count": plan.spark_records, "home": str(home / "spark")}
        found = _run("spark_driver", "sink", bucket, **arguments)
    figures = found["figures"]
    by_directory, by_driver = figures.pop("by a directory"), figures.pop("by the driver")
    row = Row("spark, sink, exactly once, 128 B", "always", "records/s", peer="counting sink", is_absolute=True)
    row.runs = figures
    row.note = (
        f"write.parquet {row.median('write.parquet'):,.0f}/s; by the driver {statistics.median(by_driver):,.0f}/s; "
        f"{_cpu_text(found['cpu'])}"
    )
    yield row
    name = "spark, sink, exactly once by a directory, 128 B"
    second = Row(name, "always", "records/s", peer="counting sink", is_absolute=True)
    second.runs = figures | {"liftpy": by_directory}
    yield second


def streaming(home, plan):
    """Streaming queries without news, and with ten records at a time; into a sink that does nothing."""
    with tier_rig(home) as (bucket, start):
        node = start("streaming", upload_age_s=_AGE_S)
        node.create("news", "news", partitions=_PARTITIONS)
        options = _options(node, bucket, "streaming") | {"subscribe": "news"}
        arguments = {"home": str(home / "spark"), "url": node.url, "options": options, "subject": "news"}
        arguments |= {"batches": plan.micro_batches, "idle_s": plan.idle_s}
        found = _run("spark_driver", "micro_batches", bucket, **arguments)
    overhead = Row("spark, micro-batch of 10 records", "-", "ms p50", peer="rate", smaller_is_better=True)
    overhead.runs = found["batch_ms"]
    overhead.note = ", ".join(f"{name} {overhead.median(name):,.0f} ms" for name in ("files", "ready batches"))
    yield overhead
    through = Row("spark, from publishing to the end of their micro-batch", "-", "ms p50", peer="files")
    through.smaller_is_better, through.runs = True, found["through_ms"]
    yield through
    for kind in ("Python", "JVM"):
        name = f"spark, idle query, {kind}"
        row = Row(name, "-", "% of a core", peer="files", smaller_is_better=True, is_absolute=True)
        for contestant, seconds in found["idle"].items():
            row.add(contestant, 100 * seconds[kind])
        yield row


def first_row(home, plan):
    """From the start of a JVM to the first row of a stream, and to that of a file."""
    row = Row("spark, first row after a cold start", "-", "s", peer="spark.read.parquet", smaller_is_better=True)
    again = Row("spark, first row of a later query", "-", "s", peer="spark.read.parquet", smaller_is_better=True)
    with tier_rig(home) as (bucket, start):
        node = start("first", upload_age_s=_AGE_S)
        node.create("scan", "scan", partitions=_PARTITIONS)
        few = 100_000
        load = {"url": node.url, "stream": "scan", "subject": "scan", "size": _SIZE, "count": few}
        _run("spark_load", "publish", bucket, **load)
        node.wait_tiered()
        files = _fresh(home / "files")
        where = bucket.settings("first") | {"uuid": _uuid(node, "scan"), "partitions": _PARTITIONS}
        _run("spark_load", "copy", bucket, **where, count=few, directory=str(files))
        options = _options(node, bucket, "first") | {"subscribe": "scan"}
        for _ in range(plan.runs):
            for kind in ("liftpy", "spark.read.parquet"):
                arguments = {"home": str(home / "spark"), "kind": kind, "options": options, "files": str(files)}
                found = _run("spark_driver", "first_row", bucket, **arguments)
                row.add(kind, found["first_s"])
                again.add(kind, found["again_s"])
                row.note = f"the session alone takes {found['session_s']:.1f} s"
    yield row
    yield again


def _uuid(node, stream):
    return node.info(stream)["uuid"].replace("-", "")


def _fresh(directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


SPARK_WORKLOADS = {
    "spark-cold": cold,
    "spark-hot": hot,
    "spark-sink": sink,
    "spark-streaming": streaming,
    "spark-first-row": first_row,
}
