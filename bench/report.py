"""Tables, JSON and a plot of what was measured. `python -m bench.report FILE.json` prints the rows as Markdown."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
from rich import box
from rich.console import Console
from rich.table import Table

from bench.row import Row

mpl.use("Agg")
from matplotlib import pyplot as plt

TARGETS = {  # the first that fits counts
    "tier, PUTs per GiB": ("PUTs at most", 64.0),
    "tier, PUTs per round": ("PUTs at most", 3.0),
    "a message a minute, PUTs per round": ("PUTs at most", 3.0),
    "a message a minute, manifest per round": ("of the first rounds at most", 1.5),
    "a message a minute, one record: requests": ("GETs at most", 4.0),
    "a message a minute, one record: bytes": ("KiB at most", 100.0),
    "a message a minute, one record: memory": ("MiB at most", 100.0),
    "quiet streams without messages": ("requests at most", 0.0),
    "quiet streams, jobs": ("jobs at most", 0.0),
    "quiet streams, state": ("MiB at most", 10.0),
    "tier, bytes of the root per commit": ("of 1 GiB at most", 1.5),
    "tier, GETs of a seek": ("GETs at most", 4.0),
    "tier, ingest at 10 MiB/s, 1 KiB: not in the bucket": ("MiB at most", 64.0),
    "not in the bucket at the last ack": None,
    "until the bucket has all": None,
    "against plain PUTs": None,
    "against plain GETs": None,
    "tier, ingest flat out": ("of no bucket", 0.5),
    "tier, ingest at 10 MiB/s": ("of no bucket", 0.95),
    "tier, consume again": None,
    "tier, cold consume": ("of hot", 0.5),
    "tier, bytes in the bucket per byte of payload": ("at most", 0.25),
    "spark, cold, aggregation": ("of spark.read.parquet", 0.8),
    "spark, cold, no-op": ("of spark.read.parquet", 0.55),
    "spark, cold against S3A, aggregation": ("of spark.read.parquet by S3A", 0.8),
    "spark, cold against S3A, no-op": ("of spark.read.parquet by S3A", 0.55),
    "spark, hot": ("records/s", 2_000_000.0),
    "spark, sink": ("records/s", 500_000.0),
    "spark, idle query, JVM": None,
    "spark, idle query": ("% of a core at most", 3.0),
    "cluster, 3 replicas": ("x", 1.5),
    "cluster, CPU": None,
    "plain publish, 1 publisher, 128 B": ("of the null subscriber", 0.4),
    "acked, window 100, 128 B | interval / default": ("x", 1.0),
    "acked, window 100, 1 KiB | interval / default": ("x", 1.0),
    "acked, window 1,000, 128 B | interval / default": ("x", 1.1),
    "acked, window 1,000, 1 KiB | interval / default": ("x", 1.0),
    "acked, window 5,000, 128 B | interval / default": ("x", 1.5),
    "acked, window 5,000, 1 KiB | interval / default": ("x", 1.0),
    "acked by nats.go, window 1,000, 128 B | interval / default": ("x", 1.0),
    "acked by nats.go, window 1,000, 1 KiB | interval / default": ("x", 1.0),
    "acked, window 1,000, 128 B | always / always": ("x", 15.0),
    "acked, window 1, 128 B | interval / default": ("x at most", 2.5),
    "interleaved": ("of one stream", 0.4),
    "fed with Arrow": ("x", 4.0),
    "called per message": ("x", 1.0),
    "consume per message": ("x", 40.0),
    "consume in Arrow batches": ("x", 100.0),
    "durable against our own relaxed, window 1,000, 128 B": ("of relaxed", 0.6),
    "p99 ack latency while a pass runs": ("x at most", 1.5),
    "peak memory of a consumer": ("MiB at most", 200.0),
    "peak memory of the server": ("MiB at most", 300.0),
    "offsets committed": ("offsets/s", 50_000.0),
    "size of the log of the groups": ("of allowed at most", 1.0),
    "committed offsets starts": ("s at most", 5.0),
}


def target_of(row):
    name = f"{row.workload} | {row.durability}"
    return next((target for key, target in TARGETS.items() if key in name), None)


def _number(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _is_met(row, target):
    """None where there is nothing to meet."""
    figure = row.median("liftpy") if row.is_absolute else row.ratio
    if target is None or figure is None:
        return None
    return figure <= target[1] if row.smaller_is_better else figure >= target[1]


def _met(row, target):
    good = _is_met(row, target)
    return "" if good is None else f"{'[green]met' if good else '[red]missed'}[/] ({target[1]:g} {target[0]})"


def _limit(row):
    """The contestant beside liftpy and JetStream, and its median, if there is one."""
    name = next((name for name in row.runs if name not in {"liftpy", "JetStream"}), None)
    return "" if name is None else f"{_number(row.median(name))} {name}"


def markdown(rows):
    """The rows as those of the table in docs/internals/benchmarks.md."""
    lines = []
    for row in rows:
        target, good = target_of(row), _is_met(row, target_of(row))
        goal = "" if good is None else f"{target[1]:g} {target[0]}: {'met' if good else '**missed**'}"
        figures = ["" if row.median(name) is None else _number(row.median(name)) for name in ("liftpy", "JetStream")]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cells = (row.workload, row.durability, row.unit, *figures, _limit(row), ratio, goal)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def show(rows, facts):
    """Print the table."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    table = Table(title="liftpy and JetStream, medians", box=box.SIMPLE_HEAD)
    for column in (
        "Workload",
        "Durability (liftpy / JetStream)",
        "Unit",
        "liftpy",
        "JetStream",
        "Limit",
        "Ratio",
        "Goal",
    ):
        table.add_column(column, justify="right" if column in {"liftpy", "JetStream", "Limit", "Ratio"} else "left")
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}" + (f" ({row.peer})" if row.peer != "JetStream" else "")
        cells = (
            row.workload,
            row.durability,
            row.unit,
            _number(row.median("liftpy")),
            _number(row.median("JetStream")),
        )
        table.add_row(*cells, _limit(row), ratio, _met(row, target_of(row)))
    console.print(table)
    if any(row.told for row in rows):
        console.print(_told([row for row in rows if row.told]))
    for row in rows:
        if row.note:
            console.print(f"  {row.workload}: {row.note}")
    for name, value in facts.items():
        console.print(f"  {name}: {value}")


def _told(rows):
    """A table of what was measured, beside what others say of themselves."""
    names = list(dict.fromkeys(name for row in rows for name in row.told))
    table = Table(title="liftpy, counted; others by their pages and the defaults of their code", box=box.SIMPLE_HEAD)
    table.add_column("What")
    for name in ("liftpy", *names):
        table.add_column(name, justify="right")
    for row in rows:
        told = (row.told.get(name, "-") for name in names)
        table.add_row(f"{row.workload}, {row.unit}", _number(row.median("liftpy")), *told)
    return table


def save(rows, facts, path):
    """Write everything, every single run too, as JSON."""
    content = {"facts": facts, "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def plot(rows, path):
    """Ratios as bars; the goal of each as a mark."""
    shown = [row for row in rows if row.ratio and not row.is_absolute]
    figure, axes = plt.subplots(figsize=(11, 0.34 * len(shown) + 1.4), layout="constrained")
    names = [f"{row.workload}  [{row.durability}]" for row in shown]
    axes.barh(
        names, [row.ratio for row in shown], color=["#3b7dd8" if not r.smaller_is_better else "#d8913b" for r in shown]
    )
    for place, row in enumerate(shown):
        target = target_of(row)
        if target:
            axes.plot([target[1]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
        beside = max(row.ratio, target[1] if target else 0)
        axes.text(beside * 1.04, place, f"{row.ratio:.2f}", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("liftpy : peer (blue: more is better; orange: latency or loss, less is better; black: goal)")
    axes.tick_params(axis="y", labelsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text())
    print(markdown([Row(**{name: value for name, value in row.items() if name != "ratio"}) for row in content["rows"]]))
