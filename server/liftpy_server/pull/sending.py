"""Record batches from a segment file to a socket: `sendfile` where it can be, and never with the event loop waiting
for the disk."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from liftpy_log.disk import File
    from liftpy_log.files import FileCache
    from liftpy_log.reader import Slice

__all__ = ["send_response", "warm_up"]

_SMALL_BYTES_MAX: Final = 64 * 1024  # below this one copy is cheaper than another system call
_PAGE_PROBE_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 1024 * 1024
_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


async def send_response(
    writer: asyncio.StreamWriter,
    head: bytes,
    pieces: Sequence[tuple[File, Slice]],
    executor: Executor,
    *,
    timeout_s: float,
) -> None:
    """Send a response frame: its head, and the batches that are its body.

    Args:
        writer: the peer.
        head: everything before the body.
        pieces: pinned files and what to send of them.
        executor: reads from the disk.
        timeout_s: for the peer to take all of it.

    Raises:
        TimeoutError: the peer is too slow; the connection can not be used further.
        OSError: the connection or the file broke.
    """
    loop = asyncio.get_running_loop()
    total = sum(piece.length for _, piece in pieces)
    for file, piece in pieces:
        await warm_up(file, piece, executor)
    is_plain = writer.get_extra_info("sslcontext") is None
    async with asyncio.timeout(timeout_s):
        if total <= _SMALL_BYTES_MAX:
            writer.write(head + b"".join(file.read(piece.position, piece.length) for file, piece in pieces))
            await writer.drain()
            return
        writer.write(head)
        await writer.drain()
        for file, piece in pieces:
            if is_plain:
                await loop.sendfile(writer.transport, file, piece.position, piece.length, fallback=False)  # type: ignore[arg-type]
            else:
                await _copy(writer, file, piece)


async def _copy(writer: asyncio.StreamWriter, file: File, piece: Slice) -> None:
    position, end = piece.position, piece.position + piece.length
    while position < end:
        data = file.read(position, min(_READ_BYTES, end - position))
        writer.write(data)
        await writer.drain()
        position += len(data)


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


def pin_all(files: FileCache, slices: Sequence[Slice]) -> list[tuple[File, Slice]]:
    """Pin the files of all slices; `unpin_all` gives them back."""
    pinned: list[tuple[File, Slice]] = []
    try:
        for piece in slices:
            pinned.append((files.pin(piece.segment), piece))
    except OSError:
        unpin_all(files, pinned)
        raise
    return pinned


def unpin_all(files: FileCache, pinned: Sequence[tuple[File, Slice]]) -> None:
    """Give back what `pin_all` pinned."""
    for file, piece in pinned:
        files.unpin(piece.segment, file)
