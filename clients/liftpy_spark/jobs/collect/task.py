"""What tasks of a collection do: they look for candidates, and hand them to the collector of the partition.

`look` lists a range of keys and compares it with what root and pins name of that range; what it finds are candidates
and nothing more. `take` gives those of a partition to `liftpy_bucket.upkeep.collecting.Collector` in place of a listing
of its own: the collector reads root and pins after that, decides by its own rules and by the clock of the store, and is
the only one that deletes. So a candidate that somebody names meanwhile stays, and both may be repeated, or be killed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from liftpy_bucket.errors import BucketVersionError, ObjectCorruptError, ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.garbage import KEYS_MAX
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.pins.pin import PinRefusedError, is_in_force
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import is_older, is_ours
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.object_store import Entry
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_spark.jobs.access import store_of
from liftpy_spark.sink.accounts import forget_idle
from liftpy_spark.sink.staging import staging_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SnapshotPointer
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_bucket.store.s3_settings import S3Settings

__all__ = [
    "KeyRange",
    "LookTask",
    "RangeFindings",
    "Share",
    "StagingTask",
    "TakeTask",
    "Taken",
    "look",
    "take",
    "take_staged",
]

_ATTEMPTS: Final = 4
_KEYS_PER_LOOK: Final = 10_000
_CANDIDATES_MAX: Final = 10_000
_KEYS_PER_DELETE: Final = 1_000
_BASE: Final = slice(20)
_PROBLEMS: Final = (BucketVersionError, ObjectCorruptError, ObjectMissingError, OvertakenError, PinRefusedError)
"""What is wrong with one partition, and no reason to leave the others."""


class KeyRange(NamedTuple):
    """Keys of a partition's directory.

    Attributes:
        place: Place of the partition among those that are collected.
        path: Path of the partition.
        after: Below the directory; the range begins behind it.
        until: The range ends before it; "": with the directory.
        weight: About how many objects are named there.
    """

    place: int
    path: PartitionPath
    after: str
    until: str
    weight: int


class RangeFindings(NamedTuple):
    """What was found in a range; it travels as a list.

    Attributes:
        place: Place of the range.
        listed: How many objects there are, or were looked at.
        objects: How many of these nobody names.
        size: Size of the objects in bytes.
        candidates: (key below the directory, bytes, ns since the epoch when it was written), where they are wanted.
        resume: The look ended behind this key, as there were enough of them; None: with the range.
        problem: Why nothing can be said; "": there is no reason.
    """

    place: int
    listed: int = 0
    objects: int = 0
    size: int = 0
    candidates: tuple[tuple[str, int, int], ...] = ()
    resume: str | None = None
    problem: str = ""


class LookTask(NamedTuple):
    """What a task that looks gets.

    Attributes:
        settings: Settings of the bucket.
        ranges: Ranges that it lists.
        grace_ns: Younger objects are not looked at.
        wants_candidates: Whether they are to be taken; otherwise they are counted.
    """

    settings: S3Settings
    ranges: tuple[KeyRange, ...]
    grace_ns: int
    wants_candidates: bool


class Share(NamedTuple):
    """Candidates of one partition, and its place as of a range."""

    place: int
    path: PartitionPath
    candidates: tuple[tuple[str, int, int], ...]


class TakeTask(NamedTuple):
    """What a task that collects gets."""

    settings: S3Settings
    shares: tuple[Share, ...]
    grace_ns: int


class Taken(NamedTuple):
    """What was deleted of a partition; it travels as a list.

    Attributes:
        place: Place of the range.
        objects: Number of objects.
        size: Size of the objects in bytes.
        problem: Why it was not done, or not all of it; "": it was.
    """

    place: int
    objects: int
    size: int
    problem: str = ""


class StagingTask(NamedTuple):
    """What a task gets that looks for what the sink left behind.

    Attributes:
        settings: Settings of the bucket.
        prefix: Prefix of the streams' uuids.
        older_than_s: Younger objects stay, seconds.
        now_ns: The time, ns since the epoch.
        deletes: Whether they are deleted; otherwise they are counted.
    """

    settings: S3Settings
    prefix: str
    older_than_s: float
    now_ns: int
    deletes: bool


def look(task: LookTask) -> list[RangeFindings]:
    """List ranges, and find what nobody names.

    Returns:
        for each range what was found; those that it did not come to are to be looked at again from their beginning.

    Raises:
        StoreError: the store does not answer.
    """
    store, found = store_of(task.settings), []
    room = _CANDIDATES_MAX
    for each in task.ranges:
        if room <= 0:
            found.append(RangeFindings(each.place, resume=each.after))
            continue
        try:
            looked = _look(store, each, task, room)
        except _PROBLEMS as error:
            looked = RangeFindings(each.place, problem=str(error))
        room -= len(looked.candidates)
        found.append(looked)
    return found


def _look(store: ObjectStore, keys: KeyRange, task: LookTask, room: int) -> RangeFindings:
    directory, after = keys.path.directory, keys.after
    listed = objects = size = 0
    candidates: list[tuple[str, int, int]] = []
    while len(candidates) < room:
        entries = list(islice(_entries(store, keys, after), _KEYS_PER_LOOK))
        garbage = _garbage(store, keys.path, entries, task)
        listed, objects = listed + len(entries), objects + len(garbage)
        size += sum(entry.size for entry in garbage)
        if task.wants_candidates:
            candidates += [(entry.key.removeprefix(directory), entry.size, entry.modified_ns) for entry in garbage]
        if len(entries) < _KEYS_PER_LOOK:
            return RangeFindings(keys.place, listed, objects, size, tuple(candidates))
        after = entries[-1].key.removeprefix(directory)
    return RangeFindings(keys.place, listed, objects, size, tuple(candidates), after)


def _entries(store: ObjectStore, keys: KeyRange, after: str) -> Iterator[Entry]:
    directory = keys.path.directory
    there = store.list(directory, directory + after)
    return takewhile(lambda entry: entry.key < directory + keys.until, there) if keys.until else there


def _garbage(store: ObjectStore, path: PartitionPath, entries: Sequence[Entry], task: LookTask) -> list[Entry]:
    """What of a listing nobody names; root and pins are read after it. Raises what is in `_PROBLEMS`."""
    now_ns = time.time_ns()
    old = [entry for entry in entries if is_older(entry, now_ns, task.grace_ns)]
    failure: ObjectMissingError | None = None
    for _ in range(_ATTEMPTS):
        view = _View.load(store, path, now_ns)
        if view is None:
            return []  # without a root nobody knows
        try:
            # A collector looks whether a fork still wants what it holds: then that is a candidate, too.
            return view.garbage(store, old, forks_hold=not task.wants_candidates)
        except ObjectMissingError as error:
            failure = error  # a snapshot has gone, as root or pins have moved on: look again
    assert failure is not None, "there was an attempt"
    raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """Root and pins of a partition."""

    file: RootFile
    root: Root
    pins: tuple[Pin, ...]
    now_ns: int

    @classmethod
    def load(cls, store: ObjectStore, path: PartitionPath, now_ns: int) -> _View | None:
        file = RootFile(store, path, new_id=_new_id)
        loaded = file.load()
        return loaded and cls(file=file, root=loaded.root, pins=load_pins(store, path), now_ns=now_ns)

    def garbage(self, store: ObjectStore, entries: Sequence[Entry], *, forks_hold: bool) -> list[Entry]:
        path = self.file.path
        ours = [entry for entry in entries if is_ours(path, entry.key)]
        live = {*self._live(store, ours, forks_hold=forks_hold)}
        buried = {path.pin(pin.name) for pin in self.pins if pin.kind != "cursor" and not is_in_force(pin, self.now_ns)}
        gone = {entry.key for entry in ours} - live
        return [entry for entry in entries if entry.key in gone or entry.key in buried]

    def _live(self, store: ObjectStore, entries: Sequence[Entry], *, forks_hold: bool) -> Iterator[str]:
        """Keys among entries, and others, that root and pinned versions name; reads what it must of the manifests."""
        path = self.file.path
        fragments = path.fragment("")
        bases = [int(entry.key.removeprefix(fragments)[_BASE]) for entry in entries if entry.key.startswith(fragments)]
        files = [(self.file, self.root)]
        files += [
            (RootFile(store, path.at(pin.target), new_id=_new_id), pin.root)
            for pin in self.pins
            if pin.root is not None and is_in_force(pin, self.now_ns) and (forks_hold or not pin.target)
        ]
        for file, root in files:
            if bases:
                for fragment in file.fragments(root, min(bases), max(bases) + 1):
                    if file.path.at(fragment.home) == path:
                        yield path.fragment(fragment.name)
            if len(bases) < len(entries):  # there are snapshots
                for snapshot in _snapshots(file, root):
                    if file.path.at(snapshot.home) == path:
                        yield path.snapshot(snapshot.digest)


def _snapshots(file: RootFile, root: Root) -> Iterator[SnapshotPointer]:
    """All that a root reaches; those that list fragments need not be read for that."""
    waiting = list(root.snapshots)
    while waiting:
        pointer = waiting.pop()
        yield pointer
        if pointer.depth > 1:
            waiting += file.snapshot(pointer).snapshots


def take(task: TakeTask) -> list[Taken]:
    """Hand candidates to the collectors of their partitions.

    Raises:
        StoreError: the store does not answer; what was deleted until then was garbage.
    """
    store = store_of(task.settings)
    return [_take(store, share, task.grace_ns) for share in task.shares]


def _take(store: ObjectStore, share: Share, grace_ns: int) -> Taken:
    objects = size = 0
    directory = share.path.directory
    for first in range(0, len(share.candidates), KEYS_MAX):
        some = share.candidates[first : first + KEYS_MAX]
        entries = [Entry(directory + key, bytes_, "", modified_ns) for key, bytes_, modified_ns in some]
        collector = Collector(
            _Candidates(store, directory, entries),
            share.path,
            new_id=_new_id,
            now_ns=time.time_ns,
            grace_ns=grace_ns,
        )
        try:
            collected = collector.run()
        except _PROBLEMS as error:
            return Taken(share.place, objects, size, str(error))
        objects, size = objects + collected.deleted, size + collected.freed
    return Taken(share.place, objects, size)


class _Candidates(CountingStore):
    """A store in which a partition's directory lists candidates alone: they were listed before."""

    def __init__(self, store: ObjectStore, directory: str, candidates: Sequence[Entry]) -> None:
        super().__init__(store)
        self._directory = directory
        self._candidates = candidates

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """The candidates, or what the store has elsewhere."""
        return iter(self._candidates) if prefix == self._directory else super().list(prefix, start_after)


def take_staged(task: StagingTask) -> list[int]:
    """Delete, or count, what the sink left behind: staged rows, and documents of applications that have ended.

    `sink.staging` and `sink.accounts` say what that is.

    Returns:
        how many objects, and their bytes.

    Raises:
        StoreError: the store does not do it.
    """
    store = store_of(task.settings)
    objects = size = 0
    leftovers = staging_leftovers(store, task.older_than_s, task.now_ns, task.prefix)
    while some := list(islice(leftovers, _KEYS_PER_DELETE)):
        if task.deletes:
            store.delete([entry.key for entry in some])
        objects, size = objects + len(some), size + sum(entry.size for entry in some)
    for entry in forget_idle(store, task.older_than_s, task.now_ns, task.prefix, deletes=task.deletes):
        objects, size = objects + 1, size + entry.size
    return [objects, size]


def _new_id() -> str:
    return uuid4().hex
