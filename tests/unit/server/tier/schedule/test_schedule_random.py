"""The schedule under whatever happens: writes, failures, leaderships and a store that comes and goes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from liftpy_envelope.pull import PartitionKey
from liftpy_server.tier.schedule.places import Job, Limits, Phase, Task
from liftpy_server.tier.schedule.schedule import Schedule
from support.examples import examples

LIMITS = Limits(
    upload_bytes=1_000,
    upload_age_s=10.0,
    set_member_bytes_max=100,
    merge_bytes=500,
    object_bytes=5_000,
    gc_interval_s=100.0,
    grace_s=200.0,
    jobs_max=2,
    upkeep_max=1,
    members_max=3,
)
UPLOADS = {Job.UPLOAD, Job.UPLOAD_SET}
_IDLE = {Job.COLLECT, Job.COLLECT_SETS}
NUMBERS = st.integers(0, 5)


class ScheduleMachine(RuleBasedStateMachine):
    """A world in which every record has ten bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.schedule = Schedule(LIMITS, self.now_s)
        self.running: list[Task] = []
        self.ends: dict[PartitionKey, int] = {}
        self.bucket: dict[PartitionKey, int] = {}
        self.claims: dict[PartitionKey, int] = {}
        self.epochs: dict[PartitionKey, int] = {}

    def key(self, number: int) -> PartitionKey:
        return PartitionKey(bytes(16), number)

    def measure(self, key: PartitionKey) -> None:
        place = self.schedule.places.get(key)
        if place is not None:
            end = self.ends.get(key, 0)
            self.schedule.wrote(key, end, 10 * max(0, end - place.tiered_end), self.now_s)

    @rule(number=NUMBERS)
    def lead(self, number):
        key = self.key(number)
        self.epochs[key] = self.epochs.get(key, 0) + 1
        self.schedule.led(key, self.epochs[key], has_history=self.ends.get(key, 0) > 0)
        self.measure(key)

    @rule(number=NUMBERS)
    def lose(self, number):
        self.schedule.lost(self.key(number))

    @rule(number=NUMBERS, count=st.sampled_from([1, 2, 9, 30, 200]))
    def write(self, number, count):
        key = self.key(number)
        if key in self.schedule.places:
            self.ends[key] = self.ends.get(key, 0) + count
            self.measure(key)

    @rule(number=NUMBERS, start=st.integers(1, 50))
    def want_start(self, number, start):
        self.schedule.wants_start(self.key(number), start, self.now_s)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 10.0, 60.0, 300.0]))
    def wait(self, seconds):
        self.now_s += seconds

    @rule()
    def start(self):
        self.running += self.begun()

    def begun(self) -> list[Task]:
        tasks = self.schedule.tasks(self.now_s)
        busy = {place.key for task in self.running for place in task.places if self.is_current(place)}
        for task in tasks:
            for place in task.places:
                assert self.is_current(place), "only what is led gets a job"
                assert place.key not in busy, "one job of a partition at a time"
                busy.add(place.key)
                assert task.job not in UPLOADS or place.phase is Phase.CLAIMED
                assert place.phase is not Phase.STOPPED
            assert len(task.places) <= (3 if task.job is Job.UPLOAD_SET else 1)
        return tasks

    def is_current(self, place) -> bool:
        return self.schedule.places.get(place.key) is place

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        self.end(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    def end(self, task: Task) -> None:
        """What a well-behaved bucket does: it ends an upload that is not of the claim in force."""
        if task.job is Job.PROBE:
            self.schedule.proven(self.now_s)
        elif task.job in {Job.LOOK, Job.CLAIM}:
            (place,) = task.places
            if task.job is Job.CLAIM:
                if place.epoch < self.claims.get(place.key, 0):
                    self.schedule.failed(task, "lineage", "claimed by another", self.now_s)
                    return
                self.claims[place.key] = place.epoch
            end = self.bucket.get(place.key, 0)
            self.schedule.looked(task, 0, end, is_sealed=False, now_s=self.now_s)
        elif task.job in UPLOADS:
            self.upload(task)
        else:
            start = task.places[0].wanted_start if task.job is Job.RETAIN else None
            self.schedule.kept_up(task, start, self.now_s)
        for place in task.places:
            self.measure(place.key)

    def upload(self, task: Task) -> None:
        told = {}
        for place in task.places:
            if self.claims.get(place.key) == place.epoch:
                assert place.tiered_end == self.bucket.get(place.key, 0), "it goes on where the bucket ends"
                self.bucket[place.key] = told[place.key] = min(place.end, place.tiered_end + 100)
            elif task.job is Job.UPLOAD:
                self.schedule.failed(task, "lineage", "claimed by another", self.now_s)
                return
        self.schedule.uploaded(task, told, self.now_s)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        code=st.sampled_from(["unavailable", "full", "denied", "overtaken", "gone", "corrupt", "internal", "version"]),
    )
    def fail(self, data, code):
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.schedule.failed(task, code, code, self.now_s)

    @invariant()
    def jobs_are_bounded(self):
        uploads = [task for task in self.running if task.job in {*UPLOADS, Job.CLAIM}]
        assert len(uploads) <= LIMITS.jobs_max
        assert sum(task.job is Job.UPLOAD_SET for task in self.running) <= 1
        assert len(self.running) - len(uploads) <= LIMITS.upkeep_max + 1  # and the one that tries the store

    def teardown(self):
        """When all is well again everything is uploaded, and then nothing is done any more."""
        quiet_s = 0.0
        while quiet_s < 400.0:  # longer than anything rests
            self.running += self.begun()
            quiet_s = quiet_s + 7.0 if all(task.job in _IDLE for task in self.running) else 0.0
            self.now_s += 7.0
            while self.running:
                self.end(self.running.pop())
        for key, place in self.schedule.places.items():
            assert place.tiered_end == self.bucket.get(key, 0) == self.ends.get(key, 0) or place.phase is Phase.STOPPED
            assert place.phase is Phase.STOPPED or place.start >= place.wanted_start
        self.now_s += 1.0
        assert all(task.job in _IDLE for task in self.begun())


ScheduleMachine.TestCase.settings = examples(40, stateful_step_count=30)
TestSchedule = ScheduleMachine.TestCase
