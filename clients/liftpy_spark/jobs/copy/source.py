"""What is copied of partitions, at one version of each, whatever a leader writes to them meanwhile.

Those of liftpy's own streams are read before all others: what groups have committed never lies behind the records.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.read import fragment_key
from liftpy_bucket.reading.version import Piece, open_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.reading.version import TierVersion
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["THREADS", "SourcePartition", "held", "new_id", "tail_pieces", "whole_piece"]

THREADS: Final = 16
"""How many partitions the driver asks the store about at a time."""

_PIN_NAME: Final = "spark-restore"


class SourcePartition(NamedTuple):
    """A partition, as it was at one moment.

    Attributes:
        path: Path of the partition.
        root: What names its objects; pinned, unless nothing was to be.
        epochs: (leader epoch, first offset), oldest first, up to `end`.
        tail: What holds what follows on the root, in order; no pin holds it.
        end: The offset after the last one.
    """

    path: PartitionPath
    root: Root
    epochs: tuple[tuple[int, int], ...]
    tail: tuple[Piece, ...]
    end: int

    @property
    def objects(self) -> int:
        """How many objects it will have."""
        below = sum(each.fragments for each in self.root.snapshots) + len(self.root.fragments)
        return below + (self.end > self.root.end)

    @property
    def records(self) -> int:
        """How many there are, about."""
        return sum(each.records for each in self._below) + self.shared_records

    @property
    def shared_records(self) -> int:
        """How many of these follow on the root, in objects that streams share."""
        return sum(each.pointer.records for each in self.tail)

    @property
    def size(self) -> int:
        """Bytes of the objects that the root names."""
        return sum(each.size for each in self._below)

    @property
    def _below(self) -> tuple[StreamObjectPointer | SnapshotPointer, ...]:
        return (*self.root.snapshots, *self.root.fragments)


@contextmanager
def held(
    store: ObjectStore, groups: Sequence[Sequence[PartitionPath]], hold_s: float
) -> Iterator[dict[PartitionPath, SourcePartition]]:
    """Partitions as they are now; what their roots name is pinned as long as this lasts.

    Args:
        store: Object store of the source.
        groups: Groups of partitions; a group is read after those before it. What the bucket has nothing of is left
            out.
        hold_s: Time for which objects are held if this is killed, seconds; 0 holds nothing and writes nothing.

    Raises:
        StoreDeniedError: a pin can not be written.
        TierError: a manifest can not be read.
    """
    pins: list[tuple[PartitionPath, Pin]] = []
    with ThreadPoolExecutor(THREADS, thread_name_prefix="copy") as pool:
        try:
            found: dict[PartitionPath, SourcePartition] = {}
            for group in groups:
                for one in pool.map(partial(_open, store, hold_s=hold_s, keep=pins.append), group):
                    found |= {} if one is None else {one.path: one}
            yield found
        finally:
            list(pool.map(partial(_release, store), pins))


def _open(
    store: ObjectStore, path: PartitionPath, *, hold_s: float, keep: Callable[[tuple[PartitionPath, Pin]], None]
) -> SourcePartition | None:
    if RootFile(store, path, new_id=new_id).load() is None:
        return None
    pinned: Root | None = None
    if hold_s:
        pin = Pins(store, path, new_id=new_id, now_ns=time.time_ns).hold_version(_PIN_NAME, int(hold_s * 1e9))
        keep((path, pin))
        pinned = pin.root
    newest = open_version(store, path)
    assert newest is not None, "a root is never deleted"
    root = pinned or newest.root
    tail = tail_pieces(newest, root.end, newest.end)
    return SourcePartition(path, root, newest.epochs, tail, newest.end)


def _release(store: ObjectStore, held: tuple[PartitionPath, Pin]) -> None:
    path, pin = held
    try:
        Pins(store, path, new_id=new_id, now_ns=time.time_ns).release(pin)
    except OvertakenError:
        return  # a collector has found it expired at this moment: then it is gone as well


def tail_pieces(version: TierVersion, start: int, end: int) -> tuple[Piece, ...]:
    """What holds [start, end) now, each piece with what counts of it."""
    pieces = version.pieces(start, end)
    return tuple(each._replace(start=max(each.start, start), end=min(each.end, end)) for each in pieces)


def whole_piece(path: PartitionPath, pointer: StreamObjectPointer) -> Piece:
    """All of a fragment that a root names."""
    key = fragment_key(path, pointer)
    return Piece(key, pointer.extent, pointer.base, pointer.end, pointer)


def new_id() -> str:
    """A name that nobody had before."""
    return uuid4().hex
