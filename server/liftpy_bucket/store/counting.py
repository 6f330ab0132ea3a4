"""Requests are what a bucket is paid for: every one is counted by its kind."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from liftpy_bucket.store.object_store import Entry, Head, ObjectStore, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["KINDS", "CountingStore", "costs_usd"]

KINDS: Final = ("get", "get_range", "head", "create", "replace", "list", "delete")
_PRICES_USD: Final = {
    **dict.fromkeys(("create", "replace", "list"), 5e-6),
    **dict.fromkeys(("get", "get_range", "head"), 4e-7),
    "delete": 0.0,
}
_KEYS_PER_REQUEST: Final = 1_000  # S3 lists and deletes that many at a time


def costs_usd(*requests: Mapping[str, int]) -> dict[str, float]:
    """What requests cost in all by the list price of AWS S3 Standard in us-east-1, by kind.

    Args:
        requests: Counts by kind; kinds without a price cost nothing.
    """
    every = Counter[str]()
    for counts in requests:
        every.update(counts)
    return {kind: round(count * _PRICES_USD.get(kind, 0.0), 9) for kind, count in sorted(every.items())}


class CountingStore(ObjectStore):
    """Passes calls on and counts them, also those that fail; any number of threads may use it.

    Args:
        store: What is behind it.

    Attributes:
        counts: Requests by kind. `get_newer` is a get; a listing, and a deletion, is one request per 1,000 objects.
            What the store repeats by itself is not seen here.
        bytes_in: Bytes of bodies read.
        bytes_out: Bytes of bodies that were to be written.
        deleted: Objects that were deleted, those that did not exist included.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(KINDS, 0)
        self.bytes_in = 0
        self.bytes_out = 0
        self.deleted = 0

    def get(self, key: str) -> Stored:
        """The whole object."""
        self._count("get")
        return self._read(self._store.get(key))

    def get_newer(self, key: str, etag: str) -> Stored | None:
        """The whole object, or None while it is still the one with `etag`."""
        self._count("get")
        stored = self._store.get_newer(key, etag)
        return stored and self._read(stored)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends before."""
        self._count("get_range")
        body = self._store.get_range(key, start, length)
        self._count_in(len(body))
        return body

    def head(self, key: str) -> Head:
        """What is known of the object."""
        self._count("head")
        return self._store.head(key)

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        """Write an object that must not exist."""
        self._count("create", memoryview(body).nbytes)
        return self._store.create(key, body, nonce)

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        """Write an object over the one with `etag`."""
        self._count("replace", len(body))
        return self._store.replace(key, body, etag, nonce)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Objects whose keys begin with `prefix`, in the order of their keys, behind `start_after`."""
        self._count("list")
        for number, entry in enumerate(self._store.list(prefix, start_after)):
            if number and number % _KEYS_PER_REQUEST == 0:
                self._count("list")
            yield entry

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist count as deleted."""
        for _ in range(0, len(keys), _KEYS_PER_REQUEST):
            self._count("delete")
        self._store.delete(keys)
        with self._lock:
            self.deleted += len(keys)

    def _read(self, stored: Stored) -> Stored:
        self._count_in(len(stored.body))
        return stored

    def _count(self, kind: str, bytes_out: int = 0) -> None:
        with self._lock:
            self.counts[kind] += 1
            self.bytes_out += bytes_out

    def _count_in(self, size: int) -> None:
        with self._lock:
            self.bytes_in += size
