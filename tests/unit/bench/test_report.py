"""Rows, medians and goals."""

from __future__ import annotations

from bench.report import markdown, plot, save, show, target_of
from bench.row import Plan, Row


def test_the_goal_of_a_cluster_is_not_that_of_one_node():
    for durability in ("interval / default", "always / always"):
        one = Row("acked, window 1,000, 128 B", durability, "acked/s")
        three = Row("cluster, 3 replicas, acked, window 1,000, 128 B", durability, "acked/s")
        assert target_of(one) in {("x", 1.1), ("x", 15.0)}
        assert target_of(three) == ("x", 1.5)
        assert target_of(Row("cluster, CPU of all servers, acked, window 1,000, 128 B", durability, "us")) is None


def test_a_ratio_is_that_of_medians():
    row = Row("cluster", "", "acked/s")
    for ours, theirs in ((1.0, 2.0), (4.0, 2.0), (100.0, 1.0)):
        row.add("liftpy", ours)
        row.add("JetStream", theirs)
    assert row.ratio == 2.0


def test_figures_without_a_ratio_are_reported_too(tmp_path, capsys):
    row = Row("cluster, idle, CPU per node", "always", "% of a core", smaller_is_better=True, is_absolute=True)
    row.add("liftpy", 1.25)
    show([row], {"runs": "1"})
    save([row], {}, tmp_path / "rows.json")
    plot([row], tmp_path / "rows.png")
    assert "1.25" in capsys.readouterr().out
    assert "CPU per node" in (tmp_path / "rows.json").read_text()
    assert (tmp_path / "rows.png").stat().st_size > 0


def test_a_quick_run_is_no_longer_than_a_full_one():
    quick, full = Plan.quick(), Plan.full()
    assert quick.runs <= full.runs
    assert quick.followed < full.followed
    assert quick.idle_s < full.idle_s


def test_a_row_in_markdown():
    row = Row("acked, window 1,000, 128 B", "interval / default", "acked/s")
    for contestant, value in (("liftpy", 100_000.0), ("JetStream", 200_000.0), ("null responder", 400_000.0)):
        row.add(contestant, value)
    assert markdown([row]) == (
        "| acked, window 1,000, 128 B | interval / default | acked/s | 100,000 | 200,000 | 400,000 null responder "
        "| 0.50 | 1.1 x: **missed** |"
    )
