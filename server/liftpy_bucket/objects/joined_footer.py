"""The footer of several Parquet files that lie one after the other in an object, so that any reader takes all for one.

Each file is whole: who knows where it lies reads it without the others. What lies between the row groups that the
joined footer names, the footers of the files, belongs to nothing for it.

A footer is a struct of Thrift's compact protocol. Structs are taken apart into {field id: (type, value)} and lists into
(type, values), whatever their fields mean; only the positions of row groups are changed. Fields of Parquet's
FileMetaData: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JoinedFooter"]

_MAGIC: Final = b"PAR1"
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_LONG_LIST: Final = 15
_DELTA_MAX: Final = 15
_MORE: Final = 128  # of a number's bytes, all but the last one have this bit

_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES = 2, 3, 4, 5  # of FileMetaData
_COLUMNS, _FILE_OFFSET, _ORDINAL = 1, 5, 7  # of RowGroup
_CHUNK_POSITIONS: Final = (2, 4, 6)  # of ColumnChunk: file, offset index, column index
_CHUNK_METADATA: Final = 3
_METADATA_POSITIONS: Final = (9, 10, 11, 14)  # of ColumnMetaData: data, index and dictionary page, bloom filter
_ORDINAL_MAX: Final = 2**15 - 1

_Struct = dict[int, tuple[int, Any]]


class _List(NamedTuple):
    kind: int
    values: list[Any]


class JoinedFooter:
    """Collects the footers of files, and gives that of all of them."""

    def __init__(self) -> None:
        self._whole: _Struct = {}
        self._schema = b""  # with what is in front of it: the footers of all files begin with it
        self._groups: list[_Struct] = []
        self._rows = 0

    def add(self, footer: bytes, start: int) -> None:
        """Take the footer of the next file.

        Args:
            footer: without the length and the magic behind it.
            start: where the file begins in the object.
        """
        if not self._whole:
            reader = _Reader(footer)
            found = reader.struct(until=_SCHEMA)
            self._schema = footer[: reader.at]
            found |= reader.struct(after=_SCHEMA)
            self._whole = found
        else:
            assert footer.startswith(self._schema), "the files have the same columns"
            found = _Reader(footer, len(self._schema)).struct(after=_SCHEMA, until=_ROW_GROUPS)
        self._rows += found[_ROWS][1]
        for group in found[_ROW_GROUPS][1].values:
            _move(group, start)
            if len(self._groups) <= _ORDINAL_MAX:
                group[_ORDINAL] = (_I16, len(self._groups))
            else:
                group.pop(_ORDINAL, None)
            self._groups.append(group)

    def finish(self, metadata: Mapping[str, str]) -> bytes:
        """The footer of all, with its length and the magic.

        Args:
            metadata: its keys and values.
        """
        pairs = [{1: (_BINARY, name.encode()), 2: (_BINARY, value.encode())} for name, value in metadata.items()]
        whole = {
            **self._whole,
            _ROWS: (_I64, self._rows),
            _ROW_GROUPS: (_LIST, _List(_STRUCT, self._groups)),
            _KEY_VALUES: (_LIST, _List(_STRUCT, pairs)),
        }
        assert self._whole, "there is one file at least"
        out = bytearray()
        _write_struct(out, whole)
        return bytes(out) + len(out).to_bytes(4, "little") + _MAGIC


def _move(group: _Struct, start: int) -> None:
    """Let a row group begin `start` bytes later."""
    _shift(group, (_FILE_OFFSET,), start)
    for chunk in group[_COLUMNS][1].values:
        _shift(chunk, _CHUNK_POSITIONS, start)
        _shift(chunk[_CHUNK_METADATA][1], _METADATA_POSITIONS, start)


def _shift(struct: _Struct, fields: tuple[int, ...], start: int) -> None:
    for field in fields:
        if field in struct and struct[field][1]:  # 0: it is not there
            kind, value = struct[field]
            struct[field] = (kind, value + start)


class _Reader:
    def __init__(self, content: bytes, at: int = 0) -> None:
        self._content = content
        self.at = at

    def struct(self, *, after: int = 0, until: int = 0) -> _Struct:
        """The fields of a struct: those behind `after`, where we stand, up to `until`, or to its end."""
        found: _Struct = {}
        field = after
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._signed()
            found[field] = (kind, kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind))
            if field == until:
                break
        return found

    def _value(self, kind: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _BINARY:
            return self._take(self._unsigned())
        if kind == _STRUCT:
            return self.struct()
        if kind in (_LIST, _SET):
            head = self._byte()
            count, of = head >> 4, head & 15
            count = self._unsigned() if count == _LONG_LIST else count
            return _List(of, [self._byte() if of in (_TRUE, _FALSE) else self._value(of) for _ in range(count)])
        if kind == _BYTE:
            return self._byte()
        assert kind == _DOUBLE, f"Parquet's footer has no values of type {kind}"
        return self._take(8)

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _take(self, length: int) -> bytes:
        self.at += length
        return self._content[self.at - length : self.at]

    def _unsigned(self) -> int:
        value = self._content[self.at]
        self.at += 1
        if value < _MORE:
            return value
        value &= _MORE - 1
        shift = 7
        while (byte := self._byte()) & _MORE:
            value |= (byte & (_MORE - 1)) << shift
            shift += 7
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


def _write_struct(out: bytearray, struct: _Struct) -> None:
    before = 0
    for field, (kind, value) in sorted(struct.items()):
        told = (_TRUE if value else _FALSE) if kind in (_TRUE, _FALSE) else kind
        if 0 < field - before <= _DELTA_MAX:
            out.append((field - before) << 4 | told)
        else:
            out.append(told)
            _write_signed(out, field)
        if kind not in (_TRUE, _FALSE):
            _write_value(out, kind, value)
        before = field
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _write_signed(out, value)
    elif kind == _BINARY:
        _write_unsigned(out, len(value))
        out += value
    elif kind == _STRUCT:
        _write_struct(out, value)
    elif kind in (_LIST, _SET):
        count = len(value.values)
        out.append(min(count, _LONG_LIST) << 4 | value.kind)
        if count >= _LONG_LIST:
            _write_unsigned(out, count)
        for each in value.values:
            if value.kind in (_TRUE, _FALSE):
                out.append(each)
            else:
                _write_value(out, value.kind, each)
    elif kind == _BYTE:
        out.append(value)
    else:
        out += value


def _write_unsigned(out: bytearray, value: int) -> None:
    while value >= _MORE:
        out.append(value & (_MORE - 1) | _MORE)
        value >>= 7
    out.append(value)


def _write_signed(out: bytearray, value: int) -> None:
    _write_unsigned(out, value << 1 ^ value >> 63)
