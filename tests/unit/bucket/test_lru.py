"""What was used lately is kept, up to a weight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.lru import LruCache


def test_what_was_used_last_is_kept():
    latest = LruCache(2)
    for key in ("a", "b"):
        latest.put(key, key)
    assert latest.get("a") == "a"
    latest.put("c", "c")
    assert (latest.get("a"), latest.get("b"), latest.get("c")) == ("a", None, "c")
    assert latest.get_or_make("d", lambda: "d") == "d"
    assert latest.get("a") is None
    latest.drop("d")
    latest.drop("d")
    assert len(latest) == 1


def test_what_is_too_heavy_is_not_kept_and_nothing_goes_for_it():
    cache = LruCache(10, len)
    cache.put("a", "x" * 4)
    cache.put("b", "x" * 6)
    assert cache.put("a", "y" * 11) == "y" * 11
    assert (cache.get("a"), cache.get("b"), cache.weight) == (None, "x" * 6, 6)


def test_what_is_newer_stays():
    cache = LruCache(10)
    cache.put("a", 2)
    assert cache.put("a", 1, lambda there: there > 1) == 2
    assert cache.put("a", 3, lambda there: there > 3) == cache.get("a") == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.booleans())))
def test_the_weight_is_that_of_what_is_kept_and_in_bounds(steps):
    cache = LruCache(10, lambda value: value)
    for key, value, drops in steps:
        cache.drop(key) if drops else cache.put(key, value)
        kept = [found for key in range(6) if (found := cache.get(key)) is not None]
        assert cache.weight == sum(kept) <= 10
        assert len(cache) == len(kept)
