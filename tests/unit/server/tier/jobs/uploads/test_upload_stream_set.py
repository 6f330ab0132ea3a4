"""Shared objects: what a round leaves and costs, whose members count, and how they become objects of their own."""

from __future__ import annotations

from itertools import count, pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from liftpy_bucket.errors import LineageError, OvertakenError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.reading.resolving import resolve
from liftpy_bucket.store.memory import MemoryStore
from liftpy_bucket.upkeep.forking import fork
from liftpy_server.tier.errors import SliceGoneError
from support.tier_slices import LogFile, value_of
from support.tier_workers import PATH, UUID, Worker, check_whole, history, new_id, root_of, sets_of

PATHS = [PartitionPath(f"{number // 4:032x}", number % 4) for number in range(1_000)]


def test_members_count_and_follow_on_the_root(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    answer = worker.upload_set([(log, 100, 120, 0)])
    assert answer["members"] == [{"uuid": UUID, "partition": 0, "end": 120}]
    assert answer["skipped"] == []
    worker.upload_set([(log, 120, 177, 0)])
    assert history(store) == [(offset, 0, value_of(offset)) for offset in range(177)]
    claimed = Worker(store).claim()
    assert (claimed["end"], claimed["root_end"], claimed["records"]) == (177, 100, 177)
    assert claimed["bytes"] > root_of(store).fragments[0].size


@pytest.mark.thorough
def test_a_round_of_a_thousand_partitions_is_two_puts(store, log):
    worker = Worker(store)
    for path in PATHS:
        worker.claim(path=path)
    worker.asked()
    for base in (0, 3):
        answer = worker.upload_set([(log, base, base + 3, 0, path) for path in reversed(PATHS)])
        assert len(answer["members"]) == 1_000
        asked = worker.asked()
        first = {"get": 1, "list": 1, "create": 3, "replace": 1}  # a manifest that names nothing is created before
        assert asked == ({"create": 2, "replace": 1} if base else first)
    for path in PATHS[::97]:
        check_whole(store, 6, path=path)


def test_an_upload_moves_members_in_front(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    worker.upload_set([(log, 100, 120, 0)])
    worker.upload_set([(log, 120, 130, 0)])
    with pytest.raises(OvertakenError, match="up to offset 130, and its leader knows of 120"):
        worker.upload(log, 120, 200)
    answer = worker.upload(log, 130, 200)
    assert (answer["end"], answer["records"]) == (200, 100)
    root = root_of(store)
    assert [(each.base, each.end) for each in root.fragments] == [(0, 100), (100, 200)]
    assert resolve(root, sets_of(store, root)).members == ()
    check_whole(store, 200)


def test_members_of_a_deposed_leader_do_not_count(store, log, tmp_path):
    old, new = Worker(store, "n1"), Worker(store, "n2")
    old.claim()
    old.upload_set([(log, 0, 50, 0)])
    claimed = new.claim(epoch=1, epochs=[(0, 0)])
    assert claimed["end"] == 50
    old.upload_set([(log, 50, 90, 0)])  # it has not heard of it yet
    assert history(store)[-1][0] == 49
    other = LogFile(tmp_path / "other.log", 50)
    other.append(30, epoch=1, tag="new")
    new.upload_set([(other, 50, 70, 1)])
    old.upload_set([(log, 90, 95, 0)])
    new.upload(other, 70, 80, epoch=1, epochs=[(0, 0), (1, 50)])
    rows = history(store)
    assert [row[:2] for row in rows] == [(offset, int(offset >= 50)) for offset in range(80)]
    assert all(value.startswith(b"new") for _, epoch, value in rows if epoch)
    assert root_of(store).end == 80


def test_a_deposed_leader_that_wakes_after_all_was_moved_changes_nothing(store, log, tmp_path):
    old, new = Worker(store, "n1"), Worker(store, "n2")
    old.claim()
    old.upload_set([(log, 0, 50, 0)])
    new.claim(epoch=1, epochs=[(0, 0)])
    new.call("merge", **PATH._asdict(), epoch=1)
    other = LogFile(tmp_path / "other.log", 50)
    other.append(30, epoch=1)
    new.upload_set([(other, 50, 80, 1)])
    before = history(store)
    old.upload_set([(log, 50, 80, 0)])
    with pytest.raises(LineageError):
        old.upload(log, 80, 90)
    with pytest.raises(LineageError):
        old.call("merge", **PATH._asdict(), epoch=0)
    assert history(store) == before
    check_whole(store, 80)


def test_a_later_incarnation_ends_the_one_before(store, log):
    first, second = Worker(store), Worker(store)
    first.claim()
    first.upload_set([(log, 0, 10, 0)], incarnation=1)
    second.upload_set([(log, 10, 20, 0)], incarnation=2)
    with pytest.raises((LineageError, OvertakenError)):
        first.upload_set([(log, 10, 30, 0)], incarnation=1)
    with pytest.raises(LineageError, match="incarnation 1 is over"):
        first.upload_set([(log, 10, 30, 0)], incarnation=1)
    check_whole(store, 20)


def test_a_manifest_that_others_wrote_is_looked_at_by_the_next_try(store, log):
    first, second = Worker(store), Worker(store)
    first.claim()
    first.upload_set([(log, 0, 10, 0)])
    second.upload_set([(log, 10, 20, 0)])
    with pytest.raises(OvertakenError):
        first.upload_set([(log, 20, 30, 0)])
    first.upload_set([(log, 20, 30, 0)])
    check_whole(store, 30)


def test_a_member_that_is_gone_does_not_stop_the_others(store, log, tmp_path):
    worker = Worker(store)
    other = LogFile(tmp_path / "1.log")
    other.append(20)
    for path in PATHS[:2]:
        worker.claim(path=path)
    members = [(other, 0, 20, 0, PATHS[0]), (log, 0, 20, 0, PATHS[1])]
    slices = other.path.read_bytes()
    other.path.unlink()
    answer = worker.upload_set(members)
    assert [(each["uuid"], each["partition"]) for each in answer["members"]] == [PATHS[1]]
    assert [(each["partition"], each["code"], each["retriable"]) for each in answer["skipped"]] == [(0, "gone", True)]
    assert history(store, PATHS[0]) == []
    other.path.write_bytes(slices)
    worker.upload_set(members[:1])
    check_whole(store, 20, path=PATHS[0])


def test_a_round_of_which_all_is_gone_writes_nothing(store, log):
    worker = Worker(store)
    worker.claim()
    members = [(log, 0, 20, 0)]
    before = list(store.list(""))
    slices = log.slices(0, 20)
    log.path.unlink()
    with pytest.raises(SliceGoneError):
        worker.upload_set(members)
    assert slices
    assert list(store.list("")) == before


def test_merging_moves_members_and_conserves_sums(store, log):
    worker = Worker(store)
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload_set([(log, base, base + 10, 0)])
    assert worker.call("merge", **PATH._asdict(), epoch=0) == {"merged": 10, "more": False}
    root = root_of(store)
    assert [(each.base, each.end, each.records) for each in root.fragments] == [(0, 100, 100)]
    check_whole(store, 100)
    assert worker.call("merge", **PATH._asdict(), epoch=0) == {"merged": 0, "more": False}


def test_merging_goes_on_later_when_it_has_lasted_for_some_seconds(store, log):
    worker = Worker(store, object_bytes=16_000)
    worker.claim()
    for base in range(0, 200, 10):
        worker.upload(log, base, base + 10)
    clock = worker.context.now_ns
    worker.context.now_ns = count(0, 5 * 10**9).__next__
    first = worker.call("merge", **PATH._asdict(), epoch=0)
    assert first["more"]
    worker.upload(log, 200, 210)
    check_whole(store, 210)
    worker.context.now_ns = clock
    last = worker.call("merge", **PATH._asdict(), epoch=0)
    assert last["merged"] > 0
    assert not last["more"]
    check_whole(store, 210)


def test_merging_goes_on_while_shared_objects_hold_something(store, log):
    worker = Worker(store, object_bytes=3_000)
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload_set([(log, base, base + 10, 0)])
    jobs, more = 0, True
    while more:
        answer = worker.call("merge", **PATH._asdict(), epoch=0)
        jobs, more = jobs + 1, answer["more"]
    assert jobs > 1
    assert root_of(store).end == 100
    check_whole(store, 100)


def test_merging_makes_small_objects_large(store, log):
    worker = Worker(store, object_bytes=16_000)
    worker.claim()
    for base in range(0, 200, 10):
        worker.upload(log, base, base + 10)
    before = root_of(store)
    assert worker.call("merge", **PATH._asdict(), epoch=0)["merged"] > 4
    after = root_of(store)
    assert len(after.fragments) < len(before.fragments)
    assert all(each.size <= 16_000 for each in after.fragments)
    assert after.setsum == before.setsum
    check_whole(store, 200)


def test_retention_moves_the_start(store, log):
    worker = Worker(store)
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload(log, base, base + 10)
    with pytest.raises(LineageError):
        worker.call("retain", **PATH._asdict(), start=50, epoch=9)
    assert worker.call("retain", **PATH._asdict(), start=45, epoch=0)["start"] == 45
    assert worker.call("retain", **PATH._asdict(), start=30, epoch=0)["start"] == 45
    check_whole(store, 100, 40)
    worker.upload(log, 100, 120)
    check_whole(store, 120, 40)
    assert worker.call("collect", **PATH._asdict(), grace_ns=10**20)["deleted"] == 0


def test_a_step_of_retention_lists_pins_alone_and_costs_the_same_however_long_the_history_is(store, log):
    worker = Worker(store)
    worker.claim()
    asked = []
    for base in range(0, 1_000, 10):
        worker.upload(log, base, base + 10)
        if base in {300, 990}:
            worker.asked()
            worker.call("retain", **PATH._asdict(), start=base // 5, epoch=0)
            asked.append(worker.asked())
    assert asked[0]["list"] == asked[1]["list"] == 2, asked
    assert sum(asked[1].values()) <= sum(asked[0].values()) + 2, asked
    named = {PATH.fragment(each.name) for each in RootFile(store, PATH, new_id=new_id).fragments(root_of(store))}
    assert {entry.key for entry in store.list(f"{PATH.directory}fragments/")} == named, "nothing was left"


class _Between(MemoryStore):
    """Something happens before a key is created."""

    def __init__(self, key, happens):
        super().__init__()
        self._happening = {key: happens}

    def create(self, key, body, nonce):
        self._happening.pop(key, lambda: None)()
        return super().create(key, body, nonce)


def test_a_fork_that_is_being_made_is_not_kept_from_it_by_a_step_of_retention(log):
    copy = PartitionPath("c" * 32, 0)
    store = _Between(copy.root, lambda: worker.call("retain", **PATH._asdict(), start=50, epoch=0))
    worker = Worker(store)
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload(log, base, base + 10)
    fork(store, PATH, copy, epoch=1, node="n1", new_id=new_id)
    assert root_of(store).start == 50
    check_whole(store, 100, path=copy)


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_step_of_retention_says_that_a_pin_holds_what_it_let_go_of(store, log, is_pinned):
    worker = Worker(store)
    worker.claim()
    for base in range(0, 40, 10):
        worker.upload(log, base, base + 10)
    if is_pinned:
        Pins(store, PATH, new_id=new_id, now_ns=worker.context.now_ns).hold_version("export", None)
    answer = worker.call("retain", **PATH._asdict(), start=20, epoch=0)
    assert answer == {"start": 20, "more": False, "pinned": is_pinned}


def test_of_very_much_that_retention_lets_go_of_the_rest_is_to_be_collected(store, log, monkeypatch):
    monkeypatch.setattr("liftpy_bucket.upkeep.collecting.KEYS_MAX", 3)
    worker = Worker(store)
    worker.claim()
    for base in range(0, 100, 10):
        worker.upload(log, base, base + 10)
    assert worker.call("retain", **PATH._asdict(), start=50, epoch=0)["more"]
    while worker.call("collect", **PATH._asdict(), grace_ns=0)["more"]:
        pass
    assert len(list(store.list(f"{PATH.directory}fragments/"))) == 5


@pytest.mark.parametrize("gone", [range(20), range(50, 65), range(100)])
def test_where_compaction_has_taken_the_first_record_of_an_epoch_the_log_tells_where_it_began(
    store, tmp_path, monkeypatch, gone
):
    module, offsets = "liftpy_server.tier.jobs.uploads.upload_stream_set.trimmed", pa.array([*gone], pa.int64())
    monkeypatch.setattr(module, lambda rows, *_: rows.filter(pc.invert(pc.is_in(rows.column("offset"), offsets))))
    log, epochs = LogFile(tmp_path / "1.log"), [[0, 0], [1, 50]]
    log.append(50, 0)
    log.append(100, 1)
    worker = Worker(store)
    worker.claim(1, epochs)
    member = {"tier_epoch": 1, "base": 0, "end": 100, "slices": log.slices(0, 100), "keeps_replies": False}
    member["record_hash"] = RecordHash.BLAKE2B
    worker.call("upload_set", node="n1", incarnation=1, members=[PATH._asdict() | member | {"epochs": epochs}])
    worker.claim(1, epochs)
    worker.upload(log, 100, 150, 1, epochs)
    assert [row[0] for row in history(store)] == [at for at in range(150) if at not in gone]


def test_a_start_beyond_the_end_is_where_it_goes_on(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 50)
    worker.upload_set([(log, 50, 60, 0)])
    assert worker.call("retain", **PATH._asdict(), start=80, epoch=0)["start"] == 80
    worker.upload(log, 80, 100, epochs=[(0, 80)])
    check_whole(store, 100, 80)


def test_a_dropped_stream_leaves_nothing_but_its_roots(store, log):
    worker = Worker(store)
    paths = [PartitionPath(UUID, number) for number in range(2)]
    for path in paths:
        worker.claim(path=path)
        worker.upload(log, 0, 50, path=path)
        worker.upload_set([(log, 50, 60, 0, path)])
    worker.call("drop_stream", uuid=UUID, partitions=3)
    keys = [entry.key for entry in store.list("streams/")]
    assert [key for key in keys if "/fragments/" in key or "/snapshots/" in key] == []
    for path in paths:
        assert history(store, path) == []
        assert resolve(root_of(store, path), sets_of(store, root_of(store, path))).end == 60


def test_shared_objects_merge_and_go_when_nothing_of_them_counts(store, log):
    worker = Worker(store)
    for path in PATHS[:20]:
        worker.claim(path=path)
    for base in range(0, 100, 10):
        worker.upload_set([(log, base, base + 10, 0, path) for path in PATHS[:20]])
    worker.asked()
    answer = worker.call("collect_sets", node="n1", incarnation=1)
    assert answer["merged"] >= 10
    (merged,) = sets_of(store, root_of(store, PATHS[0]))["n1"].objects
    assert len(merged.members) == 20
    assert worker.asked()["get_range"] <= 3 * 10
    for path in PATHS[:20]:
        check_whole(store, 100, path=path)
        worker.call("merge", **path._asdict(), epoch=0)
        check_whole(store, 100, path=path)
    answer = worker.call("collect_sets", node="n1", incarnation=1)
    assert answer == {"trimmed": 0, "merged": 0, "dropped": 1, "deleted": 1, "left": 0}
    assert list(store.list("sets/n1/objects/")) == []
    for path in PATHS[:20]:
        check_whole(store, 100, path=path)
    worker.upload_set([(log, 100, 110, 0, path) for path in PATHS[:20]])
    check_whole(store, 110, path=PATHS[7])


def test_members_of_several_leaderships_of_a_node_merge_side_by_side(store, log):
    worker = Worker(store)
    worker.claim()
    for epoch in range(5):
        worker.claim(epoch=epoch, epochs=[(0, 0)])
        worker.upload_set([(log, 20 * epoch, 20 * epoch + 10, epoch)])
        worker.upload_set([(log, 20 * epoch + 10, 20 * epoch + 20, epoch)])
    before = history(store)
    assert worker.call("collect_sets", node="n1", incarnation=1)["merged"] >= 10
    assert history(store) == before
    check_whole(store, 100)
    worker.upload(log, 100, 120, epoch=4, epochs=[(0, 0)])
    check_whole(store, 120)


@pytest.mark.parametrize("rounds", [1, 2])
def test_members_of_many_leaderships_are_not_merged_again_and_again(store, log, rounds):
    worker = Worker(store)
    worker.claim()
    for epoch in range(4):
        worker.claim(epoch=epoch, epochs=[(0, 0)])
        for base in range(20 * epoch, 20 * epoch + 20, 20 // rounds):
            worker.upload_set([(log, base, base + 20 // rounds, epoch)])
    worker.call("collect_sets", node="n1", incarnation=1)
    (merged,) = sets_of(store, root_of(store))["n1"].objects
    assert [(member.tier_epoch, member.base, member.end) for member in merged.members] == [
        (epoch, 20 * epoch, 20 * epoch + 20) for epoch in range(4)
    ]
    worker.asked()
    assert worker.call("collect_sets", node="n1", incarnation=1)["merged"] == 0
    assert worker.asked().get("create", 0) == 0
    for base in range(80, 400, 10):
        worker.upload_set([(log, base, base + 10, 3)])
        worker.call("collect_sets", node="n1", incarnation=1)
        assert len(sets_of(store, root_of(store))["n1"].objects) <= 8
    assert worker.asked()["create"] < 4 * 32, "what grows no more is not written with every round"
    check_whole(store, 400)


def test_of_objects_of_full_size_each_slot_is_in_a_few(store, log):
    """Sixteen rounds that fill an object each: what comes is divided by slot, so that a partition is in few of them."""
    worker = Worker(store, object_bytes=96 * 1024)
    many = PATHS[:24]
    for path in many:
        worker.claim(path=path)
    for base in range(0, 480, 30):
        worker.upload_set([(log, base, base + 30, 0, path) for path in many])
    before = {each.size for each in SetManifestFile(store, "n1", new_id=str).load().manifest.objects}
    assert min(before) * 2 > 96 * 1024, "none has room for another one"
    assert worker.call("collect_sets", node="n1", incarnation=1)["merged"] >= 16
    manifest = SetManifestFile(store, "n1", new_id=str).load().manifest
    assert max(each.size for each in manifest.objects) < 2 * 96 * 1024
    ranges = sorted((each.first, each.last) for each in manifest.objects)
    assert all(one[1] < other[0] for one, other in pairwise(ranges)), "each slot is in one of them"
    assert sum(each.members for each in manifest.objects) == len(many)
    for path in many:
        check_whole(store, 480, path=path)


@pytest.mark.thorough
def test_manifests_of_quiet_partitions_stay_short(store, log):
    worker = Worker(store)
    for path in PATHS[:10]:
        worker.claim(path=path)
    for base in range(200):
        worker.upload_set([(log, base, base + 1, 0, path) for path in PATHS[:10]])
        if base % 10 == 9:
            worker.call("collect_sets", node="n1", incarnation=1)
            assert len(sets_of(store, root_of(store, PATHS[0]))["n1"].objects) <= 12
    check_whole(store, 200, path=PATHS[3])
