"""A replica on a node: what the replication core decides happens to real logs, acks and readers."""

from __future__ import annotations

import errno

import pytest

from liftpy_envelope.errors import AckErrorCode, ErrorCode
from liftpy_log.errors import SegmentCorruptError, UnfinishedCutError
from liftpy_log.ids.dedupe import hash_ids
from liftpy_log.partition_log import LogConfig
from liftpy_log.storage.disk import OsFile
from liftpy_server.replication.core import effects as fx
from support.nats_frames import header_block, msg
from support.replica_kit import ReplicaKit
from support.server_kit import NOW_NS


@pytest.fixture
def make(tmp_path):
    made = []

    def make_kit(nodes: str = "abc", **settings) -> ReplicaKit:
        made.append(ReplicaKit(tmp_path, nodes, **settings))
        return made[-1]

    yield make_kit
    for kit in made:
        kit.close()


@pytest.fixture
def three(make):
    kit = make()
    kit.lead("a", 1)
    kit.run()
    return kit


def frames(count, first=0, *, reply=True, ids=False):
    return [
        msg(
            b"orders.x",
            b"v%d" % number,
            reply=b"r%d" % number if reply else b"",
            headers=header_block(**{"Nats-Msg-Id": f"id-{number}"}) if ids else None,
        )
        for number in range(first, first + count)
    ]


def publish(side, *messages):
    side.kit.receive(*messages)


def test_only_the_leader_takes_messages(three):
    for side in three.sides.values():
        publish(side, *frames(3))
    three.run()
    assert [side.partition.log.log_end for side in three.sides.values()] == [3, 3, 3]
    assert [side.partition.is_leading for side in three.sides.values()] == [True, False, False]
    assert three["b"].kit.sent() == []


def test_acks_wait_for_every_disk_in_the_isr(three):
    publish(three["a"], *frames(3))
    three["a"].kit.sync()
    three.run("ab", sync=False)
    three["b"].kit.sync()
    three.run("ab", sync=False)
    assert three["a"].kit.sent() == [], "node c does not have it yet"
    three.run("ac", sync=False)
    assert three["a"].kit.sent() == [], "node c does not have it on disk yet"
    three.run()
    assert [offset for _, offset in three["a"].kit.offsets()] == [0, 1, 2]
    assert [side.partition.high_watermark for side in three.sides.values()] == [3, 3, 3]


def test_the_slowest_disk_may_be_the_leaders_own(three):
    publish(three["a"], *frames(2))
    three.run("bc", sync=False)
    for node in "bc":
        three[node].kit.sync()
    three.run("bc", sync=False)
    assert three["a"].kit.sent() == []
    three["a"].kit.sync()
    assert len(three["a"].kit.offsets()) == 2


def test_replicas_are_the_same_bytes(three):
    for first in range(0, 50, 5):
        publish(three["a"], *frames(5, first, ids=first % 2 == 0))
        three.run()
    assert three["a"].bytes() == three["b"].bytes() == three["c"].bytes() != b""


def test_policy_leader_wants_the_leaders_disk_alone(make):
    kit = make(ack_policy="leader")
    kit.lead("a", 1)
    publish(kit["a"], *frames(2))
    kit["a"].kit.sync()
    assert len(kit["a"].kit.offsets()) == 2
    assert kit["a"].partition.high_watermark == 0


def test_who_waits_when_the_leader_changes_is_told_that_nobody_knows(three):
    publish(three["a"], *frames(2))
    three["a"].kit.sync()
    three.lead("b", 2)
    assert three["a"].kit.errors() == [(b"r0", AckErrorCode.OUTCOME_UNKNOWN), (b"r1", AckErrorCode.OUTCOME_UNKNOWN)]
    assert three["a"].partition.gone is ErrorCode.NOT_LEADER
    three.run()
    assert [side.partition.log.log_end for side in three.sides.values()] == [0, 0, 0], "nobody else had them"


def test_a_reader_is_woken_and_sent_away(three):
    woken = []
    three["a"].partition.wait(lambda: woken.append(three["a"].partition.gone))
    three.lead("b", 2)
    assert woken == [ErrorCode.NOT_LEADER]


def test_a_new_leader_knows_the_ids_of_the_old_one(three):
    publish(three["a"], *frames(3, ids=True))
    three.run()
    three.lead("b", 2)
    three.run()
    publish(three["b"], *frames(4, ids=True))
    three.run()
    acks = [(ack["offset"], ack.get("duplicate", False)) for _, ack in three["b"].kit.acks()]
    assert acks == [(0, True), (1, True), (2, True), (3, False)]


def test_ids_of_records_that_were_cut_are_forgotten(three):
    three.lead("b", 2, told="b")
    publish(three["a"], *frames(3, ids=True))  # a does not know yet that it was deposed
    publish(three["b"], *frames(2, 10, ids=True))
    three.lead("b", 2)
    three.run()
    three.lead("a", 3)
    three.run()
    publish(three["a"], *frames(3, ids=True))
    three.run()
    acks = three["a"].kit.acks()
    assert [ack.get("duplicate", False) for _, ack in acks if "offset" in ack] == [False] * 3
    assert three["a"].kit.stored() == [b"v10", b"v11", b"v0", b"v1", b"v2"]


def test_a_deposed_leader_drops_what_nobody_else_has(three):
    publish(three["a"], *frames(2))
    three.run()
    three.lead("b", 2, told="bc")
    publish(three["a"], *frames(3, 2))
    three["a"].kit.sync()
    publish(three["b"], *frames(1, 9))
    three.run("bc")
    assert three["a"].kit.offsets() == [(b"r0", 0), (b"r1", 1)]
    three.lead("b", 2)
    three.run()
    assert {error for _, error in three["a"].kit.errors()} == {AckErrorCode.OUTCOME_UNKNOWN}
    assert three["a"].bytes() == three["b"].bytes() == three["c"].bytes()
    assert three["a"].kit.stored() == [b"v0", b"v1", b"v9"]


def depose_with_more(three):
    """`a` is deposed, and has a record that nobody else has. Its disk is told when to fail."""
    publish(three["a"], *frames(2))
    three.run()
    three.lead("b", 2, told="bc")
    publish(three["a"], *frames(1, 2))
    three["a"].kit.sync()
    publish(three["b"], *frames(1, 9))
    three.run("bc")


def test_a_cut_that_finds_no_room_is_made_when_there_is_some(three):
    depose_with_more(three)
    three["a"].kit.disk.is_full = True
    three.lead("b", 2)
    three.tick(2)
    log = three["a"].partition.log
    assert (log.failure, log.log_end) == (None, 3), "nothing has changed"
    assert any("can not be cut back" in text for text in three["a"].warnings)
    assert not any(isinstance(effect, fx.ReportFailure) for effect in three["a"].proposals)
    three["a"].kit.disk.is_full = False
    three.tick(2)
    assert three["a"].bytes() == three["b"].bytes()
    assert three["a"].kit.stored() == [b"v0", b"v1", b"v9"]


def test_a_cut_that_lacks_files_in_the_middle_is_finished_when_the_log_is_opened_again(three, monkeypatch):
    depose_with_more(three)
    lacks, failures = [], []
    partition = three["a"].partition
    partition.note_lack, partition.note_failure = lacks.append, failures.append
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "truncate", no_descriptor)
        three.lead("b", 2)
        three.run("ab")
    assert isinstance(partition.log.failure, UnfinishedCutError)
    assert (len(lacks), failures) == (1, []), "what is on the disk is well, and will be opened again"
    partition.fail(str(partition.log.failure))  # as maintenance does
    assert (len(lacks), failures) == (1, [])


def no_descriptor(*_args):
    raise OSError(errno.EMFILE, "too many open files")


def test_too_few_in_sync_refuses_who_wants_to_be_safe_and_stores_the_others(three):
    for _ in range(60):  # b and c are silent
        three.now_s += 0.2
        three["a"].replica.tick(0.0)
    assert not three["a"].partition.is_accepting
    publish(three["a"], *frames(1, reply=True), *frames(1, 1, reply=False))
    three["a"].kit.sync()
    assert three["a"].kit.errors() == [(b"r0", AckErrorCode.NOT_ENOUGH_REPLICAS)]
    assert three["a"].kit.stored() == [b"v1"]
    three.tick(1)
    assert three["a"].partition.is_accepting
    publish(three["a"], *frames(1, 2))
    three.run()
    assert three["a"].kit.offsets() == [(b"r2", 1)]


def test_who_waits_while_too_few_are_in_sync_is_told(three):
    publish(three["a"], *frames(1))
    for _ in range(60):
        three.now_s += 0.2
        three["a"].replica.tick(0.0)
    assert three["a"].kit.errors() == [(b"r0", AckErrorCode.OUTCOME_UNKNOWN)]


def test_a_silent_leader_is_suspected(three):
    for _ in range(8):
        three.now_s += 0.2
        three["b"].replica.tick(0.0)
    assert any(isinstance(effect, fx.SuspectLeader) for effect in three["b"].proposals)


def test_a_follower_with_a_full_disk_goes_on_when_there_is_room(three):
    three["b"].kit.disk.is_full = True
    publish(three["a"], *frames(2))
    three.run()
    assert three["b"].partition.log.log_end == 0
    assert any("no room" in text for text in three["b"].warnings)
    three["b"].kit.disk.is_full = False
    three.tick(1)
    assert three["b"].bytes() == three["a"].bytes()
    assert [offset for _, offset in three["a"].kit.offsets()] == [0, 1]


def test_ids_of_what_found_no_room_are_not_remembered(make):
    """A follower stores three of six messages; as a leader it must store the sixth again, and not call it stored."""
    kit = make(segment_bytes=100_000)
    kit.lead("a", 1)
    kit.run()
    for message in frames(6, ids=True):
        publish(kit["a"], message)
    size = kit["a"].partition.log.active.size // 6
    kit["b"].partition.log.config = LogConfig(segment_bytes=size * 3 + 10)
    kit["b"].kit.disk.create_errors.append(errno.ENOSPC)
    kit["b"].deliver()
    assert kit["b"].partition.log.log_end == 3, "the disk is full where the second segment begins"
    kit.lead("b", 2, isr="bc")
    publish(kit["b"], *frames(5, 10))
    publish(kit["b"], *frames(1, 5, ids=True))
    kit.run("bc")
    acks = [(ack["offset"], ack.get("duplicate", False)) for subject, ack in kit["b"].kit.acks() if subject == b"r5"]
    assert acks == [(8, False)]


def test_when_leadership_begins_no_id_is_remembered_of_what_is_not_in_the_log(three):
    three["b"].partition.dedupe.add(NOW_NS, hash_ids([b"id-0"]), [7])
    three["b"].partition.dedupe.end_offset = 8
    three.lead("b", 2)
    three.run()
    assert (len(three["b"].partition.dedupe), three["b"].partition.dedupe.end_offset) == (0, 0)
    publish(three["b"], *frames(9, 10), *frames(1, ids=True))
    three.run()
    assert three["b"].kit.offsets()[-1] == (b"r0", 9)


def test_an_id_of_what_is_not_in_the_log_is_no_duplicate(three, caplog):
    publish(three["a"], *frames(2, 10))
    three["a"].partition.dedupe.add(NOW_NS, hash_ids([b"id-0"]), [7])
    publish(three["a"], *frames(1, ids=True))
    three.run()
    acks = [(ack["offset"], ack.get("duplicate", False)) for _, ack in three["a"].kit.acks()]
    assert acks[-1] == (2, False)
    assert "a message id was remembered of offset 7, but the log ends at 2" in caplog.text


def test_a_log_whose_ids_can_not_be_read_leads_nothing(three):
    publish(three["a"], *frames(2, ids=True))
    three.run()
    path = three["b"].partition.log.active.path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    three["b"].partition.dedupe.clear(0)
    three.lead("b", 2)
    assert isinstance(three["b"].partition.log.failure, SegmentCorruptError)
    assert not three["b"].partition.is_leading


def test_a_leader_whose_disk_fails_gives_up(three):
    three["a"].kit.disk.write_errors.append(errno.EIO)
    publish(three["a"], *frames(1))
    assert three["a"].kit.errors() == [(b"r0", AckErrorCode.PARTITION_OFFLINE)]
    assert not three["a"].partition.is_leading
    assert three["a"].replica.core.leader is None
    three["b"].deliver()
    three.tick(2)
    assert any(isinstance(effect, fx.SuspectLeader) for effect in three["b"].proposals)


def test_a_partition_that_gets_replicas_goes_on(make):
    kit = make("a", replicas=1)
    kit.lead("a", 1)
    kit.run()
    publish(kit["a"], *frames(2))
    kit.run()
    assert len(kit["a"].kit.offsets()) == 2


def test_a_node_that_registers_again_forgets_its_role(three):
    publish(three["a"], *frames(1))
    three["a"].replica.reset_role()
    assert three["a"].kit.errors() == [(b"r0", AckErrorCode.OUTCOME_UNKNOWN)]
    assert not three["a"].partition.is_leading
    three.lead("a", 2)
    three.run()
    assert three["a"].partition.is_leading
    assert three["b"].bytes() == three["a"].bytes()


def test_purge_reaches_no_further_than_what_is_committed(three):
    publish(three["a"], *frames(4))
    three.run()
    for side in three.sides.values():
        side.partition.purge(3)
    publish(three["a"], *frames(2, 4))
    three.run()
    assert [side.partition.log.log_start for side in three.sides.values()] == [3, 3, 3]
    assert three["b"].partition.log.log_end == 6


def test_a_follower_that_was_away_for_too_long_begins_anew(three):
    publish(three["a"], *frames(3))
    three.run("ab")
    three.lead("a", 2, isr="ab", told="ab")
    publish(three["a"], *frames(3, 3))
    three.run("ab")
    three["a"].partition.purge(5)
    three.lead("a", 2, isr="ab")
    three.run()
    assert (three["c"].partition.log.log_start, three["c"].partition.log.log_end) == (5, 6)


def test_the_next_leader_is_settled_when_it_has_committed_what_it_found(three):
    publish(three["a"], *frames(2))
    three.run("ab")
    three["b"].kit.sync()
    three.lead("b", 2)
    assert not three["b"].partition.is_high_watermark_known
    three.run()
    assert three["b"].partition.is_high_watermark_known
    assert three["b"].partition.high_watermark == 2


def test_what_waits_for_other_nodes_is_counted_for_as_long_as_it_does(three):
    load = three["a"].kit.load
    publish(three["a"], *frames(3))
    three["a"].kit.sync()
    assert load.owed_records == 3
    three.run()
    assert load.owed_records == 0
    publish(three["a"], *frames(2, 3))
    assert load.owed_records == 2
    three.lead("b", 2)
    assert load.owed_records == 0, "they were told that nobody knows"


@pytest.mark.parametrize(
    ("views", "goes_on"), [([("a", 2)], [True]), ([("b", 2), ("a", 3)], [False]), ([("a", 3)], [False])]
)
def test_a_leader_goes_on_leading_when_its_leader_epoch_alone_changes(three, views, goes_on):
    """As when a reassignment begins; where it missed an epoch, another may have led in it."""
    side = three["a"]
    told = []

    def changed(replica):
        if replica.partition.is_leading:
            told.append(replica.goes_on_leading)

    side.leadership_changed = changed
    for leader, epoch in views:
        three.lead(leader, epoch)
        three.run()
    assert told == goes_on
