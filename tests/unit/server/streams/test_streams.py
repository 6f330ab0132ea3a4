"""The streams of a node follow the metadata, also after something went wrong on the way."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.streams.streams import Streams


async def test_a_change_that_failed_is_made_when_the_metadata_change_again(kit, monkeypatch):
    opening = SimpleNamespace(leads=lambda _info: False)
    streams = Streams(opening, SimpleNamespace(follow_nodes=lambda _state: ()), None)
    before, after = kit.info, replace(kit.info, version=2)
    local = streams.by_uuid[before.uuid] = SimpleNamespace(info=before)
    tried = []

    async def change(stream, info, _state):
        tried.append((stream.info, info))
        stream.info = info
        if len(tried) == 1:
            raise OSError("told to fail")

    monkeypatch.setattr(streams, "_change", change)
    for info in (before, after, after):
        await streams.follow(SimpleNamespace(streams={info.name: info}))
    assert tried == [(before, after), (before, after)]
    assert local.info is after


def test_partitions_are_closed_also_behind_one_that_meets_an_unexpected_error(make_kit, monkeypatch, caplog):
    kit = make_kit(partitions=3)
    streams = Streams(SimpleNamespace(), None, None)
    streams.by_uuid[kit.info.uuid] = SimpleNamespace(info=kit.info, partitions=kit.partitions)
    streams.by_key |= {each.key: each for each in kit.partitions.values()}

    def fail():
        raise RuntimeError("told to fail")

    ended = []
    for number, partition in kit.partitions.items():
        monkeypatch.setattr(partition, "end_pass", fail if number == 1 else lambda number=number: ended.append(number))
    streams.end_passes()
    assert ended == [0, 2]
    assert "stream orders partition 1: before it is closed" in caplog.text
    monkeypatch.setattr(kit.partitions[1], "save_ordered", fail)
    assert not streams.close(), "the next start is that after a crash"
    assert [each.gone for each in kit.partitions.values()] == [ErrorCode.NOT_AVAILABLE] * 3
    assert "closing stream orders partition 1" in caplog.text
    assert not streams.by_key


async def test_what_a_lost_route_cost_a_partition_that_another_node_leads_now_is_told(make_kit, caplog):
    """The next leader may listen to a server that has lost nothing."""
    kit = make_kit(partitions=3)
    streams, ingest = Streams(SimpleNamespace(), None, None), SimpleNamespace()
    streams.by_key |= {each.key: each for each in kit.partitions.values()}
    leads, led, followed = kit.partitions.values()
    kit.clock.advance(5)
    for _ in range(2):  # the second time it follows yet another leader
        led.follow(2)
    followed.is_leading = False
    kit.clock.advance(60)
    streams.connect(ingest)
    ingest.on_route_lost(kit.clock.elapsed() - 62, "a route was lost")
    assert [len(each.gaps.unrecorded()) for each in (leads, led, followed)] == [0, 1, 0]
    (gap,) = led.gaps.unrecorded()
    assert (gap.until_ns - gap.since_ns, kit.clock.now_ns() - gap.until_ns) == (2 * 10**9, 60 * 10**9)
    assert "1 partitions that this node led until lately may miss messages: a route was lost" in caplog.text


@pytest.mark.parametrize(("is_subscribed", "since"), [(True, -3), (False, -1)])
def test_the_gap_of_a_failover_reaches_back_to_what_may_come_twice(make_kit, is_subscribed, since):
    """A node that is subscribed for another partition gets what it has not read yet, and the leader before stored."""
    kit = make_kit(partitions=2)
    kit.clock.advance(60)
    now_s = kit.clock.elapsed()
    local = SimpleNamespace(info=kit.info, bindings=["it"] * is_subscribed)
    streams = Streams(SimpleNamespace(whole_until_s=lambda _stream, _partition: now_s - 1), None, None)
    streams.listening._ingest = SimpleNamespace(hearing="a server", whole_s=now_s - 3)
    streams.listening.change = lambda _stream: None
    streams.by_uuid[kit.info.uuid] = local
    partition = kit.partitions[1]
    partition.lead(2)
    streams.leadership_changed(SimpleNamespace(partition=partition, goes_on_leading=False))
    (gap,) = partition.gaps.unrecorded()
    assert (gap.since_ns - kit.clock.now_ns()) / 10**9 == since


async def test_partitions_without_records_are_not_looked_at_every_few_seconds(make_kit):
    kit = make_kit(partitions=3)
    told, looked = [], []
    opening = SimpleNamespace(is_alone=lambda info: looked.append(info) or True)
    streams = Streams(opening, SimpleNamespace(tell_records=told.append), None)
    streams.by_key |= {each.key: each for each in kit.partitions.values()}
    partitions = [SimpleNamespace(first_end=0, empty_log_start=0)] * 3
    local = streams.by_uuid[kit.info.uuid] = SimpleNamespace(info=SimpleNamespace(partitions=partitions))
    for partition in kit.partitions.values():
        streams._watch_records(local, partition)
    looked.clear()
    streams.tell_records()
    assert (told, looked) == ([], [])
    (partition, *_) = kit.partitions.values()
    streams._untold.add(partition.key)
    streams.tell_records()
    assert len(looked) == 1
