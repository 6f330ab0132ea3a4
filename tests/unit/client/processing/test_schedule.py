"""What may be handled now, and what may be committed, against a model that looks at everything each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftpy_client.processing.schedule import Schedule, State
from liftpy_envelope.pull import PartitionKey
from support.examples import examples

UUID = bytes(range(16))
SIZE = 10


def key(number):
    return PartitionKey(UUID, number)


class Model:
    """A schedule, and all that was ever given to it."""

    def __init__(self, concurrency=3, works_max=20, bytes_max=1_000):
        self.concurrency = concurrency
        self.schedule = Schedule(concurrency, works_max, bytes_max)
        self.next: dict = {}
        self.known: dict = {}  # by partition, all work since it was added last
        self.running: list = []
        self.postponed: list = []
        self.is_cut: dict = {}
        self.order: dict = {}  # by lane, what runs

    def add(self, number, lane, holes):
        if not self.schedule.has_room or self.schedule.is_held(key(number)):
            return
        offset = self.next.get(number, 0) + holes
        self.next[number] = offset + 1
        work = self.schedule.add(key(number), None if lane is None else (number, lane), offset, 1, SIZE, f"m{offset}")
        self.known.setdefault(number, []).append(work)

    def start(self):
        work = self.schedule.start()
        may = [work for works in self.known.values() for work in works if self.may_start(work)]
        if work is None:
            assert not may or len(self.schedule.running) == self.concurrency
            return
        assert work.state is State.RUNNING
        if work.lane is not None:
            assert work.lane not in self.order, "one of a lane at a time"
            self.order[work.lane] = work
            earlier = [other for other in self.known[work.key.partition] if other.lane == work.lane]
            assert all(other.state is State.FINISHED for other in earlier[: earlier.index(work)]), "in order"
        self.running.append(work)
        assert len(self.schedule.running) <= self.concurrency

    def may_start(self, work):
        return work.state is State.READY and work.is_wanted

    def end(self, index, outcome):
        if not self.running:
            return
        work = self.running.pop(index % len(self.running))
        self.order.pop(work.lane, None)
        if outcome == "finish":
            self.schedule.finish(work)
        elif self.schedule.postpone(work):
            self.postponed.append(work)
            if work.lane is not None:
                self.order[work.lane] = work

    def resume(self, index):
        if self.postponed:
            work = self.postponed.pop(index % len(self.postponed))
            if self.order.get(work.lane) is work:
                del self.order[work.lane]
            self.schedule.resume(work)

    def hold(self, number):
        self.schedule.hold([key(number)])
        works = self.known.get(number, [])
        started = [index for index, work in enumerate(works) if work.attempts]
        if started and not self.is_cut.get(number):
            assert all(work.state is not State.DROPPED for work in works[: started[-1]]), "no hole"

    def cut(self, number):
        self.is_cut[number] = True
        self.schedule.cut([key(number)])
        self.forget_postponed()
        running = [work for work in self.running if work in self.known.get(number, [])]
        assert self.schedule.is_busy([key(number)]) == bool(running)

    def drop(self, number):
        low = self.schedule.low(key(number))
        running = self.schedule.drop(key(number))
        assert set(running) == {work for work in self.running if work in self.known.get(number, [])}
        assert self.schedule.low(key(number)) is None
        self.known.pop(number, None)
        self.is_cut.pop(number, None)
        if low is not None:
            self.next[number] = low[0]  # the next owner, perhaps this one, begins there
        self.forget_postponed()

    def forget_postponed(self):
        gone = [work for work in self.postponed if work.state is State.DROPPED]
        for work in gone:
            self.postponed.remove(work)
            if self.order.get(work.lane) is work:
                del self.order[work.lane]

    def check(self):
        for number, works in self.known.items():
            unfinished = [work.offset for work in works if work.state is not State.FINISHED]
            low = self.schedule.low(key(number))
            assert (None if low is None else low[0]) == (min(unfinished) if unfinished else None)
            if low is not None and low[1] != -1:
                assert any(work.end == low[0] and work.state is State.FINISHED for work in works)
        alive = [work for works in self.known.values() for work in works]
        gone = [work for work in self.running if not work.is_wanted]
        content = [w for w in [*alive, *gone] if w.state not in {State.FINISHED, State.DROPPED}]
        assert self.schedule._bytes == SIZE * len(content)


NUMBERS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("add"), NUMBERS, st.sampled_from([None, "a", "b"]), st.sampled_from([0, 0, 0, 2])),
    st.tuples(st.just("start")),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(["finish", "finish", "fail"])),
    st.tuples(st.just("resume"), st.integers(0, 5)),
    st.tuples(st.just("hold"), NUMBERS),
    st.tuples(st.just("cut"), NUMBERS),
    st.tuples(st.just("drop"), NUMBERS),
)


@examples(400)
@given(st.lists(STEPS, max_size=120))
def test_order_and_low_watermarks(steps):
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.check()
    for number in range(3):
        if model.schedule.is_held(key(number)):
            model.drop(number)
    for _ in range(len(steps) * 3):
        model.start()
        model.end(0, "finish")
        model.resume(0)
        model.check()
    for number in range(3):
        assert model.schedule.low(key(number)) is None, "everything was handled"
    assert model.schedule._bytes == model.schedule._count == 0
    assert not model.schedule._lanes, "no lane is left behind"


def test_a_partition_is_committed_up_to_its_hole():
    schedule = Schedule(10, 100, 1_000)
    for offset in range(5):
        schedule.add(key(0), None, offset, 7, SIZE, "x")
    works = [schedule.start() for _ in range(5)]
    for number in (0, 2, 3):
        schedule.finish(works[number])
    assert schedule.low(key(0)) == (1, 7)
    schedule.finish(works[1])
    assert schedule.low(key(0)) == (4, 7)
    schedule.finish(works[4])
    assert schedule.low(key(0)) is None


def test_the_epoch_before_an_offset_is_not_known_behind_a_hole():
    schedule = Schedule(10, 100, 1_000)
    for offset in (0, 5):  # what lies between was filtered out, and may be of a later epoch
        schedule.add(key(0), None, offset, 7, SIZE, "x")
    schedule.finish(schedule.start())
    assert schedule.low(key(0)) == (5, -1)


def test_there_is_room_again_when_the_hole_is_closed():
    schedule = Schedule(10, 3, 1_000)
    for offset in range(3):
        schedule.add(key(0), None, offset, 1, SIZE, "x")
    works = [schedule.start() for _ in range(3)]
    schedule.finish(works[1])
    schedule.finish(works[2])
    assert not schedule.has_room
    schedule.finish(works[0])
    assert schedule.has_room


def test_bytes_are_bounded_too():
    schedule = Schedule(10, 100, 25)
    for offset in range(3):
        assert schedule.has_room
        schedule.add(key(0), None, offset, 1, SIZE, "x")
    assert not schedule.has_room
    schedule.finish(schedule.start())
    assert schedule.has_room


def test_a_partition_has_a_share_of_the_room():
    schedule = Schedule(1, 10, 1_000)
    schedule.add(key(1), None, 0, 1, SIZE, "x")
    for offset in range(5):
        assert schedule.has_share(key(0))
        schedule.add(key(0), None, offset, 1, SIZE, "x")
    assert not schedule.has_share(key(0))
    assert schedule.has_share(key(1))


def test_a_lane_waits_for_what_runs_of_a_partition_that_came_back():
    schedule = Schedule(10, 100, 1_000)
    schedule.add(key(0), "lane", 0, 1, SIZE, "x")
    before = schedule.start()
    assert schedule.drop(key(0)) == [before]
    schedule.add(key(0), "lane", 0, 1, SIZE, "x")
    assert schedule.start() is None
    schedule.finish(before)
    assert schedule.low(key(0)) == (0, -1), "the outcome counts for its own generation only"
    assert schedule.start() is not None


def test_a_batch_that_grows_is_on_record_from_its_first_row():
    schedule = Schedule(10, 100, 1_000)
    work = schedule.open(key(0), key(0), 3, 5, 1, SIZE, "x")
    assert schedule.low(key(0)) == (3, -1)
    assert schedule.start() is None
    schedule.grow(work, 9, 1, SIZE)
    schedule.seal(work)
    schedule.finish(schedule.start())
    schedule.add(key(0), None, 9, 1, SIZE, "x")
    assert schedule.low(key(0)) == (9, 1)


def test_what_is_added_after_the_stop_stays_unfinished():
    schedule = Schedule(10, 100, 1_000)
    schedule.stop()
    schedule.add(key(0), None, 4, 1, SIZE, "x")
    assert schedule.start() is None
    assert schedule.low(key(0)) == (4, -1)
