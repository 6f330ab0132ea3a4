"""The columns of a stream in Spark: those of Kafka's connector, and the subject.

    key binary | value binary | topic string | partition int | offset long | timestamp timestamp | timestampType int
    | subject string | [headers array<struct<key: string, value: binary>>, with includeHeaders]
    | [timestamp_ns long | message_id binary | leader_epoch int, each where a schema names it]

A schema of one's own (`.schema("offset long, partition int")`) names some of them, in any order; only those are read.
Spark compares the Arrow schema of what a reader hands over with the one that it makes of its own schema, down to
whether a column may be null: so it is made here by the same function.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LOG_APPEND_TIME", "SchemaError", "arrow_schema", "check_schema", "source_schema"]

LOG_APPEND_TIME: Final = 1
"""What `timestampType` says: the node stored the record at that time. As in Kafka's connector."""

_MAY_BE_NULL: Final = {"key", "value", "headers", "message_id"}
_ONLY_IF_NAMED: Final = {"timestamp_ns", "message_id", "leader_epoch"}


class SchemaError(LiftError):
    """A schema that a user gave does not fit the columns there are."""


def source_schema(include_headers: bool) -> StructType:  # noqa: FBT001 (there is one argument)
    """The columns that a stream has when no schema is given.

    Args:
        include_headers: Whether `headers` is one of them.
    """
    fields = list(_FIELDS.values())
    left_out = _ONLY_IF_NAMED if include_headers else {*_ONLY_IF_NAMED, "headers"}
    return StructType([field for field in fields if field.name not in left_out])


def check_schema(schema: StructType) -> None:
    """See that a schema names some of the columns, with their types.

    Raises:
        SchemaError: it does not.
    """
    if not schema.fields:
        raise SchemaError(f"the schema has no column; the columns are {', '.join(_FIELDS)}")
    for field in schema.fields:
        known = _FIELDS.get(field.name)
        if known is None:
            spelled = {name.lower(): name for name in _FIELDS}
            near = difflib.get_close_matches(field.name.lower(), spelled, n=1)
            hint = f"did you mean {spelled[near[0]]}?" if near else f"the columns are {', '.join(_FIELDS)}"
            raise SchemaError(f"the schema has a column {field.name!r:.80}, which streams do not have; {hint}")
        if field.dataType != known.dataType:
            raise SchemaError(
                f"the schema says that column {field.name} is {field.dataType.simpleString()}; it is "
                f"{known.dataType.simpleString()}: read it as that, and cast it"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise SchemaError(f"the schema says that column {field.name} is never null; it may be: leave NOT NULL out")
    if len({field.name for field in schema.fields}) < len(schema.fields):
        raise SchemaError(f"the schema names a column twice: {', '.join(schema.fieldNames())}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the record batches that Spark takes for a schema of its own."""
    return to_arrow_schema(schema, timezone="UTC")


_FIELDS: Final = {
    field.name: field
    for field in (
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("subject", StringType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
        StructField("timestamp_ns", LongType()),
        StructField("message_id", BinaryType()),
        StructField("leader_epoch", IntegerType()),
    )
}
