"""Record batches out of pieces of local segments, as an upload needs them: whole, checked, and without a gap.

Nobody keeps the files for us: one that is gone, or shorter than it was, is told from one that is damaged. Of a file
there is in memory what is read of it at once; 8 MiB, or one batch where that is longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_envelope.batch import HEADER_SIZE, BatchHeader, check_body, read_header
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_server.tier.errors import SliceGoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import FileIO

    from liftpy_server.tier.requests import LogSlice

__all__ = ["batches_in"]

_READ_BYTES: Final = 8 * 1024 * 1024


def batches_in(slices: Iterable[LogSlice], start: int, end: int) -> Iterator[tuple[BatchHeader, pa.Buffer]]:
    """Headers and checked bodies of the record batches that hold anything of [start, end), which they must cover.

    Raises:
        SliceGoneError: a file is not there, shorter, or holds other offsets than it did.
        BatchCorruptError, BatchVersionError: a batch is damaged, or of a newer version; file and byte are named.
    """
    expected = start
    for each in slices:
        if expected >= end:
            break
        for header, body in _batches_of(each):
            if header.next_offset <= start:
                continue
            if header.base_offset > expected or header.next_offset <= expected:
                raise SliceGoneError(
                    f"{each.path} holds offsets from {header.base_offset} on where {expected} was to come; "
                    "it was replaced while it was uploaded"
                )
            expected = header.next_offset
            yield header, body
            if expected >= end:
                break
    if expected < end:
        raise SliceGoneError(f"the pieces of the log end at offset {expected}, and are to be uploaded up to {end}")


def _batches_of(each: LogSlice) -> Iterator[tuple[BatchHeader, pa.Buffer]]:
    at = each.position
    try:
        with open(each.path, "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered, and once per slice
            file.seek(at)
            for header, body in _walk(file, each):
                yield header, body
                at += header.length
    except FileNotFoundError as error:
        raise SliceGoneError(f"{each.path} is not there any more") from error
    except BatchTruncatedError as error:
        raise BatchCorruptError(
            f"{each.path}: the batch at byte {at} goes beyond the piece that was to be uploaded"
        ) from error
    except (BatchCorruptError, BatchVersionError) as error:
        raise type(error)(f"{each.path}: at byte {at}: {error}") from error


def _walk(file: FileIO, each: LogSlice) -> Iterator[tuple[BatchHeader, pa.Buffer]]:
    left = each.length  # in the file, behind the window
    window, position = pa.py_buffer(b""), 0
    while left or position < window.size:
        here = window.size - position
        wanted = HEADER_SIZE
        if here >= HEADER_SIZE:
            header = read_header(memoryview(window), position)
            wanted = header.length
            if here >= wanted:
                body = window.slice(position + HEADER_SIZE, wanted - HEADER_SIZE)
                check_body(header, body)
                yield header, body
                position += wanted
                continue
        if wanted > here + left:
            raise BatchTruncatedError(f"{here + left} bytes are left of {wanted}")
        size = min(left, max(_READ_BYTES, wanted - here))
        window, position = _next_window(file, each.path, window.slice(position), size), 0
        left -= size


def _next_window(file: FileIO, path: str, rest: pa.Buffer, size: int) -> pa.Buffer:
    """What is left of a window, and what follows in the file, in memory of its own: rows may still refer to the old."""
    window = pa.allocate_buffer(rest.size + size)
    view, end = memoryview(window).cast("B"), rest.size
    view[:end] = memoryview(rest).cast("B")
    while end < len(view):
        read = file.readinto(view[end:])
        if not read:
            raise SliceGoneError(f"{path} ends before what was to be uploaded of it does")
        end += read
    return window
