"""A leader whose log begins after a restore remembers what messages before it were called."""

from __future__ import annotations

import logging

import pytest

from liftpy_bucket.store.memory import MemoryStore
from liftpy_log.ids.dedupe import DedupeWindow, Stored
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.message_ids import recall_message_ids
from liftpy_server.tier.jobs.reads import message_ids as message_ids_job
from support.nats_frames import msg
from support.plain_worker import PlainWorker, do_plain
from support.tier_workers import Worker

S = 10**9


class Bench(PlainWorker):
    """A partition whose messages are in the bucket, and in its log no more."""

    def __init__(self, kit) -> None:
        self.kit = kit
        self.partition = kit.partition
        self.worker = Worker(MemoryStore())
        self.calls = []
        self.error = None

    def store(self, *ids):
        for each in ids:
            headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % each if each else b""
            self.kit.receive(msg(b"orders.a", b"v", reply=b"r", headers=headers))
        self.kit.sync()

    def tier(self):
        partition = self.partition
        path = partition.stream.uuid, partition.number
        slices = [
            {"path": str(segment.path), "position": 0, "length": segment.size} for segment in partition.log.segments
        ]
        common = {"uuid": path[0], "partition": path[1], "epoch": partition.epoch}
        epochs = [[partition.epoch, 0]]
        self.worker.call("claim", **common, node="n1", log_start=0, epochs=epochs, create=True)
        self.worker.call(
            "upload",
            **common,
            epochs=epochs,
            base=0,
            end=partition.log.log_end,
            slices=slices,
            keeps_replies=partition.stream.config.keep_replies,
        )
        partition.log.purge(partition.log.log_end)

    async def answer(self, job, /, **arguments):
        self.calls.append(job)
        if self.error:
            raise self.error
        return do_plain(self.worker.context, job, arguments)

    async def recall(self):
        config = self.partition.stream.config
        self.partition.dedupe = DedupeWindow(int(config.dedupe_window_s * S), config.dedupe_ids_max)
        await recall_message_ids(self.partition, 0, self)
        return self.partition.dedupe


@pytest.fixture
def make_bench(make_kit):
    return lambda **settings: Bench(make_kit(**settings))


async def test_ids_of_the_window_come_from_the_bucket(make_bench):
    bench = make_bench(dedupe_window_s=100)
    bench.store(b"too-old")
    bench.kit.clock.advance(60)
    bench.store(b"one", None, b"two")
    bench.tier()
    bench.kit.clock.advance(60)
    window = await bench.recall()
    assert window.find(b"too-old") is None
    assert (window.find(b"one"), window.find(b"two")) == (Stored(1, 1), Stored(3, 1))
    assert bench.calls == ["message_ids"]
    bench.kit.clock.advance(100)
    assert len(await bench.recall()) == 0


async def test_they_come_in_pieces_and_the_newest_first(make_bench, monkeypatch):
    bench = make_bench(dedupe_window_s=100)
    ids = [b"id-%d" % number for number in range(50)]
    bench.store(*ids)
    bench.tier()
    monkeypatch.setattr("liftpy_server.tier.host.message_ids._IDS_PER_CALL", 7)
    window = await bench.recall()
    assert [window.find(each).offset for each in ids] == list(range(50))
    assert len(bench.calls) == 8
    monkeypatch.setattr(message_ids_job, "_GROUPS_MAX", 1)
    bench.kit.change(dedupe_ids_max=10)
    window = await bench.recall()
    assert (len(window), window.find(ids[40]).offset, window.find(ids[39])) == (10, 40, None)


async def test_a_log_that_reaches_back_asks_nobody(make_bench):
    bench = make_bench(dedupe_window_s=100)
    bench.store(b"a")
    await bench.recall()
    bench.tier()
    bench.kit.clock.advance(200)
    bench.store(b"b")
    bench.kit.clock.advance(150)
    bench.store(b"c")
    await bench.recall()
    assert bench.calls == []


async def test_a_bucket_that_is_away_is_told_of_and_not_waited_for(make_bench, caplog):
    caplog.set_level(logging.WARNING)
    bench = make_bench(dedupe_window_s=100)
    bench.store(b"a")
    bench.tier()
    bench.error = TierWorkError("unavailable", "nobody answers", retriable=True)
    assert len(await bench.recall()) == 0
    assert "messages from before its log began may be taken twice" in caplog.text
    assert "nobody answers" in caplog.text


def test_a_history_without_ids(make_bench):
    bench = make_bench(dedupe_window_s=100)
    bench.store(None, None)
    bench.tier()
    arguments = {"uuid": bench.partition.stream.uuid, "partition": 0, "before": 2, "since_ns": 0, "limit": 9}
    nothing = {"ids": [], "start": 0, "more": False}
    assert do_plain(bench.worker.context, "message_ids", arguments) == nothing
    assert do_plain(bench.worker.context, "message_ids", {**arguments, "before": 0}) == nothing
    assert do_plain(bench.worker.context, "message_ids", {**arguments, "uuid": "0" * 32})["ids"] == []
