"""Offsets as a checkpoint has them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_spark.options.offsets import (
    CheckpointError,
    QueryCheckpoint,
    StreamReplacedError,
    check_same_streams,
    decode,
    encode,
)
from support.examples import examples

OFFSETS = st.dictionaries(
    st.text(min_size=1), st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), min_size=1)
)


@examples(100)
@given(OFFSETS)
def test_what_is_kept_comes_back(offsets):
    uuids = {stream: f"uuid of {stream}" for stream in offsets}
    for epochs in (
        {},
        {stream: {number: offset % 99 for number, offset in of.items()} for stream, of in offsets.items()},
    ):
        kept = json.dumps(encode(QueryCheckpoint(offsets, uuids, epochs)))
        assert decode(json.loads(kept)) == (offsets, uuids, epochs)
        backwards, older = _backwards(offsets), _backwards(epochs)
        assert json.dumps(encode(QueryCheckpoint(backwards, uuids, older))) == kept


def _backwards(numbers):
    return {stream: dict(reversed(of.items())) for stream, of in reversed(numbers.items())}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": "1", "streams": {}},
        {"version": 1},
        {"version": 1, "streams": {"a": {"uuid": 1, "offsets": {"0": 1}}}},
        {"version": 1, "streams": {"a": {"offsets": {"0": 1}}}},
        {"version": 1, "streams": {"a": {"uuid": "u", "offsets": {"0": -1}}}},
        {"version": 1, "streams": {"a": {"uuid": "u", "offsets": {"0": 1}, "epochs": {"0": -1}}}},
        {"orders": {"0": 3}},
    ],
)
def test_what_another_source_keeps_is_refused(document):
    with pytest.raises(CheckpointError, match=r"not of liftpy"):
        decode(document)


def test_what_a_newer_liftpy_keeps_is_refused():
    with pytest.raises(CheckpointError, match=r"version 2"):
        decode({"version": 2, "streams": {}})


def test_another_stream_under_the_same_name_is_refused():
    checkpoint = QueryCheckpoint({"orders": {0: 1}}, {"orders": "a"})
    check_same_streams(checkpoint, {"orders": "a", "more": "b"})
    with pytest.raises(StreamReplacedError, match=r"orders was deleted and created again .it was a, and is b now"):
        check_same_streams(checkpoint, {"orders": "b"})
    with pytest.raises(StreamReplacedError, match=r"orders was deleted:"):
        check_same_streams(checkpoint, {})
