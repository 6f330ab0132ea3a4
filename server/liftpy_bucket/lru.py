"""Values that were used lately, kept up to a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["LruCache"]

_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


class LruCache(Generic[_Key, _Value]):
    """Values of a bounded weight; the one used least recently goes first. Any number of threads may use it.

    Args:
        weight_max: Maximum weight of all values together. One that is heavier is not kept.
        weigh: How much a value is; by default each is one.
    """

    def __init__(self, weight_max: int, weigh: Callable[[_Value], int] = lambda _value: 1) -> None:
        assert weight_max >= 0, "a bound is not negative"
        self._weight_max = weight_max
        self._weigh = weigh
        self._kept: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def weight(self) -> int:
        """Weight of all values kept; never more than the bound."""
        return self._weight

    def get(self, key: _Key) -> _Value | None:
        """The value of a key; None where it is not kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: _Key, value: _Value, is_newer: Callable[[_Value], bool] = lambda _there: False) -> _Value:
        """Keep a value in place of what was there; returns which of them is kept.

        Args:
            key: Key of the value.
            value: Value to keep.
            is_newer: Whether what is there is newer, and stays.
        """
        with self._lock:
            there = self._kept.get(key)
            if there is not None and is_newer(there[0]):
                return there[0]
            self.drop(key)
            weight = self._weigh(value)
            if weight <= self._weight_max:
                self._kept[key] = (value, weight)
                self._weight += weight
            while self._weight > self._weight_max:
                self.drop(next(iter(self._kept)))
        return value

    def get_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of a key; `make` is called where there is none, and must not wait for anything."""
        with self._lock:
            found = self.get(key)
            return self.put(key, make()) if found is None else found

    def drop(self, key: _Key) -> None:
        """Keep the value of a key no more."""
        with self._lock:
            _, weight = self._kept.pop(key, (None, 0))
            self._weight -= weight
