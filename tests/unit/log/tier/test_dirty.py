"""The dirty log: what has work waiting, kept in the bucket, taken over when its node dies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_log.tier.counting_store import CountingStore
from liftpy_log.tier.dirty import DirtyFullError, DirtyMark, DirtyTable, decode_change
from liftpy_log.tier.dirty_log import DirtyLog
from liftpy_log.tier.errors import AnotherWriterError, ManifestCorruptError, TierError
from liftpy_log.tier.layout import PartitionPath
from liftpy_log.tier.memory_store import MemoryStore
from support.examples import examples
from support.garbage_kit import Ids

A, B, C = (PartitionPath(letter * 32, 0) for letter in "abc")


def log_of(store, node="n1", writer=None, ids="i", **given_):
    return DirtyLog(store, node, writer=writer or node, new_id=Ids(f"{node}{ids}"), **given_)


def test_a_partition_is_marked_once():
    table = DirtyTable()
    marks = table.new_marks([(A, 5), (A, 3), (B, 0)], now_ns=7)
    assert marks == (DirtyMark(A, 3, 7), DirtyMark(B, 0, 7))
    table.apply(marks)
    assert table.new_marks([(A, 9), (B, 0)], now_ns=8) == ()
    assert table.new_marks([(A, 1)], now_ns=8) == (DirtyMark(A, 1, 7),)


def test_a_full_table_pushes_back():
    table = DirtyTable(marks_max=2)
    table.apply(table.new_marks([(A, 0), (B, 0)], now_ns=1))
    with pytest.raises(DirtyFullError, match="3 partitions would wait"):
        table.new_marks([(C, 0)], now_ns=2)
    assert table.new_marks([(A, 9)], now_ns=2) == ()
    table.apply((), [A])
    assert len(table.new_marks([(C, 0)], now_ns=2)) == 1


def test_who_waits_too_long_or_was_put_back_too_often_comes_first():
    table = DirtyTable()
    table.apply([DirtyMark(A, 0, 50), DirtyMark(B, 0, 40), DirtyMark(C, 0, 60)])
    for since in range(10):
        table.apply([table.put_back(C, since)])
    assert [mark.path for mark in table.order(now_ns=70, age_max_ns=100)] == [C, B, A]
    assert [mark.path for mark in table.order(now_ns=145, age_max_ns=100)] == [B, C, A]
    assert table.put_back(PartitionPath("d" * 32, 0), 5) is None


def test_marks_survive_a_restart_and_cost_one_write():
    store = CountingStore(MemoryStore())
    log = log_of(store)
    log.mark([(A, 0), (B, 4)], now_ns=1)
    writes = store.counts["create"]
    assert log.mark([(A, 10), (B, 11)], now_ns=2) == 0
    assert store.counts["create"] == writes, "what is marked costs nothing"
    log.settle([A], [(B, 9)])
    assert list(log_of(store, ids="j").table) == [DirtyMark(B, 9, 1, 1)]


def test_the_log_is_rolled_up_and_stays_short():
    store = MemoryStore()
    log = log_of(store, records_max=8)
    for number in range(100):
        log.mark([(PartitionPath(f"{number:032x}", 0), number)], now_ns=number)
        if number % 3:
            log.settle([PartitionPath(f"{number:032x}", 0)])
    assert len(list(store.list("dirty/n1/"))) <= 12
    assert list(log_of(store, ids="j").table) == list(log.table)
    assert len(log.table) == 34


def test_another_node_takes_over_what_a_dead_one_left():
    store = MemoryStore()
    dead = log_of(store, "n1")
    dead.mark([(A, 3), (B, 4)], now_ns=5)
    heir = log_of(store, "n2")
    heir.mark([(B, 9)], now_ns=8)
    assert heir.adopt(log_of(store, "n1", writer="n2", ids="j")) == 2
    assert {mark.path: mark.since for mark in heir.table} == {A: 3, B: 4}
    assert len(log_of(store, "n1", ids="k").table) == 0
    with pytest.raises(AnotherWriterError):
        dead.mark([(C, 0)], now_ns=9)
    assert heir.adopt(log_of(store, "n1", writer="n2", ids="l")) == 0


def test_what_is_no_record_of_it_is_refused():
    with pytest.raises(ManifestCorruptError, match="dirty/n1"):
        decode_change("dirty/n1/", b'{"format":1,"marks":[[1]],"settled":[],"whole":false}')


@examples(200)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with pytest.raises(TierError):
        decode_change("dirty/n1/", data)
