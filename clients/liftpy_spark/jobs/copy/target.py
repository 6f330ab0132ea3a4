"""What a copy writes at the destination besides objects, in this order: snapshots, cursors, roots, the catalog.

A restore finds what the catalog names and nothing else, and the catalog is written last: until then there is nothing to
be seen, and from then on there is all of it. What is there already and the same stays; roots of an earlier copy that no
other cluster has taken over are swapped over what was read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import OvertakenError, TakenError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.manifest.pins.held import load_pin, load_pins, write_pin
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.format import decode_root, encode_root
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.swapping import swap
from liftpy_spark.jobs.copy.catalog import choose, entered
from liftpy_spark.jobs.copy.roots import CopyRefusedError, CopyState, check_history, standing
from liftpy_spark.jobs.copy.source import new_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from liftpy_bucket.manifest.catalog import Catalog, CatalogStream
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.root.snapshot import Snapshot
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_spark.jobs.copy.source import SourcePartition

__all__ = ["catalog_of", "check_there", "enter", "put_cursors", "put_root", "put_snapshots", "snapshots_below"]

_ATTEMPTS: Final = 8
_ID_CHARS: Final = 32


def catalog_of(store: ObjectStore) -> Catalog | None:
    """What streams there are; None where there is no catalog."""
    loaded = CatalogFile(store, new_id=new_id).load()
    return None if loaded is None else loaded.catalog


def check_there(store: ObjectStore, label: str, of: SourcePartition, *, may_be_ahead: bool) -> None:
    """Check that the destination has the same history of a partition, if any.

    Args:
        store: Object store of the destination.
        label: Label of the partition, for people.
        of: The partition in the source.
        may_be_ahead: Another cluster goes on with it there.

    Raises:
        CopyRefusedError: it is not, or it is more than the source has.
    """
    loaded = RootFile(store, of.path, new_id=new_id).load()
    if loaded is None:
        return
    check_history(label, loaded.root, of.root, of.epochs, of.end)
    if not may_be_ahead and loaded.root.end > of.end:
        raise _ahead(label, loaded.root.end, of.end)


def _ahead(label: str, there: int, end: int) -> CopyRefusedError:
    return CopyRefusedError(
        f"the destination has more of {label} than the source, up to offset {there} and not {end}: was the source "
        "restored from an older state, or did a cluster go on there? Copy to a prefix of its own"
    )


def snapshots_below(source: ObjectStore, root: Root) -> Iterable[Snapshot]:
    """All snapshots that a root reaches, read one after the other."""
    file = RootFile(source, PartitionPath(root.uuid, root.partition), new_id=new_id)
    waiting = list(root.snapshots)
    while waiting:
        snapshot = file.snapshot(waiting.pop())
        waiting += snapshot.snapshots
        yield snapshot


def put_snapshots(store: ObjectStore, path: PartitionPath, snapshots: Iterable[Snapshot]) -> None:
    """Write snapshots; one that is there is the same, as its name is the hash of its bytes."""
    for snapshot in snapshots:
        key = path.snapshot(snapshot.pointer.digest)
        try:
            create_once(store, key, snapshot.body, snapshot.pointer.digest[:_ID_CHARS])
        except TakenError:
            if store.get(key).body != snapshot.body:
                raise


def put_cursors(source: ObjectStore, target: ObjectStore, path: PartitionPath) -> None:
    """Have cursors of a partition hold there what they hold here; those that are there stay where they are."""
    for pin in load_pins(source, path):
        if pin.kind == "cursor" and not pin.dropped and load_pin(target, path, pin.name) is None:
            write_pin(target, path, replace(pin, etag=""), new_id)


def put_root(store: ObjectStore, label: str, wanted: Root) -> None:
    """Write a root where there is none, or one of an earlier copy.

    Args:
        store: Object store of the destination.
        label: Label of the partition, for people.
        wanted: Root to write.

    Raises:
        CopyRefusedError: there is more already.
        OvertakenError: others write it, too.
    """
    path = PartitionPath(wanted.uuid, wanted.partition)
    file, body = RootFile(store, path, new_id=new_id), encode_root(wanted)
    decode_root(path, body)  # whatever is refused when it is read must not be written
    for _ in range(_ATTEMPTS):
        loaded = file.load()
        what = None if loaded is None else standing(loaded.root, wanted)
        if loaded is not None and what is CopyState.AHEAD:
            raise _ahead(label, loaded.root.end, wanted.end)
        if what is CopyState.EQUAL:
            return
        etag = None if loaded is None else loaded.etag
        try:
            swap(store, path.root, body, etag=etag, nonce=new_id(), is_ours=lambda stored: stored.body == body)
        except OvertakenError:
            continue
        return
    raise OvertakenError(f"{path.root} is written by others at the destination: is another copy running?")


def enter(store: ObjectStore, source: Catalog, copied: Mapping[str, CatalogStream], names: Sequence[str]) -> None:
    """Have the catalog name what was copied: from now on it can be restored.

    Args:
        store: Object store of the destination.
        source: The catalog of the source.
        copied: The streams, by uuid.
        names: Names, as `choose` was given them.

    Raises:
        CopyRefusedError: the catalog has changed so that something else would be copied.
        OvertakenError: others write it all the time.
    """
    file = CatalogFile(store, new_id=new_id)
    for _ in range(_ATTEMPTS):
        loaded = file.load()
        before = None if loaded is None else loaded.catalog
        if choose(source, before, names).copied.keys() != copied.keys():
            raise CopyRefusedError("a cluster has begun to use the destination meanwhile: look, and do the same again")
        after = entered(before, source, copied)
        if after is None:
            return
        try:
            file.commit(loaded, after)
        except OvertakenError:
            continue
        return
    raise OvertakenError("the catalog of the destination is written by others all the time: do the same again")
