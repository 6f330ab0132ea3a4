"""The columns that a DataFrame may have to become records.

value binary or string | [key binary or string] | [headers array<struct<key: string, value: binary>>]
| [subject string] | [partition int]
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    ShortType,
    StringType,
    StructType,
)

from liftpy_spark.sink.errors import SinkSchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["check_columns"]


def check_columns(schema: StructType) -> frozenset[str]:
    """The columns of a DataFrame, when they are those of records.

    Raises:
        SinkSchemaError: they are not.
    """
    names = schema.fieldNames()
    _check_spelling(names)
    for field in schema.fields:
        if field.name not in _COLUMNS:
            near = difflib.get_close_matches(field.name.lower(), _COLUMNS, n=1)
            hint = f"did you mean {near[0]}?" if near else "select those that are to be written"
            raise SinkSchemaError(
                f"column {field.name!r:.80} is none of a record's, which are {', '.join(_COLUMNS)}; {hint}"
            )
        right, fits = _COLUMNS[field.name]
        if not fits(field.dataType):
            raise SinkSchemaError(
                f"column {field.name} is {field.dataType.simpleString():.80}; it has to be {right}: cast it, or leave "
                "it out"
            )
    if "value" not in names:
        raise SinkSchemaError(
            f"there is no column value, which is what a record holds; the columns are {', '.join(names) or 'none'}"
        )
    if len(set(names)) < len(names):
        raise SinkSchemaError(f"a column is there twice: {', '.join(names)}")
    return frozenset(names)


def _check_spelling(names: Sequence[str]) -> None:
    """Refuse columns that Spark takes for the same one, before one of them is called unknown."""
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise SinkSchemaError(f"columns {other} and {name} differ in upper and lower case alone; leave one out")


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, (BinaryType, StringType))


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_number(kind: DataType) -> bool:
    return isinstance(kind, (ByteType, ShortType, IntegerType))


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return set(fields) == {"key", "value"} and _is_text(fields["key"]) and _is_bytes(fields["value"])


_COLUMNS: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "value": ("binary or string", _is_bytes),
    "key": ("binary or string", _is_bytes),
    "headers": ("array<struct<key: string, value: binary>>", _is_headers),
    "subject": ("string", _is_text),
    "partition": ("int", _is_number),
}
