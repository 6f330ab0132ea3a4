"""Proves that the bits of the columns are the persisted ones, and that bitmap and schema determine each other."""

import pyarrow as pa
import pytest

from liftpy_envelope.columns import ALL_COLUMNS, Column, column_names, columns_in, is_binary, schema_of

GOLDEN = (
    (1, "timestamp", pa.int64(), False),
    (2, "offset_delta", pa.int32(), False),
    (4, "subject", pa.binary(), False),
    (8, "key", pa.binary(), True),
    (16, "headers", pa.binary(), True),
    (32, "value", pa.binary(), True),
    (64, "message_id", pa.binary(), True),
    (128, "reply", pa.binary(), True),
)


def test_bits_are_the_persisted_ones():
    found = {name.lower(): bit for name, bit in vars(Column).items() if not name.startswith("_")}
    assert {name: bit for bit, name, _, _ in GOLDEN} == found


def test_all_columns_is_the_union_of_the_bits():
    assert sum(bit for bit, *_ in GOLDEN) == ALL_COLUMNS


@pytest.mark.parametrize(("bit", "name", "kind", "nullable"), GOLDEN)
def test_one_column_has_the_persisted_name_type_and_nullability(bit, name, kind, nullable):
    assert pa.schema([pa.field(name, kind, nullable=nullable)]) == schema_of(bit)
    assert pa.types.is_binary(kind) == is_binary(bit)


def test_columns_of_every_bitmap_stand_in_the_order_of_their_bits():
    for bitmap in range(ALL_COLUMNS + 1):
        expected = [entry for entry in GOLDEN if entry[0] & bitmap]
        assert tuple(bit for bit, *_ in expected) == columns_in(bitmap)
        assert tuple(name for _, name, _, _ in expected) == column_names(bitmap)
        fields = [pa.field(name, kind, nullable=nullable) for _, name, kind, nullable in expected]
        assert pa.schema(fields) == schema_of(bitmap)
