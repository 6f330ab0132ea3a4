"""The chunks of one partition as bytes: a section of a staged object.

    magic "LPYS" | version u8 (1) | per chunk: header_length u32 | header | parts

A header is msgpack, `[subject, records, columns]`, and a column is `[name, nulls, width, parts]`. Its parts follow in
their order: which values are there, a bit for each (only where there are nulls); how long each value is (only where
`width` is nil, else all are so long); the values. A part is `[stored, size]` in bytes, and compressed with LZ4 where
those differ.

Every byte costs a bucket something twice, when it is staged and when it is published. So lengths are kept in place of
offsets, in as few bytes as the longest needs, and what becomes smaller is compressed.

Nodes read sections as well, and who may write them is for the bucket to decide; so all sizes are bounded before memory
is spent on them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from liftpy_bucket.errors import StagingDamagedError
from liftpy_bucket.staging.section import RowChunk
from liftpy_envelope.binary_columns import offsets_of
from liftpy_envelope.limits import ENVELOPE_RECORDS_MAX, NATS_PAYLOAD_BYTES_MAX, SUBJECT_BYTES_MAX
from liftpy_envelope.unpacking import Bounds, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

__all__ = ["decode_section", "encode_section"]

_MAGIC: Final = b"LPYS\x01"
_SIZE: Final = struct.Struct("<I")
_CODEC: Final = pa.Codec("lz4_raw")
_COMPRESSED_BYTES_MIN: Final = 256
_SAMPLE_BYTES: Final = 16 * 1024
_SAMPLE_SHARE_MAX: Final = 0.9  # what a sample of a part may need of its size, for the whole to be tried
_HEADER_BOUNDS: Final = Bounds(items=64, length=4, text_bytes=SUBJECT_BYTES_MAX, binary_bytes=0, depth=5)
_NAMES: Final = frozenset({"value", "key", "headers"})
_BINARY: Final = pa.binary()
_MALFORMED: Final = (
    *(ValueError, TypeError, ArithmeticError, LookupError, MemoryError, OSError),
    struct.error,
)


def encode_section(chunks: Iterable[RowChunk]) -> Iterator[pa.Buffer | bytes]:
    """Chunks of one partition as bytes, in parts; values that do not compress are not copied."""
    yield _MAGIC
    for chunk in chunks:
        parts: list[pa.Buffer | bytes] = []
        columns = [
            [name, *_encode_column(column, parts)]
            for name, column in zip(chunk.records.schema.names, chunk.records.columns, strict=True)
        ]
        header = msgpack.packb([chunk.subject, chunk.records.num_rows, columns])
        yield _SIZE.pack(len(header)) + header
        yield from parts


def _encode_column(column: pa.BinaryArray, parts: list[pa.Buffer | bytes]) -> list[Any]:
    """What a header says of a column behind its name; its parts are added to `parts`."""
    data, offsets = column.buffers()[2], offsets_of(column)
    lengths = np.diff(offsets)
    longest = int(lengths.max())
    is_alike = longest == int(lengths.min())
    plain: list[pa.Buffer] = []
    if column.null_count:
        there = column.is_valid().to_numpy(zero_copy_only=False)
        plain.append(pa.py_buffer(np.packbits(there, bitorder="little")))
    if not is_alike:
        plain.append(pa.py_buffer(lengths.astype(np.min_scalar_type(longest))))
    first = int(offsets[0])
    plain.append(pa.py_buffer(b"") if data is None else data.slice(first, int(offsets[-1]) - first))
    stored = [_compressed(part) for part in plain]
    parts += stored
    sizes = [[after.size, before.size] for before, after in zip(plain, stored, strict=True)]
    return [column.null_count, longest if is_alike else None, sizes]


def _compressed(part: pa.Buffer) -> pa.Buffer:
    """A part as it is stored: itself, where compression does not make it smaller."""
    if part.size < _COMPRESSED_BYTES_MIN:
        return part
    if part.size > _SAMPLE_BYTES:
        sample = _CODEC.compress(part.slice(0, _SAMPLE_BYTES))
        if sample.size > _SAMPLE_SHARE_MAX * _SAMPLE_BYTES:
            return part
    smaller = _CODEC.compress(part)
    return smaller if smaller.size < part.size else part


def decode_section(body: bytes, partition: int) -> Iterator[RowChunk]:
    """The chunks of a section; they share memory with it.

    Args:
        body: The section, whose checksum was found to be right.
        partition: Partition that it is of.

    Raises:
        StagingDamagedError: these are not the bytes of a section.
    """
    if not body.startswith(_MAGIC):
        raise StagingDamagedError(f"it begins with {body[: len(_MAGIC)]!r}, and not as a section does")
    whole, position = pa.py_buffer(body), len(_MAGIC)
    try:
        while position < len(body):
            (size,) = _SIZE.unpack_from(body, position)
            position += _SIZE.size
            subject, count, columns = unpack(body[position : position + size], _HEADER_BOUNDS)
            if not isinstance(subject, str) or not 0 < count <= ENVELOPE_RECORDS_MAX:
                raise ValueError(f"{subject!r:.80} with {count} records is no chunk")
            position += size
            arrays = {}
            for name, nulls, width, sizes in columns:
                if name not in _NAMES:
                    raise ValueError(f"{name!r:.80} is no column of records")
                parts = []
                for stored, plain in sizes:
                    parts.append(_plain(whole.slice(position, stored), stored, plain))
                    position += stored
                arrays[name] = _decode_column(count, nulls, width, parts)
            yield RowChunk(partition, subject, pa.RecordBatch.from_pydict(arrays))
    except _MALFORMED as error:
        raise StagingDamagedError(f"it can not be read at byte {position}: {error!r:.200}") from None


def _plain(part: pa.Buffer, stored: int, size: int) -> pa.Buffer:
    if part.size != stored:
        raise ValueError(f"a part of {stored} bytes ends after {part.size}")
    if not 0 <= size <= NATS_PAYLOAD_BYTES_MAX:
        raise ValueError(f"a part of {size} bytes is over what a chunk may have")
    return part if stored == size else _CODEC.decompress(part, size)


def _decode_column(count: int, nulls: int, width: int | None, parts: list[pa.Buffer]) -> pa.BinaryArray:
    data = parts[-1]
    offsets = _offsets(count, width, parts[-2] if width is None else None)
    if int(offsets[-1]) != data.size:
        raise ValueError(f"{data.size} bytes are not {count} values of {int(offsets[-1])} bytes")
    validity = parts[0] if nulls else None
    if validity is not None and 8 * validity.size < count:
        raise ValueError(f"{validity.size} bytes do not say which of {count} values are there")
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), data]
    return pa.BinaryArray.from_buffers(_BINARY, count, buffers, -1 if nulls else 0)  # -1: Arrow counts them


def _offsets(count: int, width: int | None, lengths: pa.Buffer | None) -> npt.NDArray[np.int64]:
    """Rising, and no less than 0, whatever is given."""
    if lengths is None:
        return np.arange(count + 1, dtype=np.int64) * abs(width or 0)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.frombuffer(lengths, np.dtype(f"<u{lengths.size // count}")), out=offsets[1:])
    return offsets
