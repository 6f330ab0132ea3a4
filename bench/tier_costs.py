"""What a stream in the bucket costs, in requests and bytes, beside what others say of themselves.

Ours is counted: real jobs of a node over a store in memory, by a clock of its own. That of others is what their pages,
or the defaults of their code, come to for the same stream; none of them was run.
"""

from __future__ import annotations

from bench.row import Row
from bench.tier_rig import asked_text, puts
from bench.tier_shared import Sharing
from bench.tier_sim import Simulated, root_of
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.counting import CountingStore
from liftpy_server.tier.jobs.table import run

__all__ = ["costs_beside"]

_RATE = 10 << 20  # bytes per second of the steady stream
_GIB = 1 << 30
_QUIET_ROUND_S = 60.0  # `upload_age_s`
_QUIET_ROUNDS = 20
_COLLECTED_EVERY = 10  # rounds: `gc_interval_s`
_OBJECTS = 16_384  # a TiB of objects of 64 MiB

# By system: what a GiB of one stream at 10 MiB/s comes to, what an hour of a stream with a message a minute does if a
# node has a thousand of them, what it takes to drop the oldest object, and to read a record with nothing in memory.
_TOLD = {
    "wal3": {  # its code: a fragment at most every 100 ms, with a PUT of the manifest each
        "PUTs": "2,048",
        "GETs": "0",
        "LISTs": "0",
        "bytes": "1.3",
        "quiet": "120",
        "retention": "3 PUTs",
        "open": "3 and all of a fragment",
    },
    "AutoMQ, WAL in S3": {  # its code: a PUT and a GET every 250 ms or 8 MiB, and all is written again as objects
        "PUTs": "410 and the objects",
        "GETs": "410",
        "LISTs": "-",
        "bytes": "2 or more",
        "quiet": "29",
        "retention": "-",
        "open": "-",
    },
    "Redpanda": {  # its manual: segments of 128 MiB with an index each, a manifest a minute, a segment an hour at least
        "PUTs": "18",
        "GETs": "0",
        "LISTs": "-",
        "bytes": "1.0",
        "quiet": "3 or more",
        "retention": "1 PUT",
        "open": "3 and 16 MiB",
    },
    "WarpStream": {  # its manual: a file every 250 ms or 8 MiB for all streams of an agent, merged later
        "PUTs": "410 and merges",
        "GETs": "-",
        "LISTs": "-",
        "bytes": "2 or more",
        "quiet": "14",
        "retention": "-",
        "open": "-",
    },
}


def costs_beside(home, streams, size=_GIB, objects=_OBJECTS):
    """Rows of what a GiB, an hour of a quiet stream, a step of retention and a reader that knows nothing come to.

    Args:
        home: Directory for logs.
        streams: How many quiet streams there are.
        size: Bytes of the steady stream; what they take is told for a GiB.
        objects: How many there are of 64 MiB where retention drops one.
    """
    simulated = Simulated(home, _RATE)
    simulated.run(size)
    yield from _gib(simulated, size)
    yield from _cold_open(simulated)
    yield _quiet_hour(home, streams)
    yield from _retention_step(objects)


def _row(what, unit, told=None):
    """A row; of what others say of `told`, if they do."""
    row = Row(f"tier, cost: {what}", "-", unit, is_absolute=True, smaller_is_better=True)
    row.told = {} if told is None else {name: said[told] for name, said in _TOLD.items()}
    return row


def _gib(simulated, size):
    store = simulated.context.store
    for what, told, count in (
        ("PUTs", "PUTs", puts(store.counts)),
        ("GETs", "GETs", sum(store.counts[kind] for kind in ("get", "get_range", "head"))),
        ("LISTs", "LISTs", store.counts["list"]),
    ):
        row = _row(f"{what} per GiB, one stream at 10 MiB/s", f"{what}/GiB", told)
        row.add("liftpy", count * _GIB / size)
        row.note = (
            f"{size >> 20:,} MiB, with merges, and all that follows within the grace period: {asked_text(store.counts)}"
        )
        yield row
    row = _row("bytes written per byte, one stream at 10 MiB/s", "bytes/byte", "bytes")
    row.add("liftpy", store.bytes_out / size)
    row.note = "values that do not compress; objects of 64 MiB are merged into larger ones, once"
    yield row


def _quiet_hour(home, streams):
    sharing = Sharing(home, streams, round_s=_QUIET_ROUND_S, records=1)
    before = {}
    for number in range(_COLLECTED_EVERY + _QUIET_ROUNDS):
        if number == _COLLECTED_EVERY:  # by now the manifest is made, and the root of every stream was read once
            before = dict(sharing.context.store.counts)
        sharing.round()
        if (number + 1) % _COLLECTED_EVERY == 0:
            sharing.collect()
    asked = {kind: count - before[kind] for kind, count in sharing.context.store.counts.items()}
    row = _row("requests per stream-hour, a message a minute", "requests", "quiet")
    hours = _QUIET_ROUNDS * _QUIET_ROUND_S / 3_600
    row.add("liftpy", sum(asked.values()) / streams / hours)
    row.note = f"{streams:,} streams of a node, {60 * hours:.0f} minutes: {asked_text(asked)}"
    return row


def _retention_step(objects):
    context, path, starts = root_of(objects)
    store = context.store
    where = {"uuid": path.uuid, "partition": path.partition, "epoch": 0}
    before, read, written = {}, 0, 0
    for start in starts:  # the last one is counted: what a worker reads once is in its memory by then
        before, read, written = dict(store.counts), store.bytes_in, store.bytes_out
        answer = run(context, "retain", {**where, "start": start})
        assert answer["start"] == start
    asked = {kind: count - before[kind] for kind, count in store.counts.items()}
    row = _row("requests of a retention step, 1 TiB of history", "requests", "retention")
    row.add("liftpy", sum(asked.values()))
    row.note = f"one of {objects:,} objects goes: {asked_text(asked)}"
    yield row
    row = _row("bytes of a retention step, 1 TiB of history", "KiB")
    row.add("liftpy", (store.bytes_in - read + store.bytes_out - written) / 1024)
    yield row


def _cold_open(simulated):
    counted = CountingStore(simulated.context.store)
    path = PartitionPath(simulated.uuid, 0)
    offset = simulated.end // 2
    version = open_version(counted, path, offset=offset)
    rows = next(iter(version.read(offset, offset + 1)))
    assert rows.column("offset")[0].as_py() == offset
    row = _row("requests until the first record, nothing in memory", "GETs", "open")
    row.add("liftpy", sum(counted.counts.values()))
    row.note = f"in the midst of the steady stream: {asked_text(counted.counts)}"
    yield row
    row = _row("bytes until the first record, nothing in memory", "KiB")
    row.add("liftpy", counted.bytes_in / 1024)
    yield row
