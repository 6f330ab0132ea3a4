"""The window that a restart reads back from the log is the one that was there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.columns import Column
from liftpy_log.batches.partial import PartialBatch
from liftpy_log.batches.stored import StoredBatch
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.ids.dedupe import DedupeWindow
from liftpy_log.log_time import LogTime
from liftpy_server.partition.dedupe_rebuild import note_batches, note_log
from liftpy_server.streams.opening import _log_time
from support.envelopes import PRODUCER, idempotent
from support.examples import examples
from support.log_batches import headers_of, zeros_body
from support.nats_frames import header_block, msg
from support.server_kit import Kit

WINDOW_S = 10
TIME = LogTime(0, 0.0)


def rebuilt(kit, ids_max=100):
    window = DedupeWindow(WINDOW_S * 10**9, ids_max)
    note_log(window, kit.log, TIME)
    return window


def with_id(name):
    return msg(b"orders.a", b"v", headers=header_block(Nats_Msg_Id=name))


def in_envelope(sequence):
    return msg(b"orders.a", idempotent([b"1", b"2"], sequence))


frames = st.one_of(
    st.sampled_from("abcdef").map(with_id),
    st.integers(0, 5).map(in_envelope),
    st.just(msg(b"orders.a", b"plain")),
    st.just(msg(b"orders.a", b"v", headers=header_block(A="b"))),
)


KEYS = [*(name.encode() for name in "abcdef"), *((PRODUCER, sequence) for sequence in range(6))]


def known(window):
    """All that a window knows."""
    found = {key: place for key in KEYS if (place := window.find(key))}
    assert len(window) == len(found)
    return found


class Copy:
    """A follower: its window, and what time its log has."""

    def __init__(self, kit, ids_max, time):
        self.kit, self.time = kit, time
        self.window = DedupeWindow(WINDOW_S * 10**9, ids_max)
        self.size, self.newest_ns = kit.log.active.size, kit.log.last_timestamp

    def fetch(self):
        """What the leader has appended since."""
        log = self.kit.log
        data = log.active.path.read_bytes()[self.size :]
        leaps = self.kit.partition.log_time.leaps
        if data:
            self.time.copied(self.newest_ns, log.last_timestamp, self.kit.clock.elapsed(), leaps)
        note_batches(self.window, headers_of(data), data, self.time)
        self.size, self.newest_ns = log.active.size, log.last_timestamp


def start_again(kit, kept):
    """The time of the log at a start, as an earlier run has kept it."""
    return _log_time(kit.log, kit.files, kit.clock.elapsed(), kept)


passes = st.tuples(
    st.lists(frames, max_size=4),
    st.sampled_from([0, 1, 4, 11]),
    st.sampled_from([0, 0, 5, 600]),  # how far the leader leaps
    st.booleans(),  # whether the follower fetches
)


@given(st.lists(passes, max_size=8), st.sampled_from([100, 3, 0]), st.integers(0, 8))
@examples(80)
def test_leader_follower_and_restart_know_the_same(passes, ids_max, restart_at):
    """Live, noted as a follower does, read back, and read back in the middle with what came later noted."""
    with tempfile.TemporaryDirectory() as directory:
        kit = Kit(Path(directory), dedupe_window_s=WINDOW_S, dedupe_ids_max=ids_max)
        follower = restarted = Copy(kit, ids_max, LogTime(0, 0.0))
        kept = None
        for number, (chunk, seconds, leap_s, fetches) in enumerate(passes):
            if leap_s:
                kit.partition.log_time = start_again(kit, kit.partition.kept_time())
                kit.clock.ns += leap_s * 10**9
            if chunk:
                kit.receive(*chunk)
            if number == restart_at:
                kept = kit.partition.kept_time()
                restarted = Copy(kit, ids_max, start_again(kit, kept))
                note_log(restarted.window, kit.log, restarted.time)
            for copy in {follower, restarted} if fetches else ():
                copy.fetch()
            kit.clock.advance(seconds)
        live, time, newest_ns = kit.partition.dedupe, kit.partition.log_time, kit.log.last_timestamp
        again = Copy(kit, ids_max, start_again(kit, kit.partition.kept_time()))
        killed = Copy(kit, ids_max, start_again(kit, kept))
        for copy in (again, killed):
            note_log(copy.window, kit.log, copy.time)
        live.expire(time.age_time(newest_ns))
        for copy in (follower, restarted, again, killed):
            copy.fetch()
            copy.window.expire(copy.time.age_time(newest_ns))
            assert not ids_max or copy.window.end_offset == kit.log.log_end
            if copy is killed:  # its last run has kept no leap since: it remembers too long rather than too short
                assert {key: copy.window.find(key) for key in known(live)} == known(live)
            else:
                assert known(copy.window) == known(live)
        kit.close()


@given(st.lists(st.lists(frames, min_size=1, max_size=6), max_size=6), st.sampled_from(["none", "lz4"]))
@examples(40)
def test_a_follower_notes_what_its_leader_added(passes, codec):
    with tempfile.TemporaryDirectory() as directory:
        kit = Kit(Path(directory), dedupe_window_s=WINDOW_S, compression=codec)
        for chunk in passes:
            kit.receive(*chunk)
            kit.clock.advance(1)
        data = b"".join(segment.path.read_bytes() for segment in kit.log.segments)
        window = DedupeWindow(WINDOW_S * 10**9, 100)
        note_batches(window, headers_of(data), memoryview(data), TIME)
        assert known(window) == known(kit.partition.dedupe)
        kit.close()


def test_a_window_is_brought_up_to_its_log(make_kit):
    kit = make_kit()
    for number in range(6):
        kit.receive(with_id(f"m{number}"))
    window = rebuilt(kit)
    kit.log.truncate(3)
    note_log(window, kit.log, TIME)
    assert (len(window), window.end_offset, window.find(b"m3")) == (3, 3, None)
    kit.partition.dedupe.truncate(3)
    kit.receive(msg(b"orders.a", b"plain"))
    kit.receive(with_id("other"), with_id("m3"))
    note_log(window, kit.log, TIME)
    assert [window.find(key).offset for key in (b"m2", b"other", b"m3")] == [2, 4, 5]
    assert (len(window), window.end_offset) == (5, 6)


def test_nothing_is_read_where_nothing_is_new(make_kit, monkeypatch):
    kit = make_kit()
    kit.receive(with_id("m"), msg(b"orders.a", b"plain"))
    kit.receive(msg(b"orders.a", b"plain"))
    monkeypatch.setattr(kit.log, "read", None)
    monkeypatch.setattr(kit.log, "offset_at_time", None)
    note_log(kit.partition.dedupe, kit.log, TIME)


def test_ids_in_a_batch_that_covers_dropped_records_keep_their_offsets(make_kit):
    kit = make_kit()
    kit.receive(*(with_id(f"m{number}") for number in range(20)))
    data = pa.py_buffer(kit.log.segments[0].path.read_bytes())
    (header,) = headers_of(data.to_pybytes())
    batch = StoredBatch(header, data)
    part = PartialBatch(header)
    part.take(batch, np.arange(20) % 3 == 1)
    smaller = b"".join(part.encode("zstd").parts)
    window = DedupeWindow(WINDOW_S * 10**9, 100)
    note_batches(window, headers_of(smaller), smaller, TIME)
    for number in range(20):
        found = window.find(b"m%d" % number)
        assert (found and found.offset) == (number if number % 3 == 1 else None)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_ids_of_compressed_batches(make_kit, codec):
    kit = make_kit(compression=codec)
    kit.receive(*(with_id(f"m{number}" * 20) for number in range(50)))
    assert len(rebuilt(kit)) == 50


def test_empty_log(kit):
    assert len(rebuilt(kit)) == 0


def flip(kit, position):
    path = kit.log.active.path
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return path


def test_a_flipped_bit_in_an_id_is_not_read_as_another_id(make_kit):
    kit = make_kit()
    kit.receive(with_id("first"))
    kit.receive(with_id("second"))
    data = kit.log.active.path.read_bytes()
    place = data.index(b"second", data.index(b"second") + 1)  # in the column of ids, behind that of the headers
    path = flip(kit, place)
    start = headers_of(data)[0].length
    with pytest.raises(SegmentCorruptError, match=f"{path} is damaged at byte {start}: .*checksum"):
        rebuilt(kit)


@pytest.mark.parametrize("place", [20, 88, -1])
def test_an_error_while_the_ids_are_rebuilt_names_file_and_byte(make_kit, place):
    kit = make_kit()
    kit.receive(with_id("first"))
    kit.receive(with_id("second"))
    start = headers_of(kit.log.active.path.read_bytes())[0].length
    path = flip(kit, start + place if place >= 0 else place)
    with pytest.raises(SegmentCorruptError, match=f"{path} is damaged at byte {start}: "):
        rebuilt(kit)


def test_a_batch_that_is_not_what_its_header_says_is_named_with_file_and_byte(make_kit):
    kit = make_kit()
    kit.receive(with_id("first"))
    position = kit.log.active.size
    kit.partition.append_body(zeros_body(Column.SUBJECT | Column.VALUE | Column.MESSAGE_ID), 1)
    with pytest.raises(SegmentCorruptError, match=f"{kit.log.active.path} is damaged at byte {position}: "):
        rebuilt(kit)
