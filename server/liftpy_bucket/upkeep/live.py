"""What of a partition's directory is alive: what the root reaches, and what pins hold."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.pins.held import bury, load_pin, load_pins
from liftpy_bucket.manifest.pins.pin import is_in_force
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.root.reach import keys_of, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["held_keys", "named_keys", "settled_pins", "walking"]


@contextmanager
def walking(root_file: RootFile, loaded: Loaded) -> Iterator[None]:
    """Context for reading snapshots of a root; they may be deleted once the root has moved on.

    Raises:
        OvertakenError: one is gone, and the root has moved on since it was loaded.
        ObjectMissingError: one is gone that the root still names.
    """
    try:
        yield
    except ObjectMissingError as error:
        if root_file.load_newer(loaded) is None:
            raise
        raise OvertakenError(f"{root_file.path.root} moved on while it was walked") from error


def named_keys(root_file: RootFile, loaded: Loaded) -> set[str]:
    """Keys in the directory of a partition that its root reaches. Raises as `walking` does.

    Raises:
        ManifestCorruptError: a snapshot is not what its pointer says.
    """
    path = root_file.path
    with walking(root_file, loaded):
        return set(keys_of(reach(loaded.root, root_file.snapshot), path, path))


def held_keys(store: ObjectStore, root_file: RootFile, pins: Iterable[Pin]) -> dict[str, set[str]]:
    """Keys in the directory of a partition that pinned versions reach, by the name of the pin.

    Args:
        store: Where the partition is.
        root_file: Root file of the partition.
        pins: Pins of the partition that count; cursors and ranges hold records and not objects.

    Raises:
        ObjectMissingError: a snapshot is gone that a pin holds.
        ManifestCorruptError: a snapshot is not what its pointer says.
    """
    path, held = root_file.path, {}
    for pin in pins:
        if pin.root is None or pin.dropped:
            continue
        # the root of a fork names its objects as seen from the fork's own directory
        target = path.at(pin.target)
        pinned = RootFile(store, target, new_id=_no_id) if pin.target else root_file
        try:
            held[pin.name] = set(keys_of(reach(pin.root, pinned.snapshot), target, path))
        except ObjectMissingError:
            now = load_pin(store, path, pin.name)
            if now is not None and not now.dropped:
                raise
    return held


def settled_pins(store: ObjectStore, root_file: RootFile, *, new_id: Callable[[], str], now_ns: int) -> tuple[Pin, ...]:
    """All pins of a partition, those that have expired buried: what is not dropped of these, counts.

    Raises:
        ManifestCorruptError: one can not be read.
    """
    settled = []
    for pin in load_pins(store, root_file.path):
        if pin.dropped or is_in_force(pin, now_ns):
            settled.append(pin)
        elif bury(store, root_file.path, pin, new_id):
            settled.append(replace(pin, dropped=True, root=None))
        else:  # it was renewed at this very moment
            settled += filter(None, [load_pin(store, root_file.path, pin.name)])
    return tuple(settled)


def _no_id() -> str:
    raise AssertionError("a root that is only read needs no ids")
