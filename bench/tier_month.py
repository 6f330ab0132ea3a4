"""A month of streams that write little, by a clock of its own: what the manifest of their shared objects costs.

Manifests, pages and the choice of what is merged are the real ones, over a store in memory. Objects are not written:
of each there is what a manifest says, with digests and sums as random as real ones, and sizes as measured.
"""

from __future__ import annotations

import random
import statistics
import tracemalloc
from collections import Counter
from itertools import islice

from bench.row import Row
from bench.tier_rig import puts
from bench.tier_shared import reader_rows
from liftpy.cli.tier.progress import show_progress
from liftpy_bucket.layout import PartitionPath, set_pack_key, slot_of
from liftpy_bucket.manifest.stream_sets.changes import add, begin, replace, sum_of
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer
from liftpy_bucket.objects.setsum import Setsum
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.pull import PartitionKey
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.jobs.parts.set_merge_plan import (
    OBJECT_BYTES_MAX,
    Part,
    chains_of,
    divided,
    has_moved,
    objects_to_merge,
)
from liftpy_server.tier.schedule.places import Limits, Phase, Place
from liftpy_server.tier.schedule.upkeep import Upkeep

__all__ = ["Month", "quiet_month"]

_NODE = "n1"
_BATCH_BYTES = 300  # of a record of 128 bytes that came alone, on disk
_FILE_BYTES, _RECORD_BYTES = 2_725, 136  # of a member, and of each of its records: as measured
_FOOTER_BYTES = 1_140  # of a member in the footer of all
_DAY_S = 86_400.0
_READS = 4


class Month:
    """Streams of a node that get a message a minute each, and share objects until they move out.

    Args:
        streams: How many there are.
        round_s: Time in which each of them shares an object once, s.
        seed: Seed of everything that is random.
    """

    def __init__(self, streams, round_s, seed=1):
        self._rng = random.Random(seed)
        config = TierConfig()
        limits = {each: getattr(config, each) for each in ("upload_bytes", "set_member_bytes_max", "merge_bytes")}
        limits |= {each: getattr(config, each) for each in ("object_bytes", "gc_interval_s", "grace_s")}
        self._limits = Limits(**limits, upload_age_s=round_s)
        self.now_s = 0.0
        self._round_s = round_s
        self._records = round(round_s / 60)
        self.store = CountingStore(MemoryStore())
        self._ids = 0
        self._file = SetManifestFile(self.store, _NODE, new_id=self._new_id, pages=page_cache())
        self.loaded = self._file.commit(None, begin(_NODE, 1))
        keys = [PartitionKey(self._rng.randbytes(16), 0) for _ in range(streams)]
        self._upkeep = Upkeep(self._limits, 0.0)
        self.places = {key.uuid.hex(): Place(key, 0) for key in keys}
        for place in self.places.values():
            place.phase = Phase.CLAIMED
        self.uuids = sorted(self.places, key=lambda uuid: (slot_of(uuid, 0), uuid))
        self._moved = dict.fromkeys(self.uuids, 0)  # the offset up to which a stream has objects of its own
        self._held = {}  # by object: bytes of each stream that counts
        self._in = {uuid: set() for uuid in self.uuids}  # the objects that hold some of a stream
        self._gone_bytes = Counter()  # by object: of streams that have moved out
        self.written_bytes = Counter()  # of objects: by rounds, merges, trims
        self.moves = 0

    def _new_id(self):
        self._ids += 1
        return f"{self._ids:032x}"

    def _digest(self):
        return self._rng.randbytes(32).hex()

    def _pointer(self, kind, members):
        start, found, held = 0, [], {}
        for uuid, base, end, sums in members:
            size = _FILE_BYTES + _RECORD_BYTES * (end - base)
            extent = Extent(size, size - 2_000, self._digest(), start=start)
            times = (round(1e9 * 60 * base) + self._rng.randrange(10**9), round(1e9 * 60 * end))
            found.append(
                SetMember(
                    uuid=uuid,
                    partition=0,
                    tier_epoch=0,
                    base=base,
                    end=end,
                    records=end - base,
                    extent=extent,
                    epochs=((0, base),),
                    first_timestamp=1_790_000_000 * 10**9 + times[0],
                    last_timestamp=1_790_000_000 * 10**9 + times[1],
                    setsum=sums,
                )
            )
            held[uuid] = size
            start += size
        name = f"{self._next_sequence:020d}-{self._digest()[:32]}.parquet"
        self._next_sequence += 1
        size = start + _FOOTER_BYTES * len(found)
        self._held[name] = held
        for uuid in held:
            self._in[uuid].add(name)
        self.written_bytes[kind] += size
        return SetObjectPointer(name=name, size=size, footer=start, digest=self._digest(), members=tuple(found))

    def _forget(self, names):
        for name in names:
            self._gone_bytes.pop(name, None)
            for uuid in self._held.pop(name):
                self._in[uuid].discard(name)

    def round(self):
        """Each stream shares an object once, a few thousand of them at a time. Says PUTs and manifest bytes of each."""
        self.now_s += self._round_s
        told = []
        left = iter(self.uuids)
        count = min(self._limits.members_max, self._limits.upload_bytes // (_BATCH_BYTES * self._records))
        while some := list(islice(left, count)):
            before = puts(self.store.counts), self.store.bytes_out
            base = round(self.now_s / 60) - self._records
            self._next_sequence = self.loaded.manifest.sequence
            members = [(uuid, base, base + self._records, self._sum()) for uuid in some]
            added = self._pointer("rounds", members)
            self.loaded = self._file.commit(self.loaded, add(self.loaded.manifest, added))
            told.append((1 + puts(self.store.counts) - before[0], self.store.bytes_out - before[1]))
            for uuid in some:
                place = self.places[uuid]
                self._upkeep.grown(place, _BATCH_BYTES * self._records, is_shared=True, now_s=self.now_s)
        return told

    def move_out(self):
        """Have those move out of which the schedule says so."""
        while (due := self._upkeep.next(0.0)) is not None:
            _, (place,) = due
            uuid = place.key.uuid.hex()
            self._moved[uuid] = round(self.now_s / 60)
            for name in self._in[uuid]:
                self._gone_bytes[name] += self._held[name].pop(uuid)
            self._in[uuid].clear()
            self._upkeep.kept_up(place, due[0], self.now_s)
            self._upkeep.forget(place)
            self.moves += 1

    def collect(self):
        """What the node does every ten minutes besides: objects are trimmed, merged and dropped."""
        for each in self.loaded.manifest.objects:
            if not self._held[each.name] or has_moved(self._gone_bytes[each.name], each.size):
                self._replace([each.name], "trims")
        while run := objects_to_merge(self.loaded.manifest.objects, OBJECT_BYTES_MAX):
            self._replace([each.name for each in run], "merges")
        named = {set_pack_key(_NODE, each.name) for each in self.loaded.manifest.packs}
        self.store.delete([entry.key for entry in self.store.list(f"sets/{_NODE}/pages/") if entry.key not in named])

    def _replace(self, names, kind):
        manifest = self.loaded.manifest
        parts = [
            Part(pointer, member, member.base, member.end)
            for pointer in self._file.pointers(manifest, names)
            for member in pointer.members
            if member.end > self._moved[member.uuid]
        ]
        self._forget(names)
        self._next_sequence = manifest.sequence
        chains = [[part] for part in parts] if kind == "trims" else chains_of(parts)
        added = [self._pointer(kind, map(self._joined, some)) for some in divided(chains, OBJECT_BYTES_MAX)]
        gone = Setsum.total(each.setsum for each in manifest.objects if each.name in names)
        collected = gone - Setsum.total(map(sum_of, added))  # of members that were not written nobody knows sums
        self.loaded = self._file.commit(self.loaded, replace(manifest, names, added, collected=collected))

    def _joined(self, chain):
        first, last = chain[0].member, chain[-1].member
        return first.uuid, first.base, last.end, self._sum()

    def _sum(self):
        return Setsum.of_digests(self._rng.randbytes(32))

    @property
    def members(self):
        """Members of all streams."""
        return sum(each.members for each in self.loaded.manifest.objects)

    def sample(self, count):
        """Some streams."""
        return self._rng.sample(self.uuids, count)

    def read_one(self, uuid):
        """What a reader of one stream fetches of the manifest: requests, bytes, and bytes of memory at most."""
        counted = CountingStore(self.store)
        tracemalloc.start()
        part = ReadingCache(counted).set_part(_NODE, PartitionPath(uuid, 0))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        ends = [member.end for each in part.objects for member in each.members]
        assert max(ends, default=0) >= round(self.now_s / 60) or not self._in[uuid], "what came last is named"
        return sum(counted.counts.values()), counted.bytes_in, peak


def quiet_month(streams, days, round_s):
    """Days of streams that share objects: what a round writes, and what a reader fetches, at the most of each day."""
    month = Month(streams, round_s)
    rounds = round(_DAY_S / round_s)
    asked, manifest, of_a_reader, members = 0, [], [], []
    with show_progress(f"days of {streams:,} streams") as progress:
        for day in range(days):
            progress(day, days)
            of_a_day = []
            for _ in range(rounds):
                of_a_day += month.round()
                month.move_out()
                month.collect()
                members.append(month.members / streams)
                of_a_reader.append([max(each) for each in zip(*map(month.read_one, month.sample(_READS)), strict=True)])
            asked = max(asked, *(number for number, _ in of_a_day))
            manifest.append(statistics.mean(size for _, size in of_a_day))
    name = f"tier, {days} days of {streams:,} streams with a message a minute"
    note = f"simulated; each stream shares an object every {round_s / 3600:g} h"
    row = Row(f"{name}, PUTs per object", "-", "PUTs", is_absolute=True, smaller_is_better=True, note=note)
    row.add("liftpy", asked)
    yield row
    row = Row(f"{name}, manifest per object", "-", "KiB", peer="first half", smaller_is_better=True)
    half = days // 2
    row.add("liftpy", statistics.mean(manifest[half:]) / 1024)
    row.add("first half", statistics.mean(manifest[:half]) / 1024)
    row.note = f"mean of the second half and of the first; at most {max(manifest) / 1024:,.0f} KiB on a day"
    yield row
    row = Row(f"{name}, members of a stream", "-", "members", is_absolute=True, smaller_is_better=True)
    row.add("liftpy", statistics.mean(members))
    row.note = f"mean, at most {max(members):.1f}; {len(month.loaded.manifest.objects):,} objects at the end"
    yield row
    written = {kind: size / (1 << 30) for kind, size in month.written_bytes.items()}
    row = Row(f"{name}, GiB written per GiB of rounds", "-", "GiB", is_absolute=True, smaller_is_better=True)
    row.add("liftpy", sum(written.values()) / written["rounds"])
    row.note = ", ".join(f"{kind} {size:,.0f} GiB" for kind, size in sorted(written.items()))
    row.note += f"; {month.moves:,} times a stream has moved out"
    yield row
    note = f"the most of {_READS} readers after each of {len(of_a_reader):,} rounds, which know nothing yet"
    yield from reader_rows(f"{name}, manifest of one stream", of_a_reader, note)
