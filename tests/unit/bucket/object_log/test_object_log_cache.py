"""The cache of an object log is bounded and loads once; the end is found in few steps."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.object_log.cache import ObjectCache
from liftpy_bucket.object_log.end import find_last

WAITERS = 8


def never():
    raise AssertionError("this is in the cache")


def test_what_is_used_least_recently_goes():
    cache = ObjectCache(10)
    for key in ("a", "b"):
        assert cache.get(key, lambda: b"12345") == b"12345"
    cache.get("a", never)
    cache.get("c", lambda: b"1")
    cache.get("a", never)
    assert cache.bytes_kept == 6
    assert cache.get("b", lambda: b"again") == b"again"
    assert cache.get("large", lambda: b"x" * 11) == b"x" * 11
    assert cache.get("large", lambda: b"y" * 11) == b"y" * 11
    assert cache.bytes_kept <= 10
    assert (cache.hits, cache.misses) == (2, 6)


def test_several_who_want_the_same_load_it_once():
    cache = ObjectCache(100)
    loads = []
    waits = threading.Event()

    def load():
        loads.append(1)
        waits.wait(10)
        return b"body"

    with ThreadPoolExecutor(WAITERS) as pool:
        asked = [pool.submit(cache.get, "k", load) for _ in range(WAITERS)]
        while cache.hits + cache.misses < WAITERS:
            threading.Event().wait(0.001)
        waits.set()
        assert [one.result() for one in asked] == [b"body"] * WAITERS
    assert len(loads) == 1


def test_an_error_goes_to_all_and_is_not_kept():
    cache = ObjectCache(100)
    waits = threading.Event()

    def fail():
        waits.wait(10)
        raise ObjectMissingError("k")

    with ThreadPoolExecutor(WAITERS) as pool:
        asked = [pool.submit(cache.get, "k", fail) for _ in range(WAITERS)]
        while cache.hits + cache.misses < WAITERS:
            threading.Event().wait(0.001)
        waits.set()
        for one in asked:
            with pytest.raises(ObjectMissingError):
                one.result()
    assert cache.get("k", lambda: b"now") == b"now"


@given(floor=st.integers(0, 10**9), count=st.integers(0, 10**6), hint=st.integers(0, 2 * 10**9))
def test_the_last_is_found_from_everywhere(floor, count, hint):
    asked = []

    def exists(number):
        asked.append(number)
        assert number >= floor, "what was trimmed is not asked for"
        return number < floor + count

    assert find_last(exists, floor, hint) == (floor + count - 1 if count else None)
    distance = abs(max(hint, floor) - (floor + count)) + 2
    assert len(asked) <= 2 * math.log2(distance) + 4
