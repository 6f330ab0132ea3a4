"""Bytes of record batches that our own encoder would not write."""

import struct
from collections.abc import Sequence

import google_crc32c

from liftpy_envelope.batch import HEADER_SIZE, BatchBody, BatchHeader, encode_body, encode_header, read_header
from liftpy_envelope.columns import Column
from liftpy_envelope.ipc import fixed_column, values_column


def as_newer_version(batch: bytes) -> bytes:
    """The same batch as a later liftpy might write it: another version, and a good checksum."""
    turned = bytearray(batch)
    turned[16] += 1
    turned[8:12] = bytes(4)
    turned[8:12] = struct.pack("<I", google_crc32c.value(bytes(turned[:HEADER_SIZE])))
    return bytes(turned)


def with_times(base_offset: int, times: Sequence[int], epoch: int = 0) -> bytes:
    """A batch whose records have times of their own, as one that was merged from several."""
    columns = [fixed_column(times, "q"), values_column([b"orders.eu"] * len(times))]
    body = encode_body(len(times), Column.TIMESTAMP | Column.SUBJECT, columns)
    header = encode_header(
        body, base_offset=base_offset, leader_epoch=epoch, base_timestamp=times[0], max_timestamp=times[-1]
    )
    return header + b"".join(bytes(part) for part in body.parts)


def zeros_body(columns: int) -> BatchBody:
    """A body with a good checksum that is no Arrow message."""
    zeros = bytes(64)
    return BatchBody([zeros], len(zeros), google_crc32c.value(zeros), 0, columns, 1)


def headers_of(data: bytes) -> list[BatchHeader]:
    """The headers of batches that follow one another."""
    headers = []
    position = 0
    while position < len(data):
        headers.append(read_header(data, position))
        position += headers[-1].length
    return headers
