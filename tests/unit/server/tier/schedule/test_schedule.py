"""What is uploaded when, and what becomes of failures: the pure core, with the clock in the test's hand."""

from __future__ import annotations

import sys

import pytest

from liftpy_bucket.layout import slot_of
from liftpy_bucket.manifest.json import MANIFEST_BYTES_MAX
from liftpy_envelope.pull import PartitionKey
from liftpy_server.tier.schedule.alarms import StoreState
from liftpy_server.tier.schedule.places import Found, Job, Limits, Phase, Task
from liftpy_server.tier.schedule.schedule import Schedule

MIB = 1024 * 1024


def limits(**others) -> Limits:
    usual = {
        "upload_bytes": 64 * MIB,
        "upload_age_s": 60.0,
        "set_member_bytes_max": 8 * MIB,
        "merge_bytes": 16 * MIB,
        "object_bytes": 256 * MIB,
        "gc_interval_s": 600.0,
        "grace_s": 3_600.0,
    }
    return Limits(**(usual | others))


def key(number: int) -> PartitionKey:
    return PartitionKey(bytes(16), number)


class Bench:
    """A schedule and its clock; the store was found to be well."""

    def __init__(self, *, is_proven: bool = True, **others) -> None:
        self.now_s = 1_000.0
        self.schedule = Schedule(limits(**others), self.now_s)
        if is_proven:
            (probe,) = self.tasks()
            assert probe.job is Job.PROBE
            self.schedule.proven(self.now_s)

    def tasks(self) -> list[Task]:
        return self.schedule.tasks(self.now_s)

    def one(self, job: Job) -> Task:
        (task,) = self.tasks()
        assert task.job is job
        return task

    def lead(self, number: int = 0, epoch: int = 1, *, has_history: bool = False) -> None:
        self.schedule.led(key(number), epoch, has_history=has_history)

    def wrote(self, end: int, size: int, number: int = 0) -> None:
        self.schedule.wrote(key(number), end, size, self.now_s)

    def claimed(self, task: Task, end: int = 0) -> None:
        self.schedule.looked(task, 0, end, is_sealed=False, now_s=self.now_s)

    def uploaded(self, task: Task, **ends: int) -> None:
        told = {place.key: ends.get(f"p{place.key.partition}", place.end) for place in task.places}
        self.schedule.uploaded(task, told, self.now_s)

    def fail(self, task: Task, code: str) -> bool:
        return self.schedule.failed(task, code, f"it is {code}", self.now_s)

    def place(self, number: int = 0):
        return self.schedule.places[key(number)]

    def collected(self, ticks: int) -> list[tuple[float, Job]]:
        """What is done in so many times of the interval in which garbage is looked for, and when; all goes well."""
        began_s, jobs = self.now_s, []
        for _ in range(ticks):
            self.now_s += 600
            for _ in range(3):
                for task in self.tasks():
                    jobs.append((self.now_s - began_s, task.job))
                    self.schedule.kept_up(task, None, self.now_s)
        return jobs

    def claim_all(self, numbers) -> None:
        """Claim partitions that have one record each, and let these be uploaded."""
        for number in numbers:
            self.lead(number)
            self.wrote(1, 100, number)
        self.now_s += 60
        while True:
            tasks = self.tasks()
            if not tasks:
                self.now_s += 5
                tasks = self.tasks()
            for task in tasks:
                if task.job is Job.CLAIM:
                    self.claimed(task)
                else:
                    self.uploaded(task)
                    return


@pytest.fixture
def bench():
    return Bench()


def test_nothing_is_done_before_the_store_is_proven():
    bench = Bench(is_proven=False)
    bench.lead()
    bench.wrote(10, 100 * MIB)
    probe = bench.one(Job.PROBE)
    assert not bench.tasks()
    assert not bench.schedule.proven(bench.now_s)
    assert probe.places == ()
    bench.one(Job.CLAIM)


def test_it_is_claimed_at_the_first_upload_and_then_uploaded_by_size(bench):
    bench.lead()
    assert not bench.tasks()
    bench.wrote(10, 63 * MIB)
    assert not bench.tasks()
    bench.wrote(11, 64 * MIB)
    claim = bench.one(Job.CLAIM)
    assert not bench.tasks()
    bench.claimed(claim)
    upload = bench.one(Job.UPLOAD)
    bench.uploaded(upload)
    assert bench.place().tiered_end == 11
    assert not bench.tasks()
    bench.wrote(20, 64 * MIB)
    bench.one(Job.UPLOAD)


def test_objects_of_an_upload_count_one_by_one_and_once(bench):
    bench.lead()
    bench.wrote(30, 192 * MIB)
    bench.claimed(bench.one(Job.CLAIM))
    upload, place = bench.one(Job.UPLOAD), bench.place()
    for end in (10, 20, 20):
        bench.schedule.counts(place, end, 64 * MIB, bench.now_s)
    assert (place.tiered_end, place.proven_end, place.bytes) == (20, 20, 64 * MIB)
    assert place.object_bytes == place.new_bytes == 128 * MIB
    assert not bench.tasks(), "it goes on"
    bench.schedule.counts(place, 30, 64 * MIB, bench.now_s)
    bench.uploaded(upload)
    assert (place.tiered_end, place.bytes, place.is_alone, place.since_s) == (30, 0, False, None)
    assert place.object_bytes == place.new_bytes == 192 * MIB


def test_it_is_uploaded_by_age(bench):
    bench.lead()
    bench.wrote(1, 100)
    bench.now_s += 59
    bench.wrote(2, 200)
    assert not bench.tasks()
    bench.now_s += 1
    bench.claimed(bench.one(Job.CLAIM))
    assert bench.one(Job.UPLOAD_SET).places == (bench.place(),)


def test_what_comes_in_while_it_is_uploaded_is_as_old_as_that(bench):
    bench.lead()
    bench.wrote(1, 100)
    bench.now_s += 60
    bench.claimed(bench.one(Job.CLAIM))
    upload = bench.one(Job.UPLOAD_SET)
    bench.wrote(2, 200)
    assert not bench.tasks()
    bench.now_s += 10
    bench.uploaded(upload, p0=1)
    bench.wrote(2, 100)
    bench.now_s += 49
    assert not bench.tasks()
    bench.now_s += 1
    bench.one(Job.UPLOAD_SET)


def test_small_ones_go_together_and_large_ones_alone(bench):
    bench.claim_all(range(5))
    for number, size in enumerate([100, 9 * MIB, 8 * MIB, 50]):
        bench.wrote(2, size, number)
    bench.now_s += 60
    upload, together = bench.tasks()
    assert (upload.job, [place.key for place in upload.places]) == (Job.UPLOAD, [key(1)])
    assert (together.job, {place.key for place in together.places}) == (Job.UPLOAD_SET, {key(0), key(2), key(3)})


def test_one_with_ordered_producers_goes_alone_for_its_root_remembers_them(bench):
    bench.claim_all(range(2))
    for number in range(2):
        bench.schedule.places[key(number)].has_producers = number == 1
        bench.wrote(2, 100, number)
    bench.now_s += 60
    alone, together = bench.tasks()
    assert (alone.job, [place.key for place in alone.places]) == (Job.UPLOAD, [key(1)])
    assert (together.job, [place.key for place in together.places]) == (Job.UPLOAD_SET, [key(0)])


def test_young_ones_go_with_one_that_is_due(bench):
    bench.claim_all(range(3))
    bench.wrote(2, 100, 0)
    bench.now_s += 59
    bench.wrote(2, 100, 1)
    bench.now_s += 1
    assert {place.key for place in bench.one(Job.UPLOAD_SET).places} == {key(0), key(1)}


def test_many_small_ones_are_due_by_their_size_together(bench):
    bench.claim_all(range(20))
    for number in range(7):
        bench.wrote(2, 8 * MIB, number)
    assert not bench.tasks()
    bench.wrote(2, 8 * MIB, 7)
    assert len(bench.one(Job.UPLOAD_SET).places) == 8


def test_a_shared_object_is_bounded_and_one_is_made_at_a_time(bench):
    bench.claim_all(range(20))
    for number in range(20):
        bench.wrote(2, 8 * MIB, number)
    first = bench.one(Job.UPLOAD_SET)
    assert len(first.places) == 8
    assert not bench.tasks()
    bench.uploaded(first)
    second = bench.one(Job.UPLOAD_SET)
    assert not {*first.places} & {*second.places}


def test_those_too_many_for_one_object_go_by_slot_and_all_have_their_turn():
    """So an object changes few pages of the set manifest; who comes later does not overtake."""
    bench = Bench(members_max=8)
    bench.claim_all(range(20))
    for number in range(20):
        bench.wrote(2, 100, number)
    gone = []
    for _ in range(3):
        task = bench.one(Job.UPLOAD_SET)
        gone.append([place.slot for place in task.places])
        bench.uploaded(task)
        bench.now_s += 60
    assert gone[0] == sorted(slot_of("00" * 16, number) for number in range(20))[:8]
    assert gone[0][-1] < gone[1][0]
    assert [len(slots) for slots in gone] == [8, 8, 4]
    assert len({slot for slots in gone for slot in slots}) == 20


def test_claims_for_a_round_are_waited_for_but_not_for_ever(bench):
    bench.claim_all([0])
    bench.wrote(2, 100, 0)
    bench.lead(1)
    bench.wrote(1, 100, 1)
    bench.now_s += 60
    claim = bench.one(Job.CLAIM)
    assert not bench.tasks()
    bench.now_s += 5
    alone = bench.one(Job.UPLOAD_SET)
    assert [place.key for place in alone.places] == [key(0)]
    bench.claimed(claim)
    assert not bench.tasks(), "one at a time"
    bench.uploaded(alone)
    assert [place.key for place in bench.one(Job.UPLOAD_SET).places] == [key(1)]


def test_jobs_are_bounded_and_everybody_gets_a_turn():
    bench = Bench(jobs_max=2, object_bytes=1024 * MIB * MIB)
    for number in range(6):
        bench.lead(number)
        bench.wrote(10, 64 * MIB, number)
    uploads = []
    for _ in range(40):
        tasks = bench.tasks()
        assert len(tasks) <= 2
        for task in tasks:
            if task.job is Job.CLAIM:
                bench.claimed(task)
            else:
                uploads.append(task.places[0].key.partition)
                bench.uploaded(task, **{f"p{uploads[-1]}": len(uploads)})
                bench.wrote(10_000, 64 * MIB, uploads[-1])
    counts = [uploads.count(number) for number in range(6)]
    assert max(counts) - min(counts) <= 3


def test_a_history_is_looked_at_before_anything_is_due(bench):
    bench.lead(has_history=True)
    bench.wrote(10, 1_000)
    look = bench.one(Job.LOOK)
    bench.schedule.looked(look, 3, 10, is_sealed=False, now_s=bench.now_s)
    assert (bench.place().phase, bench.place().start, bench.place().tiered_end) == (Phase.KNOWN, 3, 10)
    bench.now_s += 1_000
    assert not bench.tasks(), "all of it is there, so that nothing is claimed"


def test_a_deposed_leader_stops_at_once(bench):
    bench.lead()
    bench.wrote(10, 64 * MIB)
    claim = bench.one(Job.CLAIM)
    bench.schedule.lost(key(0))
    bench.claimed(claim)
    bench.wrote(20, 64 * MIB)
    assert not bench.tasks()
    bench.lead(epoch=2)
    bench.wrote(20, 64 * MIB)
    assert bench.one(Job.CLAIM).places[0].epoch == 2


def test_a_new_epoch_claims_anew(bench):
    bench.claim_all([0])
    bench.lead(0, 1)
    assert bench.place().phase is Phase.CLAIMED
    bench.lead(0, 2)
    bench.wrote(9, 64 * MIB)
    bench.one(Job.CLAIM)


def test_when_the_store_is_away_one_tries_it_and_everything_else_waits(bench):
    bench.claim_all([0, 1])
    bench.wrote(9, 64 * MIB, 0)
    bench.wrote(9, 64 * MIB, 1)
    first, second = bench.tasks()
    assert bench.fail(first, "unavailable"), "it is told once"
    assert not bench.fail(second, "unavailable")
    assert bench.schedule.health.state is StoreState.AWAY
    assert not bench.tasks()
    waited_s = []
    for _ in range(8):
        before_s = bench.now_s
        while not (tasks := bench.tasks()):
            bench.now_s += 0.5
        waited_s.append(bench.now_s - before_s)
        assert [task.job for task in tasks] == [Job.PROBE]
        assert not bench.fail(tasks[0], "unavailable")
    assert waited_s == sorted(waited_s)
    assert (waited_s[0], waited_s[-1]) == (1.0, 60.0)
    bench.now_s += 60
    assert bench.one(Job.PROBE)
    assert bench.schedule.proven(bench.now_s)
    claims = bench.tasks()
    assert [task.job for task in claims] == [Job.CLAIM, Job.CLAIM], "what was on its way may be there"
    for task in claims:
        bench.claimed(task, end=1)
    assert [task.job for task in bench.tasks()] == [Job.UPLOAD, Job.UPLOAD]


@pytest.mark.parametrize(("code", "state"), [("full", StoreState.FULL), ("denied", StoreState.REFUSED)])
def test_a_store_that_refuses(bench, code, state):
    bench.claim_all([0])
    bench.wrote(9, 64 * MIB)
    bench.fail(bench.one(Job.UPLOAD), code)
    assert bench.schedule.health.state is state
    assert bench.schedule.health.message == f"it is {code}"


@pytest.mark.parametrize("code", ["lineage", "sealed"])
def test_a_partition_that_can_not_go_on_stops_for_this_leadership_and_no_other_does(bench, code):
    bench.lead(0)
    bench.lead(1)
    bench.wrote(9, 64 * MIB, 0)
    bench.wrote(9, 64 * MIB, 1)
    first, second = bench.tasks()
    assert bench.fail(first, code)
    bench.claimed(second)
    assert bench.place(0).trouble.stops
    bench.wrote(10, 64 * MIB, 0)
    bench.now_s += 10_000
    assert [task.places[0].key for task in bench.tasks()] == [key(1)]
    bench.lead(0, epoch=2)
    assert bench.place(0).trouble is None


def test_one_that_fails_rests_longer_each_time_and_is_told_once():
    bench = Bench(gc_interval_s=86_400)
    bench.claim_all([0])
    bench.wrote(9, 64 * MIB)
    told, waited_s = [], []
    for _ in range(11):
        before_s = bench.now_s
        while not (tasks := bench.tasks()):
            bench.now_s += 0.5
        waited_s.append(bench.now_s - before_s)
        told.append(bench.fail(tasks[0], "corrupt"))
    assert told == [True] + [False] * 10
    assert waited_s == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    bench.now_s += 300
    bench.uploaded(bench.one(Job.UPLOAD))
    assert bench.place().trouble is None


def test_a_file_that_is_gone_is_no_trouble_at_once(bench):
    bench.claim_all([0])
    bench.wrote(9, 64 * MIB)
    for count in range(4):
        bench.now_s += 10
        assert bench.fail(bench.one(Job.UPLOAD), "gone") is (count == 3)


def test_who_was_overtaken_claims_anew(bench):
    bench.claim_all([0])
    bench.wrote(9, 64 * MIB)
    bench.fail(bench.one(Job.UPLOAD), "overtaken")
    bench.now_s += 1
    bench.one(Job.CLAIM)


@pytest.mark.parametrize("code", ["unavailable", "internal"])
def test_an_upload_whose_answer_is_lost_may_have_counted_and_is_looked_for_first(bench, code):
    bench.claim_all([0])
    bench.wrote(9, 64 * MIB)
    bench.fail(bench.one(Job.UPLOAD), code)
    bench.now_s += 60
    if code == "unavailable":
        assert bench.one(Job.PROBE)
        bench.schedule.proven(bench.now_s)
    bench.claimed(bench.one(Job.CLAIM), end=9)
    assert bench.place().tiered_end == 9, "else the next one would be refused, since it does not follow on that"
    assert bench.tasks() == []


def test_members_of_a_shared_object_that_failed_go_alone_until_one_went_well(bench):
    bench.claim_all(range(2))
    bench.wrote(2, 100, 0)
    bench.wrote(2, 100, 1)
    bench.now_s += 60
    assert not bench.fail(bench.one(Job.UPLOAD_SET), "lineage"), "whose fault it is each will say by itself"
    bench.now_s += 1
    first, second = bench.tasks()
    assert {first.job, second.job} == {Job.UPLOAD}
    assert bench.fail(first, "lineage")
    bench.uploaded(second)
    number = second.places[0].key.partition
    bench.wrote(3, 100, number)
    bench.now_s += 60
    bench.one(Job.UPLOAD_SET)


def test_what_was_shared_is_merged_when_it_is_enough(bench):
    bench.claim_all([0])
    for end in (2, 3):
        assert not bench.tasks()
        bench.wrote(end, 8 * MIB)
        bench.now_s += 60
        bench.uploaded(bench.one(Job.UPLOAD_SET))
    merge = bench.one(Job.MERGE)
    bench.schedule.kept_up(merge, None, bench.now_s)
    assert bench.place().set_bytes == 0
    assert not bench.tasks()


def test_a_merge_that_is_not_through_goes_on_when_what_waits_is_uploaded(bench):
    bench.claim_all([0])
    bench.place().object_bytes = 255 * MIB
    bench.wrote(2, 64 * MIB)
    bench.uploaded(bench.one(Job.UPLOAD))
    merge = bench.one(Job.MERGE)
    bench.wrote(3, 64 * MIB)
    assert not bench.tasks()
    bench.schedule.kept_up(merge, None, bench.now_s)
    bench.schedule.merges(bench.place().key)
    bench.uploaded(bench.one(Job.UPLOAD))
    bench.schedule.kept_up(bench.one(Job.MERGE), None, bench.now_s)
    assert not bench.tasks()


@pytest.mark.parametrize("then", ["nothing waits", "little waits", "an object waits"])
def test_a_partition_that_is_behind_is_not_merged_yet_but_compacted(bench, then):
    bench.claim_all([0])
    for end, size in ((10, 1_024 * MIB), (20, 128 * MIB)):
        bench.wrote(end, size)
        upload = bench.one(Job.UPLOAD)
        bench.schedule.merges(bench.place().key)
        bench.schedule.compacts(bench.place().key)
        bench.wrote(end + 1, size)  # while it is uploaded
        bench.uploaded(upload, p0=end)
        bench.wrote(end + 1, MIB // 2)
        bench.schedule.kept_up(bench.one(Job.COMPACT), None, bench.now_s)
        assert not bench.tasks()
    if then == "nothing waits":
        bench.wrote(20, 0)
    elif then == "little waits":
        bench.now_s += 60
        last = bench.one(Job.UPLOAD_SET)
        bench.wrote(22, MIB // 2)
        bench.uploaded(last, p0=21)
        bench.wrote(22, MIB // 2)
    else:
        bench.wrote(22, 64 * MIB)
        bench.uploaded(bench.one(Job.UPLOAD), p0=22)
    bench.one(Job.MERGE)


def test_nothing_more_is_merged_of_a_partition_that_is_lost(bench):
    bench.claim_all([0])
    place = bench.place()
    bench.schedule.merges(place.key)
    bench.schedule.lost(place.key)
    bench.schedule.merges(place.key)
    assert not bench.tasks()


def shares(bench, size):
    """Have so many bytes more in a shared object, and say what is wanted then besides."""
    bench.wrote(bench.place().end + 1, size)
    bench.now_s += 60
    bench.uploaded(next(task for task in bench.tasks() if task.job is Job.UPLOAD_SET))
    return {task.job for task in bench.tasks() if task.job is not Job.COLLECT_SETS}


def test_what_is_shared_for_long_is_merged_when_it_is_less(bench):
    bench.claim_all([0])
    half_a_week_s = 7 * 86_400 * (0.5 + bench.place().slot / 2**33)
    assert shares(bench, MIB // 2) == set()
    bench.now_s += half_a_week_s - 130
    assert shares(bench, MIB // 4) == set()
    bench.now_s += 130
    assert shares(bench, MIB // 8) == set(), "too little for an object of its own"
    assert shares(bench, MIB // 8) == {Job.MERGE}


def test_what_is_shared_is_merged_earlier_when_the_manifest_is_more_than_half_full(bench):
    bench.claim_all([0])
    bench.schedule.manifest_has(MANIFEST_BYTES_MAX // 2)
    assert shares(bench, 3 * MIB) == set()
    bench.schedule.manifest_has(MANIFEST_BYTES_MAX * 7 // 8)  # a quarter of 16 MiB is left for each
    assert shares(bench, MIB // 2) == set()
    assert shares(bench, MIB // 2) == {Job.MERGE}


def test_of_what_a_manifest_that_is_full_names_everything_is_merged(bench):
    bench.claim_all([0])
    bench.schedule.manifest_has(MANIFEST_BYTES_MAX + 1)
    assert shares(bench, 1) == {Job.MERGE}


def test_a_merge_that_fails_keeps_no_upload_waiting(bench):
    bench.claim_all([0])
    bench.place().object_bytes = 255 * MIB
    bench.wrote(2, 64 * MIB)
    bench.uploaded(bench.one(Job.UPLOAD))
    assert bench.fail(bench.one(Job.MERGE), "corrupt")
    bench.wrote(3, 64 * MIB)
    bench.uploaded(bench.one(Job.UPLOAD))
    assert bench.place().trouble.code == "corrupt", "the upload says nothing of that"
    bench.now_s += 1
    bench.schedule.kept_up(bench.one(Job.MERGE), None, bench.now_s)
    assert bench.place().trouble is None


def test_a_start_is_moved_and_what_that_leaves_is_collected(bench):
    bench.claim_all([0])
    bench.schedule.wants_start(key(0), 1, bench.now_s)
    retain = bench.one(Job.RETAIN)
    bench.schedule.kept_up(retain, 1, bench.now_s)
    assert bench.place().start == 1
    assert bench.collected(20) == [(600, Job.COLLECT_SETS), (4_800, Job.COLLECT_SETS), (4_800, Job.COLLECT)]


def test_a_store_that_asks_for_fewer_requests_gets_fewer_and_is_not_away(bench):
    bench.claim_all(range(6))
    for number in range(6):
        bench.wrote(2, 64 * MIB, number)
    first = [task for task in bench.tasks() if task.job is Job.UPLOAD]
    assert len(first) == 3
    assert bench.fail(first[0], "busy"), "people are told once"
    assert bench.schedule.health.state is StoreState.BUSY
    assert not bench.fail(first[1], "busy")
    bench.uploaded(first[2], **{f"p{first[2].places[0].key.partition}": 2})
    refused = {first[0].places[0].until_s, first[1].places[0].until_s}
    assert len(refused) == 2, "they do not come back together"
    assert all(0.5 <= until_s - bench.now_s <= 1.5 for until_s in refused)
    assert first[0].places[0].phase is Phase.UNKNOWN, "of several objects some may count"
    (again,) = bench.tasks()
    assert again.places[0] not in (first[0].places[0], first[1].places[0]), "one at a time, and others go on"
    for _ in range(20):
        bench.schedule._pace.went_well()
    bench.schedule.uploaded(again, {again.places[0].key: 2}, bench.now_s)
    assert bench.schedule.health.state is StoreState.OK


def test_a_store_that_has_refused_nothing_for_a_minute_is_well_again(bench):
    """However little there is to do: people were told of a busy store for hours."""
    bench.claim_all(range(2))
    bench.wrote(2, 64 * MIB, 0)
    (task,) = [task for task in bench.tasks() if task.job is Job.UPLOAD]
    bench.fail(task, "busy")
    bench.now_s += 59
    bench.schedule.tasks(bench.now_s)
    assert bench.schedule.health.state is StoreState.BUSY
    bench.now_s += 2
    bench.schedule.tasks(bench.now_s)
    assert bench.schedule.health.state is StoreState.OK


def test_steps_of_retention_cost_few_listings_a_day(bench):
    bench.claim_all([0])
    listings = 0
    for start in range(1, 300):  # two days
        bench.schedule.wants_start(key(0), start, bench.now_s)
        bench.schedule.kept_up(bench.one(Job.RETAIN), start, bench.now_s)
        listings += [job for _, job in bench.collected(1)].count(Job.COLLECT)
    assert 0 < listings <= 4


def test_where_a_pin_holds_something_it_is_looked_at_again_when_that_may_have_ended(bench):
    bench.claim_all([0])
    bench.schedule.pinned(key(0), bench.now_s)
    assert (3_600, Job.COLLECT) in bench.collected(20)
    bench.schedule.wants_start(key(0), 5, bench.now_s)
    bench.schedule.kept_up(bench.one(Job.RETAIN), 5, bench.now_s)  # though a pin holds what is below
    bench.schedule.pinned(key(0), bench.now_s)
    assert (3_600, Job.RETAIN) in bench.collected(20)


def test_what_a_pin_holds_is_looked_at_in_time_however_often_retention_meets_it(bench):
    bench.claim_all([0])
    jobs = []
    for _ in range(10):
        bench.schedule.pinned(key(0), bench.now_s)
        jobs += bench.collected(1)
    assert Job.COLLECT in [job for _, job in jobs]


def test_shared_objects_that_hold_something_are_looked_at_once_in_a_grace_period(bench):
    bench.schedule.collects_sets_again(bench.now_s)
    assert bench.collected(20) == [(4_200, Job.COLLECT_SETS)]


def test_what_a_failed_upload_may_have_left_is_collected_after_the_grace_period(bench):
    bench.claim_all([0])
    assert bench.collected(20) == [(600, Job.COLLECT_SETS), (4_800, Job.COLLECT_SETS)]
    bench.wrote(2, 64 * MIB)
    bench.fail(bench.one(Job.UPLOAD), "unavailable")
    bench.now_s += 1
    assert bench.one(Job.PROBE)
    bench.schedule.proven(bench.now_s)
    bench.claimed(bench.one(Job.CLAIM), end=1)
    bench.uploaded(bench.one(Job.UPLOAD))
    assert Job.COLLECT in [job for _, job in bench.collected(20)]
    bench.wrote(3, 100)
    bench.now_s += 60
    bench.fail(bench.one(Job.UPLOAD_SET), "overtaken")
    bench.now_s += 600
    assert Job.COLLECT_SETS in [task.job for task in bench.tasks()]


def test_garbage_that_comes_while_some_is_waiting_is_collected_once_more(bench):
    bench.claim_all([0])
    for start in (1, 2, 3):
        bench.schedule.wants_start(key(0), start, bench.now_s)
        bench.schedule.kept_up(bench.one(Job.RETAIN), start, bench.now_s)
        bench.now_s += 100
    times = [at_s for at_s, job in bench.collected(40) if job is Job.COLLECT]
    assert len(times) == 2, times


def test_of_much_that_nobody_names_the_rest_is_collected_at_once(bench):
    bench.claim_all([0])
    bench.collected(20)
    bench.schedule.collects(key(0))
    bench.schedule.kept_up(bench.one(Job.COLLECT), None, bench.now_s)
    bench.schedule.collects_sets()
    assert [job for _, job in bench.collected(20)] == [Job.COLLECT_SETS, Job.COLLECT_SETS]


def test_a_start_that_is_to_move_is_claimed_first(bench):
    bench.lead(has_history=True)
    bench.schedule.wants_start(key(0), 5, bench.now_s)
    bench.schedule.looked(bench.one(Job.LOOK), 0, 10, is_sealed=False, now_s=bench.now_s)
    bench.claimed(bench.one(Job.CLAIM), 10)
    assert bench.one(Job.RETAIN).places[0].wanted_start == 5


def test_compaction_is_done_where_it_was_claimed(bench):
    bench.lead(1)
    bench.schedule.compacts(key(1))
    bench.claim_all([0])
    bench.schedule.compacts(key(0))
    assert [place.key for place in bench.one(Job.COMPACT).places] == [key(0)]


def test_slowness_is_told_and_its_end(bench):
    health = bench.schedule.health
    assert not health.waits(10, 30, bench.now_s)
    assert health.waits(31, 30, bench.now_s)
    assert health.state is StoreState.SLOW
    assert not health.waits(40, 30, bench.now_s + 10)
    assert health.waits(700, 30, bench.now_s + 601), "now and then"
    assert health.waits(1, 30, bench.now_s + 602)
    assert health.state is StoreState.OK


def test_a_quiet_partition_costs_little_and_no_job(bench):
    for number in range(10_000):
        bench.lead(number)
    place = bench.place(5)
    own = sum(sys.getsizeof(getattr(place, name)) for name in ("bytes", "end", "tiered_end", "until_s"))
    assert sys.getsizeof(place) + own < 1_024
    bench.now_s += 100_000
    assert not bench.tasks()


def claimed_with(found: Found) -> Bench:
    bench = Bench()
    bench.lead()
    bench.wrote(1, 64 * MIB)
    bench.schedule.looked(bench.one(Job.CLAIM), 0, 1, is_sealed=False, now_s=bench.now_s, found=found)
    return bench


@pytest.mark.parametrize("found", [Found(set_bytes=16 * MIB), Found(merges=True)])
def test_what_the_leaders_before_have_not_merged_is_merged(found):
    bench = claimed_with(found)
    assert bench.one(Job.MERGE).places == (bench.place(),)


def test_garbage_of_the_leaders_before_is_looked_for_once_when_the_grace_period_is_over():
    bench = claimed_with(Found(set_bytes=1, new_bytes=2, may_have_garbage=True))
    assert bench.place().new_bytes == 2
    assert not bench.tasks()
    assert [job for _, job in bench.collected(20)] == [Job.COLLECT_SETS, Job.COLLECT_SETS, Job.COLLECT]
    bench.now_s += 100_000
    assert not bench.tasks()


@pytest.mark.parametrize("is_there", [True, False])
def test_it_is_looked_for_also_where_nothing_comes_in_any_more(is_there):
    bench = Bench()
    bench.lead(has_history=True)
    found = Found(may_have_garbage=is_there)
    bench.schedule.looked(bench.one(Job.LOOK), 0, 10, is_sealed=False, now_s=bench.now_s, found=found)
    assert [job for _, job in bench.collected(20)] == [Job.COLLECT] * is_there
    bench.schedule.collects(key(0))
    bench.schedule.kept_up(bench.one(Job.COLLECT), None, bench.now_s)
    assert not bench.tasks()


def test_what_another_node_holds_is_moved_in_after_a_claim():
    bench = Bench()
    bench.lead(has_history=True)
    bench.schedule.looked(bench.one(Job.LOOK), 0, 10, is_sealed=False, now_s=bench.now_s)
    bench.now_s += 100_000
    assert not bench.tasks()
    bench.schedule.moves_in(key(0), bench.now_s)
    bench.claimed(bench.one(Job.CLAIM), 10)
    bench.schedule.kept_up(bench.one(Job.MERGE), None, bench.now_s)
    assert not bench.tasks()


def test_a_stream_that_gets_its_name_is_claimed_within_seconds(bench):
    bench.lead()
    bench.wrote(1, 100)
    bench.now_s += 60
    for _ in range(20):
        bench.fail(bench.one(Job.CLAIM), "unnamed")
        assert not bench.tasks(), "the catalog is not looked at all the time"
        bench.now_s += 5
    assert bench.place().trouble.code == "unnamed"
    bench.claimed(bench.one(Job.CLAIM))
    assert bench.place().trouble is None
