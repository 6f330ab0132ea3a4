"""The comparison of replicas finds what differs below the smallest high watermark, and nothing above it."""

from __future__ import annotations

import pytest

from liftpy_envelope.columns import Column
from liftpy_log.checkpoint import Checkpoint, save_checkpoint
from liftpy_log.storage.disk import OsDisk
from support.batches import stamped
from support.records import encoded
from support.replica_files import check_replicas
from support.segments import flip_bit

UUID = bytes(range(16))


def batch(offset, value):
    """One record."""
    return stamped(encoded(Column.SUBJECT | Column.VALUE, {Column.SUBJECT: [b"s"], Column.VALUE: [value]}), offset)


def replica(root, batches, high_watermark):
    """A node's data directory with one partition of one segment."""
    folder = root / "streams" / f"s.{UUID.hex()}" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"".join(batches))
    save_checkpoint(OsDisk(), root / "checkpoint", Checkpoint(True, {(UUID, 0): high_watermark}))
    return root


@pytest.fixture
def batches():
    return [batch(offset, b"value %d" % offset) for offset in range(5)]


def found(*roots):
    return list(check_replicas({root.name: root for root in roots}, "s", 1))


def test_replicas_may_differ_above_what_all_know_to_be_committed(tmp_path, batches):
    other = batch(4, b"something else")
    one = replica(tmp_path / "one", batches, 4)
    assert found(one, replica(tmp_path / "two", [*batches[:4], other], 5)) == []
    assert found(one, replica(tmp_path / "three", batches[:4], 4)) == []


def test_a_record_that_differs(tmp_path, batches):
    one, two = (replica(tmp_path / name, batches, 5) for name in ("one", "two"))
    (segment,) = two.rglob("*.log")
    flip_bit(segment, len(batches[0]) + len(batches[1]) - 10)
    (violation,) = found(one, two)
    assert violation.rule == "replicas differ"
    assert "s[0] below offset 5" in violation.text


def test_a_replica_that_is_shorter_than_what_was_committed(tmp_path, batches):
    assert found(replica(tmp_path / "one", batches, 5), replica(tmp_path / "two", batches[:3], 5))
