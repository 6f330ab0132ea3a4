"""What streams cost that share objects, by a clock of its own: real jobs of a node over a store in memory."""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc

from bench.row import Row
from bench.tier_logs import LogFile
from bench.tier_rig import puts
from bench.tier_sim import simulated_context
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.jobs.table import run

__all__ = ["Sharing", "reader_rows", "shared_rounds"]

_NODE = "n1"
_RECORD_BYTES = 128
_RECORDS = 10  # of each stream in a round: one a minute, and a round every ten
_ROUND_S = 600.0  # as often as the node collects; by default a round comes every minute
_FEW = 8
_READS = 16


class Sharing:
    """Streams of a node that all get a little in every round.

    Args:
        home: Directory for their log, which is the same for all.
        streams: How many there are.
        round_s: Time from one round to the next, s.
        records: Records of each stream in a round.
    """

    def __init__(self, home, streams, round_s=_ROUND_S, records=_RECORDS):
        self.config = TierConfig()
        self.now_s = 0.0
        self._round_s = round_s
        self.store = MemoryStore(self._now_ns)
        self.context = simulated_context(self.store, self._now_ns, self.config)
        rng = random.Random(streams)
        self.uuids = sorted(rng.randbytes(16).hex() for _ in range(streams))
        self._log = LogFile(home / "shared.log", _RECORD_BYTES, _RECORD_BYTES * records)
        for uuid in self.uuids:
            claim = {"node": _NODE, "log_start": 0, "epochs": [[0, 0]], "create": True, "record_hash": RecordHash.XXH3}
            run(self.context, "claim", {"uuid": uuid, "partition": 0, "epoch": 0, **claim})

    def _now_ns(self):
        return int(1.8e18 + self.now_s * 1e9)

    def round(self):
        """One round: PUTs, and bytes of the manifest that were written; then what the collection wrote."""
        self.now_s += self._round_s
        self._log.start_over()
        base, end, slices = self._log.write(1)
        usual = {"partition": 0, "tier_epoch": 0, "base": base, "end": end, "slices": slices, "keeps_replies": False}
        usual["record_hash"] = RecordHash.XXH3
        before, written = puts(self.context.store.counts), self.context.store.bytes_out
        members = [{"uuid": uuid, **usual} for uuid in self.uuids]
        answer = run(self.context, "upload_set", {"node": _NODE, "incarnation": 1, "members": members})
        asked = puts(self.context.store.counts) - before
        return asked, self.context.store.bytes_out - written - answer["stored_bytes"]

    def collect(self):
        """What the node does every ten minutes besides."""
        run(self.context, "collect_sets", {"node": _NODE, "incarnation": 1})

    def read_one(self, uuid, offset):
        """One record by a reader that knows nothing: requests, bytes, and bytes of memory at most."""
        counted = CountingStore(self.store)
        tracemalloc.start()
        version = open_version(counted, PartitionPath(uuid, 0), offset=offset)
        rows = next(iter(version.read(offset, offset + 1)))
        assert rows.column("offset")[0].as_py() == offset
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return sum(counted.counts.values()), counted.bytes_in, peak


def shared_rounds(home, streams, rounds):
    """Rounds of streams that share objects: what each writes, and what a record costs a reader in the end."""
    sharing = Sharing(home, streams)
    asked, manifest, began_s = [], [], time.process_time()
    for _ in range(rounds):
        number, size = sharing.round()
        asked.append(number)
        manifest.append(size)
        sharing.collect()
    spent_s = time.process_time() - began_s
    name = f"tier, {streams:,} streams with a message a minute"
    row = Row(f"{name}, PUTs per round", "-", "PUTs", is_absolute=True, smaller_is_better=True)
    row.add("liftpy", max(asked[1:]))  # the first one also writes a manifest that names nothing
    row.note = f"simulated, {rounds} rounds of {_RECORDS} messages each"
    yield row
    row = Row(f"{name}, manifest per round", "-", "KiB", peer="first rounds", smaller_is_better=True)
    row.add("liftpy", statistics.mean(manifest[-_FEW:]) / 1024)
    row.add("first rounds", statistics.mean(manifest[:_FEW]) / 1024)
    row.note = f"mean of the last {_FEW} rounds, and of the first {_FEW}"
    yield row
    row = Row(f"{name}, CPU of a worker", "-", "ms", is_absolute=True, smaller_is_better=True)
    row.add("liftpy", 1_000 * spent_s / rounds / streams)
    row.note = "for a stream and round, with the merges"
    yield row
    rng = random.Random(rounds)
    reads = [
        sharing.read_one(uuid, number * _RECORDS * rounds // _READS)
        for number, uuid in enumerate(rng.sample(sharing.uuids, _READS))
    ]
    yield from reader_rows(f"{name}, one record", reads, f"the most of {len(reads)} by readers that know nothing yet")


def reader_rows(name, reads, note):
    """The most of what readers took: requests, bytes, and bytes of memory of each."""
    units = (("requests", "GETs", 1), ("bytes", "KiB", 1024), ("memory of the reader", "MiB", 1 << 20))
    for place, (what, unit, divisor) in enumerate(units):
        row = Row(f"{name}: {what}", "-", unit, is_absolute=True, smaller_is_better=True, note=note)
        row.add("liftpy", max(read[place] for read in reads) / divisor)
        yield row
