"""What Parquet is written to: memory that Arrow fills by itself, or anything else that takes bytes.

Into memory a row group goes without a call of Python and with one copy less: a tenth of what an upload costs.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ByteSink", "BytesTarget", "MemorySink", "MemoryTarget", "SinkFullError", "target_of"]


_HASHED_BYTES: Final = 256 * 1024  # at a time


class SinkFullError(OSError):
    """A sink has no room for what is to be written."""


class ByteSink(Protocol):
    """What an object is written to, a file for example."""

    def write(self, data: bytes, /) -> int:
        """Take all of it.

        Raises:
            OSError: it could not.
        """
        ...


@runtime_checkable
class MemorySink(ByteSink, Protocol):
    """Memory that an object is written into, with `write` or by who fills the room behind what was written."""

    def room(self) -> memoryview:
        """The memory behind what was written."""
        ...

    def wrote(self, size: int) -> None:
        """The first `size` bytes of the room are written."""
        ...


class BytesTarget(io.RawIOBase):
    """A sink of bytes, as the writer of one Parquet file sees it.

    It hands on only while it is told to: pyarrow writes a footer also when a writer is given up, to what may be closed.

    Attributes:
        file: What the writer writes to.
        digest: SHA-256 of what came the last time that it handed on, hexadecimal.
    """

    def __init__(self, sink: ByteSink) -> None:
        super().__init__()
        self._sink = sink
        self._position = 0
        self._hash = sha256()
        self._is_passing = False
        self._kept: list[bytes] | None = None
        self.file = self
        self.digest = ""

    def writable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """How many bytes came."""
        return self._position

    def write(self, data: bytes) -> int:  # type: ignore[override]  # Arrow gives bytes, and nothing else
        """Take all of it."""
        self._position += len(data)
        if self._kept is not None:
            self._kept.append(data)
        elif self._is_passing:
            self._hash.update(data)
            self._sink.write(data)
        return len(data)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Hand on what comes meanwhile, and begin a digest with it."""
        self._hash = sha256()
        self._is_passing = True
        try:
            yield
        finally:
            self._is_passing = False
        self.digest = self._hash.hexdigest()

    def keep(self, write: Callable[[], None]) -> tuple[int, bytes]:
        """What `write` writes at the end, which is not handed on, and how many bytes came before it."""
        start, self._kept = self._position, []
        write()
        return start, b"".join(self._kept)


class MemoryTarget:
    """A sink in memory, as the writer of one Parquet file sees it: a file in the room behind what was written.

    A writer that is given up may write a footer there, so the memory must not be used again before the writer is gone.

    Attributes:
        file: What the writer writes to.
        digest: SHA-256 of what came the last time that `passing` lasted, hexadecimal.
    """

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink
        self._room = sink.room()
        self.file = pa.FixedSizeBufferWriter(pa.py_buffer(self._room))
        self.digest = ""

    @contextmanager
    def passing(self) -> Iterator[None]:
        """What comes meanwhile is in the sink, and has a digest.

        Raises:
            SinkFullError: there is no room for it.
        """
        start = self.file.tell()
        with _full_or_not():
            yield
        end = self.file.tell()
        self.digest = _digest(self._room[start:end])
        self._sink.wrote(end - start)

    def keep(self, write: Callable[[], None]) -> tuple[int, bytes]:
        """What `write` writes at the end, which does not stay in the sink, and how many bytes came before it.

        Raises:
            SinkFullError: there is no room for it.
        """
        start = self.file.tell()
        with _full_or_not():
            write()
        return start, bytes(self._room[start : self.file.tell()])

    def close(self) -> None:
        """Let go of the memory; its writer has.

        Raises:
            BufferError: it has not.
        """
        del self.file
        self._room.release()


def _digest(content: memoryview) -> str:
    """SHA-256 of bytes that no cache has any more, hexadecimal.

    Copied into memory that one has, they take a seventh less time, with the copy: SHA-256 waits for memory.
    """
    digest = sha256()
    for start in range(0, len(content), _HASHED_BYTES):
        digest.update(bytes(content[start : start + _HASHED_BYTES]))
    return digest.hexdigest()


@contextmanager
def _full_or_not() -> Iterator[None]:
    try:
        yield
    except OSError as error:  # memory can not fail in another way
        raise SinkFullError(str(error)) from error


def target_of(sink: ByteSink) -> BytesTarget | MemoryTarget:
    """A sink as the writer of the next Parquet file in it sees it."""
    return MemoryTarget(sink) if isinstance(sink, MemorySink) else BytesTarget(sink)
