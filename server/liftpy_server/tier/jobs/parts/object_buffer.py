"""Memory that an object is written into and sent from, without a copy in between.

One mapping, which goes back to the system as a whole; in large pages where the kernel has them: to touch fresh memory
page by page costs a core as much as compressing what is put there.
"""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ObjectBuffer"]

_BYTES_MIN: Final = 1024 * 1024


class ObjectBuffer:
    """Memory that one object is written into. A context manager, at whose end the memory goes.

    Args:
        expected_bytes: About how large the object becomes; it may become larger. What is not written takes no memory.
    """

    def __init__(self, expected_bytes: int) -> None:
        self._size = 0
        self._memory = _mapped(expected_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    def write(self, data: bytes, /) -> int:
        """Take all of it."""
        end = self._size + len(data)
        if end > len(self._memory):
            self._grow(2 * end)
        self._memory[self._size : end] = data
        self._size = end
        return len(data)

    @contextmanager
    def body(self) -> Iterator[memoryview]:
        """What was written. It is not to be written to meanwhile."""
        with memoryview(self._memory) as whole, whole[: self._size] as written:
            yield written

    def _grow(self, size: int) -> None:
        before, self._memory = self._memory, _mapped(size)
        with before, memoryview(before) as whole, whole[: self._size] as written:
            self._memory[: self._size] = written


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(size, _BYTES_MIN), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
