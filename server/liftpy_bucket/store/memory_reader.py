"""Memory of somebody else to be sent: as a file, of which nothing is copied but what is read, or in pieces."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

__all__ = ["MemoryPieces", "MemoryReader"]

_PIECE_BYTES: Final = 256 * 1024  # has to be sent within one time-out of a socket


class MemoryReader(io.RawIOBase):
    """A file of memory that belongs to somebody else. May be read any number of times, from any position.

    Args:
        body: The memory, which must not go before this does.
    """

    def __init__(self, body: memoryview) -> None:
        super().__init__()
        self._body = body.cast("B")
        self._position = 0

    @property
    def body(self) -> memoryview:
        """The bytes as a memoryview."""
        return self._body

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
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

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes; they are copied once."""
        end = len(self._body) if size < 0 else self._position + size
        content = bytes(self._body[self._position : end])
        self._position += len(content)
        return content

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read as many bytes as fit into a buffer."""
        target = memoryview(buffer).cast("B")
        piece = self._body[self._position : self._position + len(target)]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


class MemoryPieces:
    """The memory of a reader from its present position on, in pieces that nobody copies. May be iterated over again.

    Args:
        reader: Reader that is not read any more.
    """

    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[memoryview]:
        """One after the other; none is empty."""
        body = self._reader.body
        for start in range(self._reader.tell(), len(body), _PIECE_BYTES):
            yield body[start : start + _PIECE_BYTES]

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position, for instance back to the beginning to send all bytes again."""
        return self._reader.seek(offset, whence)
