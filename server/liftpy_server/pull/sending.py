"""Record batches from a segment file to a socket: with `sendfile`, and never with the event loop waiting for a disk."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.segments.scan import read_batch
from liftpy_server.settings.limits import PEER_BYTES_PER_S_MIN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import File

    Piece = bytes | tuple[File, Slice]

__all__ = ["ResponseSender", "check_slice"]

_SMALL_BYTES_MAX: Final = 64 * 1024  # below this one copy is cheaper than another system call
_JOINED_BYTES_MAX: Final = 256 * 1024  # of small pieces that are written together
_PAGE_PROBE_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 1024 * 1024
_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class ResponseSender:
    """Sends response frames to one peer, one at a time.

    The event loop's own `sendfile` has no time-out, is missing in uvloop, and waits for the disk when pages are cold;
    so the call is made here, on a duplicate of the socket's descriptor, which stays ours whatever happens to the
    transport meanwhile.

    Args:
        writer: The peer.
        executor: Reads from the disk.
        timeout_s: Time for the peer to take anything at all, seconds.
    """

    def __init__(self, writer: asyncio.StreamWriter, executor: Executor, timeout_s: float) -> None:
        self._writer = writer
        self._executor = executor
        self._timeout_s = timeout_s
        self._is_tls = writer.get_extra_info("sslcontext") is not None
        self._socket = -1
        writer.transport.set_write_buffer_limits(0)  # so that `drain` returns when everything is in the socket

    def close(self) -> None:
        """Give the duplicate back."""
        if self._socket >= 0:
            os.close(self._socket)
            self._socket = -1

    @property
    def is_clear(self) -> bool:
        """Whether everything that was sent is in the socket."""
        return not self._writer.transport.get_write_buffer_size()

    def send_now(self, parts: Sequence[bytes], size_bytes: int) -> bool:
        """Send a response frame that is in memory, in a plain call; only while `is_clear`.

        Args:
            parts: All of it.
            size_bytes: Size of the pieces, bytes.

        Returns:
            False when the socket did not take everything: then `drain` before anything else is sent.
        """
        if self._writer.is_closing():  # its end is about to be told; uvloop refuses all writes from here on
            return True
        if size_bytes <= _SMALL_BYTES_MAX:
            self._writer.write(b"".join(parts))
        else:
            self._writer.writelines(parts)
        return self.is_clear

    async def drain(self, size_bytes: int) -> None:
        """Wait until everything is in the socket.

        Args:
            size_bytes: Size in bytes of what was sent.

        Raises:
            TimeoutError: the peer is too slow; the connection can not be used further.
            OSError: the connection broke.
        """
        async with asyncio.timeout(self._timeout_s + size_bytes / PEER_BYTES_PER_S_MIN):
            await self._drain()

    async def send(self, head: bytes, pieces: Sequence[Piece] = ()) -> None:
        """Send a response frame: its head, and the batches that are its body.

        Args:
            head: Everything before the body.
            pieces: Batches in memory, or pinned files and what to send of them.

        Raises:
            TimeoutError: the peer is too slow; the connection can not be used further.
            OSError: the connection or the file broke.
        """
        total = 0
        for piece in pieces:
            total += _size_of(piece)
            if not isinstance(piece, bytes):
                await warm_up(*piece, self._executor)
        async with asyncio.timeout(self._timeout_s + total / PEER_BYTES_PER_S_MIN):
            joined, joined_bytes = [head], 0
            for piece in pieces:
                is_joined = isinstance(piece, bytes) or piece[1].length <= _SMALL_BYTES_MAX
                if is_joined:
                    joined.append(_bytes_of(piece))
                    joined_bytes += len(joined[-1])
                if joined and (not is_joined or joined_bytes > _JOINED_BYTES_MAX):
                    await self._write(joined)
                    joined, joined_bytes = [], 0
                if not isinstance(piece, bytes) and not is_joined:
                    await self._send_piece(*piece)
            await self._write(joined)

    async def _write(self, parts: list[bytes]) -> None:
        self._raise_closing()
        self._writer.writelines(parts)
        await self._drain()

    def _raise_closing(self) -> None:
        if self._writer.is_closing():  # uvloop says that with a RuntimeError
            raise ConnectionResetError("the connection is closing")

    async def _send_piece(self, file: File, piece: Slice) -> None:
        if self._is_tls:
            await self._copy(file, piece)
            return
        if self._socket < 0:  # made late: whoever only connects costs one descriptor, not two
            if self._writer.is_closing():
                raise ConnectionResetError("the connection is closing: its descriptor may be another's by now")
            self._socket = os.dup(self._writer.get_extra_info("socket").fileno())
        await self._sendfile(file, piece)

    async def _copy(self, file: File, piece: Slice) -> None:
        position, end = piece.position, piece.position + piece.length
        while position < end:
            data = file.read(position, min(_READ_BYTES, end - position))
            self._raise_closing()
            self._writer.write(data)
            await self._drain()
            position += len(data)

    async def _sendfile(self, file: File, piece: Slice) -> None:
        position, end = piece.position, piece.position + piece.length
        while position < end:
            try:
                sent = os.sendfile(self._socket, file.fileno(), position, end - position)
            except BlockingIOError:
                await self._writable()
                continue
            if sent == 0:
                raise ConnectionError("the segment ended early")
            position += sent

    async def _drain(self) -> None:
        if self.is_clear:
            return
        async with asyncio.timeout(self._timeout_s):
            await self._writer.drain()

    async def _writable(self) -> None:
        """Wait until the socket takes more."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._socket, _resolve, ready)
        try:
            async with asyncio.timeout(self._timeout_s):
                await ready
        finally:
            loop.remove_writer(self._socket)


def _size_of(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[1].length


def _bytes_of(piece: Piece) -> bytes:
    if isinstance(piece, bytes):
        return piece
    file, part = piece
    return file.read(part.position, part.length)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def warm_up(file: File, piece: Slice, executor: Executor) -> None:
    """Have the bytes in the page cache before the event loop touches them."""
    if _RWF_NOWAIT and _is_warm(file, piece):
        return
    await asyncio.get_running_loop().run_in_executor(executor, _read_through, file, piece)


def _is_warm(file: File, piece: Slice) -> bool:
    """Whether probes all over the bytes find them in the page cache."""
    end = piece.position + piece.length
    probe = bytearray(1)
    try:
        for position in (*range(piece.position, end, _PAGE_PROBE_BYTES), end - 1):
            os.preadv(file.fileno(), [probe], position, _RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return False  # the file system can not tell
    return True


def _read_through(file: File, piece: Slice) -> None:
    end = piece.position + piece.length
    os.posix_fadvise(file.fileno(), piece.position, piece.length, os.POSIX_FADV_WILLNEED)
    for position in range(piece.position, end, _READ_BYTES):
        file.read(position, min(_READ_BYTES, end - position))


def check_slice(file: File, piece: Slice) -> None:
    """Read every batch of a slice and check it. Waits for the disk.

    Raises:
        SegmentCorruptError: one is damaged.
    """
    position, end = piece.position, piece.position + piece.length
    while position < end:
        try:
            header, _ = read_batch(file, position, end)
        except LiftError as error:
            raise SegmentCorruptError(piece.segment.path, position, str(error)) from error
        position += header.length
