"""Gaps of a node reach the metadata: soon, many in one command, and again until they are taken."""

from __future__ import annotations

import asyncio

import pytest

from liftpy_server.consensus.settings import COMMAND_BYTES_MAX
from liftpy_server.gaps.partition_gaps import PartitionGaps
from liftpy_server.gaps.recorder import GapRecorder
from liftpy_server.metadata.commands import Command
from liftpy_server.metadata.errors import MetadataUnavailableError
from liftpy_server.partition.stream_state import StreamCounters
from liftpy_server.settings.limits import LOG_REPEAT_S
from support.cluster import eventually
from support.metadata_commands import UUIDS, Author
from support.server_kit import SetClock


class Metadata:
    """Takes commands, unless it is down."""

    def __init__(self):
        self.author = Author()
        self.author.register("n1")
        self.is_down = False
        self.refused = 0
        self.sizes = []

    async def propose(self, op, **args):
        await asyncio.sleep(0)
        if self.is_down:
            self.refused += 1
            raise MetadataUnavailableError("no majority")
        self.sizes.append(len(Command(id="x", op=op, now_ns=1, args=args).encode()))
        return self.author.do(op, **args)

    def gaps(self, name="orders", partition=0):
        return self.author.state.streams[name].gaps.get(partition, ())


@pytest.fixture
def metadata():
    metadata = Metadata()
    metadata.author.create()
    return metadata


@pytest.fixture
async def recorder(metadata):
    recorder = GapRecorder("n1", lambda: 7, metadata.propose)
    recorder.start()
    yield recorder
    await recorder.stop()


@pytest.fixture
def gaps(recorder):
    return of(recorder)


def of(recorder, name="orders", uuid=UUIDS[0]):
    return PartitionGaps(uuid, name, 0, SetClock(), recorder, StreamCounters())


async def test_a_gap_that_lasts_is_recorded_and_its_end_too(metadata, gaps):
    gaps.open(900.0, "lost")
    await eventually(metadata.gaps)
    (gap,) = metadata.gaps()
    assert (gap.id, gap.until_ns) == ("n1.7.1", None)
    assert not gaps.unrecorded()
    gaps.close()
    await eventually(lambda: metadata.gaps()[0].until_ns)
    assert gaps.are_recorded


async def test_what_could_not_be_recorded_is_told_again(metadata, gaps, monkeypatch):
    monkeypatch.setattr("liftpy_server.gaps.recorder._RETRY_S", 0.01)
    metadata.is_down = True
    gaps.open(900.0, "lost")
    gaps.close()
    await eventually(lambda: metadata.refused > 2)
    assert gaps.unrecorded()
    metadata.is_down = False
    await eventually(lambda: gaps.are_recorded)
    assert len(metadata.gaps()) == 1


async def test_thousands_of_gaps_are_few_commands(metadata, recorder):
    everybody = []
    for number in range(5_000):
        name, uuid = f"stream-{number:05}", f"{number + 1:032x}"
        metadata.author.create(name, uuid)
        everybody.append(of(recorder, name, uuid))
    for gaps in everybody:
        gaps.open(900.0, "the NATS connection was lost")
    await eventually(lambda: not any(gaps.unrecorded() for gaps in everybody))
    assert all(metadata.gaps(gaps.name) for gaps in everybody)
    assert len(metadata.sizes) <= 10
    assert max(metadata.sizes) < COMMAND_BYTES_MAX


async def test_the_last_of_a_growing_count_is_recorded_at_the_end(metadata, recorder, gaps):
    gaps.count_refused("paused", "why")
    await eventually(metadata.gaps)
    for _ in range(5):
        gaps.count_refused("paused", "why")
    assert metadata.gaps()[0].messages == 1, f"a growing count is told every {LOG_REPEAT_S} s"
    await recorder.stop()
    assert metadata.gaps()[0].messages == 6


async def test_a_stop_does_not_wait_for_metadata_without_a_majority(metadata, recorder, gaps, caplog, monkeypatch):
    monkeypatch.setattr("liftpy_server.gaps.recorder._FLUSH_TIMEOUT_S", 0.05)
    metadata.is_down = True
    gaps.open(900.0, "lost")
    await recorder.stop()
    assert "gaps of 1 partitions are not recorded: no majority" in caplog.text


async def test_the_log_has_a_line_for_all_of_them(recorder, metadata, caplog):
    """Also of those that come as the node stops."""
    many = [of(recorder) for _ in range(300)]
    for each in many:
        each.open(0.0, "the NATS connection was lost")
    await eventually(lambda: caplog.records)
    for each in many:
        each.close()
    await recorder.stop()
    lines = [record.getMessage().partition(" of up to")[0] for record in caplog.records]
    assert lines == [
        "stream orders, 300 partitions: messages may be missing from now on: the NATS connection was lost",
        "stream orders, 300 partitions: gaps",
    ]
