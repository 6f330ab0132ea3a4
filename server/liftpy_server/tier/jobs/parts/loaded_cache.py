"""Manifests as they were when this process last saw them: what makes a commit cost no look.

Nothing here need be true: a commit over a manifest that has changed since is refused by the store, and is looked into
then. Manifests are values; what is bounded is the number of pointers that are held through them.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from liftpy_bucket.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

__all__ = ["LoadedCache"]

_STRIPES: Final = 64
_LOOK_S: Final = 5.0

Loaded = TypeVar("Loaded")


class LoadedCache(Generic[Loaded]):
    """Manifests as this process last saw them; any number of threads may use it.

    Args:
        weight_max: Maximum weight of all that is kept.
        weigh: How much one is.
        version: Gives the version of a value; an older one never takes the place of a newer one.
    """

    def __init__(
        self, weight_max: int, weigh: Callable[[Loaded], int], version: Callable[[Loaded], int] = lambda _loaded: 0
    ) -> None:
        self._version = version
        self._kept: LruCache[Hashable, Loaded] = LruCache(weight_max, weigh)
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]

    @contextmanager
    def alone(self, key: Hashable, waiting: Callable[[], None]) -> Iterator[None]:
        """One job at a time writes a manifest: two of this process would only overtake each other.

        Args:
            key: Key of the manifest.
            waiting: Called now and then until it begins.
        """
        stripe = self._stripes[hash(key) % _STRIPES]
        while not stripe.acquire(timeout=_LOOK_S):
            waiting()
        try:
            yield
        finally:
            stripe.release()

    def get(self, key: Hashable) -> Loaded | None:
        """What is kept under `key`."""
        return self._kept.get(key)

    def keep(self, key: Hashable, loaded: Loaded) -> Loaded:
        """Keep it, in place of what was there, and return it; where that was newer, keep and return that."""
        version = self._version(loaded)
        return self._kept.put(key, loaded, lambda there: self._version(there) > version)

    def drop(self, key: Hashable) -> None:
        """Remove a value from the cache."""
        self._kept.drop(key)
