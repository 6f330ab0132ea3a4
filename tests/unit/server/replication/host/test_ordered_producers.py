"""A replica knows the ordered producers of its partition, also of what was never in its log, or came merged."""

from __future__ import annotations

import pytest

from liftpy_log.compaction.compact import CompactionConfig, compact, plan_compaction
from liftpy_log.errors import StorageFullError
from liftpy_log.ids.ordered import OrderedId, load_ordered
from liftpy_log.partition_log import LogConfig
from liftpy_server.replication.core.effects import ProposeIsr
from support.envelopes import batch
from support.nats_frames import header_block, msg
from support.replica_kit import ReplicaKit

SEGMENT_BYTES = 3_000
SOURCES = [bytes([number]) * 16 for number in range(1, 4)]


@pytest.fixture
def kit(tmp_path):
    made = ReplicaKit(tmp_path, "abc", log=LogConfig(segment_bytes=SEGMENT_BYTES), compact=True, dedupe_window_s=0.0)
    yield made
    made.close()


def put(side, source, sequence):
    """An output of a source, with a key of its own."""
    order = {"producer_id": SOURCES[source], "producer_epoch": 1, "producer_sequence": sequence}
    value = b"%d-%d" % (source, sequence)
    side.kit.receive(msg(b"orders.x", batch([value], keys=[b"k%d" % source], ack_inbox="r", **order)))
    side.kit.clock.advance(1)


def fill(kit, count, nodes=None, leader="a"):
    for number in range(count):
        kit[leader].kit.receive(msg(b"orders.x", b"x" * 200, headers=header_block(**{"Lift-Key": f"f{number % 3}"})))
        kit[leader].kit.clock.advance(1)
        kit.run(nodes)


def known(side):
    """The highest sequence of each source."""
    return {producer: each.sequence for producer, each in side.partition.dedupe.ordered.known(2**62)}


def in_file(side):
    """What a restart would know of each source from the file alone."""
    log = side.partition.log
    table = load_ordered(side.kit.disk, log.directory, log.log_start, log.log_end, 0)
    return {producer: each.sequence for producer, each in table.known(2**62)}


def compacted(side):
    log = side.partition.log
    config = CompactionConfig(dedupe_window_ns=0, min_dirty_ratio=0.0, segment_bytes=SEGMENT_BYTES * 10)
    side.partition.save_ordered()
    plan = plan_compaction(log.compaction, side.partition.high_watermark, log.last_timestamp, config)
    assert compact(side.kit.disk, plan, config, log.compaction, seed=bytes(32), pause=lambda _: None).is_complete


def stored_again(side, source, sequence):
    """Whether a batch that was stored is taken for new."""
    before = side.partition.log.log_end
    put(side, source, sequence)
    return side.partition.log.log_end > before


def purged(kit):
    """Three sources' outputs are below the start of the logs of a and b; c has nothing yet."""
    kit.lead("a", 1, isr="ab", told="ab")
    for source in range(3):
        put(kit["a"], source, 10 + source)
    fill(kit, 40, "ab")
    kit["a"].partition.purge(30)
    return {SOURCES[0]: 10, SOURCES[1]: 11, SOURCES[2]: 12}


def test_a_new_replica_knows_what_was_stored_before_its_log_began(kit):
    before = purged(kit)
    kit.lead("a", 1, isr="ab")
    kit.tick(1.0)
    assert kit["c"].partition.log.log_start == 30
    assert known(kit["c"]) == in_file(kit["c"]) == before
    kit.lead("c", 2)
    kit.run()
    assert not any(stored_again(kit["c"], source, 10 + source) for source in range(3))
    assert stored_again(kit["c"], 0, 11)


def test_so_does_one_that_has_no_record_to_copy(kit):
    purged(kit)
    kit["a"].partition.purge(kit["a"].partition.log.log_end)
    kit.lead("a", 1, isr="ab")
    kit.tick(1.0)
    assert kit["c"].partition.log.log_start == kit["c"].partition.log.log_end == kit["a"].partition.log.log_end
    assert known(kit["c"]) == in_file(kit["c"]) == known(kit["a"])


def test_until_it_was_told_it_does_not_join(kit):
    purged(kit)
    kit["a"].partition.purge(kit["a"].partition.log.log_end)
    kit.lead("a", 1, isr="ab")
    replica = kit["a"].replica
    fetches = []

    def fetched(node, fetch, fetched=replica.follower_fetched):
        fetches.append((fetch.offset, fetch.knows, any(isinstance(each, ProposeIsr) for each in kit["a"].proposals)))
        return fetched(node, fetch)

    replica.follower_fetched = fetched
    kit.tick(1.0)
    end = kit["a"].partition.log.log_end
    assert (end, 0, False) in fetches
    assert kit["a"].proposals[-1].isr == ("a", "b", "c")
    asked_in_vain = [knows for offset, knows, has_proposed in fetches if offset == end and not has_proposed]
    assert asked_in_vain[-1] == 1, "what it said of itself before it was told did not count"


def test_a_follower_knows_of_batches_that_came_merged(kit):
    kit.lead("a", 1, isr="ab", told="ab")
    for sequence in range(4):
        for source in range(3):
            put(kit["a"], source, sequence)
    fill(kit, 60, "ab")
    compacted(kit["a"])
    put(kit["a"], 0, 9)
    kit.run("ab")
    kit.lead("a", 1, isr="ab")
    kit.tick(1.0)
    assert known(kit["c"]) == known(kit["a"]) == {SOURCES[0]: 9, SOURCES[1]: 3, SOURCES[2]: 3}
    told = in_file(kit["c"])
    assert (told[SOURCES[1]], told[SOURCES[2]]) == (3, 3), "the log does not say so"


def test_who_keeps_up_is_told_nothing(kit):
    kit.lead("a", 1)
    told = []
    replica = kit["a"].replica

    def telling(fetch, end, telling=replica.told_producers):
        told.append(telling(fetch, end))
        return told[-1]

    replica.told_producers = telling
    for sequence in range(30):
        put(kit["a"], sequence % 3, sequence)
        fill(kit, 1)
    assert told
    assert set(told) == {b""}


def test_where_there_is_no_room_to_write_it_down_nothing_is_appended(kit, monkeypatch):
    before = purged(kit)
    log = kit["c"].partition.log
    save, full = log.save_ordered, True

    def save_ordered(content):
        if full:
            raise StorageFullError("no room")
        save(content)

    monkeypatch.setattr(log, "save_ordered", save_ordered)
    kit.lead("a", 1, isr="ab")
    kit.tick(1.0)
    assert log.log_end == 0
    assert known(kit["c"]) == {}
    full = False
    kit.tick(3.0)
    assert log.log_end == kit["a"].partition.log.log_end
    assert known(kit["c"]) == before


def test_a_damaged_file_is_made_good_by_the_leader(kit):
    purged(kit)
    kit.lead("a", 1, isr="ab")
    kit.tick(1.0)
    log = kit["c"].partition.log
    path = log.directory / "producers"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    table = load_ordered(kit["c"].kit.disk, log.directory, log.log_start, log.log_end, 0)
    assert (len(table), table.is_whole) == (0, False)
    kit["c"].partition.dedupe.ordered = table
    kit["c"].replica.reset_role()
    kit.lead("a", 1, isr="ab")
    kit.tick(2.0)
    assert known(kit["c"]) == in_file(kit["c"]) == known(kit["a"])
    assert kit["c"].partition.dedupe.find(OrderedId(SOURCES[0], 1, 10)) is not None
