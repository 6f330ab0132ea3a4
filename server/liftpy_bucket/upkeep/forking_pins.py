"""The pins by which forks hold objects of the partitions they were forked from.

A fork may only ever lose references to another partition's objects. So its pin goes once neither its root nor a pinned
version of it names any of them. The pin is made before the fork's root is: where there is none yet, and the pin is
older than the grace period, a sealed and empty root is put there first, so that a fork that was stalled finds its place
taken instead of naming what is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.pins.held import bury, load_pins
from liftpy_bucket.manifest.root.changes import Change, create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import Reach, reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.root import Root
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["names_objects_of", "release_unneeded"]


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
        store: where both are.
        source: the partition in whose directory the pin lies.
        pin: that of the fork.
        new_id: gives a new unique id.
        now_ns: the time, ns since the epoch.
        grace_ns: how long a fork may take from its pin to its root, ns.
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
