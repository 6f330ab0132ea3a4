"""An object store in memory: for tests, and for whoever wants to try the log without a bucket.

It is as strict as a good bucket: conditional writes are atomic, and an etag names the bytes and nothing else, so that
the same bytes written twice have the same etag, as on S3.
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ObjectMissingError, PreconditionFailedError
from liftpy_bucket.store.object_store import Entry, Head, ObjectStore, Stored, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["MemoryStore"]

_ETAG_BYTES: Final = 16


class MemoryStore(ObjectStore):
    """An object store in memory; any number of threads may use it.

    Args:
        clock: Says when an object was written, ns since the epoch; by default it counts the writes.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or count(1).__next__
        self._objects: dict[str, Stored] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> Stored:
        """The whole object."""
        stored = self._stored(key)
        check_whole(key, len(stored.body))
        return stored

    def get_newer(self, key: str, etag: str) -> Stored | None:
        """The whole object, or None while it is still the one with `etag`."""
        stored = self.get(key)
        return None if stored.head.etag == etag else stored

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends before."""
        assert start >= 0, "bytes are counted from the beginning"
        assert length >= 0, "a range has a length"
        return self._stored(key).body[start : start + length]

    def head(self, key: str) -> Head:
        """What is known of the object."""
        return self._stored(key).head

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        """Write an object that must not exist. Returns its etag.

        Raises:
            PreconditionFailedError: it exists.
        """
        with self._lock:
            if key in self._objects:
                raise PreconditionFailedError(f"object {key} exists already")
            return self._put(key, bytes(body), nonce)

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        """Write an object over the one with `etag`. Returns the new etag.

        Raises:
            PreconditionFailedError: the object is another one by now, or gone.
        """
        with self._lock:
            there = self._objects.get(key)
            if there is None or there.head.etag != etag:
                raise PreconditionFailedError(f"object {key} is not the one with etag {etag} any more")
            return self._put(key, bytes(body), nonce)

    def copies_from(self, source: ObjectStore) -> bool:
        """Whether the other one is in memory, too."""
        return isinstance(source, MemoryStore)

    def copy_from(self, source: ObjectStore, key: str, etag: str, nonce: str) -> bool:
        """Copy an object from another store in memory; see `ObjectStore.copy_from`."""
        if not isinstance(source, MemoryStore):
            return False
        there = source._stored(key)  # noqa: SLF001 - one class
        with self._lock:
            if there.head.etag != etag or key in self._objects:
                return False
            self._put(key, there.body, nonce)
        return True

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Objects whose keys begin with `prefix`, in the order of their keys, behind `start_after`."""
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix) and key > start_after)
            heads = [(key, self._objects[key].head) for key in keys]
        return iter([Entry(key, head.size, head.etag, head.modified_ns) for key, head in heads])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist count as deleted."""
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def _stored(self, key: str) -> Stored:
        try:
            with self._lock:
                return self._objects[key]
        except KeyError:
            raise ObjectMissingError(key) from None

    def _put(self, key: str, body: bytes, nonce: str) -> str:
        etag = blake2b(body, digest_size=_ETAG_BYTES).hexdigest()
        self._objects[key] = Stored(body, Head(len(body), etag, nonce, self._clock()))
        return etag
