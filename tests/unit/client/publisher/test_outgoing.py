"""Arrow records on their way to partitions and payloads."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_client.errors import UsageError
from liftpy_client.publisher.outgoing import OutgoingBatch, as_table, by_partition, pieces_of
from liftpy_client.publisher.routes import Route
from liftpy_envelope.partitioner import partition_of
from liftpy_envelope.stream_config import StreamConfig
from support.examples import examples


def route(partitions):
    return Route("s.x", StreamConfig(name="s", subject="s.>", partitions=partitions))


def table(keys, chunks=1):
    size = -(-len(keys) // chunks) or 1
    values = [b"%d" % number for number in range(len(keys))]
    batches = [
        pa.record_batch(
            {"value": pa.array(values[at : at + size], pa.binary()), "key": pa.array(keys[at : at + size], pa.binary())}
        )
        for at in range(0, len(keys), size)
    ]
    return pa.Table.from_batches(batches, pa.schema({"value": pa.binary(), "key": pa.binary()}))


@examples(60)
@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=60),
    st.integers(1, 7),
    st.integers(1, 4),
)
def test_records_go_where_the_partitioner_says_and_stay_in_order(keys, partitions, chunks):
    shares = by_partition(route(partitions), table(keys, chunks))
    found = {}
    for partition, share in shares:
        rows = [int(value) for value in share.column("value").to_pylist()]
        assert rows == sorted(rows)
        assert [keys[row] for row in rows] == share.column("key").to_pylist()
        found |= dict.fromkeys(rows, partition)
    expected = {
        row: None if partitions == 1 else partition_of(b"s.x" if key is None else key, partitions)
        for row, key in enumerate(keys)
    }
    assert found == expected


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_strings_of_arrow_are_their_bytes(kind):
    values = (
        pa.array(["é", "", None], pa.string()).cast(kind)
        if kind != pa.binary_view()
        else pa.array(["é".encode(), b"", None], kind)
    )
    for records in ({"value": values, "key": values}, pa.table({"value": values, "key": values})):
        found = as_table(records)
        assert set(found.schema.types) == {pa.binary()}
        assert found.column("value").to_pylist() == found.column("key").to_pylist() == ["é".encode(), b"", None]


def test_text_of_python_is_refused_as_by_publish():
    with pytest.raises(UsageError, match="column key: a list must hold bytes; encode text first"):
        as_table({"value": [b"1"], "key": ["a"]})
    assert as_table({"value": [b"1", None], "key": [None, None]}).num_rows == 2


def test_without_keys_everything_goes_where_the_subject_does():
    records = as_table({"value": pa.array([b"1", b"2"])})
    ((partition, share),) = by_partition(route(5), records)
    assert partition == partition_of(b"s.x", 5)
    assert share.num_rows == 2


class CountingRoute:
    """A route that counts the keys it is asked about."""

    config = StreamConfig(name="s", subject="s.>", partitions=8)
    asked = 0

    def partition(self, key):
        self.asked += 1
        return partition_of(key or b"", 8)


def test_many_records_are_spread_without_an_object_each():
    keys = pa.array([b"key-%d" % number for number in range(100)])
    column = pa.concat_arrays([keys] * 1_000)
    counting = CountingRoute()
    shares = by_partition(counting, pa.table({"value": column, "key": column}))
    assert sum(share.num_rows for _, share in shares) == 100_000
    assert counting.asked <= 101


@examples(40)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=80), st.integers(60, 400))
def test_pieces_fit_and_lose_nothing(values, limit):
    pieces = pieces_of(pa.table({"value": pa.array(values, pa.binary())}), limit)
    assert [value for piece in pieces for value in piece.column("value").to_pylist()] == values
    assert all(piece.nbytes <= limit for piece in pieces)


def test_a_record_that_fits_nowhere():
    with pytest.raises(UsageError, match="over what one batch may hold"):
        pieces_of(pa.table({"value": pa.array([b"small", b"x" * 1000], pa.binary())}), 500)


@pytest.mark.parametrize(
    "records",
    [
        pa.record_batch({"value": ["text", None]}),
        pa.table({"value": pa.array([b"x"], pa.large_binary()), "key": pa.array(["k"], pa.string())}),
        {"value": pa.array([b"x"]).dictionary_encode(), "headers": pa.nulls(1, pa.binary())},
    ],
)
def test_records_become_binary(records):
    found = as_table(records)
    assert {field.type for field in found.schema} == {pa.binary()}


@pytest.mark.parametrize(
    "records",
    [
        {"key": pa.array([b"x"])},
        {"value": pa.array([b"x"]), "offset": pa.array([1])},
        {"value": pa.array([[1]])},
        {"value": pa.array([b"x"]), "key": pa.array([b"x", b"y"])},
        pa.table([pa.array([b"x"]), pa.array([b"y"])], ["value", "value"]),
        [b"x"],
        None,
        17,
    ],
)
def test_what_is_no_records(records):
    with pytest.raises(UsageError, match="records"):
        as_table(records)


async def test_gathered_messages_become_columns():
    batch = OutgoingBatch(route(1), None, asyncio.get_running_loop().create_future(), 1_000)
    batch.values, batch.keys, batch.headers, batch.count = [b"a", None], [None, b"k"], [None, None], 2
    columns = batch.columns()
    assert columns["value"].to_pylist() == [b"a", None]
    assert columns["key"].to_pylist() == [None, b"k"]
    assert set(columns) == {"value", "key"}


@pytest.mark.parametrize("value", [[1], 1.5, object()])
async def test_values_that_are_no_bytes(value):
    batch = OutgoingBatch(route(1), None, asyncio.get_running_loop().create_future(), 1_000)
    batch.values, batch.keys, batch.headers, batch.count = [value], [None], [None], 1
    with pytest.raises(UsageError, match="must be bytes"):
        batch.columns()
