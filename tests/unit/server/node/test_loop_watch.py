"""The event loop is watched while it turns, and not afterwards."""

from __future__ import annotations

import asyncio
import gc
import time

from liftpy_server.node.loop_watch import LoopWatch
from support.cluster import eventually


def count(histogram):
    return histogram.buckets()[-1][1]


async def test_a_loop_that_stands_still_is_late():
    watch = LoopWatch(asyncio.get_running_loop())
    watch.start()
    try:
        await eventually(lambda: count(watch.lag_s))
        time.sleep(0.3)
        await eventually(lambda: watch.lag_s.sum_s >= 0.15)
        gc.collect()
        assert count(watch.gc_s) >= 1
    finally:
        watch.stop()
    before = count(watch.gc_s), count(watch.lag_s)
    gc.collect()
    await asyncio.sleep(0.25)
    assert (count(watch.gc_s), count(watch.lag_s)) == before
