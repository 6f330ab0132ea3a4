"""Schemas that users give."""

from __future__ import annotations

import pyarrow as pa
import pytest
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

from liftpy_spark.reading.schema import SchemaError, arrow_schema, check_schema, source_schema


def test_the_columns_are_those_of_kafka_and_the_subject():
    schema = source_schema(include_headers=True)
    check_schema(schema)
    check_schema(StructType([StructField("timestamp_ns", LongType(), nullable=False)]))
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,subject:string,headers:array<struct<key:string,value:binary>>>"
    )
    assert source_schema(include_headers=False).fieldNames() == schema.fieldNames()[:-1]
    assert arrow_schema(schema).field("timestamp").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "no column"),
        ([StructField("ofset", LongType())], "'ofset', which streams do not have; did you mean offset"),
        ([StructField("OFFSET", LongType())], "'OFFSET', which streams do not have; did you mean offset"),
        ([StructField("timestamptype", IntegerType())], "did you mean timestampType"),
        ([StructField("xyz", LongType())], "the columns are key, value"),
        ([StructField("offset", IntegerType())], "offset is int; it is bigint: read it as that, and cast it"),
        ([StructField("headers", ArrayType(StringType()))], "headers is array<string>"),
        ([StructField("key", BinaryType(), nullable=False)], "key is never null"),
        ([StructField("offset", LongType()), StructField("offset", LongType())], "twice"),
    ],
)
def test_what_does_not_fit_is_told(fields, said):
    with pytest.raises(SchemaError, match=said):
        check_schema(StructType(fields))


def test_what_is_never_null_may_be_said_to_be_so():
    schema = StructType([StructField("timestamp", TimestampType(), nullable=False)])
    check_schema(schema)
    assert not arrow_schema(schema).field("timestamp").nullable
