"""Limits and intervals of reads from the bucket. One file, units in the names."""

from __future__ import annotations

from typing import Final

__all__ = [
    "AHEAD_PIECES",
    "CACHE_SHARE",
    "COMPACTED_S",
    "FETCHES_MAX",
    "FRESH_S",
    "HOLES_MAX",
    "HOLE_KNOWN_S",
    "HOLE_S",
    "IDLE_S",
    "LOOK_AGAIN_S",
    "PAUSE_S_MAX",
    "PAUSE_S_MIN",
    "PIECE_BYTES",
    "QUEUED_MAX",
    "SEEK_BYTES",
    "SLOW_S",
    "TIMES_ASKED_MAX",
    "WARM_UP_AFTER_S",
]

FETCHES_MAX: Final = 4  # at once: as many as the worker process has threads
QUEUED_MAX: Final = 1_000  # fetches that wait for their turn; readers beyond it are told to come again
SEEK_BYTES: Final = 512 * 1024  # asked for where nobody is known to read on
PIECE_BYTES: Final = 16 * 1024 * 1024  # of one fetch at most: who reads need not wait for more at once
AHEAD_PIECES: Final = 4  # are there or on their way, before the one who reads a piece
CACHE_SHARE: Final = 8  # one read-ahead takes no more than this part of the cache
COMPACTED_S: Final = 10.0  # a chunk of a compacted stream is read for so long: others may have compacted it meanwhile
FRESH_S: Final = 5.0  # who waits for a chunk gets it within this time, or it may go before it was read
IDLE_S: Final = 600.0  # a chunk that nobody reads for so long goes
SLOW_S: Final = 10.0  # who waits longer for the bucket is told that it is slow
TIMES_ASKED_MAX: Final = 4  # questions for the offset at a time, at once
PAUSE_S_MIN: Final = 0.25  # after a failure; doubles with each that follows
PAUSE_S_MAX: Final = 5.0
LOOK_AGAIN_S: Final = (0.5, 1.5)  # after these pauses, where an object is missing or damaged
HOLE_S: Final = 1.0  # so long readers are told of such an object without another look
HOLE_KNOWN_S: Final = 60.0  # so long after that the next look is a single one, without these pauses
HOLES_MAX: Final = 1_000  # that are remembered
WARM_UP_AFTER_S: Final = 1.0  # after the node has begun, which needs the cores for something else
