"""Collection: the one place where objects of a partition are deleted.

1. `compute`: list the directory, read the root, then the pins; find what neither reaches, and what a new start of the
   partition would leave unnamed; write GARBAGE, then move BOUNDARY above the version of the root.
2. `apply`: commit a root, over exactly the one that was read, that names none of it. Where the root names none of it
   already (orphans, what merging replaced) the commit changes nothing but the version; it is what refuses every
   writer that decided before BOUNDARY moved, see `boundary`.
3. `delete`: read root and pins once more, delete what still nobody reaches, and reset GARBAGE.

A crash between any two requests leaves garbage and nothing worse: the next collection lists anew and finds it. Names
are never written twice, so a deletion that comes late, by a collector that was stalled, hits nothing that is alive.

An object that nobody names may be work in progress until it is older than the grace period by the clock of the store:
GARBAGE was written after the listing, and by that clock. What a new start leaves unnamed goes at once, unless a pin
holds it. A reader without a pin may so find an object missing that a root named when it read the root: it reads
the root again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest import boundary
from liftpy_bucket.manifest.garbage import KEYS_MAX, NOTHING, Garbage, check_balance, load_garbage, swap_garbage
from liftpy_bucket.manifest.pins.held import bump, load_pins
from liftpy_bucket.manifest.pins.pin import floor_of
from liftpy_bucket.manifest.root.changes import advance_start
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import Reach, is_older, is_ours, keys_of
from liftpy_bucket.upkeep.forking import release_unneeded
from liftpy_bucket.upkeep.live import held_keys, named_keys, settled_pins, walking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.changes import Change
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["Collected", "Collection", "Collector"]

_ATTEMPTS: Final = 4
_KEYS_PER_DELETE: Final = 1_000


class Collected(NamedTuple):
    """What a collection did.

    Attributes:
        loaded: The root as it stands; None: the bucket has nothing of the partition.
        deleted: How many objects.
        freed: Size of what was deleted, as far as it was listed, bytes.
        more: Whether there is more to be collected at once.
        pinned: Whether there is a pin that may hold something, or is garbage itself soon, so that another look is due.
    """

    loaded: Loaded | None
    deleted: int = 0
    freed: int = 0
    more: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection that has been computed, and is to be applied.

    Attributes:
        loaded: The root that it was computed from.
        change: Change of that root.
        doomed: Keys of the objects to be deleted.
        sizes: Sizes of the objects of the directory in bytes, by key.
        etag: ETag of GARBAGE as it was written.
        more: Whether there is more than one collection takes.
        pinned: Pins, as in `Collected`.
        is_of_change: All of it was named until the change, and no root ever names it again.
    """

    loaded: Loaded
    change: Change
    doomed: tuple[str, ...]
    sizes: Mapping[str, int]
    etag: str
    more: bool
    pinned: bool
    is_of_change: bool


class Collector:
    """Deletes what nothing needs any more of one partition.

    Args:
        store: Where the partition is.
        path: Path of the partition.
        new_id: Gives a new unique id.
        now_ns: The time, ns since the epoch. It decides which pins have expired; which orphans are old enough is
            decided by the clock of the store as well.
        grace_ns: How long an object may lie around without being named, ns.
        progress: Called with (objects deleted, objects to be deleted, the partition's directory).
    """

    def __init__(
        self,
        store: ObjectStore,
        path: PartitionPath,
        *,
        new_id: Callable[[], str],
        now_ns: Callable[[], int],
        grace_ns: int,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._new_id = new_id
        self._now_ns = now_ns
        self._grace_ns = grace_ns
        self._progress = progress
        self._root_file = RootFile(store, path, new_id=new_id)

    def run(self, start: int = 0, check: Callable[[Root], None] | None = None, *, looks: bool = True) -> Collected:
        """Delete the garbage of the partition.

        Args:
            start: What lies below this offset is not wanted any more, and the partition will begin here, or where a
                pin holds it; at most the resolved end of the partition.
            check: Refuses a root from which nothing may be taken, as of a leader that was deposed; it is called with
                every root that a collection is computed from, and that is the one that is committed over.
            looks: Look for objects that were never named, too. Otherwise only what the new start leaves is deleted,
                which is known from the change: nothing is listed but pins, and little of the history is read.

        Raises:
            OvertakenError: other writers were faster, several times; nothing was deleted.
            TierError: something is in the bucket that does not make sense; nothing was deleted.
        """
        for _ in range(_ATTEMPTS):
            try:
                collection = self.compute(start, check, looks=looks)
                if isinstance(collection, Collected):
                    return collection
                loaded = self.apply(collection)
            except OvertakenError:
                continue
            return self.delete(collection, loaded)
        raise OvertakenError(f"{self._path.root} is written so often that nothing could be collected: try again later")

    def compute(
        self, start: int = 0, check: Callable[[Root], None] | None = None, *, looks: bool = True
    ) -> Collection | Collected:
        """Find out what is garbage, and announce it.

        Args:
            start: Offset, as for `run`.
            check: Check, as for `run`.
            looks: Looks, as for `run`.

        Returns:
            `Collected` where there is nothing to be done.

        Raises:
            OvertakenError: another collector announced something at this moment.
        """
        before = load_garbage(self._store, self._path)
        listing = list(self._store.list(self._path.directory)) if looks else []
        loaded = self._root_file.load()
        if loaded is None:
            return Collected(None)
        if check is not None:
            check(loaded.root)
        now_ns = self._now_ns()
        pins = settled_pins(self._store, self._root_file, new_id=self._new_id, now_ns=now_ns)
        change = self._change(loaded, start, floor_of(pins, now_ns))
        gone, orphans = self._garbage(listing, loaded, change, pins, now_ns)
        moves = change.root.start > loaded.root.start
        if not gone and not orphans and not moves:
            return Collected(loaded, pinned=self._is_pinned(pins, ()))
        announced = tuple(islice(chain(gone, (entry.key for entry in orphans)), KEYS_MAX))
        garbage = Garbage(
            root_version=loaded.root.version,
            start=change.root.start,
            setsum=check_balance(self._path.root, loaded.root, change),
            keys=tuple(key.removeprefix(self._path.directory) for key in announced),
        )
        etag, store_now_ns = self._announce(garbage, before.etag)
        too_young = {entry.key for entry in orphans if not is_older(entry, store_now_ns, self._grace_ns)}
        doomed = tuple(key for key in announced if key not in too_young)
        collection = Collection(
            loaded=loaded,
            change=change,
            doomed=doomed,
            sizes={entry.key: entry.size for entry in listing} or self._sizes_gone(change),
            etag=etag,
            more=len(gone) + len(orphans) > KEYS_MAX,
            pinned=self._is_pinned(pins, doomed),
            is_of_change=not looks,
        )
        if not doomed and not moves:
            self._reset(collection)
            return Collected(loaded, pinned=collection.pinned)
        boundary.move(self._store, self._path.directory, loaded.root.version + 1, self._new_id)
        return collection

    def apply(self, collection: Collection) -> Loaded:
        """Commit a root that names none of it, over exactly the one that it was computed from.

        Raises:
            OvertakenError: there is another root by now: compute anew.
        """
        return self._root_file.commit(collection.loaded, collection.change)

    def delete(self, collection: Collection, loaded: Loaded) -> Collected:
        """Delete what nobody reaches.

        Args:
            collection: Collection that has been applied.
            loaded: The root as it stands since.
        """
        loaded, live = (loaded, set()) if collection.is_of_change else self._live(loaded)
        live.update(*held_keys(self._store, self._root_file, load_pins(self._store, self._path)).values())
        doomed = [key for key in collection.doomed if key not in live]
        for first in range(0, len(doomed), _KEYS_PER_DELETE):
            some = doomed[first : first + _KEYS_PER_DELETE]
            self._store.delete(some)
            if self._progress is not None:
                self._progress(first + len(some), len(doomed), self._path.directory)
        self._reset(collection)
        freed = sum(collection.sizes.get(key, 0) for key in doomed)
        return Collected(loaded, len(doomed), freed, collection.more, collection.pinned)

    def _live(self, loaded: Loaded) -> tuple[Loaded, set[str]]:
        """The root as it stands now, or a little later, and the keys that it reaches."""
        for _ in range(_ATTEMPTS):
            try:
                return loaded, named_keys(self._root_file, loaded)
            except OvertakenError:
                loaded = self._root_file.load_newer(loaded) or loaded
        raise OvertakenError(f"{self._path.root} is written so often that it could not be walked: try again later")

    def _change(self, loaded: Loaded, start: int, floor: int | None) -> Change:
        """What is to be committed: a later start where it is wanted and no pin forbids it, otherwise nothing new."""
        start = start if floor is None else min(start, floor)
        root = loaded.root
        if start <= root.start:
            return bump(root)
        with walking(self._root_file, loaded):
            return advance_start(root, start, snapshots=self._root_file.snapshots(root, end=start))

    def _garbage(
        self, listing: Sequence[Entry], loaded: Loaded, change: Change, pins: Iterable[Pin], now_ns: int
    ) -> tuple[list[str], list[Entry]]:
        """Keys that the change leaves unnamed, and what lies around long enough; without what pins hold."""
        held = held_keys(self._store, self._root_file, pins)
        forks = [pin for pin in pins if pin.target and pin.name in held]
        kept = {key for pin in pins if not pin.target for key in held.get(pin.name, ())}
        live = kept | (named_keys(self._root_file, loaded) if listing else set())
        buried = {self._path.pin(pin.name) for pin in pins if pin.dropped and pin.kind != "cursor"}
        orphans = [
            entry
            for entry in listing
            if (entry.key in buried or (is_ours(self._path, entry.key) and entry.key not in live))
            and is_older(entry, now_ns, self._grace_ns)
        ]
        gone = [key for key in self._keys_gone(change) if key not in kept]
        for pin in forks:
            if held[pin.name].isdisjoint((*gone, *(entry.key for entry in orphans))):
                continue  # it holds nothing that would go: no need to look at the fork
            if not self._release(pin, now_ns):
                gone = [key for key in gone if key not in held[pin.name]]
                orphans = [entry for entry in orphans if entry.key not in held[pin.name]]
        return gone, orphans

    def _is_pinned(self, pins: Iterable[Pin], doomed: Sequence[str]) -> bool:
        """Whether a pin is left that holds something, or is to be deleted itself; a dropped cursor stays as a note."""
        return any(not pin.dropped or (pin.kind != "cursor" and self._path.pin(pin.name) not in doomed) for pin in pins)

    def _keys_gone(self, change: Change) -> Iterator[str]:
        reached = Reach(change.gone_snapshots, change.gone)
        return keys_of(reached, self._path, self._path)

    def _sizes_gone(self, change: Change) -> dict[str, int]:
        own = (each for each in change.gone if self._path.at(each.home) == self._path)
        return {self._path.fragment(each.name): each.size for each in own}

    def _release(self, pin: Pin, now_ns: int) -> bool:
        return release_unneeded(
            self._store, self._path, pin, new_id=self._new_id, now_ns=now_ns, grace_ns=self._grace_ns
        )

    def _announce(self, garbage: Garbage, etag: str) -> tuple[str, int]:
        """Write GARBAGE; gives its etag, and the time of the store."""
        written = swap_garbage(self._store, self._path, garbage, etag, self._new_id)
        head = self._store.head(self._path.garbage)
        if head.etag != written:
            raise OvertakenError(f"{self._path.garbage} was written by another collector meanwhile")
        return written, head.modified_ns

    def _reset(self, collection: Collection) -> None:
        """Say that no collection is in progress, unless another collector has announced its own."""
        try:
            swap_garbage(self._store, self._path, NOTHING, collection.etag, self._new_id)
        except OvertakenError:
            return  # what stands there is the other one's, who resets it
