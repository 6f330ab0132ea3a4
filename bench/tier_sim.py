"""What the bucket costs, with a clock of its own: real jobs over a store in memory, and the node's schedule."""

from __future__ import annotations

import io
import random
import tracemalloc
from itertools import count

import numpy as np
import pyarrow as pa

from bench.row import Row
from bench.tier_logs import BATCH_BYTES, LogFile
from bench.tier_rig import asked_text, puts
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root.changes import append, create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.rows.convert import row_schema
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.objects.write import ObjectWriter
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.pull import PartitionKey
from liftpy_server.partition.cold_side import ColdSide
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.table import run
from liftpy_server.tier.schedule.places import Job, Limits
from liftpy_server.tier.schedule.schedule import Schedule

__all__ = ["Simulated", "idle_state", "requests_of_a_stream", "root_of", "root_sizes", "simulated_context"]

_NODE = "n1"
_UUID = "ab" * 16
_S_PER_STEP = 0.5
_FRAGMENT_BYTES = 64 << 20
_RECORD_BYTES = 1_024
_SAMPLE_ROWS = 64
_SEEKS = 64


def limits_of(config):
    """As a node makes them of its settings."""
    names = ("upload_bytes", "upload_age_s", "set_member_bytes_max", "merge_bytes", "object_bytes", "gc_interval_s")
    return Limits(**{name: getattr(config, name) for name in names}, grace_s=config.grace_s)


def simulated_context(store, now_ns, config):
    """What the jobs of a worker share, without a worker."""
    ids = count()
    return Context(
        store,
        new_id=lambda: f"{next(ids):032x}",
        now_ns=now_ns,
        memory_bytes_max=config.upload_memory_bytes,
        object_bytes=config.object_bytes,
        grace_ns=int(config.grace_s * 1e9),
    )


class Simulated:
    """One stream, written at a steady rate, with default settings; what a node does for it, without waiting.

    Args:
        home: for its log.
        bytes_per_s: of values.
    """

    uuid = _UUID

    def __init__(self, home, bytes_per_s):
        self.config = TierConfig()
        self.now_s = 0.0
        self.context = simulated_context(MemoryStore(self._now_ns), self._now_ns, self.config)
        self.schedule = Schedule(limits_of(self.config), self.now_s)
        self.schedule.proven(self.now_s)
        self._key = PartitionKey(bytes.fromhex(_UUID), 0)
        self.schedule.led(self._key, 0, has_history=False)
        self._log = LogFile(home / "simulated.log", _RECORD_BYTES)
        self._bytes_per_s = bytes_per_s
        self._written = 0  # bytes of values
        self._slices = []  # (first offset, the one after the last, slices), each of one batch

    def _now_ns(self):
        return int(1.8e18 + self.now_s * 1e9)

    @property
    def end(self):
        """The offset after the last record."""
        return self._log.end

    def run(self, size):
        """Write `size` bytes of values, and go on until nothing is left to do."""
        while self._written < size:
            self.now_s += _S_PER_STEP
            while self._written < min(size, int(self.now_s * self._bytes_per_s)):
                self._slices.append(self._log.write(1))
                self._written += BATCH_BYTES
            self._step()
        until_s = self.now_s + self.config.grace_s + 3 * self.config.gc_interval_s
        while self.now_s < until_s:
            self.now_s += self.config.upload_age_s / 2
            self._step()

    def _step(self):
        waiting = sum(each["length"] for _, _, slices in self._slices for each in slices)
        self.schedule.wrote(self._key, self._log.end, waiting, self.now_s)
        while tasks := self.schedule.tasks(self.now_s):
            for task in tasks:
                self._do(task)
            waiting = sum(each["length"] for _, _, slices in self._slices for each in slices)
            self.schedule.wrote(self._key, self._log.end, waiting, self.now_s)

    def _call(self, job, **arguments):
        return run(self.context, job.value, {"uuid": _UUID, "partition": 0, **arguments})

    def _do(self, task):
        if task.job is Job.CLAIM:
            claim = {"node": _NODE, "log_start": 0, "epochs": [[0, 0]], "create": True, "record_hash": RecordHash.XXH3}
            answer = self._call(task.job, epoch=0, **claim)
            self.schedule.looked(task, answer["start"], answer["end"], is_sealed=False, now_s=self.now_s)
        elif task.job is Job.UPLOAD:
            self._upload(task)
        elif task.job is Job.UPLOAD_SET:
            base, end, slices = self._taken(self.config.set_member_bytes_max)
            ours = {"uuid": _UUID, "partition": 0, "tier_epoch": 0, "base": base, "end": end, "slices": slices}
            members = [{**ours, "keeps_replies": False, "record_hash": RecordHash.XXH3}]
            run(self.context, task.job.value, {"node": _NODE, "incarnation": 1, "members": members})
            self.schedule.uploaded(task, {self._key: end}, self.now_s)
        elif task.job is Job.COLLECT_SETS:
            run(self.context, task.job.value, {"node": _NODE, "incarnation": 1})
            self.schedule.kept_up(task, None, self.now_s)
        else:
            wanted = {"epoch": 0} if task.job is Job.MERGE else {"grace_ns": self.context.grace_ns}
            self._call(task.job, **wanted)
            self.schedule.kept_up(task, None, self.now_s)

    def _upload(self, task):
        base, end, slices = self._taken(self.config.upload_bytes)
        self._call(task.job, epoch=0, base=base, end=end, slices=slices, epochs=[[0, 0]], keeps_replies=False)
        self.schedule.uploaded(task, {self._key: end}, self.now_s)

    def _taken(self, bytes_max):
        """As many batches as go into one object; they are counted as gone."""
        taken, size = [], 0
        while self._slices and (not taken or size + self._slices[0][2][0]["length"] <= bytes_max):
            taken.append(self._slices.pop(0))
            size += taken[-1][2][0]["length"]
        return taken[0][0], taken[-1][1], [piece for _, _, slices in taken for piece in slices]


def requests_of_a_stream(home, size, bytes_per_s):
    """PUTs per GiB of one stream that is written steadily, by the clock of the simulation."""
    row = Row("tier, PUTs per GiB of one stream at 10 MiB/s, 1 KiB, simulated", "-", "PUTs/GiB")
    row.is_absolute = row.smaller_is_better = True
    simulated = Simulated(home, bytes_per_s)
    simulated.run(size)
    asked = simulated.context.store.counts
    row.add("liftpy", puts(asked) * (1 << 30) / size)
    row.note = f"{size >> 20:,} MiB and all that follows within the grace period: {asked_text(asked)}"
    return row


def idle_state(streams):
    """Quiet streams: bytes of a node's state for the bucket, and what they ask of it in a day."""
    config = TierConfig()
    keys = [PartitionKey(number.to_bytes(16, "big"), 0) for number in range(streams)]
    now_s = 0.0
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    schedule, cold = Schedule(limits_of(config), now_s), {}
    schedule.proven(now_s)
    for key in keys:
        schedule.led(key, 0, has_history=False)
        schedule.wrote(key, 1, 200, now_s)
    now_s += config.upload_age_s
    uploads = 0
    while tasks := schedule.tasks(now_s):
        for task in tasks:
            uploads += task.job is Job.UPLOAD_SET
            if task.job is Job.CLAIM:
                schedule.looked(task, 0, 0, is_sealed=False, now_s=now_s)
                continue
            schedule.uploaded(task, {place.key: 1 for place in task.places}, now_s)
            for place in task.places:
                cold[place.key] = ColdSide(0, 1, [(0, 0)])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    asked = []
    for _ in range(24 * 60):
        now_s += 60
        for task in schedule.tasks(now_s):
            asked.append(task.job)
            schedule.kept_up(task, None, now_s)
    name = f"tier, {streams:,} quiet streams"
    state = Row(f"{name}, state of the node", "-", "MiB", is_absolute=True, smaller_is_better=True)
    state.add("liftpy", (after - before) / 2**20)
    state.note = f"{(after - before) / streams:,.0f} bytes each, after {uploads} shared objects with a record of each"
    jobs = Row(f"{name}, jobs asked for in a day", "-", "jobs", is_absolute=True, smaller_is_better=True)
    jobs.add("liftpy", len([job for job in asked if job is not Job.COLLECT_SETS]))
    jobs.note = f"by the schedule, simulated; {asked.count(Job.COLLECT_SETS)} look at the shared objects besides"
    return [state, jobs]


def root_of(objects):
    """A worker's context with the root of a partition that names so many objects; where it is; some of their bases.

    What the root names is not there.
    """
    context = simulated_context(MemoryStore(), lambda: int(1.8e18), TierConfig())
    path = PartitionPath(_UUID, 0)
    file = RootFile(context.store, path, new_id=context.new_id)
    loaded = file.commit(None, create(path, epoch=0, node=_NODE, start=0))
    for number in range(objects):
        loaded = file.commit(loaded, append(loaded.root, _pointer(number), epoch=0, epochs=[(0, 0)]))
    return context, path, [_pointer(number).base for number in (1, 2)]


class _Sized(CountingStore):
    """Notes how large every root is."""

    def __init__(self, store):
        super().__init__(store)
        self.root_bytes = []

    def replace(self, key, body, etag, nonce):
        self.root_bytes.append(len(body))
        return super().replace(key, body, etag, nonce)


def root_sizes():
    """Root bytes per commit up to 1 GiB and up to 1 TiB of objects of 64 MiB, and requests of a seek at the end."""
    store, path, ids = _Sized(MemoryStore()), PartitionPath(_UUID, 0), count()
    file = RootFile(store, path, new_id=lambda: f"{next(ids):032x}")
    loaded = file.commit(None, create(path, epoch=0, node=_NODE, start=0))
    commits, rng = (1 << 40) // _FRAGMENT_BYTES, random.Random(1)
    chosen = {0, commits - 1, *rng.sample(range(commits), _SEEKS - 2)}
    for number in range(commits):
        pointer = _sample(store, path, number) if number in chosen else _pointer(number)
        loaded = file.commit(loaded, append(loaded.root, pointer, epoch=0, epochs=[(0, 0)]))
    sizes = Row("tier, bytes of the root per commit, 1 TiB of history", "-", "bytes", smaller_is_better=True)
    sizes.peer = "1 GiB"
    sizes.add("liftpy", sum(store.root_bytes[-1_024:]) / 1_024)
    first = store.root_bytes[: (1 << 30) // _FRAGMENT_BYTES]
    sizes.add("1 GiB", max(first))
    sizes.note = (
        f"mean of the last 64 GiB, at most {max(store.root_bytes):,}; of 1 GiB the largest; snapshots besides, "
    )
    sizes.note += f"{(store.bytes_out - sum(store.root_bytes)) / commits:,.0f} bytes a commit"
    seek = Row("tier, GETs of a seek in 1 TiB", "-", "GETs", is_absolute=True, smaller_is_better=True)
    seek.add("liftpy", max(_seek(store, path, number) for number in sorted(chosen)))
    seek.note = f"the most of {len(chosen)} by readers that know nothing yet, up to the record"
    return [sizes, seek]


def _seek(store, path, number):
    counted = CountingStore(store)
    base = number * (_FRAGMENT_BYTES // _RECORD_BYTES)
    version = open_version(counted, path, offset=base)
    rows = next(iter(version.read(base, base + 1)))
    assert rows.column("offset")[0].as_py() == base
    return sum(counted.counts.values())


def _pointer(number):
    records = _FRAGMENT_BYTES // _RECORD_BYTES
    base = number * records
    return StreamObjectPointer(
        name=f"{base:020d}-0-{number:032x}.parquet",
        base=base,
        end=base + records,
        records=records,
        size=_FRAGMENT_BYTES,
        footer=_FRAGMENT_BYTES - 40_000,
        digest="ab" * 32,
        first_timestamp=base,
        last_timestamp=base + records,
        setsum=Setsum(random.Random(number).randbytes(4).rjust(32, b"\0")),
    )


def _sample(store, path, number):
    """An object that is there, with the first of its rows."""
    expected = _pointer(number)
    offsets = np.arange(expected.base, expected.base + _SAMPLE_ROWS)
    schema = row_schema(keeps_replies=False)
    values = {name: [None] * _SAMPLE_ROWS for name in schema.names}
    values |= {
        "offset": offsets,
        "timestamp": offsets,
        "timestamp_ns": offsets * 1_000,
        "subject": ["orders.1"] * _SAMPLE_ROWS,
        "value": [b"%d" % offset for offset in offsets],
        "leader_epoch": [0] * _SAMPLE_ROWS,
    }
    arrays = [pa.array(values[field.name]).cast(field.type) for field in schema]
    sink = io.BytesIO()
    about = {"uuid": path.uuid, "partition": path.partition, "nonce": "n"}
    writer = ObjectWriter(sink, **about, keeps_replies=False, record_hash=RecordHash.XXH3)
    writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    written = writer.finish()
    store.create(path.fragment(expected.name), sink.getvalue(), "n")
    return written.pointer(expected.name, base=expected.base, end=expected.end)
