"""Gaps are known after a restart, and a file that can not be read or written stops nothing."""

from __future__ import annotations

import errno
from concurrent.futures import Executor, Future

import pytest

from liftpy_envelope.stream_config import StreamConfig
from liftpy_log.checked_json import encode_json
from liftpy_server.gap_file import GapFile
from liftpy_server.metadata.state import StreamInfo
from liftpy_server.stream_state import Gap, StreamState
from support.damage import bit_flips
from support.server_kit import FlakyDisk

INFO = StreamInfo(uuid="0" * 32, config=StreamConfig(name="orders", subject="orders.>"), created_ns=0)


class Later(Executor):
    """Does things when it is told to."""

    def __init__(self):
        self.tasks = []

    def submit(self, task, /, *args, **kwargs):
        self.tasks.append(lambda: task(*args, **kwargs))
        return Future()

    def run(self):
        while self.tasks:
            self.tasks.pop(0)()


@pytest.fixture
def disk():
    return FlakyDisk()


@pytest.fixture
def later():
    return Later()


@pytest.fixture
def gap_file(tmp_path, disk, later):
    return GapFile(disk, tmp_path / "gaps.json", later, tmp_path / "quarantine")


@pytest.fixture
def stream(gap_file):
    return StreamState(INFO, gap_file.save)


def test_no_file_no_gaps(gap_file):
    assert gap_file.load() == []


def test_gaps_come_back(gap_file, stream, later):
    stream.open_gap(5, "the connection was lost")
    stream.close_gap(9)
    stream.open_gap(12, 'a "cause" with \u20ac')
    later.run()
    assert list(stream.gaps) == gap_file.load()
    assert Gap(since_ns=12, until_ns=None, cause='a "cause" with \u20ac') == gap_file.load()[-1]


def test_recording_never_waits_for_the_disk(gap_file, stream, later):
    stream.open_gap(5, "x")
    assert (gap_file.load(), len(later.tasks)) == ([], 1)


def test_only_the_newest_of_what_waits_is_written(gap_file, stream, later):
    stream.open_gap(5, "x")
    stream.close_gap(6)
    assert len(later.tasks) == 1
    later.run()
    assert [Gap(since_ns=5, until_ns=6, cause="x")] == gap_file.load()
    stream.open_gap(8, "y")
    later.run()
    assert gap_file.load()[-1] == Gap(since_ns=8, until_ns=None, cause="y")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"5", b"[5]", b'[{"since": 1}]', b"\xff\xfe", b'{"a": 1}', b"null", b'["x"]', b"[[1, 2]]"]
)
def test_file_that_can_not_be_read_is_set_aside(gap_file, tmp_path, content, caplog):
    (tmp_path / "gaps.json").write_bytes(content)
    assert (gap_file.load(), gap_file.has_forgotten) == ([], True)
    assert (tmp_path / "quarantine" / "gaps.json.0").read_bytes() == content
    assert f"gaps.json is damaged: its checksum is not that of its bytes; it was moved to {tmp_path}" in caplog.text
    assert gap_file.load() == []


def test_a_bit_that_turns_is_found(gap_file, stream, later, tmp_path):
    stream.open_gap(5, "the connection was lost")
    later.run()
    for damaged in bit_flips((tmp_path / "gaps.json").read_bytes().rstrip()):
        (tmp_path / "gaps.json").write_bytes(damaged)
        assert gap_file.load() == []


@pytest.mark.parametrize(
    "gap",
    [
        {"since_ns": "x", "until_ns": 1, "cause": "c", "messages": None},
        {"since_ns": 1, "until_ns": [], "cause": "c", "messages": None},
        {"since_ns": 1, "until_ns": 2, "cause": 5, "messages": None},
        {"since_ns": 1, "until_ns": 2, "cause": "c", "messages": "many"},
    ],
)
def test_gap_of_other_types_is_forgotten(gap_file, tmp_path, gap):
    (tmp_path / "gaps.json").write_bytes(encode_json({"gaps": [gap]}))
    assert (gap_file.load(), gap_file.has_forgotten) == ([], True)


def test_full_disk_is_logged_and_no_more(gap_file, stream, disk, later, caplog):
    disk.write_errors.append(errno.ENOSPC)
    stream.open_gap(5, "x")
    later.run()
    assert "gaps.json can not be written" in caplog.text
    stream.close_gap(6)
    later.run()
    assert list(stream.gaps) == gap_file.load()
