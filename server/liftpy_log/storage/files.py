"""Open files of segments: a bounded number of them, so that thousands of idle partitions hold none."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk, File

__all__ = ["FileCache", "HasPath"]


class HasPath(Protocol):
    """Something that owns one file; its identity is the key."""

    path: Path


class _Entry:
    __slots__ = ("doomed", "file", "pins")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0
        self.doomed = False


class FileCache:
    """Files by owner, least recently used first to be closed.

    `get` belongs to the thread that owns the logs and hands out a file for use before the next `get`. A file that is
    used longer, or by another thread, is pinned meanwhile. More files than `capacity` are open only while so many are
    in use.
    """

    def __init__(self, disk: Disk, capacity: int) -> None:
        self._disk = disk
        self._capacity = capacity
        self._entries: OrderedDict[HasPath, _Entry] = OrderedDict()
        self._lock = Lock()
        self._got: _Entry | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: HasPath) -> File:
        """The owner's open file, valid until the next call of `get`."""
        entry = self._entries.get(owner)
        if entry is not None:
            self._got = entry  # first, see `_shrink`
            try:
                self._entries.move_to_end(owner)
            except KeyError:
                pass
            else:
                return entry.file
        with self._lock:
            self._got = None
            self._got = entry = self._entries.get(owner) or self._open(owner)
            return entry.file

    def add(self, owner: HasPath, file: File) -> None:
        """Take over a file that was just created."""
        with self._lock:
            self._insert(owner, _Entry(file))

    def pin(self, owner: HasPath) -> File:
        """The owner's open file, valid until `unpin`."""
        with self._lock:
            entry = self._entries.get(owner) or self._open(owner)
            entry.pins += 1
            return entry.file

    def unpin(self, owner: HasPath, file: File) -> None:
        """End one `pin`; `file` is what it returned."""
        with self._lock:
            entry = self._entries.get(owner)
            if entry is None or entry.file is not file:
                return
            entry.pins -= 1
            if entry.doomed and entry.pins == 0:
                del self._entries[owner]
                entry.file.close()
            elif len(self._entries) > self._capacity:
                self._shrink(None)

    def forget(self, owner: HasPath) -> None:
        """Close the owner's file as soon as nobody uses it; called when the file is deleted."""
        with self._lock:
            entry = self._entries.get(owner)
            if entry is None:
                return
            entry.doomed = True
            if entry.pins == 0:
                del self._entries[owner]
                entry.file.close()

    def close(self) -> None:
        """Close everything, pinned or not."""
        with self._lock:
            for entry in self._entries.values():
                entry.file.close()
            self._entries.clear()

    def _open(self, owner: HasPath) -> _Entry:
        while True:
            try:
                entry = _Entry(self._disk.open(owner.path))
            except OSError as error:
                if not is_full(error) or not self._close_idle():
                    raise
            else:
                self._insert(owner, entry)
                return entry

    def _close_idle(self) -> bool:
        """Close the file that was not used for longest; False when all are in use."""
        return any(not entry.pins and self._close(owner, entry) for owner, entry in list(self._entries.items()))

    def _insert(self, owner: HasPath, entry: _Entry) -> None:
        self._entries[owner] = entry
        if len(self._entries) > self._capacity:
            self._shrink(entry)

    def _shrink(self, newest: _Entry | None) -> None:
        """Close what nobody uses, until no more files are open than may be.

        `get` takes no lock when a file is open: it notes what it hands out and then looks whether it is still there,
        while an entry is taken away here before its being noted is looked at. So one of the two notices the other.
        """
        for few in (8, None):  # as a rule the very first can go
            for owner, entry in list(islice(self._entries.items(), few)):
                if len(self._entries) <= self._capacity:
                    return
                if entry.pins or entry is newest:
                    continue
                self._close(owner, entry)

    def _close(self, owner: HasPath, entry: _Entry) -> bool:
        del self._entries[owner]
        if entry is self._got:
            self._entries[owner] = entry
            return False
        entry.file.close()
        return True
