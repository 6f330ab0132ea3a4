"""A file to read from that is memory of somebody else: however large, nothing is copied but what is read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["MemoryReader"]


class MemoryReader(io.RawIOBase):
    """See the module. May be read any number of times, from any position.

    Args:
        body: the memory, which must not go before this does.
    """

    def __init__(self, body: memoryview) -> None:
        super().__init__()
        self._body = body.cast("B")
        self._position = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins, bytes from the beginning."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go elsewhere; positions behind the end are taken, and nothing is there.

        Raises:
            ValueError: it would be before the beginning, or `whence` is none of those of `io`.
        """
        from_there = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._body)}
        if whence not in from_there or from_there[whence] + offset < 0:
            raise ValueError(f"there is no position {offset} from {whence}")
        self._position = from_there[whence] + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """As much as fits and is there."""
        target = memoryview(buffer).cast("B")
        piece = self._body[self._position : self._position + len(target)]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)
