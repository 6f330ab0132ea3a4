"""Thrift's compact protocol, as Parquet's footers and page headers are written in it.

Structs are taken apart into {field id: (type, value)} and lists into (type, values), whatever their fields mean. What
is read may come from anybody: fields must be in ascending order, since other readers differ in which of two they take,
and structs may not lie too deep in one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Union

__all__ = ["BINARY", "I16", "I32", "I64", "LIST", "STRUCT"]
__all__ += ["Changes", "Struct", "ThriftList", "ThriftReader", "encode_struct"]

_TRUE, _FALSE, _BYTE, I16, I32, I64, _DOUBLE, BINARY, LIST, _SET, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_LONG_LIST: Final = 15
_DELTA_MAX: Final = 15
_FIELD_MAX: Final = 2**15 - 1
_DEPTH_MAX: Final = 32
_SHIFT_MAX: Final = 63
_MORE: Final = 128  # of a number's bytes, all but the last one have this bit

Struct = dict[int, tuple[int, Any]]
Changes = Mapping[int, Union[Callable[[int], int | None], "Changes"]]
"""By field id: what becomes of a number, where None leaves it out, or of a struct or each struct of a list."""


class ThriftList(NamedTuple):
    """A list.

    Attributes:
        kind: Type of all values.
        values: Values of the list.
    """

    kind: int
    values: list[Any]


class ThriftReader:
    """Reads values one after the other.

    Args:
        content: Bytes that hold the values.
        at: Position of the first value.

    Attributes:
        at: Position of the next value.
    """

    def __init__(self, content: bytes | memoryview, at: int = 0) -> None:
        self._content = content
        self.at = at
        self._depth = 0

    def struct(self, *, after: int = 0, until: int = 0) -> Struct:
        """The fields of a struct: those behind `after`, where we stand, up to `until`, or to its end.

        Raises:
            ValueError, IndexError: there is no struct.
        """
        found: Struct = {}
        field = after
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            before, field = field, field + delta if delta else self._signed()
            if not before < field <= _FIELD_MAX:
                raise ValueError(f"field {field} stands behind field {before}")
            found[field] = (kind, kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind))
            if field == until:
                break
        return found

    def copied(self, changes: Changes) -> bytes:
        """The bytes of a struct that begins where we stand, but for some fields. What does not change is not read.

        Args:
            changes: Fields that change.

        Raises:
            ValueError, IndexError: there is no struct, or not with such fields.
        """
        out = bytearray()
        self._copy(out, changes)
        return bytes(out)

    def _copy(self, out: bytearray, changes: Changes) -> None:
        content, field, written = self._content, 0, 0
        copied = self.at  # what stands before is in `out`, or left out
        while head := self._byte():
            began = self.at - 1
            delta, kind = head >> 4, head & 15
            before, field = field, field + delta if delta else self._signed()
            if not before < field <= _FIELD_MAX:
                raise ValueError(f"field {field} stands behind field {before}")
            change = changes.get(field)
            if change is None:
                if written != before:  # the one before was left out
                    _write_field(out, field - written, field, kind)
                    copied = self.at
                written = field
                self._skip(kind)
                continue
            out += content[copied:began]
            if callable(change):
                value = change(self._number(kind))
                if value is not None:
                    _write_field(out, field - written, field, kind)
                    _write_signed(out, value)
                    written = field
            else:
                _write_field(out, field - written, field, kind)
                self._copy_inner(out, kind, change)
                written = field
            copied = self.at
        out += content[copied : self.at]

    def _copy_inner(self, out: bytearray, kind: int, changes: Changes) -> None:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} structs lie in one another")
        if kind == STRUCT:
            self._copy(out, changes)
        else:
            began = self.at
            count, of = self.list_head()
            if kind != LIST or of != STRUCT:
                raise ValueError(f"values of type {of} in one of type {kind} are no structs")
            out += self._content[began : self.at]
            for _ in range(count):
                self._copy(out, changes)
        self._depth -= 1

    def _number(self, kind: int) -> int:
        if kind not in (I16, I32, I64):
            raise ValueError(f"a value of type {kind} is no number")
        return self._signed()

    def _skip(self, kind: int) -> None:
        if kind in (I16, I32, I64):
            content, at = self._content, self.at
            while content[at] & _MORE:
                at += 1
            self.at = at + 1
        elif kind == BINARY:
            length = self._unsigned()
            self.at += length
        elif kind in (STRUCT, LIST):
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                raise ValueError(f"more than {_DEPTH_MAX} structs lie in one another")
            self._skip_inner(kind)
            self._depth -= 1
        elif kind not in (_TRUE, _FALSE):
            self._value(kind)

    def _skip_inner(self, kind: int) -> None:
        if kind == LIST:
            count, of = self.list_head()
            for _ in range(count):
                self._skip(_BYTE if of in (_TRUE, _FALSE) else of)
            return
        while head := self._byte():
            if not head >> 4:
                self._signed()
            self._skip(head & 15)

    def field_head(self, *, after: int) -> tuple[int, int]:
        """Id and type of the field that begins where we stand.

        Args:
            after: Id of the field before it.
        """
        head = self._byte()
        return (after + (head >> 4) if head >> 4 else self._signed()), head & 15

    def list_head(self) -> tuple[int, int]:
        """How many values a list has that begins where we stand, and of which type."""
        head = self._byte()
        count, of = head >> 4, head & 15
        return self._unsigned() if count == _LONG_LIST else count, of

    def _value(self, kind: int) -> Any:
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == BINARY:
            return self._take(self._unsigned())
        if kind in (STRUCT, LIST, _SET):
            return self._inner(kind)
        if kind == _BYTE:
            return self._byte()
        if kind != _DOUBLE:
            raise ValueError(f"Parquet has no values of type {kind}")
        return self._take(8)

    def _inner(self, kind: int) -> Any:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} structs lie in one another")
        found = self.struct() if kind == STRUCT else self._list()
        self._depth -= 1
        return found

    def _list(self) -> ThriftList:
        count, of = self.list_head()
        return ThriftList(of, [self._byte() if of in (_TRUE, _FALSE) else self._value(of) for _ in range(count)])

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _take(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self._content):
            raise IndexError(f"a value of {length} bytes ends behind everything")
        return bytes(self._content[self.at - length : self.at])

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
            if shift > _SHIFT_MAX:
                raise ValueError("a number has more than 64 bits")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


def encode_struct(struct: Struct) -> bytes:
    """The bytes of a struct that was read, with whatever was changed in it."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for field, (kind, value) in sorted(struct.items()):
        _write_field(out, field - before, field, (_TRUE if value else _FALSE) if kind in (_TRUE, _FALSE) else kind)
        if kind not in (_TRUE, _FALSE):
            _write_value(out, kind, value)
        before = field
    out.append(0)


def _write_field(out: bytearray, delta: int, field: int, kind: int) -> None:
    if 0 < delta <= _DELTA_MAX:
        out.append(delta << 4 | kind)
    else:
        out.append(kind)
        _write_signed(out, field)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _write_signed(out, value)
    elif kind == BINARY:
        _write_unsigned(out, len(value))
        out += value
    elif kind == STRUCT:
        if isinstance(value, bytes):
            out += value  # it is encoded already
        else:
            _write_struct(out, value)
    elif kind in (LIST, _SET):
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
