"""Memory that an object is written into and sent from, without a copy in between.

To touch fresh memory costs a core about as much as hashing what is put there: the kernel clears every page first. So
memory is used again for the next object, and meanwhile the kernel may take it back when memory is short.
"""

from __future__ import annotations

import mmap
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from liftpy_bucket.objects.sinks import SinkFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["KEPT_BYTES", "ObjectBuffer", "ObjectBuffers"]

T = TypeVar("T")

KEPT_BYTES: Final = 128 * 1024 * 1024
"""Size of the mappings that are used again; what is not written of them takes no memory. Larger ones go at once."""

_ROOM: Final = 2  # times as much as is expected
_MORE: Final = 4  # times as much as was too little
_CAN_KEEP: Final = sys.platform == "linux"  # elsewhere mappings cannot be asked whether they are in use


class ObjectBuffer:
    """Memory that one object is written into; a `MemorySink`.

    Args:
        memory: Memory whose content does not matter.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._size = 0
        self.memory = memory

    def write(self, data: bytes, /) -> int:
        """Take all of it.

        Raises:
            SinkFullError: it has no room.
        """
        end = self._size + len(data)
        if end > len(self.memory):
            raise SinkFullError(f"{len(data)} bytes have no room behind {self._size} of {len(self.memory)}")
        self.memory[self._size : end] = data
        self._size = end
        return len(data)

    def room(self) -> memoryview:
        """The memory behind what was written."""
        return memoryview(self.memory)[self._size :]

    def wrote(self, size: int) -> None:
        """The first `size` bytes of the room are written."""
        self._size += size

    @contextmanager
    def body(self) -> Iterator[memoryview]:
        """What was written. It is not to be written to meanwhile."""
        with memoryview(self.memory) as whole, whole[: self._size] as written:
            yield written


class ObjectBuffers:
    """Lends memory for objects, to any number of threads.

    Args:
        kept_max: How many mappings of `KEPT_BYTES` are kept while nobody needs them.
    """

    def __init__(self, kept_max: int = 3) -> None:
        self._kept_max = kept_max if _CAN_KEEP else 0
        self._kept: list[mmap.mmap] = []
        self._lock = threading.Lock()

    @contextmanager
    def filled(self, expected_bytes: int, write: Callable[[ObjectBuffer], T]) -> Iterator[tuple[ObjectBuffer, T]]:
        """A buffer with an object, as long as the context lasts, and what writing it returned.

        Args:
            expected_bytes: About how large the object becomes.
            write: Writes the object; once more, into more memory, where it has no room.

        Raises:
            BufferError: at the end, somebody still uses a body of it.
        """
        buffer, written = self._written(_ROOM * expected_bytes, write)
        try:
            yield buffer, written
        finally:
            self._take_back(buffer.memory)

    def _written(self, size: int, write: Callable[[ObjectBuffer], T]) -> tuple[ObjectBuffer, T]:
        """Memory that writing has failed in is not used again: who wrote may be there as long as the error is."""
        while True:
            buffer = ObjectBuffer(self._taken(size))
            try:
                return buffer, write(buffer)
            except SinkFullError:
                size = _MORE * len(buffer.memory)

    def _taken(self, size: int) -> mmap.mmap:
        with self._lock:
            if self._kept and size <= KEPT_BYTES:
                return self._kept.pop()
        return _mapped(max(size, KEPT_BYTES))

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
