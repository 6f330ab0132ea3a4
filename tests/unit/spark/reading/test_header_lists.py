"""Header blocks read at once are what the client reads one by one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy_envelope.headers import Headers, encode_header_block
from liftpy_spark.reading.header_lists import header_lists
from liftpy_spark.reading.schema import arrow_schema, source_schema

KIND = arrow_schema(source_schema(include_headers=True)).field("headers").type
PIECE = st.sampled_from(
    [b"\r\n", b"\r", b"\n", b":", b" ", b"\t", b"A", b"b", b"\xff", b"NATS/1.0", b"\xc3\xa9", b"\x00"]
)
BLOCK = (
    st.none()
    | st.lists(PIECE, max_size=16).map(b"".join)
    | st.lists(PIECE, max_size=16).map(lambda pieces: b"NATS/1.0\r\n" + b"".join(pieces) + b"\r\n\r\n")
)


def first_values(pairs):
    found = {}
    for pair in pairs or ():
        found.setdefault(pair["key"], pair["value"].decode("utf-8", "replace"))
    return found


@settings(deadline=None)
@given(st.lists(BLOCK, max_size=6), st.integers(0, 2))
def test_blocks_of_any_kind(blocks, start):
    column = pa.array(blocks, pa.binary()).slice(start)
    lists = header_lists(column, KIND)
    lists.validate(full=True)
    assert lists.type == KIND
    expected = [{} if block is None else Headers(block) for block in blocks[start:]]
    assert [first_values(pairs) for pairs in lists.to_pylist()] == expected
    assert [pairs is None for pairs in lists.to_pylist()] == [not found for found in expected]


def test_all_values_of_a_name_are_there_in_order():
    block = encode_header_block({"A": ["1", "2"], "B": ""})
    (pairs,) = header_lists(pa.array([block]), KIND).to_pylist()
    assert [(pair["key"], pair["value"]) for pair in pairs] == [("A", b"1"), ("A", b"2"), ("B", b"")]
