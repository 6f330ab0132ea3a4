"""Forks: a new partition that begins with what another one has, without copying a byte.

The fork's root names the other's objects by their home. Before it is there, every partition whose objects it names gets
a pin without expiry that holds them; it goes when the fork names none of them any more, see `forking_pins`. So they
stay also when the stream they were written for is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import LineageError, OvertakenError
from liftpy_bucket.manifest.pins.held import release, write_pin
from liftpy_bucket.manifest.pins.pin import Pin
from liftpy_bucket.manifest.root.changes import fork as fork_root
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import reach
from liftpy_bucket.upkeep.live import walking

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.root import Root
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Forked", "fork"]

_ATTEMPTS: Final = 16


class Forked(NamedTuple):
    """A fork.

    Attributes:
        loaded: its root.
        end: the offset at which it goes on by itself. What stream sets held of the source is not taken along: move it
            into a stream object first where it matters.
        homes: the partitions whose objects it names.
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
        store: where both are.
        source: the one that there is.
        target: the one to be made; of a stream whose uuid was never used.
        epoch: leader epoch of whoever writes the fork first; not below that of the source's last record.
        node: its node id.
        new_id: gives a new unique id.

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
