"""What the demonstration shows while it runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from liftpy.demo.view import LiveView, PlainView
from liftpy.demo.watch import Copy, Seen, copies_of
from liftpy_client.admin.details import PartitionDetails, ReplicaDetails


def console_of(**options):
    return Console(file=io.StringIO(), width=140, highlight=False, **options)


def partition_of(**changes):
    known = {
        "partition": 0,
        "leader": "node-2",
        "leader_epoch": 3,
        "replicas": ("node-1", "node-2", "node-3"),
        "isr": ("node-1", "node-2"),
        "log_start": 0,
        "high_watermark": 90,
        "log_end": 100,
        "bytes": 1,
        "segments": 1,
        "offline": None,
        "replica_states": (
            ReplicaDetails(node="node-1", log_end=90, lag_messages=10, in_sync=True),
            ReplicaDetails(node="node-3", log_end=None, lag_messages=None, in_sync=False),
        ),
    }
    return PartitionDetails(**known | changes)


def test_copies():
    seen = copies_of(partition_of())
    assert seen == Seen(
        leader="node-2",
        epoch=3,
        is_whole=False,
        copies={
            "node-1": Copy("in sync", 90, 10),
            "node-2": Copy("leader", 100, 0),
            "node-3": Copy("behind", None, None),
        },
    )


@pytest.mark.parametrize(
    ("changes", "is_whole"),
    [
        ({}, True),
        ({"isr": ("node-2", "node-1")}, False),
        ({"leader": None}, False),
        ({"unreachable": True, "log_end": None, "replica_states": ()}, False),
    ],
)
def test_whole(changes, is_whole):
    part = partition_of(**{"isr": ("node-3", "node-2", "node-1")} | changes)
    assert copies_of(part).is_whole is is_whole


def test_lines():
    console = console_of()
    with PlainView(console) as view:
        view.work("publishing", 1_000)
        for count in range(0, 1_001, 50):
            view.done(count)
        view.event("[bold red]SIGKILL[/] to node-2")
        view.seen({"flights": copies_of(partition_of())})
        view.process("node-2", "killed")
    lines = [line.partition(" s  ")[2] for line in console.file.getvalue().splitlines()]
    quarters = [f"publishing: {count} of 1,000" for count in (250, 500, 750)]
    assert lines == ["publishing", *quarters, "SIGKILL to node-2"]


def test_picture():
    console = console_of(force_terminal=True, color_system=None)
    with LiveView(console) as view:
        view.process("node-1", "up, pid 1")
        view.process("node-2", "up, pid 2")
        view.process("node-3", "[bold red]killed[/]")
        view.work("publishing", 1_000)
        view.done(500)
        view.event("[bold red]SIGKILL[/] to node-3")
        view.seen({"flights": copies_of(partition_of())})
    last = console.file.getvalue().rpartition("╭")[2]
    rows = {node: line for line in last.splitlines() for node in ("node-1", "node-2", "node-3") if f"│ {node}" in line}
    assert "90  in sync lag 10" in rows["node-1"]
    assert f"{'━' * 16}       100  leader" in rows["node-2"]
    assert "killed" in rows["node-3"]
    assert "?  behind" in rows["node-3"]
    assert "s  SIGKILL to node-3" in last
