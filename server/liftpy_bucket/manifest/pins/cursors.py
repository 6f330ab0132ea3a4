"""Cursors: named positions in a partition that hold everything from there on, see `pin`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.pins.held import load_pin, release, touch_root, write_pin
from liftpy_bucket.manifest.pins.pin import Pin, PinRefusedError, check_name
from liftpy_bucket.manifest.root.file import RootFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Cursor"]


class Cursor:
    """One cursor of a partition. Whoever moves it shows the witness, which is what `load` or `advance` gave before.

    Args:
        store: Where the partition is.
        path: Path of the partition.
        name: Name of the cursor.
        new_id: Gives a new unique id.

    Raises:
        PinRefusedError: the name can not be one.
    """

    def __init__(self, store: ObjectStore, path: PartitionPath, name: str, *, new_id: Callable[[], str]) -> None:
        check_name(name)
        self._store = store
        self._path = path
        self._name = name
        self._new_id = new_id
        self._root_file = RootFile(store, path, new_id=new_id)

    def load(self) -> Pin | None:
        """Where the cursor stands (`start`); None when there is none, or it was dropped.

        Raises:
            ManifestCorruptError: it can not be read.
        """
        pin = load_pin(self._store, self._path, self._name)
        return None if pin is None or pin.dropped else pin

    def advance(self, position: int, witness: Pin | None) -> Pin:
        """Move the cursor; one request forward, some more where records are to be held that were not held before.

        Args:
            position: The first offset that it is to hold.
            witness: The cursor as it was last seen; None: there was none.

        Returns:
            the next witness.

        Raises:
            OvertakenError: somebody else moved, made or dropped it meanwhile; nothing was changed.
            PinRefusedError: `position` is gone already; the cursor stands where it stood, and one that is new is
                dropped again.
        """
        if witness is None:
            witness = load_pin(self._store, self._path, self._name)
            if witness is not None and not witness.dropped:
                raise OvertakenError(
                    f"there is a cursor {self._name} already, at offset {witness.start}: load it first"
                )
            etag, held = witness.etag if witness else "", None
        else:
            etag, held = witness.etag, witness.start
        moved = Pin(name=self._name, kind="cursor", start=position, etag=etag)
        moved = write_pin(self._store, self._path, moved, self._new_id)
        if held is not None and held <= position:
            return moved
        try:
            touch_root(self._root_file, position)
        except (PinRefusedError, OvertakenError):
            back = replace(moved, start=position if held is None else held, dropped=held is None)
            write_pin(self._store, self._path, back, self._new_id)
            raise
        return moved

    def drop(self, witness: Pin) -> None:
        """Let go of everything; the name may be used again.

        Raises:
            OvertakenError: somebody else moved it meanwhile.
        """
        release(self._store, self._path, witness, self._new_id)
