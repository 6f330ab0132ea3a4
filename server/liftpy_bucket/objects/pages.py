"""How much a row group takes in memory, told by the headers of its pages before anything is decompressed.

Whoever can write into the bucket can write a page of a few bytes that says it decompresses to gigabytes, or a value
that a dictionary repeats a million times. So the headers of all pages are read first, and what we never write is
refused: other kinds of pages, and encodings that make values of other values (DELTA_BYTE_ARRAY), whose size is known
only when they are decoded.

Fields of Parquet's PageHeader: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.objects.thrift import I32, STRUCT, ThriftReader
from liftpy_envelope.limits import BATCH_BYTES_MAX

if TYPE_CHECKING:
    from liftpy_bucket.objects.thrift import Struct

__all__ = ["DECODED_BYTES_MAX", "ROWS_MAX", "ColumnSize", "measure_column"]

DECODED_BYTES_MAX: Final = BATCH_BYTES_MAX
"""Of a row group: we write 4 MiB, or a single row that is larger, and no record batch is larger than this."""
ROWS_MAX: Final = 1_000_000
"""Of a row group: we write less than a tenth of it."""

_HEADER_BYTES_MAX: Final = 64 * 1024  # Arrow puts two values of 4 KiB into one
_TYPE, _PLAIN_BYTES, _STORED_BYTES, _DATA_HEADER, _DICTIONARY_HEADER = 1, 2, 3, 5, 7  # of PageHeader
_VALUES, _ENCODING = 1, 2  # of DataPageHeader and DictionaryPageHeader
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 2, 5, 8
_ENCODINGS: Final = {
    _DATA_PAGE: {_PLAIN, _PLAIN_DICTIONARY, _DELTA_BINARY_PACKED, _RLE_DICTIONARY},
    _DICTIONARY_PAGE: {_PLAIN, _PLAIN_DICTIONARY},
}


class ColumnSize(NamedTuple):
    """What the pages of a column of a row group say.

    Attributes:
        plain: Bytes of all pages, decompressed.
        dictionary: Bytes of the dictionary, decompressed; no value of it is longer.
    """

    plain: int
    dictionary: int


def measure_column(content: memoryview, rows: int) -> ColumnSize:
    """Read the page headers of a column of a row group.

    Args:
        content: All bytes of it.
        rows: How many the row group has.

    Raises:
        ValueError, IndexError: these are not pages that we would write, or they would take too much memory.
    """
    plain = dictionary = values = at = 0
    while at < len(content):
        reader = ThriftReader(content[at : at + _HEADER_BYTES_MAX])
        header = reader.struct()
        kind, stored, size = (_number(header, field) for field in (_TYPE, _STORED_BYTES, _PLAIN_BYTES))
        if kind not in _ENCODINGS:
            raise ValueError(f"liftpy writes no pages of type {kind}")
        about = _struct(header, _DATA_HEADER if kind == _DATA_PAGE else _DICTIONARY_HEADER)
        count, encoding = _number(about, _VALUES), _number(about, _ENCODING)
        if encoding not in _ENCODINGS[kind]:
            raise ValueError(f"liftpy writes no pages of encoding {encoding}")
        plain += size
        if kind == _DATA_PAGE:
            values += count
        else:
            dictionary += size
        at += reader.at + stored
    if at != len(content) or values != rows:
        raise ValueError(f"its pages have {at} bytes and {values} values, and not {len(content)} and {rows}")
    if plain > DECODED_BYTES_MAX:
        raise ValueError(f"it would decompress to {plain} bytes, and {DECODED_BYTES_MAX} are the most")
    return ColumnSize(plain, dictionary)


def _number(struct: Struct, field: int) -> int:
    kind, value = struct[field]
    if kind != I32 or value < 0:
        raise ValueError(f"field {field} of a page header is no number from 0 on")
    return int(value)


def _struct(struct: Struct, field: int) -> Struct:
    kind, value = struct[field]
    if kind != STRUCT:
        raise ValueError(f"field {field} of a page header is no struct")
    found: Struct = value
    return found
