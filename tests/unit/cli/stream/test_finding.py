"""Single messages of a stream, its subjects, and how it is told of; with a cluster that is not there."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from liftpy.cli.stream import finding
from liftpy.cli.stream.finding import SubjectCount, count_subjects, last_message, message_at
from liftpy_client.admin.details import StreamDetails
from liftpy_client.errors import NodeUnavailableError, UsageError
from liftpy_client.message import Message
from liftpy_envelope.errors import LiftError
from liftpy_envelope.subject import matches
from support.cli import Cli, line_with
from support.fake_cluster import FakeCluster, partition_answer, stream_answer


def message(partition, offset, subject, ns):
    return Message("orders", partition, offset, ns, subject, None, None, b"v%d" % offset)


class FakeLift:
    """Has the messages of each partition, and notes what is read."""

    def __init__(self, *partitions, **more):
        self._logs = partitions
        self._more = more
        self.read = []

    async def stream_info(self, name):
        parts = []
        for number, log in enumerate(self._logs):
            ends = {"log_start": log[0].offset, "high_watermark": log[-1].offset + 1} if log else {"high_watermark": 0}
            newest = log[-1].timestamp_ns if log else None
            parts.append(partition_answer(number, ["node-1"], last_timestamp_ns=newest, **ends | self._more))
        return StreamDetails.from_answer(stream_answer(name, *parts))

    @asynccontextmanager
    async def consume(self, _name, *, start, stop, partitions, subjects=None):
        (number,) = partitions
        self.read.append((number, start[number], stop))

        async def found():
            for each in self._logs[number]:
                if start[number] <= each.offset < stop and (subjects is None or matches(subjects, each.subject)):
                    yield each

        yield found()

    @asynccontextmanager
    async def consume_batches(self, _name, *, start, stop, subjects):
        assert (start, stop, subjects) == ("earliest", "latest", None)

        async def batches():
            for log in self._logs:
                for some in (log[:2], log[2:]):
                    columns = {
                        name: [getattr(each, name) for each in some] for name in ("offset", "partition", "subject")
                    }
                    columns["timestamp"] = pa.array([each.timestamp_ns for each in some], pa.timestamp("ns", "UTC"))
                    columns["value"] = pa.array([each.value for each in some], pa.binary())
                    yield pa.record_batch(columns)

        yield batches()


async def test_a_message_by_its_offset():
    lift = FakeLift([message(0, offset, "orders.a", offset) for offset in (3, 4, 7)])
    assert (await message_at(lift, "orders", 4, None)).offset == 4
    with pytest.raises(UsageError, match="offset 2 is out of range; choose 3 to 7"):
        await message_at(lift, "orders", 2, None)
    with pytest.raises(UsageError, match="offset 8 is out of range"):
        await message_at(lift, "orders", 8, None)
    with pytest.raises(LiftError, match="compaction removed the message at offset 5"):
        await message_at(lift, "orders", 5, 0)
    with pytest.raises(UsageError, match="has partitions 0 to 0, not 1"):
        await message_at(lift, "orders", 5, 1)
    with pytest.raises(UsageError, match="the partition is empty"):
        await message_at(FakeLift([]), "orders", 0, None)
    with pytest.raises(UsageError, match="partitions 0 to 1: name one with --partition"):
        await message_at(FakeLift([], []), "orders", 0, None)
    with pytest.raises(NodeUnavailableError, match="leader does not answer"):
        await message_at(FakeLift([], high_watermark=None), "orders", 0, None)


async def test_the_last_message_of_a_subject_is_searched_backwards(monkeypatch):
    monkeypatch.setattr(finding, "_WINDOW", 10)
    log = [message(0, offset, "orders.a" if offset < 50 else "orders.b", offset) for offset in range(20, 300)]
    lift = FakeLift(log)
    assert (await last_message(lift, "orders", "orders.b")).offset == 299
    assert lift.read == [(0, 290, 300)]
    lift.read.clear()
    assert (await last_message(lift, "orders", "*.a")).offset == 49
    assert lift.read == [(0, 290, 300), (0, 210, 290), (0, 20, 210)]
    assert await last_message(lift, "orders", "orders.c") is None
    assert await last_message(FakeLift([]), "orders", ">") is None


async def test_of_several_partitions_the_newest_one_counts():
    lift = FakeLift(
        [message(0, 0, "a", 50), message(0, 1, "b", 90)], [message(1, 0, "a", 60), message(1, 1, "a", 70)], []
    )
    found = await last_message(lift, "orders", "a")
    assert (found.partition, found.offset) == (1, 1)
    lift.read.clear()
    assert (await last_message(lift, "orders", "b")).partition == 0
    assert [number for number, *_ in lift.read] == [0]  # the others are older


async def test_subjects_are_counted_over_batches_and_partitions(monkeypatch):
    lift = FakeLift(
        [message(0, 0, "a", 50), message(0, 1, "b", 90), message(0, 2, "a", 95)],
        [message(1, 0, "a", 60), message(1, 11, "a", 70), message(1, 12, "c", 80)],
    )
    assert await count_subjects(lift, "orders", None, "earliest") == {
        "a": SubjectCount(4, 9, 0, 2, 95), "b": SubjectCount(1, 2, 0, 1, 90), "c": SubjectCount(1, 3, 1, 12, 80),
    }  # fmt: skip
    monkeypatch.setattr(finding, "SUBJECTS_MAX", 2)
    with pytest.raises(UsageError, match="more than 2 subjects"):
        await count_subjects(lift, "orders", None, "earliest")


@pytest.fixture
def fake(monkeypatch):
    gaps = [
        {
            "partition": number,
            "since_ns": 10**18 + number * 10**6,
            "until_ns": None,
            "messages": None,
            "cause": "a kill",
        }
        for number in (0, 1)
    ]
    second = partition_answer(1, ["node-2", "node-1"], dedupe_known_s=90.0, torn_tail=None, high_watermark=77)
    stream = stream_answer("orders", partition_answer(0, ["node-1", "node-2"]), second, replicas=2)
    fake = FakeCluster({"STREAM.INFO": {"stream": stream | {"gaps": gaps, "gap_count": 2}}})
    fake.stands_in(monkeypatch)
    return fake


@pytest.fixture
def cli(fake, tmp_path):
    return Cli(None, tmp_path)


@pytest.mark.parametrize("verb", ["info", "describe"])
def test_one_partition_is_described(cli, verb):
    shown = cli.out("stream", verb, "orders", "-p", "1")
    assert "Partition 1 of orders" in shown
    line_with(shown, "high_watermark", "77")
    line_with(shown, "dedupe_known_s", "1m30s")
    line_with(shown, "isr", "node-2, node-1")
    assert "retention" not in shown
    assert [row.split("\t")[0] for row in shown.splitlines() if "a kill" in row] == ["1"]
    assert cli.json("stream", verb, "orders", "-p", "1")["high_watermark"] == 77
    assert "has partitions 0 to 1, not 2" in cli.error("stream", verb, "orders", "-p", "2", code=2)


def test_a_purge_that_keeps_the_last(cli, fake):
    (stream,) = fake.answers["STREAM.INFO"].values()
    fake.answers["STREAM.PURGE"] = {"stream": stream}
    cli.run("stream", "purge", "orders", "--keep", "50", "--yes")
    assert [(body["partition"], body["offset"]) for body in fake.bodies("STREAM.PURGE")] == [(0, 950), (1, 27)]
    cli.run("stream", "purge", "orders", "--keep", "500", "--yes")
    assert [(body["partition"], body["offset"]) for body in fake.bodies("STREAM.PURGE")[2:]] == [(0, 500)]
    assert "exclude each other" in cli.error("stream", "purge", "orders", "--keep", "5", "--offset", "1", code=2)
    assert "has partitions 0 to 1, not 7" in cli.error(
        "stream", "purge", "orders", "--keep", "5", "-p", "7", "-y", code=2
    )
    stream["partitions"][1]["high_watermark"] = None
    assert "its end is unknown" in cli.error("stream", "purge", "orders", "--keep", "5", "--yes")
    assert len(fake.bodies("STREAM.PURGE")) == 3  # nothing was purged: not all of it could be


def test_the_state_has_no_settings(cli):
    shown = cli.out("stream", "state", "orders")
    line_with(shown, "messages", "2,000")
    line_with(shown, "gaps", "2")
    assert "Partitions" in shown
    assert "retention_age_s" not in shown
    plain = cli.json("stream", "state", "orders")
    assert plain["messages"] == 2_000
    assert "config" not in plain


def test_an_added_stream_is_told_of_in_few_lines(cli, fake):
    fake.answers["STREAM.CREATE"] = fake.answers["STREAM.INFO"] | {"warnings": []}
    told = cli.out("stream", "add", "orders", "--subject", "orders.>", "--retention-age", "7d", "--partitions", "2")
    assert told == "stream orders stores orders.>; partitions: 2, replicas: 2\n  retention_age_s: 7d\n"


def test_mistakes(cli):
    for arguments in ((), ("5", "--last-for", "x")):
        assert "name an offset, or --last-for" in cli.error("stream", "get", "orders", *arguments, code=2)
    assert "--partition goes with an offset" in cli.error("stream", "get", "o", "--last-for", "x", "-p", "1", code=2)
    said = cli.error("stream", "subjects", "orders", "--start", "soon", "--json", code=2)
    assert "--start: 'soon' is not earliest" in json.loads(said)["error"]["message"]
