"""A partition in a bucket whose objects are small, and writers that work on it by the rules."""

from __future__ import annotations

import dataclasses
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest import boundary
from liftpy_bucket.manifest.root.changes import append, claim, create, replace
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import keys_of, reach
from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.upkeep.collecting import Collector

__all__ = ["GRACE", "PATH", "Clock", "Ids", "Writer", "collector", "digest_of", "fragment", "live_of", "present"]

PATH = PartitionPath("0f" * 16, 3)
GRACE = 1_000


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: int = 10**9) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Ids:
    """Ids that nobody had before."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"{self._prefix}{next(self._numbers):06d}"


def digest_of(offset: int) -> Setsum:
    """The sum of the one record at an offset."""
    return Setsum.of_digests(bytes(28) + blake2b(str(offset).encode(), digest_size=3).digest() + b"\0")


class Made(NamedTuple):
    """An object and the pointer to it."""

    pointer: StreamObjectPointer
    body: bytes


def fragment(base: int, end: int, nonce: str, epoch: int = 1) -> Made:
    """An object that stands for the records of [base, end)."""
    body = f"{base} {end} {nonce}".encode()
    pointer = StreamObjectPointer(
        name=f"{base:020d}-{epoch}-{nonce}.parquet",
        base=base,
        end=end,
        records=end - base,
        size=len(body),
        footer=0,
        digest="ab" * 32,
        first_timestamp=base,
        last_timestamp=end - 1,
        setsum=Setsum.total(digest_of(offset) for offset in range(base, end)),
    )
    return Made(pointer, body)


class Writer:
    """What a leader does to a partition; every method may be overtaken, and is then to be called again.

    Args:
        store: where.
        path: of the partition.
        ids: where its ids are from.
        epoch: its leader epoch.
    """

    def __init__(self, store, path=PATH, ids=None, *, epoch=1) -> None:
        self.store = store
        self.path = path
        self.ids = ids or Ids("w")
        self.epoch = epoch
        self.file = RootFile(store, path, new_id=self.ids)

    @property
    def root(self):
        return self.file.load().root

    def claim(self, start=0):
        loaded = self.file.load()
        node = f"node{self.epoch}"
        if loaded is None:
            change = create(self.path, epoch=self.epoch, node=node, start=start)
        else:
            change = claim(loaded.root, epoch=self.epoch, node=node, start=loaded.root.end)
        return self.file.commit(loaded, change)

    def upload(self, made):
        create_once(self.store, self.path.fragment(made.pointer.name), made.body, self.ids())

    def append(self, records=10):
        """One fragment more; as a worker without a cache does it."""
        loaded = self.file.load()
        root = loaded.root
        made = fragment(root.end, root.end + records, self.ids(), self.epoch)
        self.upload(made)
        return self.commit_append(loaded, made)

    def commit_append(self, loaded, made):
        return self.file.commit(loaded, append(loaded.root, made.pointer, epoch=self.epoch, epochs=[(1, 0)]))

    def retry_append(self, made, born):
        """Commit an object that was uploaded when the root had version `born`, over the root of now."""
        loaded = self.file.load()
        if loaded.root.version != born:
            boundary.check(self.store, self.path.directory, made.pointer.name, born)
        return self.commit_append(loaded, made)

    def merge(self, first=0, count=2):
        """Replace neighbours by one object; as a worker without a cache does it."""
        loaded = self.file.load()
        old = list(self.file.fragments(loaded.root))[first : first + count]
        if len(old) < 2:
            return loaded
        made = fragment(old[0].base, old[-1].end, self.ids(), self.epoch)
        made = made._replace(pointer=dataclasses.replace(made.pointer, setsum=Setsum.total(o.setsum for o in old)))
        self.upload(made)
        snapshots = self.file.snapshots(loaded.root, old[0].base, old[-1].end)
        change = replace(loaded.root, old, [made.pointer], collected=NO_RECORDS, snapshots=snapshots)
        return self.file.commit(loaded, change)

    def filled(self, fragments, records=10):
        self.claim()
        for _ in range(fragments):
            self.append(records)
        return self


def collector(store, clock, path=PATH, ids=None, **given):
    """A collector with the usual grace period."""
    return Collector(store, path, **{"new_id": ids or Ids("c"), "now_ns": clock, "grace_ns": GRACE, **given})


def present(store, path=PATH, kinds=("fragments", "snapshots")):
    """Keys of the objects that are there."""
    return {entry.key for kind in kinds for entry in store.list(f"{path.directory}{kind}/")}


def live_of(store, path=PATH):
    """Keys of what the root of a partition names, all of which must be there."""
    file = RootFile(store, path, new_id=Ids())
    reached = reach(file.load().root, file.snapshot)
    return set(keys_of(reached, path, path))
