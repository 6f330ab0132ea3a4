"""Record batches with chosen columns: plain values, the body our encoder makes of them, and pyarrow's own batch."""

import pyarrow as pa
from hypothesis import strategies as st

from liftpy_envelope.batch import encode_body
from liftpy_envelope.columns import Column, columns_in, schema_of
from liftpy_envelope.ipc import fixed_column, nullable_column, values_column

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
_SAMPLES = (b"orders", None, b"", b"\x00\xff", b"x" * 17, None, b"NATS/1.0\r\nA: b\r\n\r\n")


def nullable_values(count):
    """Strategy for `count` values of a nullable binary column."""
    return st.lists(st.none() | st.binary(max_size=20), min_size=count, max_size=count)


def values_of(column, count):
    """Strategy for `count` values of a column."""
    if column == Column.TIMESTAMP:
        return st.lists(INT64, min_size=count, max_size=count)
    if column == Column.OFFSET_DELTA:
        return st.lists(INT32, min_size=count, max_size=count)
    if column == Column.SUBJECT:
        return st.lists(st.binary(max_size=20), min_size=count, max_size=count)
    return nullable_values(count)


@st.composite
def rows(draw):
    """Strategy for a bitmap and the values of its columns, by column."""
    bitmap = draw(st.integers(1, 255))
    count = draw(st.integers(1, 20))
    return bitmap, {column: draw(values_of(column, count)) for column in columns_in(bitmap)}


def sample_rows(bitmap, count):
    """Fixed values for the columns of `bitmap`, nulls and empty values among them."""
    columns = {}
    for place, column in enumerate(columns_in(bitmap)):
        if column == Column.TIMESTAMP:
            columns[column] = [1_700_000_000_000_000_000 + row for row in range(count)]
        elif column == Column.OFFSET_DELTA:
            columns[column] = [row * 3 for row in range(count)]
        else:
            values = [_SAMPLES[(row + place) % len(_SAMPLES)] for row in range(count)]
            columns[column] = [value or b"" for value in values] if column == Column.SUBJECT else values
    return columns


def buffers_of(column, values):
    """The buffers our encoder is given for these values."""
    if column == Column.TIMESTAMP:
        return fixed_column(values, "q")
    if column == Column.OFFSET_DELTA:
        return fixed_column(values, "i")
    return values_column(values) if column == Column.SUBJECT else nullable_column(values)


def encoded(bitmap, columns):
    """The `BatchBody` of these columns."""
    count = len(next(iter(columns.values())))
    return encode_body(count, bitmap, [buffers_of(column, columns[column]) for column in columns_in(bitmap)])


def built_by_pyarrow(bitmap, columns):
    """The same records, held by pyarrow's own builders."""
    schema = schema_of(bitmap)
    arrays = [pa.array(columns[bit], field.type) for bit, field in zip(columns_in(bitmap), schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def joined(body):
    """The bytes of a `BatchBody`."""
    return b"".join(body.parts)
