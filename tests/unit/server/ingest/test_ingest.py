"""Chunks become batches; passes that cost too much wait for more, and nothing is lost or reordered meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.ingest.ingest import Ingest
from liftpy_server.ingest.marks import Marks
from liftpy_server.partition.outbox import Outbox
from liftpy_server.settings.limits import (
    INGEST_LINGER_BYTES_MAX,
    INGEST_LINGER_S_MAX,
    LINGER_RUNS_MIN,
    RUN_MESSAGES_PER_PARTITION_MIN,
)
from support.examples import examples
from support.nats_frames import cut, encode_all, header_block, msg
from support.server_kit import SetClock

MARK = msg(b"LIFT.NODE.MARK", b"m token", sid=99)


class Bench:
    """An ingest whose bindings only note what comes, each delivery taking `cost_s` of the clock."""

    def __init__(self, sids=range(1, 100), cost_s=0.001):
        self.clock = SetClock()
        self.cost_s = cost_s
        self.heard = {sid: [] for sid in sids}
        self.passes = []
        self.timers = []
        self.control = b""
        self.broken = []
        self.missed = []
        self.settled = 0
        self.ingest = Ingest(self.clock, Outbox(lambda _: True), self._hand_back, self._call_later, self._broke)
        self.ingest.bindings.update({sid: self._binding(sid) for sid in sids})

    def _binding(self, sid):
        stream = SimpleNamespace(name=f"stream-{sid}")
        missed = lambda cause: self.missed.append((sid, cause))
        return SimpleNamespace(stream=stream, deliver=self._deliver(sid), missed=missed)

    def _broke(self, cause):
        self.broken.append(cause)

    def _deliver(self, sid):
        def deliver(run, now_ns, touched):
            self.clock.advance(self.cost_s)
            self.heard[sid] += [message.value for message in run.messages()]
            self.passes.append((now_ns, sid, run.count))
            touched[self] = None

        return deliver

    def end_pass(self):
        self.settled += 1

    def _hand_back(self, data):
        self.control += data

    def _call_later(self, delay_s, action):
        self.timers.append((delay_s, action))

    def expect_marks(self):
        """From now on chunks are cut in front of `MARK`."""
        marks = self.ingest.marks = self.ingest.bindings[99] = Marks()
        marks.expect("m", lambda _token: None)

    def fire(self):
        """Let the oldest timer's time come."""
        delay_s, action = self.timers.pop(0)
        self.clock.advance(delay_s)
        action()

    def count(self):
        return sum(map(len, self.heard.values()))


def wide(value=b"v", subscriptions=20):
    """A chunk with a message for each of many subscriptions."""
    return encode_all(msg(b"s", value, sid) for sid in range(1, subscriptions + 1))


def test_chunk_is_passed_on_at_once():
    bench = Bench()
    bench.ingest.receive(wide())
    assert (bench.heard[7], bench.count(), bench.timers) == ([b"v"], 20, [])


def test_every_partition_is_settled_once_a_pass():
    bench = Bench()
    bench.ingest.receive(wide())
    assert bench.settled == 1


def test_messages_of_one_pass_have_one_time():
    bench = Bench()
    bench.ingest.receive(wide())
    assert len({now_ns for now_ns, _, _ in bench.passes}) == 1


def test_pass_over_many_subscriptions_delays_the_next():
    bench = Bench()
    bench.ingest.receive(wide(b"1"))
    bench.ingest.receive(wide(b"2"))
    assert (bench.heard[1], len(bench.timers)) == ([b"1"], 1)
    assert pytest.approx(20 * 0.001) == bench.timers[0][0]
    bench.ingest.receive(wide(b"3"))
    assert len(bench.timers) == 1, "one timer for all that lingers"
    bench.fire()
    assert bench.heard[1] == [b"1", b"2", b"3"]


def test_chunks_that_lingered_are_one_pass():
    bench = Bench()
    for value in (b"1", b"2", b"3"):
        bench.ingest.receive(wide(value))
    bench.fire()
    assert bench.settled == 2
    assert [count for _, _, count in bench.passes[20:]] == [2] * 20


def test_chunk_that_comes_after_the_delay_does_not_wait():
    bench = Bench()
    bench.ingest.receive(wide(b"1"))
    bench.clock.advance(0.021)
    bench.ingest.receive(wide(b"2"))
    assert (bench.heard[1], bench.timers) == ([b"1", b"2"], [])


def test_chunk_after_the_delay_stays_behind_those_that_linger():
    bench = Bench()
    bench.ingest.receive(wide(b"1"))
    bench.ingest.receive(wide(b"2"))
    bench.clock.advance(10)
    bench.ingest.receive(wide(b"3"))
    bench.fire()
    assert bench.heard[1] == [b"1", b"2", b"3"]


def test_delay_is_bounded():
    bench = Bench(cost_s=1.0)
    bench.ingest.receive(wide())
    bench.ingest.receive(wide())
    assert pytest.approx(INGEST_LINGER_S_MAX) == bench.timers[0][0]


@pytest.mark.parametrize(("subscriptions", "delayed"), [(1, 0), (LINGER_RUNS_MIN - 1, 0), (LINGER_RUNS_MIN, 1)])
def test_pass_over_few_subscriptions_delays_nothing(subscriptions, delayed):
    bench = Bench()
    bench.ingest.receive(wide(subscriptions=subscriptions))
    bench.ingest.receive(wide(subscriptions=subscriptions))
    assert delayed == len(bench.timers)


def test_pass_with_many_messages_for_each_delays_nothing():
    bench = Bench()
    for _ in range(3):
        bench.ingest.receive(wide() * RUN_MESSAGES_PER_PARTITION_MIN)
    assert (bench.timers, bench.count()) == ([], 3 * 20 * RUN_MESSAGES_PER_PARTITION_MIN)


def test_pass_over_one_subscription_never_delays():
    """Not even when headers and control lines cut it into many runs."""
    bench = Bench()
    piece = [msg(b"sub", b"v")] * 66 + [msg(b"sub", b"v", headers=header_block(A="b"))]
    chunk = encode_all([*piece * 5, msg(b"sub", b"v"), msg(b"sub", bytes(5_000), headers=header_block(A="b"))])
    bench.ingest.receive(chunk)
    bench.ingest.receive(chunk)
    assert (bench.count(), bench.timers) == (2 * 337, [])


def test_too_many_bytes_do_not_linger():
    bench = Bench()
    bench.ingest.receive(wide(b"1"))
    chunk = encode_all([msg(b"s", bytes(INGEST_LINGER_BYTES_MAX // 4), 1)])
    for _ in range(3):
        bench.ingest.receive(chunk)
    assert bench.count() == 20
    bench.ingest.receive(chunk)
    assert bench.count() == 24
    bench.fire()
    assert bench.count() == 24


def test_timer_that_comes_too_late_is_harmless():
    bench = Bench()
    bench.ingest.receive(wide())
    bench.ingest.receive(wide())
    bench.ingest.run()
    bench.fire()
    assert bench.count() == 40


def test_reset_passes_on_what_lingers_and_forgets_half_a_message():
    bench = Bench()
    bench.ingest.receive(wide(b"1"))
    bench.ingest.receive(wide(b"2") + b"MSG s 1 50\r\nhalf")
    bench.ingest.reset()
    assert bench.heard[1] == [b"1", b"2"]
    bench.clock.advance(1)
    bench.ingest.receive(wide(b"3"))
    assert bench.heard[1] == [b"1", b"2", b"3"]


def test_control_lines_are_handed_back_after_the_messages():
    bench = Bench()
    bench.ingest.receive(b"PING\r\n" + wide() + b"+OK\r\n")
    assert (bench.control, bench.count()) == (b"PING\r\n+OK\r\n", 20)


def test_messages_of_ended_subscriptions_are_counted():
    bench = Bench(sids=[1])
    bench.ingest.receive(wide(subscriptions=6) * 3)
    assert (bench.ingest.unbound, bench.count()) == (15, 3)


STREAM = [msg(b"s", b"%d" % number, number % 13 + 1) for number in range(120)]


@given(
    st.lists(st.integers(0, len(encode_all(STREAM))), max_size=12),
    st.lists(st.sampled_from(["fire", "wait", ""]), max_size=13),
)
@examples(150)
def test_nothing_is_lost_or_reordered_however_chunks_come(cuts, between):
    bench = Bench()
    for number, chunk in enumerate(cut(encode_all(STREAM), cuts)):
        bench.ingest.receive(chunk)
        action = between[number] if number < len(between) else ""
        if action == "fire" and bench.timers:
            bench.fire()
        elif action == "wait":
            bench.clock.advance(0.005)
    while bench.timers:
        bench.fire()
    expected = {sid: [frame.value for frame in STREAM if frame.sid == sid] for sid in bench.heard}
    assert expected == bench.heard


def test_acks_leave_with_the_pass(make_kit):
    kit = make_kit(sync="never")
    kit.receive(*(msg(b"orders.a", b"v", reply=b"r%d" % number) for number in range(3)))
    assert len(kit.frames) == 1
    assert kit.offsets() == [(b"r0", 0), (b"r1", 1), (b"r2", 2)]


class Unsettled:
    def end_pass(self):
        raise ZeroDivisionError("told to")


def fails(*_):
    raise ZeroDivisionError("told to")


def test_an_error_at_one_stream_costs_the_others_nothing_and_is_told(caplog):
    bench = Bench()
    """Whoever may have lost messages has a gap, and all that follows is taken."""
    deliver, bench.ingest.bindings[2].deliver = bench.ingest.bindings[2].deliver, fails
    bench.ingest.receive(encode_all([msg(b"a", b"%d" % sid, sid=sid) for sid in (1, 2, 3)]))
    assert (bench.heard[1], bench.heard[2], bench.heard[3]) == ([b"1"], [], [b"3"])
    assert bench.missed == [(2, "messages that were read could not be taken: ZeroDivisionError('told to')")]
    assert "stream stream-2: messages that were read could not be taken" in caplog.text
    assert bench.broken == []
    bench.ingest.bindings[2].deliver = deliver
    bench.ingest.receive(encode_all([msg(b"a", b"next", sid=2)]))
    assert bench.heard[2] == [b"next"]


def test_an_error_in_a_pass_that_was_put_off_is_told_too():
    bench = Bench()
    bench.ingest.receive(encode_all([msg(b"a", b"v", sid=sid) for sid in range(1, 50)]))
    bench.ingest.receive(encode_all([msg(b"a", b"w", sid=sid) for sid in range(1, 50)]))
    assert len(bench.timers) == 1
    bench.ingest.bindings[7].deliver = fails
    bench.fire()
    assert [sid for sid, _ in bench.missed] == [7]
    assert bench.heard[49] == [b"v", b"w"]


def test_what_can_not_be_parsed_ends_the_connection(monkeypatch):
    bench = Bench()
    """Nobody knows for whom it was; who owns the connection writes down a gap for everybody."""
    monkeypatch.setattr(bench.ingest._parser, "feed", fails)
    bench.ingest.receive(b"MSG a 1 1\r\nv\r\n")
    assert bench.broken == ["what the NATS server sent could not be taken: ZeroDivisionError('told to')"]
    assert bench.missed == []


def test_acks_that_can_not_be_written_cost_no_message_of_the_chunk(caplog):
    """Nor of the piece behind a mark."""
    bench = Bench()
    bench.expect_marks()
    bench.ingest._outbox = Outbox(fails)
    bench.ingest._outbox.add(b"ack")
    bench.ingest.receive(encode_all([msg(b"a", b"1", sid=1), MARK, msg(b"a", b"2", sid=1)]))
    assert (bench.heard[1], bench.broken) == ([b"1", b"2"], [])
    assert "acks can not be sent now" in caplog.text


@pytest.mark.parametrize("put_off", [False, True])
def test_an_error_at_lines_between_messages_ends_the_connection(monkeypatch, put_off):
    """What comes behind is not taken, and who owns the connection writes down a gap for everybody."""
    bench = Bench()
    bench.expect_marks()
    if put_off:
        bench.ingest.receive(wide())
    monkeypatch.setattr(bench.ingest, "_hand_back", fails)
    bench.ingest.receive(b"PONG\r\n" + encode_all([MARK, msg(b"a", b"2", sid=1)]))
    if put_off:
        bench.fire()
    assert bench.broken == ["what the NATS server sent could not be taken: ZeroDivisionError('told to')"]


def test_an_error_while_one_partition_settles_costs_the_others_nothing(caplog):
    bench = Bench()
    broken = Unsettled()
    bench.ingest.bindings[1].deliver = lambda run, now_ns, touched: touched.update({broken: None})
    bench.ingest.receive(encode_all([msg(b"a", b"v", sid=sid) for sid in (1, 2)]))
    assert bench.settled == 1
    assert "a partition can not commit now" in caplog.text
