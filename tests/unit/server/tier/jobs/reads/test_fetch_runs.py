"""What comes next is fetched while rows are decoded: one request ahead, and none that nobody wants."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from liftpy_bucket.errors import ObjectCorruptError, ObjectMissingError, StoreUnavailableError
from liftpy_bucket.objects.read import Fetched
from liftpy_bucket.store.counting import CountingStore
from liftpy_server.tier.jobs.reads import fetch as fetching
from liftpy_server.tier.jobs.reads import fetch_runs
from liftpy_server.tier.jobs.reads.fetch_runs import HoleError, Runs, Span
from liftpy_server.tier.requests import FetchChunkJob
from support.plain_worker import plainly
from support.tier_history import PATH, TierHistory
from support.tier_rows import plain_records

MUCH = 1 << 40
WAIT_S = 20.0


class Reader:
    """An object; says when it is asked for row groups, and fails when it is told to."""

    def __init__(self):
        self.asked = []
        self.errors = {}
        self.has_more = threading.Event()

    def fetch(self, indexes):
        self.asked.append(list(indexes))
        if len(self.asked) > 1:
            self.has_more.set()
        if indexes[0] in self.errors:
            raise self.errors[indexes[0]]
        return Fetched(0, pa.py_buffer(bytes(indexes)))


def spans(reader, count, size=10):
    for index in range(count):
        yield Span(None, reader, index, index, index + 1, size, index == count - 1)


def test_the_next_run_is_fetched_while_one_is_in_use():
    reader = Reader()
    with Runs(spans(reader, 9), 20) as runs:
        run = runs.take(MUCH)
        assert ([span.row_group for span in run.spans], bytes(run.fetched.content)) == ([0, 1], bytes([0, 1]))
        assert reader.has_more.wait(WAIT_S)
        assert runs.take(MUCH).spans[0].row_group == 2
    assert reader.asked in ([[0, 1], [2, 3]], [[0, 1], [2, 3], [4, 5]]), "at most one is under way"


def test_all_runs_come_in_order_and_then_the_end():
    reader, found = Reader(), []
    with Runs(spans(reader, 5), 20) as runs:
        while (run := runs.take(MUCH)) is not None:
            found.append([span.row_group for span in run.spans])
        assert runs.take(MUCH) is None
    assert found == reader.asked == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(("bytes_wanted", "requests"), [(20, 1), (1, 1), (21, 2)])
def test_nothing_is_fetched_that_nobody_wants(bytes_wanted, requests):
    reader = Reader()
    with Runs(spans(reader, 9), 20) as runs:
        runs.take(bytes_wanted)
        if requests > 1:
            assert reader.has_more.wait(WAIT_S)
    assert len(reader.asked) == requests


def test_what_fails_ahead_fails_when_its_turn_comes():
    reader = Reader()
    reader.errors = {2: StoreUnavailableError("told to fail")}
    with Runs(spans(reader, 9), 20) as runs:
        assert runs.take(MUCH).fetched is not None
        assert reader.has_more.wait(WAIT_S)
        with pytest.raises(StoreUnavailableError, match="told to fail"):
            runs.take(MUCH)


@pytest.mark.parametrize("error", [ObjectMissingError("a"), ObjectCorruptError("a", "told to be")])
def test_a_run_that_can_not_be_fetched_together_is_left_to_single_requests(error):
    reader = Reader()
    reader.errors = {0: error}
    with Runs(spans(reader, 2), 20) as runs:
        run = runs.take(0)
    assert (len(run.spans), run.fetched) == (2, None)


class Unsteady(CountingStore):
    """Damages what is fetched, so many times."""

    times = 0

    def get_range(self, key, start, length):
        body = super().get_range(key, start, length)
        if self.times and key.endswith(".parquet") and start == 4:  # where the first row group begins
            self.times -= 1
            return body[:100] + bytes([body[100] ^ 1]) + body[101:]
        return body


@pytest.mark.parametrize("times", [0, 1, 2])
def test_what_was_damaged_on_its_way_is_fetched_once_more(tmp_path, monkeypatch, times):
    monkeypatch.setattr(fetch_runs, "_AT_ONCE_BYTES", 4_000)
    history = TierHistory()
    history.append(plain_records(100), row_group_bytes=2_000)
    store = Unsteady(history.store)
    store.times = times
    wanted = {"offset": 0, "end": MUCH, "enough": MUCH, "bytes_max": MUCH, "codec": "none"}
    path = tmp_path / "chunk.log"
    result = plainly(FetchChunkJob, fetching.fetch)(
        store, {"uuid": PATH.uuid, "partition": 0, "path": str(path), **wanted}
    )
    if times < 2:
        assert (result["start"], result["end"], result["bytes"]) == (0, 100, path.stat().st_size)
    else:
        assert (result["hole"]["start"], result["hole"]["code"]) == (0, "corrupt")
        assert not path.exists()


def test_a_hole_says_what_is_wrong():
    missing = HoleError(3, 5, ObjectMissingError("a"))
    assert (missing.start, missing.end, missing.is_missing) == (3, 5, True)
    assert not HoleError(3, 5, ObjectCorruptError("a", "torn")).is_missing
