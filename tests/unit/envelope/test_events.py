"""Events read as the reference says, which has a line for each kind and each field."""

from __future__ import annotations

import json
import re
from pathlib import Path

from liftpy_envelope.events import COMMON_FIELDS, KINDS, Event, Position

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"


def rows(heading):
    """The cells of the table under a heading."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_kind_is_in_the_reference():
    found = {kind.strip("`"): (re.findall("`([^`]+)`", names), text) for kind, names, text in _three(rows("Kinds"))}
    assert found == {name: (list(kind.fields), kind.text) for name, kind in KINDS.items()}


def _three(found):
    for cells in found:
        if len(cells) == 2:  # no fields of its own
            kind, text = cells[0].split(" |")[0], cells[1]
            yield kind, "", text.removeprefix("| ")
        else:
            yield cells


def test_each_common_field_is_in_the_reference():
    assert {name.strip("`"): text for name, text in rows("Fields of every event")} == COMMON_FIELDS


def test_an_event_about_a_partition():
    event = Event("leader.changed", 1_700_000_000_123_456_789, "orders", 3, "n2", {"leader": "n2"})
    assert (event.subject, event.key) == (b"leader.changed.orders.3", b"partition/orders/3")
    assert json.loads(event.value(Position(7, 1))) == {
        "v": 1,
        "id": "7.1",
        "time": "2023-11-14T22:13:20.123456Z",
        "time_ns": 1_700_000_000_123_456_789,
        "kind": "leader.changed",
        "stream": "orders",
        "partition": 3,
        "node": "n2",
        "leader": "n2",
    }


def test_what_an_event_is_about():
    assert Event("stream.created", 1, "orders").key == b"stream/orders"
    assert Event("node.gone", 1, node="n1").key == b"node/n1"
    assert Event("disk.full", 1, node="n1").subject == b"disk.full.n1"
    assert Event("upload.stopped", 1, "orders", 0, "n1").key == b"partition/orders/0"
    assert (Event("events.lost", 1).subject, Event("events.lost", 1).key) == (b"events.lost", b"cluster")


def test_no_own_field_hides_a_common_one():
    assert not {name for kind in KINDS.values() for name in kind.fields} & set(COMMON_FIELDS)
