"""Forks: a new partition that begins with what another one has, without copying a byte.

The fork's root names the other's objects by their home. Before it is there, every partition whose objects it names gets
a pin without expiry that holds them; it goes when the fork names none of them any more. So they
stay also when the stream they were written for is deleted.

A fork may only ever lose references to another partition's objects. So its pin goes once neither its root nor a pinned
version of it names any of them. The pin is made before the fork's root is: where there is none yet, and the pin is
older than the grace period, a sealed and empty root is put there first, so that a fork that was stalled finds its place
taken instead of naming what is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import LineageError, ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.pins.held import bury, load_pins, release, write_pin
from liftpy_bucket.manifest.pins.pin import Pin
from liftpy_bucket.manifest.root.changes import Change, create
from liftpy_bucket.manifest.root.changes import fork as fork_root
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import Reach, reach
from liftpy_bucket.upkeep.live import walking

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Forked", "fork", "names_objects_of", "release_unneeded"]


def names_objects_of(source: PartitionPath, root: Root, root_file: RootFile) -> bool:
    """Whether a root, directly or through snapshots, names objects that lie in the directory of `source`."""
    homes = Reach(root.snapshots, root.fragments).homes
    if all(root_file.path.at(home) != source for home in homes):  # else there is no need to walk
        homes = reach(root, root_file.snapshot).homes
    return any(root_file.path.at(home) == source for home in homes)


def release_unneeded(
    store: ObjectStore,
    source: PartitionPath,
    pin: Pin,
    *,
    new_id: Callable[[], str],
    now_ns: int,
    grace_ns: int,
) -> bool:
    """Let go of the pin of a fork that names nothing of `source` any more; says whether the pin is gone.

    Args:
        store: Where both are.
        source: The partition in whose directory the pin lies.
        pin: Pin of the fork.
        new_id: Gives a new unique id.
        now_ns: The time, ns since the epoch.
        grace_ns: How long a fork may take from its pin to its root, ns.
    """
    root_file = RootFile(store, source.at(pin.target), new_id=new_id)
    loaded = root_file.load()
    if loaded is None:
        if pin.modified_ns + grace_ns > now_ns or not _takes_place(root_file):
            return False
    else:
        pinned = [each.root for each in load_pins(store, root_file.path) if not each.target and not each.dropped]
        roots = [loaded.root, *(root for root in pinned if root is not None)]
        try:
            if any(names_objects_of(source, root, root_file) for root in roots):
                return False
        except ObjectMissingError:
            if root_file.load_newer(loaded) is None:
                raise
            return False  # the fork moved on while it was walked: the next collection looks again
    return bury(store, source, pin, new_id)


def _takes_place(root_file: RootFile) -> bool:
    """Put a sealed and empty root where a fork was to be; False where there is one meanwhile."""
    change = create(root_file.path, epoch=0, node="collector", start=0)
    try:
        root_file.commit(None, Change(root=replace(change.root, sealed=True)))
    except OvertakenError:
        return False
    return True


_ATTEMPTS: Final = 16


class Forked(NamedTuple):
    """A fork that was made.

    Attributes:
        loaded: Root of the fork.
        end: The offset at which it goes on by itself. What stream sets held of the source is not taken along: move it
            into a stream object first where it matters.
        homes: The partitions whose objects it names.
    """

    loaded: Loaded
    end: int
    homes: tuple[PartitionPath, ...]


def fork(
    store: ObjectStore,
    source: PartitionPath,
    target: PartitionPath,
    *,
    epoch: int,
    node: str,
    new_id: Callable[[], str],
) -> Forked:
    """Make a partition that begins with what another one has.

    Args:
        store: Where both are.
        source: The one that there is.
        target: The one to be made; of a stream whose uuid was never used.
        epoch: Leader epoch of whoever writes the fork first; not below that of the source's last record.
        node: Id of the node.
        new_id: Gives a new unique id.

    Raises:
        LineageError: there is no source, there is a target already, or `epoch` is below that of a record.
        OvertakenError: the source moved on many times meanwhile.
    """
    source_file = RootFile(store, source, new_id=new_id)
    target_file = RootFile(store, target, new_id=new_id)
    if target_file.load() is not None:
        raise LineageError(f"partition {target.home} is in the bucket already: a fork needs a stream of its own")
    for _ in range(_ATTEMPTS):
        loaded = source_file.load()
        if loaded is None:
            raise LineageError(f"the bucket has nothing of partition {source.home}, which was to be forked")
        change = fork_root(loaded.root, target, epoch=epoch, node=node)
        pins: list[tuple[PartitionPath, Pin]] = []
        try:
            with walking(source_file, loaded):
                homes = homes_of(change.root, target_file)
            for home in homes:
                name = f"forks/{target.uuid}-{target.partition}-{new_id()}"
                pin = Pin(name=name, kind="version", version=loaded.root.version, root=change.root, target=target.home)
                pins.append((home, write_pin(store, home, pin, new_id)))
            if source_file.load_newer(loaded) is None:  # so nobody can have begun to take away what is pinned now
                return Forked(target_file.commit(None, change), change.root.end, homes)
        except OvertakenError:
            if target_file.load() is not None:
                raise
        for home, pin in pins:
            release(store, home, pin, new_id)
    raise OvertakenError(f"{source.root} is written so often that it could not be forked: try again")


def homes_of(root: Root, root_file: RootFile) -> tuple[PartitionPath, ...]:
    """The partitions in whose directories lies what a root reaches, without its own."""
    homes = {root_file.path.at(home) for home in reach(root, root_file.snapshot).homes}
    return tuple(sorted(homes - {root_file.path}))
