"""The standard input line by line, without keeping the event loop from its work while nothing comes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

__all__ = ["stdin_lines"]

_CHUNK_BYTES: Final = 256 * 1024


async def stdin_lines() -> AsyncIterator[bytes]:
    """Every line, without its line end; the last one need not have any."""
    rest = b""
    async for chunk in _chunks(sys.stdin.fileno()):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _chunks(descriptor: int) -> AsyncGenerator[bytes, None]:
    """What there is to read, as it comes: a pipe or terminal is waited for, a file never blocks for long."""
    try:
        while True:
            await _readable(descriptor)
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    except PermissionError:  # the selector takes no files
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            yield chunk
            await asyncio.sleep(0)


async def _readable(descriptor: int) -> None:
    """Wait until a read would not block."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
