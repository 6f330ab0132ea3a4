"""Record batches taken apart again, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.batch import HEADER_SIZE, check_body, decode_records, encode_header, read_header

if TYPE_CHECKING:
    from liftpy_envelope.batch import BatchBody, BatchHeader
    from liftpy_log.partition_log import PartitionLog


class Record(NamedTuple):
    """One record with every column; those that its batch does not have are None."""

    offset: int
    timestamp: int
    subject: bytes
    key: bytes | None
    headers: bytes | None
    value: bytes | None
    message_id: bytes | None
    reply: bytes | None


def stamped(body: BatchBody, base_offset: int = 0, timestamp: int = 1) -> bytes:
    """A body with the header that a log would give it."""
    header = encode_header(
        body, base_offset=base_offset, leader_epoch=1, base_timestamp=timestamp, max_timestamp=timestamp
    )
    return header + b"".join(body.parts)


def records_of(data: bytes) -> list[Record]:
    """The records of record batches that follow one another; offsets must be without holes."""
    records: list[Record] = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        body = data[position + HEADER_SIZE : position + header.length]
        check_body(header, body)
        records += _records(header, body)
        position += header.length
    return records


def _records(header: BatchHeader, body: bytes) -> list[Record]:
    found = decode_records(header, body)
    columns = {name: found.column(name).to_pylist() for name in found.schema.names}
    missing = [None] * found.num_rows
    optional = [columns.get(name, missing) for name in Record._fields[2:]]
    return [
        Record(header.base_offset + index, header.base_timestamp, *fields)
        for index, fields in enumerate(zip(*optional, strict=True))
    ]


def batches_of(log: PartitionLog) -> list[BatchHeader]:
    """The headers of all batches of a log."""
    headers = []
    for segment in log.segments:
        data = segment.path.read_bytes()[: segment.size]
        position = 0
        while position < len(data):
            headers.append(read_header(data, position))
            position += headers[-1].length
    return headers


def log_records(log: PartitionLog) -> list[Record]:
    """All records of a log, from its files."""
    return [record for segment in log.segments for record in records_of(segment.path.read_bytes()[: segment.size])]
