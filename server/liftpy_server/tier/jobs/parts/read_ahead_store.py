"""Ranged reads that come in order, in large pieces: a merge of shared objects asks for thousands of small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.store.object_store import Entry, Head, ObjectStore, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ReadAheadStore"]


class ReadAheadStore(ObjectStore):
    """Passes everything on but ranged reads, of which it keeps one piece per object; for one thread.

    Args:
        store: What is behind it.
        window_bytes: Minimum bytes of a piece.
        sizes: Sizes of the objects that are read in ranges, by key, bytes.
    """

    def __init__(self, store: ObjectStore, window_bytes: int, sizes: dict[str, int]) -> None:
        self._store = store
        self._window_bytes = window_bytes
        self._sizes = sizes
        self._windows: dict[str, tuple[int, bytes]] = {}

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends before."""
        at, window = self._windows.get(key, (0, b""))
        if not at <= start <= start + length <= at + len(window):
            wanted = max(length, min(self._window_bytes, self._sizes[key] - start))
            at, window = start, self._store.get_range(key, start, wanted)
            self._windows[key] = (at, window)
        return window[start - at : start - at + length]

    def get(self, key: str) -> Stored:
        """The whole object."""
        return self._store.get(key)

    def get_newer(self, key: str, etag: str) -> Stored | None:
        """The whole object, or None while it is still the one with `etag`."""
        return self._store.get_newer(key, etag)

    def head(self, key: str) -> Head:
        """What is known of the object."""
        return self._store.head(key)

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        """Write an object that must not exist."""
        return self._store.create(key, body, nonce)

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        """Write an object over the one with `etag`."""
        return self._store.replace(key, body, etag, nonce)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Objects whose keys begin with `prefix`."""
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        self._store.delete(keys)
