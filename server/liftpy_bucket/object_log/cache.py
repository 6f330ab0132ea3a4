"""Objects that never change, kept in memory up to a bound; several who want the same one at once load it once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ObjectCache"]


class ObjectCache:
    """A bounded cache of objects that never change; any number of threads may use it.

    Args:
        bytes_max: of bodies that are kept; the one used least recently goes first. What is larger is not kept.

    Attributes:
        hits: calls that were answered without loading, or by someone else's loading.
        misses: calls that loaded.
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= 0, "a bound is not negative"
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._loading: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def bytes_kept(self) -> int:
        """Never more than the bound."""
        return self._bytes

    def get(self, key: str, load: Callable[[], bytes]) -> bytes:
        """A body, from memory or loaded; an error of `load` goes to all who wait for it and is not kept."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
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
            self._keep(key, body)
        mine.set_result(body)
        return body

    def _keep(self, key: str, body: bytes) -> None:
        if len(body) > self._bytes_max:
            return
        self._kept[key] = body
        self._bytes += len(body)
        while self._bytes > self._bytes_max:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone)
