"""The footer of several Parquet files that lie one after the other in an object, so that any reader takes all for one.

Each file is whole: who knows where it lies reads it without the others. What lies between the row groups that the
joined footer names, the footers of the files, belongs to nothing for it.

A footer is a struct of Thrift's compact protocol, which is taken apart whatever its fields mean; only the positions of
row groups are changed. Fields of Parquet's FileMetaData:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.objects.thrift import BINARY, I16, I64, LIST, STRUCT, ThriftList, ThriftReader, encode_struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_bucket.objects.thrift import Struct

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
        self._groups: list[Struct] = []
        self._rows = 0

    def add(self, footer: bytes, start: int) -> None:
        """Take the footer of the next file.

        Args:
            footer: Footer without the length and the magic behind it.
            start: Where the file begins in the object.
        """
        if not self._whole:
            reader = ThriftReader(footer)
            found = reader.struct(until=_SCHEMA)
            self._schema = footer[: reader.at]
            found |= reader.struct(after=_SCHEMA)
            self._whole = found
        else:
            assert footer.startswith(self._schema), "the files have the same columns"
            found = ThriftReader(footer, len(self._schema)).struct(after=_SCHEMA, until=_ROW_GROUPS)
        self._rows += found[_ROWS][1]
        for group in found[_ROW_GROUPS][1].values:
            _move(group, start)
            if len(self._groups) <= _ORDINAL_MAX:
                group[_ORDINAL] = (I16, len(self._groups))
            else:
                group.pop(_ORDINAL, None)
            self._groups.append(group)

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


def _move(group: Struct, start: int) -> None:
    """Let a row group begin `start` bytes later."""
    _shift(group, (_FILE_OFFSET,), start)
    for chunk in group[_COLUMNS][1].values:
        _shift(chunk, _CHUNK_POSITIONS, start)
        _shift(chunk[_CHUNK_METADATA][1], _METADATA_POSITIONS, start)


def _shift(struct: Struct, fields: tuple[int, ...], start: int) -> None:
    for field in fields:
        if field in struct and struct[field][1]:  # 0: it is not there
            kind, value = struct[field]
            struct[field] = (kind, value + start)
