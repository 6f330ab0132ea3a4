"""Frames of a pass leave in one piece and in order; what no connection takes is counted."""

from __future__ import annotations

from liftpy_server.partition.outbox import Outbox


def test_frames_leave_in_one_piece():
    written = []
    outbox = Outbox(lambda data: written.append(data) or True)
    for frames in (b"one", b"", b"two", b"three"):
        outbox.add(frames)
    assert written == []
    outbox.flush()
    outbox.flush()
    assert (written, outbox.lost_bytes) == ([b"onetwothree"], 0)


def test_nothing_to_send_is_not_sent():
    written = []
    outbox = Outbox(lambda data: written.append(data) or True)
    outbox.add(b"")
    outbox.flush()
    assert written == []


def test_frames_without_a_connection_are_lost_and_counted():
    written = []
    outbox = Outbox(written.append)
    outbox.add(b"12345")
    outbox.flush()
    outbox.add(b"678")
    outbox.flush()
    assert (written, outbox.lost_bytes) == ([b"12345", b"678"], 8)
