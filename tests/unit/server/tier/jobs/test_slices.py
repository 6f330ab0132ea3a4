"""Pieces of local segments give whole, checked batches without a gap, or say what is wrong with them."""

from __future__ import annotations

import pytest

from liftpy_envelope.batch import decode_records, read_header
from liftpy_envelope.errors import BatchCorruptError, BatchVersionError
from liftpy_server.tier.errors import SliceGoneError
from liftpy_server.tier.jobs.parts import slices
from liftpy_server.tier.jobs.parts.slices import batches_in
from liftpy_server.tier.requests import LogSlice
from support.log_batches import as_newer_version
from support.tier_slices import LogFile, Shape, batch, value_of


def slices_of(told):
    return [LogSlice(**each) for each in told]


@pytest.fixture
def log(tmp_path):
    file = LogFile(tmp_path / "0.log")
    file.append(95)
    return file


def values(found):
    return [value for header, body in found for value in decode_records(header, body)["value"].to_pylist()]


@pytest.mark.parametrize("read_bytes", [1, 100, 1 << 22])
def test_batches_come_whole_whatever_is_read_at_once(log, monkeypatch, read_bytes):
    monkeypatch.setattr(slices, "_READ_BYTES", read_bytes)
    found = values(batches_in(slices_of(log.slices(0, 95)), 0, 95))
    assert found == [value_of(offset) for offset in range(95)]


def test_only_batches_of_the_range_come(log):
    everything = slices_of(log.slices(0, 95))
    assert [header.base_offset for header, _ in batches_in(everything, 15, 41)] == [10, 20, 30, 40]
    assert [header.base_offset for header, _ in batches_in(everything, 20, 30)] == [20]


def test_several_files_follow_on_one_another(log, tmp_path):
    second = LogFile(tmp_path / "95.log", 95)
    second.append(30)
    pieces = slices_of([*log.slices(0, 95), *second.slices(95, 125)])
    assert len(values(batches_in(pieces, 0, 125))) == 125


def test_a_file_that_is_gone_is_told(log):
    pieces = slices_of(log.slices(0, 95))
    log.path.unlink()
    with pytest.raises(SliceGoneError, match=r"0\.log is not there any more"):
        list(batches_in(pieces, 0, 95))


def test_a_file_that_is_shorter_is_told(log):
    pieces = slices_of(log.slices(0, 95))
    with log.path.open("r+b") as file:
        file.truncate(log.path.stat().st_size - 1)
    with pytest.raises(SliceGoneError, match=r"0\.log ends before"):
        list(batches_in(pieces, 0, 95))


def test_a_gap_between_files_is_told(log, tmp_path):
    second = LogFile(tmp_path / "96.log", 96)
    second.append(10)
    pieces = slices_of([*log.slices(0, 95), *second.slices(96, 106)])
    with pytest.raises(SliceGoneError, match="from 96 on where 95 was to come"):
        list(batches_in(pieces, 0, 106))


def test_pieces_that_end_too_early_are_told(log):
    with pytest.raises(SliceGoneError, match=r"end at offset 95.*up to 96"):
        list(batches_in(slices_of(log.slices(0, 95)), 0, 96))


def test_a_flipped_byte_is_damage_of_that_file(log):
    data = bytearray(log.path.read_bytes())
    for position in range(0, len(data), 211):
        turned = data.copy()
        turned[position] ^= 4
        log.path.write_bytes(turned)
        with pytest.raises((BatchCorruptError, BatchVersionError), match=r"0\.log: at byte \d+: ") as error:
            list(batches_in(slices_of(log.slices(0, 95)), 0, 95))
        at = int(str(error.value).partition("at byte ")[2].partition(":")[0])
        assert at <= position < at + read_header(bytes(data), at).length


def test_a_batch_of_a_newer_version_is_told(tmp_path):
    data = as_newer_version(batch(0, 5))
    path = tmp_path / "0.log"
    path.write_bytes(data)
    with pytest.raises(BatchVersionError, match=r"0\.log: "):
        list(batches_in([LogSlice(path=str(path), position=0, length=len(data))], 0, 5))


def test_a_batch_longer_than_a_read_comes_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "_READ_BYTES", 1_000)
    shape = Shape(value_bytes=700, records_per_batch=50)
    file = LogFile(tmp_path / "0.log")
    file.append(120, shape=shape)
    found = values(batches_in(slices_of(file.slices(0, 120)), 0, 120))
    assert found == [value_of(offset, shape) for offset in range(120)]
