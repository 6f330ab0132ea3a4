"""What a process does with memory that it has used: it keeps some of it, where it is used again and again.

What is read comes in pieces of many MiB. By default the C library gives such pieces back to the kernel when several of
them are freed, and every page of the next ones is cleared and mapped anew: up to a fifth of what reading costs. And
each thread would keep memory of its own.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

__all__ = ["KEPT_BYTES_MAX", "keep_memory", "settle_objects"]

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024  # that nobody uses, before it is given back
_PIECE_BYTES_MAX: Final = 32 * 1024 * 1024  # larger ones go back at once
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def keep_memory() -> bool:
    """Keep what was used for large pieces, up to a bound. To be called before there are threads.

    Returns:
        Whether the C library can do that; otherwise nothing changes.
    """
    library = ctypes.CDLL(None)
    if not (sys.platform == "linux" and hasattr(library, "gnu_get_libc_version")):
        return False
    wanted = {_M_MMAP_THRESHOLD: _PIECE_BYTES_MAX, _M_TRIM_THRESHOLD: KEPT_BYTES_MAX, _M_ARENA_MAX: 1}
    answers = [library.mallopt(name, value) for name, value in wanted.items()]
    return answers == [1] * len(wanted)


def settle_objects() -> None:
    """Look no more whether objects that are there by now, modules above all, can go."""
    gc.collect()
    gc.freeze()
