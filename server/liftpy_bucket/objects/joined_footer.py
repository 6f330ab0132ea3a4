"""The footer of several Parquet files that lie one after the other in an object, so that any reader takes all for one.

Each file is whole: who knows where it lies reads it without the others. What lies between the row groups that the
joined footer names, the footers of the files, belongs to nothing for it.

A footer is a struct of Thrift's compact protocol, which is taken apart whatever its fields mean; only the positions of
row groups are changed. Fields of Parquet's FileMetaData:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.objects.thrift import BINARY, I64, LIST, STRUCT, ThriftList, ThriftReader, encode_struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_bucket.objects.thrift import Changes, Struct

__all__ = ["JoinedFooter"]

_MAGIC: Final = b"PAR1"
_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES = 2, 3, 4, 5  # of FileMetaData
_COLUMNS, _FILE_OFFSET, _ORDINAL = 1, 5, 7  # of RowGroup
_CHUNK_POSITIONS: Final = (2, 4, 6)  # of ColumnChunk: file, offset index, column index
_CHUNK_METADATA: Final = 3
_METADATA_POSITIONS: Final = (9, 10, 11, 14)  # of ColumnMetaData: data, index and dictionary page, bloom filter
_ORDINAL_MAX: Final = 2**15 - 1


class JoinedFooter:
    """Collects the footers of files, and gives that of all of them."""

    def __init__(self) -> None:
        self._whole: Struct = {}
        self._schema = b""  # with what is in front of it: the footers of all files begin with it
        self._groups: list[bytes] = []
        self._rows = 0

    def add(self, footer: bytes, start: int) -> None:
        """Take the footer of the next file.

        Args:
            footer: Footer without the length and the magic behind it.
            start: Where the file begins in the object.

        Raises:
            ValueError, IndexError: It is no footer.
        """
        if not self._whole:
            reader = ThriftReader(footer)
            found = reader.struct(until=_SCHEMA)
            self._schema = footer[: reader.at]
            self._whole = found | reader.struct(after=_SCHEMA)
        assert footer.startswith(self._schema), "the files have the same columns"
        reader = ThriftReader(footer, len(self._schema))
        self._rows += reader.struct(after=_SCHEMA, until=_ROWS)[_ROWS][1]
        field, kind = reader.field_head(after=_ROWS)
        if (field, kind) != (_ROW_GROUPS, LIST):
            raise ValueError(f"field {field} of type {kind} stands where row groups should")
        changes = _changes(start, len(self._groups))
        count, _ = reader.list_head()
        self._groups += [reader.copied(changes) for _ in range(count)]

    def finish(self, metadata: Mapping[str, str]) -> bytes:
        """The footer of all, with its length and the magic.

        Args:
            metadata: Keys and values of the metadata.
        """
        pairs = [{1: (BINARY, name.encode()), 2: (BINARY, value.encode())} for name, value in metadata.items()]
        whole = {
            **self._whole,
            _ROWS: (I64, self._rows),
            _ROW_GROUPS: (LIST, ThriftList(STRUCT, self._groups)),
            _KEY_VALUES: (LIST, ThriftList(STRUCT, pairs)),
        }
        assert self._whole, "there is one file at least"
        out = encode_struct(whole)
        return out + len(out).to_bytes(4, "little") + _MAGIC


def _changes(start: int, groups: int) -> Changes:
    """Of a row group of a file that begins `start` bytes and so many row groups later."""

    def moved(position: int) -> int:
        return position + start if position else 0  # 0: it is not there

    def number(ordinal: int) -> int | None:
        return ordinal + groups if ordinal + groups <= _ORDINAL_MAX else None

    metadata: Changes = dict.fromkeys(_METADATA_POSITIONS, moved)
    chunk: Changes = {**dict.fromkeys(_CHUNK_POSITIONS, moved), _CHUNK_METADATA: metadata}
    return {_COLUMNS: chunk, _FILE_OFFSET: moved, _ORDINAL: number}
