"""Tables on a terminal, on a narrow one, and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from liftpy.cli import tables
from liftpy.cli.tables import Column, make_table, show_time

COLUMNS = (Column("Name"), Column("Size", right=True, from_width=80), Column("State"))
ROWS = [{"Name": "a" * 30, "Size": "1\t2", "State": "[red]no\nleader[/]"}]


@pytest.fixture
def shown(monkeypatch):
    def show(width, *, terminal, caption=None):
        console = Console(file=io.StringIO(), width=width, force_terminal=terminal, soft_wrap=True, no_color=True)
        monkeypatch.setattr(tables, "stdout", console)
        table = make_table("Streams", COLUMNS, ROWS, width)
        table.caption = caption
        console.print(table)
        return console.file.getvalue()

    return show


def test_a_pipe_gets_all_columns_separated_by_tabs(shown):
    assert shown(20, terminal=False, caption="[red]one[/]\ntwo").rstrip("\n").split("\n") == [
        "# Streams", "Name\tSize\tState", "a" * 30 + "\t1 2\tno leader", "# one", "# two",
    ]  # fmt: skip


def test_a_narrow_terminal_says_what_it_leaves_out_and_breaks_no_name(shown):
    narrow = shown(50, terminal=True)
    assert "not shown: Size" in narrow
    assert "a" * 30 in narrow
    assert "not shown" not in shown(80, terminal=True)


def test_times_to_the_millisecond():
    ns = 1_769_860_800_123_456_789
    assert show_time(ns) == "2026-01-31 12:00:00"
    assert show_time(ns, to_ms=True) == "2026-01-31 12:00:00.123"
    assert show_time(None) == "-"
