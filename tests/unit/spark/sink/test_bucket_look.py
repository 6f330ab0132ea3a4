"""Chunks of a producer that are found in the bucket, and when one that is not found may have been there."""

from __future__ import annotations

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.rows.schema import MERGED_SEQUENCE
from liftpy_spark.sink.bucket_look import look_in_bucket
from support.tier_history import PATH, TierHistory
from support.tier_rows import plain_records

MINE, OTHER = b"m" * 16, b"o" * 16


@pytest.fixture
def history():
    """Offsets 0 to 29: three chunks of ten records in two objects, with rows of others between."""
    made = TierHistory()
    made.append(plain_records(15), producers=[(MINE, 0)] * 10 + [(OTHER, 7)] * 5)
    made.append(plain_records(15, base=15), producers=[(MINE, 2)] * 10 + [None] * 5)
    return made


def look(history, start, end):
    return look_in_bucket(history.store, PATH, start, end, MINE)


def test_chunks_are_found_by_any_of_their_records(history):
    assert look(history, 0, 30) == (30, {0, 2}, "")
    assert look(history, 9, 15) == (15, {0}, "")
    assert look(history, 10, 15) == (15, set(), "")
    assert look(history, 10, 16) == (16, {2}, "")
    assert look(history, 25, 30) == (30, set(), "")


@pytest.mark.parametrize("row_group_bytes", [1, 400])
def test_row_groups_are_put_together(row_group_bytes):
    history = TierHistory()
    history.append(
        plain_records(30),
        producers=[(MINE, number // 5) for number in range(30)],
        row_group_bytes=row_group_bytes,
    )
    for start in range(30):
        for end in range(start + 1, 31):
            wanted = {number // 5 for number in range(start, end)}
            assert look(history, start, end) == (end, wanted, "")


def test_what_the_bucket_does_not_have_is_in_doubt(history):
    words = "before offset 31 are no longer on the disk of its leader; the bucket has offsets from 0 up to 30"
    assert words in look(history, 0, 31).doubt
    assert (
        "the bucket has nothing of it" in look_in_bucket(history.store, PartitionPath(PATH.uuid, 1), 0, 5, MINE).doubt
    )


def test_where_compaction_was_at_work_is_doubt(history):
    history.append(
        [record for record in plain_records(10, base=30) if record.offset != 33], end=40, producers=[(MINE, 3)] * 9
    )
    found = look(history, 0, 40)
    assert found.sequences == {0, 2, 3}
    assert "compacted by key" in found.doubt, "a record is missing"
    assert look(history, 34, 40).doubt == ""
    history.append(plain_records(10, base=40), producers=[None] * 5 + [(None, MERGED_SEQUENCE)] * 5)
    assert "compacted by key" in look(history, 34, 46).doubt, "it may have been a chunk"
    assert look(history, 34, 45).doubt == "", "rows of ordinary publishers hide nothing"
