"""What key compaction takes, and what the publishers of another stream notice of it."""

from __future__ import annotations

import time

import psutil

from bench.rig import resident, run_client, run_load
from bench.row import Row
from bench.wire import request

_ROWS = 3_000  # of a batch
_SIZE = 100
_SETTINGS = {"sync": "interval", "segment_bytes": 32 * 1024 * 1024, "dedupe_window_s": 0.0, "min_dirty_ratio": 0.1}
_BEGIN_TIMEOUT_S = 60.0
_LOAD = {"subject": "beside", "size": 128, "window": 1}


def compaction(rig, plan):
    """Overwrite a space of keys, let the node compact it, and publish to another stream with and without that."""
    name = f"{plan.compacted:,} records, {plan.compacted_keys:,} keys"
    took = Row(f"compaction, {name}: a pass beside a publisher", "interval", "s", smaller_is_better=True)
    memory = Row(f"compaction, {name}: peak memory of the worker", "interval", "MiB", smaller_is_better=True)
    left = Row(f"compaction, {name}: size of what is left", "interval", "MiB", smaller_is_better=True)
    for row in (took, memory, left):
        row.is_absolute = True
    late = Row(
        "compaction: p99 ack latency while a pass runs, window 1, 128 B",
        "interval",
        "us p99",
        peer="no pass",
        smaller_is_better=True,
    )
    rig.liftpy.create("beside", "beside", sync="interval")
    messages = 0
    for run in range(plan.runs):
        stream = f"keyed{run}"
        rig.liftpy.create(stream, stream, **_SETTINGS)
        fill = {"keys": plan.compacted_keys, "count": plan.compacted, "rows": _ROWS, "size": _SIZE}
        run_client("publish_keys", url=rig.liftpy.url, subject=stream, **fill)
        before = rig.liftpy.info(stream)["bytes"]
        seconds, peak, during = _compacted(rig, plan, stream)
        quiet = []
        while len(quiet) < len(during):
            quiet += _latencies(rig, plan)
        late.add("liftpy", _p99(during))
        late.add("no pass", _p99(quiet))
        messages += len(during)
        took.add("liftpy", seconds)
        memory.add("liftpy", peak / 2**20)
        left.add("liftpy", rig.liftpy.info(stream)["bytes"] / 2**20)
        left.note = f"of {before / 2**20:,.0f} MiB"
        rig.liftpy.delete(stream)
    rig.liftpy.delete("beside")
    late.note = f"p99 over all of {messages:,} messages within passes, and over as many without; never of parts of them"
    yield took
    yield memory
    yield left
    yield late


def _latencies(rig, plan):
    return run_load("acked", port=rig.liftpy.port, count=plan.single, keep=True, **_LOAD)["latencies_us"]


def _p99(latencies):
    return sorted(latencies)[len(latencies) * 99 // 100]


def _compacted(rig, plan, stream):
    """Turn compaction on. Returns how long the pass took, the worker's peak bytes, and latencies (us) meanwhile."""
    answer = request(rig.liftpy.port, "LIFT.API.STREAM.UPDATE", {"name": stream, "changes": {"compact": True}})
    assert "error" not in answer, answer
    worker, began = _worker(rig.liftpy.pid)
    peak, latencies = 0, []
    while worker.is_running():
        some = _latencies(rig, plan)
        try:
            peak = max(peak, resident(worker.pid)[1])
        except (FileNotFoundError, ValueError):  # a process that has ended has no memory
            break
        latencies += some  # of a load that ran within the pass to its end
    return time.monotonic() - began, peak, latencies


def _worker(pid):
    """The compaction worker of a node, and when it was seen first."""
    deadline = time.monotonic() + _BEGIN_TIMEOUT_S
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            if "liftpy_server.compaction.worker" in child.cmdline():
                return child, time.monotonic()
        time.sleep(0.02)
    raise TimeoutError(f"no pass began within {_BEGIN_TIMEOUT_S:g} s")
