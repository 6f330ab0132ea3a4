"""Objects that never change, kept in memory up to a bound; several who want the same one at once load it once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from liftpy_bucket.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ObjectCache"]


class ObjectCache:
    """A bounded cache of objects that never change; any number of threads may use it.

    Args:
        bytes_max: Maximum bytes of bodies that are kept; the one used least recently goes first. What is larger is not
            kept.

    Attributes:
        hits: Calls that were answered without loading, or by someone else's loading.
        misses: Calls that loaded.
    """

    def __init__(self, bytes_max: int) -> None:
        self._kept: LruCache[str, bytes] = LruCache(bytes_max, len)
        self._loading: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def bytes_kept(self) -> int:
        """Never more than the bound."""
        return self._kept.weight

    def get(self, key: str, load: Callable[[], bytes]) -> bytes:
        """A body, from memory or loaded; an error of `load` goes to all who wait for it and is not kept."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self.hits += 1
                return kept
            loading = self._loading.get(key)
            if loading is None:
                self.misses += 1
                mine = self._loading[key] = Future[bytes]()
            else:
                self.hits += 1
        if loading is not None:
            return loading.result()
        try:
            body = load()
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._kept.put(key, body)
        mine.set_result(body)
        return body
