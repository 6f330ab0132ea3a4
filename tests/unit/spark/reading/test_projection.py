"""Columns that a stream does not have, since they are the same in every record."""

from __future__ import annotations

import pytest

from liftpy_spark.reading.projection import Projection
from liftpy_spark.reading.schema import source_schema

SCHEMA = source_schema(include_headers=False)
CONSTANT = type(SCHEMA)([field for field in SCHEMA.fields if field.name in {"topic", "partition", "timestampType"}])


@pytest.mark.parametrize("counts", [(3, 1, 5), (1,), (4, 4)])
def test_columns_of_one_value_have_as_many_rows_as_are_asked_for(counts):
    projection = Projection(CONSTANT)
    for rows in counts:
        made = projection.apply({}, rows, "orders-ü", 7)
        made.validate(full=True)
        assert made.to_pylist() == [{"topic": "orders-ü", "partition": 7, "timestampType": 1}] * rows


def test_every_stream_and_partition_has_its_own():
    projection = Projection(CONSTANT)
    for stream, partition in (("a", 0), ("b", 1), ("a", 1)):
        assert projection.apply({}, 1, stream, partition).to_pylist() == [
            {"topic": stream, "partition": partition, "timestampType": 1}
        ]


def test_they_are_made_once():
    projection = Projection(CONSTANT)
    places = [
        [column.buffers()[-1].address for column in projection.apply({}, rows, "orders", 7).columns] for rows in (5, 3)
    ]
    assert places[0] == places[1]
