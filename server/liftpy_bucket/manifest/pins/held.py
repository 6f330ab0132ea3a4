"""Pins in the bucket: made, renewed, let go of, and read by whoever is about to take something away.

Whoever takes something away reads the root, then the pins, and then commits over that root. So it is enough that a new
pin is followed by a look at the root: a `version` is safe when the root is still the one it copies, as whoever swaps
that root afterwards reads the pins after the swap, before it deletes. A range (and a cursor that is made or moved back)
holds records whatever the version: it makes the root move on by a commit that changes nothing, so that whoever decided
without it is refused and decides anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.document import load_document, swap_document
from liftpy_bucket.manifest.pins.pin import PIN_FIELDS, Pin, PinRefusedError, check_name, decode_pin, encode_pin
from liftpy_bucket.manifest.root.changes import Change
from liftpy_bucket.manifest.root.file import RootFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = [
    "PINS_MAX",
    "Pins",
    "bump",
    "bury",
    "load_pin",
    "load_pins",
    "release",
    "touch_root",
    "write_pin",
]

PINS_MAX: Final = 10_000  # of one partition; each costs a collection a request
_ATTEMPTS: Final = 16


def bump(root: Root) -> Change:
    """The change that changes nothing but the version: it refuses whoever decided by the version before."""
    return Change(root=replace(root, version=root.version + 1))


def load_pin(store: ObjectStore, path: PartitionPath, name: str) -> Pin | None:
    """Read a pin; None when there is none of this name.

    Raises:
        ManifestCorruptError: it is not a pin.
    """
    document = load_document(store, path.pin(name), PIN_FIELDS)
    if document is None:
        return None
    return decode_pin(path, name, document.fields, etag=document.etag, modified_ns=document.modified_ns)


def load_pins(store: ObjectStore, path: PartitionPath) -> tuple[Pin, ...]:
    """All pins of a partition, also those that hold nothing any more.

    Raises:
        ManifestCorruptError: one is not a pin: nothing must be taken away until that has been looked into.
        PinRefusedError: there are more than PINS_MAX.
    """
    prefix, suffix = f"{path.directory}pins/", ".json"
    pins = []
    for entry in store.list(prefix):
        if not entry.key.endswith(suffix):
            continue
        pin = load_pin(store, path, entry.key[len(prefix) : -len(suffix)])
        if pin is not None:
            pins.append(pin)
        if len(pins) > PINS_MAX:
            raise PinRefusedError(
                f"{prefix} holds more than {PINS_MAX} pins: drop cursors and release pins that nobody uses"
            )
    return tuple(pins)


def write_pin(store: ObjectStore, path: PartitionPath, pin: Pin, new_id: Callable[[], str]) -> Pin:
    """Write a pin over the one with its etag, or, where that is "", where there is none.

    Raises:
        OvertakenError: somebody else wrote it meanwhile.
    """
    return replace(pin, etag=swap_document(store, path.pin(pin.name), encode_pin(pin), pin.etag or None, new_id))


def release(store: ObjectStore, path: PartitionPath, pin: Pin, new_id: Callable[[], str]) -> Pin:
    """Let go of what a pin holds; a collector deletes the pin later.

    Raises:
        OvertakenError: somebody else wrote the pin meanwhile.
    """
    return pin if pin.dropped else write_pin(store, path, replace(pin, dropped=True, root=None), new_id)


def bury(store: ObjectStore, path: PartitionPath, pin: Pin, new_id: Callable[[], str]) -> bool:
    """Let go of a pin that has expired, unless it is renewed at this moment; says whether it is gone."""
    try:
        release(store, path, pin, new_id)
    except OvertakenError:
        return False
    return True


def touch_root(root_file: RootFile, start: int) -> Loaded:
    """Commit a root that differs in nothing but its version, so that whoever did not see a new pin is refused.

    Args:
        root_file: Root file of the partition.
        start: First offset pinned, which must not be gone.

    Raises:
        PinRefusedError: it is gone, or the bucket has nothing of the partition.
        OvertakenError: other writers were faster, many times.
    """
    for _ in range(_ATTEMPTS):
        loaded = root_file.load()
        if loaded is None:
            raise PinRefusedError(f"the bucket has nothing of partition {root_file.path.home}")
        if loaded.root.start > start:
            raise PinRefusedError(
                f"offset {start} of partition {root_file.path.home} can not be pinned: the bucket holds it from "
                f"{loaded.root.start} on"
            )
        try:
            return root_file.commit(loaded, bump(loaded.root))
        except OvertakenError:
            continue
    raise OvertakenError(f"{root_file.path.root} is written so often that a pin could not be made: try again")


class Pins:
    """Makes and keeps the pins of a partition that may expire. Cursors are in `cursors`, those of forks in `forking`.

    Args:
        store: Where the partition is.
        path: Path of the partition.
        new_id: Gives a new unique id; part of the names of pins.
        now_ns: The time, ns since the epoch.
    """

    def __init__(
        self, store: ObjectStore, path: PartitionPath, *, new_id: Callable[[], str], now_ns: Callable[[], int]
    ) -> None:
        self._store = store
        self._path = path
        self._new_id = new_id
        self._now_ns = now_ns
        self._root_file = RootFile(store, path, new_id=new_id)

    def hold_range(self, name: str, start: int, until: int | None, ttl_ns: int | None) -> Pin:
        """Hold the records in [start, until) from now on.

        Args:
            name: What the name of the pin begins with.
            start: First offset.
            until: The offset after the last one; None: all that follow, too.
            ttl_ns: How long, unless renewed; None: until it is released.

        Raises:
            PinRefusedError: `start` is gone already, or the name can not be one.
            OvertakenError: other writers were faster, many times.
        """
        assert until is None or until > start, "a range holds something"
        pin = Pin(name=self._fresh(name), kind="range", start=start, until=until, expires_ns=self._end(ttl_ns))
        pin = write_pin(self._store, self._path, pin, self._new_id)
        try:
            touch_root(self._root_file, start)
        except (PinRefusedError, OvertakenError):
            release(self._store, self._path, pin, self._new_id)
            raise
        return pin

    def hold_version(self, name: str, ttl_ns: int | None) -> Pin:
        """Hold all objects that the root names now; the pin has that root.

        Raises:
            PinRefusedError: the bucket has nothing of the partition, or the name can not be one.
            OvertakenError: the root moved on many times while it was pinned.
        """
        root = self._root()
        pin = Pin(name=self._fresh(name), kind="version", version=root.version, root=root)
        for _ in range(_ATTEMPTS):
            pin = replace(pin, expires_ns=self._end(ttl_ns), version=root.version, root=root)
            pin = write_pin(self._store, self._path, pin, self._new_id)
            root = self._root()
            if root.version == pin.version:
                return pin
        release(self._store, self._path, pin, self._new_id)
        raise OvertakenError(f"{self._path.root} is written so often that no version could be pinned: try again")

    def renew(self, pin: Pin, ttl_ns: int) -> Pin:
        """Give a pin `ttl_ns` more from now on.

        Raises:
            PinRefusedError: it has expired and may not hold anything any more: pin anew, and read anew.
            OvertakenError: somebody else wrote the pin meanwhile.
        """
        found = load_pin(self._store, self._path, pin.name)
        if found is None or found.dropped:
            raise PinRefusedError(
                f"pin {pin.name} of partition {self._path.home} has expired, and what it held may have been collected: "
                "pin anew, with a longer time to live or more frequent renewal"
            )
        return write_pin(self._store, self._path, replace(found, expires_ns=self._end(ttl_ns)), self._new_id)

    def release(self, pin: Pin) -> None:
        """Let go of what a pin holds.

        Raises:
            OvertakenError: somebody else wrote the pin meanwhile.
        """
        found = load_pin(self._store, self._path, pin.name)
        if found is not None:
            release(self._store, self._path, found, self._new_id)

    def _fresh(self, name: str) -> str:
        fresh = f"{name}-{self._new_id()}"
        check_name(fresh)
        return fresh

    def _end(self, ttl_ns: int | None) -> int | None:
        return None if ttl_ns is None else self._now_ns() + ttl_ns

    def _root(self) -> Root:
        loaded = self._root_file.load()
        if loaded is None:
            raise PinRefusedError(f"the bucket has nothing of partition {self._path.home}")
        return loaded.root
