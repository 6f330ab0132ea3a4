"""Memory that an object is written into and sent from, without a copy in between.

To touch fresh memory costs a core about as much as hashing what is put there: the kernel clears every page first. So
memory is used again for the next object, and meanwhile the kernel may take it back when memory is short.
"""

from __future__ import annotations

import mmap
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KEPT_BYTES", "ObjectBuffer", "ObjectBuffers"]

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Size of the mappings that are used again; what is not written of them takes no memory. Larger ones go at once."""

_SMALL_BYTES: Final = 1024 * 1024  # are cheaper to get than to keep
_CAN_KEEP: Final = sys.platform == "linux"  # elsewhere mappings cannot be asked whether they are in use


class ObjectBuffer:
    """Memory that one object is written into.

    Args:
        memory: Memory whose content does not matter. It is replaced by more when the object does not fit.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._size = 0
        self.memory = memory

    def write(self, data: bytes, /) -> int:
        """Take all of it."""
        end = self._size + len(data)
        if end > len(self.memory):
            self._grow(2 * end)
        self.memory[self._size : end] = data
        self._size = end
        return len(data)

    @contextmanager
    def body(self) -> Iterator[memoryview]:
        """What was written. It is not to be written to meanwhile."""
        with memoryview(self.memory) as whole, whole[: self._size] as written:
            yield written

    def _grow(self, size: int) -> None:
        before, self.memory = self.memory, _mapped(size)
        with before, memoryview(before) as whole, whole[: self._size] as written:
            self.memory[: self._size] = written


class ObjectBuffers:
    """Lends memory for objects, to any number of threads.

    Args:
        kept_max: How many mappings of `KEPT_BYTES` are kept while nobody needs them.
    """

    def __init__(self, kept_max: int = 2) -> None:
        self._kept_max = kept_max if _CAN_KEEP else 0
        self._kept: list[mmap.mmap] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self, expected_bytes: int) -> Iterator[ObjectBuffer]:
        """A buffer, as long as the context lasts.

        Args:
            expected_bytes: About how large the object becomes; it may become larger.

        Raises:
            BufferError: at the end, somebody still uses a body of it.
        """
        buffer = ObjectBuffer(self._taken(expected_bytes))
        try:
            yield buffer
        finally:
            self._take_back(buffer.memory)

    def _taken(self, expected_bytes: int) -> mmap.mmap:
        if expected_bytes <= _SMALL_BYTES:
            return _mapped(_SMALL_BYTES)
        with self._lock:
            if self._kept and expected_bytes <= KEPT_BYTES:
                return self._kept.pop()
        return _mapped(max(expected_bytes, KEPT_BYTES))

    def _take_back(self, memory: mmap.mmap) -> None:
        if len(memory) == KEPT_BYTES and self._kept_max:
            memory.resize(KEPT_BYTES)  # which changes nothing, and refuses while there are views
            with self._lock:
                if len(self._kept) < self._kept_max:
                    memory.madvise(mmap.MADV_FREE)
                    self._kept.append(memory)
                    return
        memory.close()


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
