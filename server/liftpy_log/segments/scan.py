"""Walks over the record batches of a segment file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_envelope.batch import HEADER_SIZE, MAGIC, BatchHeader, check_body, read_header
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.limits import SCAN_WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_log.storage.disk import File

__all__ = ["find_valid_batch", "has_unwritten_sector", "read_batch", "walk_headers"]

_MAGIC: Final = MAGIC.to_bytes(4, "little")
_SEARCH_BYTES: Final = 1024 * 1024
_SECTOR_BYTES: Final = 512  # the least that a disk writes at once


def walk_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches from `position`, where one must begin, up to `end`. Bodies are not read.

    Raises:
        BatchTruncatedError, BatchCorruptError, BatchVersionError: no good header stands where one must.
    """
    window, window_at = b"", position
    while position < end:
        offset = position - window_at
        if offset + HEADER_SIZE > len(window):
            window, window_at, offset = (
                file.read(position, min(SCAN_WINDOW_BYTES, end - position)),
                position,
                0,
            )
        header = read_header(window, offset)
        if position + header.length > end:
            raise BatchTruncatedError(f"the batch of {header.length} bytes at byte {position} goes beyond byte {end}")
        yield position, header
        position += header.length


def read_batch(file: File, position: int, end: int) -> tuple[BatchHeader, bytes]:
    """Header and checked body of the batch at `position`.

    Raises:
        BatchTruncatedError, BatchCorruptError, BatchVersionError: it is not whole or not well.
    """
    header = read_header(file.read(position, min(HEADER_SIZE, end - position)))
    body_at = position + HEADER_SIZE
    body = file.read(body_at, min(header.length - HEADER_SIZE, end - body_at))
    check_body(header, body)
    return header, body


def find_valid_batch(file: File, position: int, end: int) -> int | None:
    """Position of the first whole and well batch that begins at or after `position`, anywhere up to `end`.

    A batch of a newer version counts: it is not ours to cut off.
    """
    while position < end:
        window = file.read(position, min(_SEARCH_BYTES, end - position))
        found = window.find(_MAGIC)
        while found >= 0:
            if _is_batch(file, position + found, end):
                return position + found
            found = window.find(_MAGIC, found + 1)
        if position + len(window) >= end or len(window) < len(_MAGIC):
            return None
        position += len(window) - (len(_MAGIC) - 1)
    return None


def _is_batch(file: File, position: int, end: int) -> bool:
    try:
        read_batch(file, position, end)
    except BatchVersionError:
        return True
    except (BatchTruncatedError, BatchCorruptError):
        return False
    return True


def has_unwritten_sector(file: File, position: int, end: int) -> bool:
    """Whether a sector between `position`, where a batch was to begin, and `end` never came to the disk.

    What was never written behind the end of a file reads as zeros, up to the end of its sector. A bit that turned
    does not look like that.
    """
    first, last = position // _SECTOR_BYTES, (end - 1) // _SECTOR_BYTES
    content = file.read(position, (last + 1) * _SECTOR_BYTES - position)
    for sector in range(first, last + 1):
        piece = content[max(0, sector * _SECTOR_BYTES - position) : (sector + 1) * _SECTOR_BYTES - position]
        if piece and not any(piece):
            return True
    return False
