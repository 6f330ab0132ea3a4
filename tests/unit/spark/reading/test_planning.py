"""The plan reads every offset once, in as many tasks as it may, and depends on nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftpy_spark.reading.planning import Range, plan
from support.examples import examples

SPANS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 3 * 10**6)), max_size=12)


def ranges_of(spans):
    return [Range(f"s{at % 3}", "u", at, start, start + size) for at, (start, size) in enumerate(spans)]


@examples(100)
@given(SPANS, st.integers(1, 40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_every_offset_is_read_once(spans, tasks_max, partitions_min, shuffled):
    partitions_min = min(partitions_min, tasks_max)
    ranges = ranges_of(spans)
    tasks = plan(ranges, tasks_max=tasks_max, partitions_min=partitions_min)
    pieces = sorted(piece for task in tasks for piece in task)
    joined = []
    for piece in pieces:
        assert piece.start < piece.end
        if joined and joined[-1][:3] == piece[:3] and joined[-1].end == piece.start:
            joined[-1] = joined[-1]._replace(end=piece.end)
        else:
            joined.append(piece)
    assert joined == sorted(each for each in ranges if each.start < each.end)
    assert all(task and list(task) == sorted(task) for task in tasks)
    total = sum(size for _, size in spans)
    assert min(partitions_min, total) <= len(tasks) <= tasks_max or not total
    shuffled.shuffle(ranges)
    assert plan(ranges, tasks_max=tasks_max, partitions_min=partitions_min) == tasks


def test_a_task_for_each_partition():
    ranges = ranges_of([(0, 10), (0, 20), (0, 30)])
    assert plan(ranges, tasks_max=64) == [(ranges[0],), (ranges[1],), (ranges[2],)]


def test_long_ranges_are_cut():
    tasks = plan([Range("s", "u", 0, 5, 3_000_005)], tasks_max=64)
    assert [(piece.start, piece.end) for (piece,) in tasks] == [
        (5, 1_000_005),
        (1_000_005, 2_000_005),
        (2_000_005, 3_000_005),
    ]


def test_tasks_are_of_about_the_same_size():
    tasks = plan(ranges_of([(0, 1_000 + at) for at in range(100)]), tasks_max=7)
    sizes = [sum(piece.end - piece.start for piece in task) for task in tasks]
    assert len(sizes) == 7
    assert max(sizes) - min(sizes) <= 1_100
    tasks = plan(ranges_of([(0, 900), (0, 100)]), tasks_max=16, partitions_min=10)
    assert [piece.end - piece.start for (piece,) in tasks] == [100] * 10


def test_nothing_is_planned_for_nothing():
    assert plan([], tasks_max=3) == []
    assert plan(ranges_of([(7, 0)]), tasks_max=3, partitions_min=2) == []
