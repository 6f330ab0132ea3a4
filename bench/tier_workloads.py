"""What the bucket costs and what it gives. Each workload starts an S3 server of its own, SeaweedFS, on this machine."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from bench.processes import cpu_s
from bench.rig import finish, resident, spawn
from bench.row import Row
from bench.tier_costs import costs_beside
from bench.tier_month import quiet_month
from bench.tier_rig import asked_text, puts, tier_rig, until, worker_of
from bench.tier_shared import shared_rounds
from bench.tier_sim import idle_state, requests_of_a_stream, root_sizes
from bench.tier_workers import measure_workers

__all__ = ["TIER_WORKLOADS"]

_RELAXED = "interval"
_RATE = 10 << 20  # bytes per second of a steady load
_WINDOW = 5_000
_SIZES = {1_024: "1 KiB", 128: "128 B"}
_TIMEOUT_S = 300
_START_TIMEOUT_S = 30.0
_SKIPPED = 4  # of a consume, one part in so many comes before its rate is measured
_IDLE_S = 10.0
_GC_INTERVAL_S = 60.0  # ten times as often as by default
_PUTS = "plain PUTs"
_GETS = "plain GETs"
_ROUNDS = 3
_SHARED_ROUNDS = 40
_ROUND_AGE_S = 4.0
_MONTH_ROUND_S = 21_600.0
_INGEST_AGE_S = 10.0  # more than 64 MiB take at a steady rate: size says when, and the rest need not be waited for long
_WAITING_MAX = 64 << 20  # bytes that may be missing in the bucket when a load counts as done
_POLL_S = 0.25  # a look costs the node a few milliseconds
_NEAR_POLL_S = 0.05  # where the end is near


def _load(name, **arguments):
    return finish(spawn("tier_load", name, arguments), _TIMEOUT_S)


def _publish(node, subject, size, total, **arguments):
    load = {"subjects": [subject], "size": size, "count": total // size, "window": _WINDOW}
    return _load("publish", port=node.port, **load, **arguments)


def _figure(workload, unit, durability=_RELAXED):
    """A row whose goal is a figure, and less of it is better."""
    return Row(workload, durability, unit, is_absolute=True, smaller_is_better=True)


def requests(home, plan):
    """One stream at a steady rate: what it asks of the store, with merges and the removal of garbage."""
    row = _figure("tier, PUTs per GiB of one stream at 10 MiB/s, 1 KiB", "PUTs/GiB")
    with tier_rig(home) as (_, start):
        node = start("requests", upload_age_s=_INGEST_AGE_S, gc_interval_s=_GC_INTERVAL_S, grace_s=0)
        for run in range(plan.runs):
            before = node.requests()
            node.create(f"steady{run}", f"steady{run}", sync=_RELAXED)
            _publish(node, f"steady{run}", 1_024, plan.tiered, bytes_per_s=_RATE)
            node.wait_tiered()
            time.sleep(1.5 * _GC_INTERVAL_S)
            after = node.requests()
            row.add("liftpy", (puts(after) - puts(before)) * (1 << 30) / plan.tiered)
            row.note = f"{plan.tiered >> 20:,} MiB, of the last run: {asked_text(after, before)}"
            node.delete(f"steady{run}")
    yield row
    yield requests_of_a_stream(home, plan.tiered, _RATE)


def quiet(home, plan):
    """Many streams, each of which gets a message now and then, and then none."""
    count = plan.quiet_streams
    subjects = [f"quiet.{number}" for number in range(count)]
    row = _figure(f"tier, PUTs per round, {count:,} quiet streams", "PUTs")
    idle = _figure(f"tier, requests in {_IDLE_S:g} s, {count:,} quiet streams without messages", "requests")
    memory = _figure(f"tier, memory that the bucket takes of a node with {count:,} quiet streams", "MiB")
    with tier_rig(home) as (_, start):
        node = start("quiet", upload_age_s=_ROUND_AGE_S)
        for subject in subjects:
            node.create(subject.replace(".", "-"), subject, sync=_RELAXED)
        load = {"port": node.port, "subjects": subjects, "size": 200, "count": count, "window": _WINDOW}
        resting = resident(node.pid)[0]
        _load("publish", **load)  # in this round every partition is claimed
        node.wait_tiered()
        memory.add("liftpy", (resident(node.pid)[0] - resting) / 2**20)
        memory.note = "growth of the process from all streams open and empty to all of them with a record in the bucket"
        for _ in range(plan.runs):
            before, rounds = node.requests(), node.tier()["uploads"]
            for _ in range(_ROUNDS):
                _load("publish", **load)
                node.wait_tiered()
            after, rounds = node.requests(), node.tier()["uploads"] - rounds
            row.add("liftpy", (puts(after) - puts(before)) / rounds)
            row.note = f"{rounds} rounds: {asked_text(after, before)}"
            time.sleep(_IDLE_S)
            idle.add("liftpy", sum(node.requests().values()) - sum(after.values()))
    yield row
    yield idle
    yield memory
    yield from idle_state(10_000)


def root(_home, _plan):
    """See `root_sizes`."""
    yield from root_sizes()


def shared(home, plan):
    """See `shared_rounds`."""
    yield from shared_rounds(home, plan.quiet_streams, _SHARED_ROUNDS)


def month(_home, plan):
    """See `quiet_month`."""
    yield from quiet_month(plan.month_streams, plan.month_days, _MONTH_ROUND_S)


def costs(home, plan):
    """See `costs_beside`."""
    yield from costs_beside(home, plan.quiet_streams)


def ingest(home, plan):
    """Publishing with and without a bucket, flat out and at a steady rate.

    With a bucket a load lasts until no more than 64 MiB of it are missing there.
    """
    for size, name in _SIZES.items():
        yield from _ingest(home, plan, size, f"tier, ingest flat out, {name}", plan.tiered)
    yield from _ingest(home, plan, 1_024, "tier, ingest at 10 MiB/s, 1 KiB", plan.ingested // 2, bytes_per_s=_RATE)


def _ingest(home, plan, size, name, total, **arguments):
    row = Row(name, _RELAXED, "acked/s", peer="no bucket")
    limit = Row(f"{name}: against plain PUTs beside it", _RELAXED, "acked/s", peer=_PUTS)
    left = _figure(f"{name}: not in the bucket at the last ack", "MiB")
    lag = _figure(f"{name}: until the bucket has all", "s")
    with tier_rig(home) as (bucket, start):
        nodes = {"liftpy": start("on", upload_age_s=_INGEST_AGE_S), "no bucket": start("off", is_tiered=False)}
        silences = dict.fromkeys(nodes, 0.0)
        for run in range(plan.runs):
            for contestant, node in nodes.items():
                node.create(f"in{run}", f"in{run}", sync=_RELAXED)
                figures = _publish(node, f"in{run}", size, total, **arguments)
                ended, waiting = time.monotonic(), _in_bucket(node).missing if contestant == "liftpy" else 0
                count = total // size
                behind_s, stored = _wait_caught_up(node) if contestant == "liftpy" else (0.0, 0)
                row.add(contestant, count / (count / figures["rate"] + behind_s))
                silences[contestant] = max(silences[contestant], figures["silence_s"])
                if contestant == "liftpy":
                    put_bytes = stored
                    left.add("liftpy", waiting / 2**20)
                    left.note = f"acked in {count / figures['rate']:.2f} s, at most 64 MiB left {behind_s:.2f} s later"
                    node.wait_tiered()
                    lag.add("liftpy", time.monotonic() - ended)
                node.delete(f"in{run}")
            if not arguments:
                limit.add("liftpy", row.runs["liftpy"][-1])
                limit.add(_PUTS, _ingest_limit(bucket, nodes["no bucket"], run, size, total, put_bytes))
        row.note = f"{total >> 20:,} MiB; longest time without an ack: {silences['liftpy']:.2f} s, without a bucket "
        row.note += f"{silences['no bucket']:.2f} s; {asked_text(nodes['liftpy'].requests())}"
        lag.note = f"the last part waits for upload_age_s, {_INGEST_AGE_S:g} s"
    yield row
    if not arguments:
        yield limit
    yield left
    yield lag


def _ingest_limit(bucket, node, run, size, total, put_bytes):
    """What an uploader that takes nothing of the cores would come to: the store takes as many bytes meanwhile.

    Records per second until all are acknowledged, and the bucket has as much as it had of the node's. That is objects
    of full size, so it is more than all bytes but 64 MiB.
    """
    node.create(f"limit{run}", f"limit{run}", sync=_RELAXED)
    puts = {"settings": bucket.settings(f"limit{run}"), "total": put_bytes}
    with bucket.in_environment():
        figures = _publish(node, f"limit{run}", size, total, puts=puts)
    node.delete(f"limit{run}")
    count = total // size
    return count / max(count / figures["rate"], figures["put_s"])


def _wait_caught_up(node):
    """(Seconds until no more than 64 MiB are missing in the bucket, what it has then)."""
    began = time.monotonic()
    while (found := _in_bucket(node)).missing > _WAITING_MAX:
        time.sleep(_POLL_S if found.missing > 2 * _WAITING_MAX else _NEAR_POLL_S)
    return time.monotonic() - began, found.stored


class _InBucket(NamedTuple):
    """Bytes of record batches that are not in the bucket, and bytes that its objects have."""

    missing: int
    stored: int


def _in_bucket(node):
    """What is missing, by offsets: what the node says of bytes may be half a second old."""
    missing = stored = 0
    for each in node.tier()["partitions"]:
        local = each["high_watermark"] - each["tiered_end"]
        size = node.info(each["stream"])["bytes"]
        missing += size * local // max(1, each["high_watermark"] - each["start"])
        stored += each["stored_bytes"]
    return _InBucket(missing, stored)


def cold(home, plan):
    """Reading what has left the disk, against reading the same from it."""
    kinds = {"messages": False, "Arrow batches": True}
    for size, name in _SIZES.items():
        with tier_rig(home) as (bucket, start):
            node = start("cold", upload_age_s=1)
            node.create("cold", "cold", sync=_RELAXED, local_retention_bytes=1 << 20, segment_bytes=16 << 20)
            node.create("hot", "hot", sync=_RELAXED, tier=False)
            for stream in ("cold", "hot"):
                _publish(node, stream, size, plan.ingested)
            node.wait_tiered()
            node.wait_dropped("cold", 0.9)
            for kind, is_batches in kinds.items():
                load = {"url": node.url, "count": plan.ingested // size, "batches": is_batches}
                yield from _cold(node, bucket, plan, f"{kind}, {name}", load)


def _cold(node, bucket, plan, what, load):
    row = Row(f"tier, cold consume in {what}", "-", "msgs/s", peer="hot")
    limit = Row(f"tier, cold consume against plain GETs, in {what}", "-", "msgs/s", peer=_GETS)
    again = Row(f"tier, consume again what was cold, in {what}", "-", "msgs/s", peer="hot")
    load |= {"skip": load["count"] // _SKIPPED}
    for _ in range(plan.runs):
        node.stop_node()
        node.start_node()  # with an empty cache
        hot = _load("consume", stream="hot", **load)
        until(lambda: _has_worker(node.pid, "read"), _START_TIMEOUT_S, "the worker that reads is there")
        pids = {"node": node.pid, "worker that reads": worker_of(node.pid, "read"), "store": bucket.server.pid}
        before = {each: cpu_s(pid) for each, pid in pids.items()}
        figures = _load("consume", stream="cold", **load)
        gib = plan.ingested / 2**30
        spent = ", ".join(f"{each} {(cpu_s(pid) - before[each]) / gib:.1f}" for each, pid in pids.items())
        row.add("liftpy", figures["rate"])
        again.add("liftpy", _load("consume", stream="cold", **load)["rate"])
        for each in (row, again):
            each.add("hot", hot["rate"])
        limit.add("liftpy", load["count"] / figures["all_s"])
        limit.add(_GETS, _cold_limit(bucket, load))
        row.note = (
            f"the first part of {_SKIPPED} left out; first after {figures['first_s'] * 1e3:,.0f} ms, hot "
            f"{hot['first_s'] * 1e3:,.0f} ms; all in {figures['all_s']:.1f} s, hot {hot['all_s']:.1f} s; s of CPU "
            f"per GiB of values: {spent}; worker that reads: {resident(pids['worker that reads'])[1] / 2**20:,.0f} MiB "
            "at most"
        )
    again.note = "from the disk, where what was fetched is kept (cache_bytes)"
    limit.note = "with the first part"
    yield row
    yield limit
    yield again


def _cold_limit(bucket, load):
    """What a reader that takes nothing of the cores would come to: the store gives as many bytes meanwhile.

    Records per second until all were consumed, and all objects were got.
    """
    sizes = {key: size for key, size in bucket.sizes("cold").items() if key.endswith(".parquet")}
    with bucket.in_environment():
        gets = {"settings": bucket.settings("cold"), "sizes": sizes}
        figures = _load("consume", stream="hot", gets=gets, **load)
    return load["count"] / max(figures["all_s"], figures["get_s"])


def _has_worker(pid, name):
    try:
        return worker_of(pid, name)
    except LookupError:
        return None


def flights(home, plan):
    """The flights, as the demo publishes them: how large they are in the bucket."""
    row = _figure("tier, bytes in the bucket per byte of payload, flights", "bytes/byte")
    with tier_rig(home) as (bucket, start):
        for run in range(plan.runs):
            node = start(f"flights{run}", upload_age_s=2, gc_interval_s=2, grace_s=0)
            node.create("flights", "flights.>", sync=_RELAXED)
            figures = _load("flights", port=node.port, window=_WINDOW)
            node.wait_tiered()
            time.sleep(3 * 2)  # what was merged goes
            sizes = bucket.sizes(f"flights{run}")
            row.add("liftpy", sum(sizes.values()) / figures["payload_bytes"])
            objects = [size for key, size in sizes.items() if key.endswith(".parquet")]
            row.note = f"{figures['count']:,} messages, {figures['payload_bytes'] / 2**20:,.1f} MiB of payload; "
            row.note += f"{sum(objects) / 2**20:,.1f} MiB in {len(objects)} objects of rows, "
            row.note += f"{(sum(sizes.values()) - sum(objects)) / 1024:,.0f} KiB in {len(sizes) - len(objects)} others"
    yield row


def restore(home, plan):
    """A node whose disk is lost comes back from the bucket alone."""
    name = f"tier, restore of {plan.restored:,} records, 128 B"
    readable, whole = _figure(f"{name}, until readable", "s"), _figure(f"{name}, until all were read", "s")
    with tier_rig(home) as (bucket, start):
        node = start("restore", upload_age_s=1)
        node.create("orders", "orders", sync=_RELAXED)
        _publish(node, "orders", 128, plan.restored * 128)
        node.wait_tiered()
        bucket.wait_known("restore", "orders")
        for _ in range(plan.runs):
            node.lose_disk()
            started = time.monotonic()
            node.start_node()
            ready_s = time.monotonic() - started
            figures = _load("restore", url=node.url, stream="orders", count=plan.restored)
            readable.add("liftpy", figures["readable_s"])
            whole.add("liftpy", figures["all_s"])
            readable.note = (
                f"from the request for a plan, made after {figures['plan_s']:.2f} s; streams are back after "
            )
            readable.note += f"{figures['restore_s']:.2f} s; the empty node was ready {ready_s:.1f} s after its start"
    yield readable
    yield whole


def worker(home, plan):
    """Worker processes without a node: what a core does, and how much memory it takes."""
    number = 1
    with tier_rig(home) as (bucket, _), bucket.in_environment():
        for size, name in _SIZES.items():
            rows = {}
            for job in ("upload", "merge", "read"):
                rows[job] = Row(f"tier, worker, {job}, {name}", "-", "MiB per s of CPU", is_absolute=True)
            memory = {job: _figure(f"tier, worker, {job}, {name}: memory at most", "MiB", "-") for job in rows}
            for _ in range(plan.runs):
                number += 1
                settings = bucket.settings("worker")
                figures = asyncio.run(measure_workers(home / "files", settings, number, size))
                for job, (mib, cpu, seconds, peak) in figures.items():
                    rows[job].add("liftpy", mib / cpu)
                    rows[job].note = f"{mib:,.0f} MiB of record batches; {mib / seconds:,.0f} MiB/s by the clock, with "
                    rows[job].note += "SeaweedFS and the disk beside it"
                    memory[job].add("liftpy", peak)
            yield from rows.values()
            yield from memory.values()


TIER_WORKLOADS = {
    "tier-requests": requests,
    "tier-quiet": quiet,
    "tier-root": root,
    "tier-shared": shared,
    "tier-month": month,
    "tier-costs": costs,
    "tier-ingest": ingest,
    "tier-cold": cold,
    "tier-flights": flights,
    "tier-restore": restore,
    "tier-worker": worker,
}
