"""The rows of a table, its changes, and when it reads its stream again; without a node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_client.consumer.decode import RECORDS_SCHEMA
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.errors import (
    ChangesMissedError,
    LogDivergedError,
    NodeUnavailableError,
    OffsetLostError,
    StreamGoneError,
    TableTooLargeError,
    UsageError,
)
from liftpy_client.table.changes import Changes
from liftpy_client.table.following import TableFollowing
from liftpy_client.table.reading import TableReading
from liftpy_client.table.rows import ENTRY_BYTES, RecordPlace, Row, RowChange, TableRows
from support.cluster import eventually
from support.examples import examples


def batch(*rows, first=0, partition=0):
    """Records of one partition: (key, value)."""
    count = len(rows)
    columns = {
        "offset": range(first, first + count),
        "timestamp": [0] * count,
        "partition": [partition] * count,
        "subject": ["s"] * count,
        "key": [key for key, _ in rows],
        "headers": [None] * count,
        "value": [value for _, value in rows],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[f.name], f.type) for f in RECORDS_SCHEMA], schema=RECORDS_SCHEMA
    )


KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c"]), st.binary(max_size=3))
VALUES = st.one_of(st.none(), st.binary(max_size=4))
BATCHES = st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=8), max_size=6)


def apply(rows, model, changes, records):
    """Apply records one way and the naive one."""
    changes += rows.changes(records)
    rows.apply(records)
    for record in records.to_pylist():
        if record["key"] is None:
            continue
        if record["value"] is None:
            model.pop(record["key"], None)
        else:
            model[record["key"]] = record["value"], (record["partition"], record["offset"])


@examples(150)
@given(BATCHES, st.integers(0, 2**40), st.integers(0, 2))
def test_rows_are_the_last_values(batches, first, partition):
    rows, model, changes = TableRows(), {}, []
    for records in batches:
        apply(rows, model, changes, batch(*records, first=first, partition=partition))
        first += len(records)
    assert {key: (value, tuple(rows.place(key))) for key, value in rows.values.items()} == model
    assert rows.bytes == sum(len(key) + len(value) + ENTRY_BYTES for key, (value, _) in model.items())
    replayed = {}
    for change in changes:
        assert replayed.get(change.key) == change.old
        assert change.old is not None or change.new is not None
        replayed[change.key] = change.new
    assert {key: row for key, row in replayed.items() if row is not None} == {
        key: Row(value, RecordPlace(*place)) for key, (value, place) in model.items()
    }


@examples(100)
@given(BATCHES, BATCHES)
def test_differences_lead_from_one_to_the_other(before, after):
    tables = []
    for batches in (before, after):
        rows = TableRows()
        for records in batches:
            rows.apply(batch(*records))
        tables.append(rows)
    old, new = tables
    shown = dict(old.values)
    for change in old.differences(new):
        assert shown.get(change.key) == (None if change.old is None else change.old.value)
        if change.new is None:
            del shown[change.key]
        else:
            shown[change.key] = change.new.value
    assert shown == new.values


def change(key, value=b"v"):
    return RowChange(key, None, Row(value, RecordPlace(0, 1)), RecordPlace(0, 1))


def changes_of(**limits):
    return Changes("s", **({"changes_max": 3, "bytes_max": 100} | limits), decode=lambda _, row: row.value)


@pytest.mark.parametrize("limits", [{}, {"changes_max": 100, "bytes_max": 7}])
async def test_a_reader_that_is_too_slow_misses_what_waits_and_goes_on_after_it(limits):
    changes = changes_of(**limits)
    for key in (b"1", b"2", b"3"):
        changes.put(change(key))
    assert (await anext(changes)).key == b"1"
    for key in (b"4", b"5", b"6"):
        changes.put(change(key))
    with pytest.raises(ChangesMissedError) as failure:
        await anext(changes)
    assert failure.value.missed == 5
    changes.put(change(b"7"))
    assert (await anext(changes)).key == b"7"


async def test_changes_end_with_the_table():
    changes = changes_of()
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    changes.put(change(b"1"))
    assert (await waiting).key == b"1"
    changes.put(change(b"2"))
    changes.finish(StreamGoneError("gone"))
    assert (await anext(changes)).key == b"2"
    for _ in range(2):
        with pytest.raises(StreamGoneError):
            await anext(changes)
    closed = changes_of()
    closed.put(change(b"1"))
    closed.close()
    closed.put(change(b"2"))
    assert [item async for item in closed] == []
    with pytest.raises(UsageError):
        changes_of(changes_max=0)


class Consumer:
    """Hands out what a script says: (records, delete_horizon), or an error; then it waits.

    Attributes:
        runs: the scripts of the consumers to come.
        moved: positions that no records tell of.
    """

    def __init__(self, script):
        self.script = script
        self.positions = {0: 0}
        self.gone = 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def __aiter__(self):
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, int):
                self.positions[0] = step
            else:
                records, self.gone = step
                self.positions[0] = records.column("offset")[-1].as_py() + 1
                yield records
        await asyncio.Event().wait()

    def position(self, number):
        return self.positions[number]

    def delete_horizon(self, _):
        return self.gone


class Ends:
    """Where the stream ends."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.error = None

    async def confirm(self):
        if self.error is not None:
            raise self.error

    async def ask(self, _):
        return {0: self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]}


@pytest.fixture
def follow(monkeypatch):
    """Makes a table's inside that reads these scripts, one after the other."""
    monkeypatch.setattr("liftpy_client.table.following._PAUSE_S_MIN", 0.0)

    def make(ends, *scripts, bytes_max=10**6, on_diverged=None):
        left = list(scripts)
        monkeypatch.setattr("liftpy_client.table.reading.BatchConsumer", lambda *_: Consumer(left.pop(0)))

        def begin(before, after):
            return TableReading(SimpleNamespace(), "s", None, ConsumeOptions(), bytes_max, before, after)

        return TableFollowing("s", ends, begin, on_diverged)

    return make


FIRST = batch((b"stays", b"1"), (b"goes", b"2"), (b"changes", b"3"))
AGAIN = batch((b"stays", b"1"), (b"changes", b"4"), (b"comes", b"5"), first=7)
EXPECTED = {b"stays": b"1", b"changes": b"4", b"comes": b"5"}


@pytest.mark.parametrize(
    "missed",
    [
        (batch((b"later", b"x"), first=9), 8),
        OffsetLostError("s", 0, 3, 7, 10),
        LogDivergedError("s", 0, 2, 3, 1),
    ],
    ids=["tombstones", "retention", "unclean election"],
)
async def test_what_was_missed_has_the_stream_read_again_as_one_change(follow, missed):
    away, filled = asyncio.Event(), asyncio.Event()
    following = follow(Ends(3, 10), [(FIRST, 0), away, missed], [(AGAIN.slice(0, 2), 8), filled, (AGAIN.slice(2), 8)])
    await following.start(5)
    feed = Changes("s", 100, 10**6, lambda _, row: row.value)
    following.feeds.add(feed)
    old = following.shown
    away.set()
    await asyncio.sleep(0.2)
    assert following.shown is old, "the view changes before all was read again"
    assert following.shown.rows.values == {b"stays": b"1", b"goes": b"2", b"changes": b"3"}
    filled.set()
    await eventually(lambda: following.shown is not old)
    assert following.shown.rows.values == EXPECTED
    seen = [await anext(feed) for _ in range(3)]
    assert sorted((change.key, change.old, change.new, change.offset) for change in seen) == [
        (b"changes", b"3", b"4", 8),
        (b"comes", None, b"5", 9),
        (b"goes", b"2", None, None),
    ]
    await following.stop()


@pytest.mark.parametrize("is_awaited", [False, True])
async def test_whoever_wants_to_is_told_that_the_cluster_has_lost_what_is_shown(follow, is_awaited):
    told = []

    async def tell(error):
        await asyncio.sleep(0)
        told.append(error)

    lost = LogDivergedError("s", 0, 2, 3, 1)
    following = follow(Ends(3, 10), [(FIRST, 0), lost], [(AGAIN, 8)], on_diverged=tell if is_awaited else told.append)
    await following.start(5)
    await eventually(lambda: following.shown.rows.values == EXPECTED)
    assert told == [lost]
    assert all(each in str(lost) for each in ("stream s", "partition 0", "offset 2", "restored from its bucket"))
    await following.stop()


async def test_retention_is_no_loss_that_anyone_is_told_of(follow):
    told = []
    lost = OffsetLostError("s", 0, 3, 7, 10)
    following = follow(Ends(3, 10), [(FIRST, 0), lost], [(AGAIN, 8)], on_diverged=told.append)
    await following.start(5)
    await eventually(lambda: following.shown.rows.values == EXPECTED)
    assert told == []
    await following.stop()


async def test_what_is_raised_on_being_told_ends_the_table(follow):
    def refuse(error):
        raise error

    following = follow(Ends(3, 10), [(FIRST, 0), LogDivergedError("s", 0, 2, 3, 1)], on_diverged=refuse)
    await following.start(5)
    with pytest.raises(LogDivergedError) as caught:
        await following.wait(lambda: False, 5, "has failed")
    assert (caught.value.offset, caught.value.position, caught.value.epoch) == (2, 3, 1)
    await following.stop()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([(FIRST, 500)], 3),  # gone before the reading began
        ([(FIRST, 0), (batch((b"goes", None), first=3), 3)], 2),  # all of them were read
        ([(FIRST, 2), (batch((b"goes", None), first=3), 2)], 2),
    ],
)
async def test_tombstones_that_went_without_harm(follow, script, expected):
    following = follow(Ends(4 if len(script) == 2 else 3), script)
    await following.start(5)
    assert len(following.shown.rows.values) == expected
    await following.stop()


async def test_a_slow_first_reading_is_begun_again_when_tombstones_go_meanwhile(follow):
    following = follow(Ends(10), [(FIRST, 0), (batch((b"x", b""), first=9), 8)], [(AGAIN, 8)])
    await following.start(5)
    assert following.shown.rows.values == EXPECTED
    await following.stop()


async def test_a_log_that_ends_with_records_that_are_gone_is_read_to_its_end(follow):
    following = follow(Ends(10), [(FIRST, 0), 10])
    await following.start(5)
    assert following.shown.offset(0) == 10
    await following.stop()


async def test_while_nobody_answers_the_view_stays(follow):
    lost = OffsetLostError("s", 0, 3, 7, 10)
    nobody = NodeUnavailableError("nobody")
    following = follow(Ends(3, 10), [(FIRST, 0), lost], [nobody], [nobody], [(AGAIN, 0)])
    await following.start(5)
    await eventually(lambda: following.shown.rows.values == EXPECTED)
    await following.stop()


@pytest.mark.parametrize("when", ["at first", "later", "when read again"])
async def test_an_error_that_stays_reaches_whoever_asks(follow, when):
    gone = StreamGoneError("gone")
    ends = Ends(3, 10)
    if when == "at first":
        following = follow(ends, [gone])
        with pytest.raises(StreamGoneError):
            await following.start(5)
    else:
        later = asyncio.Event()
        script = [gone] if when == "later" else [OffsetLostError("s", 0, 3, 7, 10)]
        following = follow(ends, [(FIRST, 0), later, *script], [(AGAIN, 0)])
        await following.start(5)
        waiting = asyncio.ensure_future(following.wait(lambda: False, 5, "was to be"))
        ends.error = gone
        later.set()
        with pytest.raises(StreamGoneError):
            await waiting
    depths = []
    for _ in range(3):
        with pytest.raises(StreamGoneError) as failure:
            following.shown  # noqa: B018 - asking is what raises
        depths.append(len(failure.traceback))
    assert len(set(depths)) == 1, "the error grows each time that it is raised"
    await following.stop()


async def test_memory_is_bounded_also_while_filling(follow):
    following = follow(Ends(3), [(FIRST, 0)], bytes_max=2 * ENTRY_BYTES)
    with pytest.raises(TableTooLargeError, match="with 3 keys"):
        await following.start(5)
    await following.stop()
