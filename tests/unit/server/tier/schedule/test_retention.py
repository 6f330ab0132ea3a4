"""What of a tiered stream may leave the disk, and what the bucket need not keep."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.tier.host.retention_ends import LeaderEnds
from liftpy_server.tier.host.status import DiskRoom
from liftpy_server.tier.host.tiered_partition import waiting_bytes
from liftpy_server.tier.jobs.upkeep.retention_start import first_wanted
from liftpy_server.tier.schedule.retention import counted_start, local_age_s, local_start, stored_limits

S = 10**9


def config(**settings):
    return StreamConfig(name="orders", subject="orders", **settings)


def segment(number):
    """Ten records and a hundred bytes each, of the second of its number."""
    return SimpleNamespace(
        base_offset=10 * number, next_offset=10 * number + 10, size=100, max_timestamp=number * S, first_timestamp=0
    )


SEGMENTS = [segment(number) for number in range(5)]


@pytest.mark.parametrize(
    ("settings", "tiered_end", "expected"),
    [
        ({}, 50, None),
        ({"local_retention_bytes": 200}, 50, 30),
        ({"local_retention_bytes": 200}, 25, 25),
        ({"local_retention_bytes": 200}, 0, None),
        ({"retention_bytes": 300}, 50, 20),
        ({"retention_bytes": 300, "local_retention_bytes": 200}, 50, 30),
        ({"local_retention_age_s": 7.5}, 50, 30),
        ({"retention_age_s": 8.5}, 50, 20),
        ({"retention_age_s": 8.5, "local_retention_age_s": 7.5}, 50, 30),
        ({"retention_messages": 20}, 50, 30),
    ],
)
def test_local_retention_drops_only_what_the_bucket_has(settings, tiered_end, expected):
    age_s = local_age_s(config(**settings))
    before_ns = int((10 - age_s) * S) if age_s else 0
    assert local_start(SEGMENTS, config(**settings), before_ns, tiered_end) == expected


@pytest.mark.parametrize(
    ("tiered_end", "end", "expected"), [(0, 50, 500), (50, 50, 0), (45, 50, 50), (0, 5, 50), (12, 18, 60), (99, 50, 0)]
)
def test_how_much_waits(tiered_end, end, expected):
    assert waiting_bytes(SEGMENTS, tiered_end, end) == expected


def test_limits_of_the_whole_history():
    assert counted_start(config(), 100) == 0
    assert counted_start(config(retention_messages=30), 100) == 70
    assert counted_start(config(retention_messages=300), 100) == 0
    assert stored_limits(config(retention_messages=30), 0, local_bytes=1, log_start=2) is None
    found = stored_limits(config(retention_bytes=500, retention_age_s=5), 4 * S, local_bytes=200, log_start=30)
    assert found == (4 * S, 300, 30)


def fragment(number):
    return StreamObjectPointer(
        name=f"{number}",
        base=10 * number,
        end=10 * number + 10,
        records=10,
        size=100,
        footer=0,
        digest="ab" * 32,
        first_timestamp=number * S,
        last_timestamp=number * S,
        setsum=NO_RECORDS,
    )


@pytest.mark.parametrize(
    ("surplus_bytes", "before_ns", "expected"),
    [
        (0, 0, (0, 0)),
        (99, 0, (0, 0)),
        (250, 0, (20, 2 * S)),
        (500, 0, (40, 4 * S)),
        (0, 3 * S, (30, 3 * S)),
        (0, 99 * S, (50, 0)),
        (100, 2 * S, (20, 2 * S)),
    ],
)
def test_objects_go_as_a_whole(surplus_bytes, before_ns, expected):
    looked_at = []

    def fragments():
        for number in range(5):
            looked_at.append(number)
            yield fragment(number)

    found = first_wanted(fragments(), start=0, surplus_bytes=surplus_bytes, before_ns=before_ns, below=40)
    assert found == expected
    assert len(looked_at) == min(5, found[0] // 10 + 1), "no further than needed"


def test_a_start_inside_of_an_object_stays_where_it_is():
    assert first_wanted([fragment(1)], start=13, surplus_bytes=0, before_ns=0, below=99) == (13, S)


class Asked:
    """Leaders, and what they were asked."""

    def __init__(self):
        self.bodies = []
        self.answer = {"ends": [7]}

    async def ask_all(self, nodes, endpoint, body, timeout_s):
        self.bodies.append((nodes, endpoint, body))
        return dict.fromkeys(nodes, self.answer)


async def test_followers_ask_only_for_what_they_want_to_drop():
    key, other = PartitionKey(bytes(16), 0), PartitionKey(bytes(15) + b"1", 0)
    stream = SimpleNamespace(uuid=bytes(16).hex(), partitions=[SimpleNamespace(leader="n2")])
    state, requests, ends = SimpleNamespace(streams={"orders": stream}), Asked(), LeaderEnds()
    await ends.ask(state, requests)
    assert ends.of(key, 5) == ends.of(other, 5) == 0
    await ends.ask(state, requests)
    assert requests.bodies == [(["n2"], "TIER.ENDS", {"partitions": [f"{key.uuid.hex()}/0"]})]
    assert ends.of(key, 5) == 7
    await ends.ask(state, requests)
    assert len(requests.bodies) == 1, "it is enough"
    requests.answer = {"ends": [3]}
    assert ends.of(key, 20) == 7
    await ends.ask(state, requests)
    assert ends.of(key, 20) == 7, "a bucket never has less"


def test_how_long_a_disk_lasts():
    room = DiskRoom()
    assert room.room_s() is None
    for second in range(10):
        room.note(10_000 - 100 * second, 1_100, float(second))
    assert room.room_s() == pytest.approx((10_000 - 900 - 1_100) / 100)
    for second in range(10, 100):
        room.note(9_100, 1_100, float(second))
    assert room.room_s() is None, "it does not fill any more"
