"""What a change of NATS servers does when it is cut short."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import AckErrorCode
from liftpy_server.handover import server_change
from liftpy_server.handover.held import HeldBytes
from liftpy_server.handover.server_change import ServerChange
from liftpy_server.ingest.marks import Marks
from liftpy_server.messages.runs import ListRun
from support.nats_frames import msg
from support.server_kit import Kit


class Connection:
    """Counts pauses."""

    def __init__(self) -> None:
        self.paused = 0

    def pause(self):
        self.paused += 1

    def resume(self):
        """Read again."""


class Subscriptions:
    """Takes everything."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.ingest = SimpleNamespace(marks=None)

    async def unsubscribe(self, _bindings):
        return True

    def release(self):
        """The bindings take their messages themselves."""


@pytest.fixture
def change(monkeypatch):
    monkeypatch.setattr(server_change, "MOVE_OVERLAP_S", 0.0)
    return ServerChange(Subscriptions(), Subscriptions(), Marks(), None, lambda: None)


@pytest.mark.parametrize("are_all", [False, True])
async def test_too_much_that_came_before_the_marks_pauses_the_new_server(change, are_all):
    change._room.left -= server_change.HELD_BYTES_MAX + 1
    change._check_room()
    assert change._new.connection.paused == 0, "the new server's answer stands behind it"
    change.subscribed()
    assert change._new.connection.paused == 1
    await change.leave([], [None], are_all=are_all)
    assert change._new.connection.paused == 1


@pytest.mark.parametrize("is_matched", [False, True])
async def test_what_was_matched_is_not_stored_again_when_the_last_mark_does_not_come(
    change, monkeypatch, is_matched, caplog
):
    released = []
    change._held[None] = SimpleNamespace(marks=[1, 2], release=released.append)

    async def match(_servers):
        return "" if is_matched else "no"

    async def reached(_servers, _what):
        return False

    monkeypatch.setattr(change, "_match", match)
    monkeypatch.setattr(change, "_reached", reached)
    await change.leave([], [None], are_all=True)
    assert released == [[1, 2] if is_matched else None]
    assert "marks did not come" in caplog.text or not is_matched


@pytest.mark.parametrize("refused_max", [0, 10])
@pytest.mark.parametrize("stored", [None, [0] * 5])
async def test_what_was_refused_from_the_old_server_is_not_stored_from_the_new_one(
    tmp_path, monkeypatch, refused_max, stored
):
    monkeypatch.setattr(server_change, "_REFUSED_MAX", refused_max)
    kit = Kit(tmp_path)
    partition = kit.partitions[0]
    standing_in = server_change._HeldPartition(partition, HeldBytes(10_000), kit.clock)
    run = ListRun([msg(b"orders.x", b"1", reply=b"r.1").message, msg(b"orders.x", b"2").message])
    partition.storage_full = True
    partition.append(run, 0, 1)
    partition.storage_full = False
    for _ in range(5):
        standing_in.held.mark()
    standing_in.append(run, 0, 2)
    standing_in.release(stored)
    kit.sync()
    assert kit.errors() == [(b"r.1", AckErrorCode.STORAGE_FULL)]
    assert [record.value for record in kit.records()] == [b"2"], "its publisher was told nothing"
    assert partition.on_refused is None
