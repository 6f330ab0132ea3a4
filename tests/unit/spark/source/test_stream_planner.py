"""Where a streaming query begins and where its batches end, against a cluster that is made up."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from liftpy_client.errors import AdminError, NodeUnavailableError
from liftpy_envelope.errors import ErrorCode
from liftpy_spark.errors import DataLossError, NatsError, NoSuchStreamError
from liftpy_spark.options.offsets import QueryCheckpoint
from liftpy_spark.options.source import SourceOptions
from liftpy_spark.options.values import OptionError
from liftpy_spark.source.stream_planner import StreamPlanner

A, B = "a" * 32, "b" * 32


class FakeLift:
    """Streams with the offsets of their partitions: {name: [uuid, {partition: (start, end)}]}.

    Attributes:
        epochs: by partition, where the leader epochs of its log end, oldest first; all are in epoch 1 otherwise.
        proofs: how often somebody asked where epochs end.
    """

    def __init__(self, **streams):
        self.there = streams
        self.asked = self.proofs = 0
        self.failures = []
        self.epochs = {}

    def stream_info(self, name):
        self.asked += 1
        if self.failures:
            raise self.failures.pop()
        if name not in self.there:
            raise AdminError(ErrorCode.UNKNOWN_STREAM, f"there is no stream {name}")
        return self._details(name)

    def epoch_ends(self, name, epochs):
        self.proofs += 1
        if self.failures:
            raise self.failures.pop()
        return {
            number: max((end for each, end in self.epochs[number] if each <= epoch), default=0)
            for number, epoch in epochs.items()
        }

    def streams(self):
        return [self._details(name) for name in self.there]

    def _details(self, name):
        uuid, partitions = self.there[name]
        return SimpleNamespace(
            name=name,
            uuid=uuid,
            config=SimpleNamespace(partitions=len(partitions)),
            partitions=[
                SimpleNamespace(
                    partition=number,
                    leader_epoch=self.epochs.get(number, [(1, 0)])[-1][0],
                    log_start=None if head is None else head[0],
                    local_start=None if head is None else head[0],
                    high_watermark=None if head is None else head[1],
                    log_end=None if head is None else head[1],
                    bytes=None if head is None else 100 * (head[1] - head[0]),
                )
                for number, head in partitions.items()
            ],
        )


class Time:
    def __init__(self, lift):
        self.now_s, self.lift, self.then = 0.0, lift, {}

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        for at_s in [at_s for at_s in self.then if at_s <= self.now_s]:
            self.then.pop(at_s)()


def planner(lift, **options):
    chosen = {"subscribe": "orders"} if not {"subscribePattern", "assign"} & set(options) else {}
    given = SourceOptions.read({"servers": "nats://x", **chosen, **options}, streaming=True)
    time = Time(lift)
    made = StreamPlanner(given, lambda: lift, clock=time, sleep=time.sleep)
    made.time = time
    return made


def at(epochs=None, **offsets):
    read = {int(name[1:]): offset for name, offset in offsets.items()}
    return QueryCheckpoint({"orders": read}, {"orders": A}, {"orders": epochs or dict.fromkeys(read, 1)})


def everything(backlogs):
    return {place: backlog.end for place, backlog in backlogs.items()}


def test_it_begins_where_it_was_told_and_at_the_latest_by_default():
    lift = FakeLift(orders=[A, {0: (2, 9), 1: (0, 4)}])
    assert planner(lift).begin() == at(p0=9, p1=4)
    assert planner(lift, startingOffsets="earliest").begin() == at(p0=2, p1=0)
    assert planner(lift, startingOffsets='{"orders": {"0": 5, "1": -1}}').begin() == at(p0=5, p1=4)
    with pytest.raises(OptionError, match="partition 0 ends at 9, before offset 10"):
        planner(lift, startingOffsets='{"orders": {"0": 10}}').begin()


def test_it_says_twice_that_it_begins_at_the_same_offsets():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    asked = planner(lift)
    first = asked.begin()
    lift.there["orders"][1][0] = (0, 20)
    assert asked.begin() == first == at(p0=9)


@pytest.mark.parametrize(
    ("options", "now"),
    [
        ({}, True),
        ({"startingOffsets": "latest"}, True),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, True),
        ({"startingOffsets": "earliest"}, False),
        ({"startingOffsets": '{"orders": {"0": 3}}'}, False),
    ],
)
def test_a_beginning_at_the_end_is_to_be_kept_before_it_is_used(options, now):
    asked = planner(FakeLift(orders=[A, {0: (0, 9)}]), **options)
    assert asked.begins_now(asked.begin()) is now
    assert asked.begins_now(at(p0=1)) is False


def test_it_goes_on_to_the_end_and_then_waits():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    asked = planner(lift, maxPollMs="400")
    assert asked.latest() is None
    assert asked.advance(at(p0=3), everything) == at(p0=9)
    assert asked.time.now_s == 0
    assert asked.advance(at(p0=9), everything) == at(p0=9)
    assert asked.time.now_s == pytest.approx(0.4)
    assert asked.latest() == at(p0=9)


def test_waiting_ends_with_the_first_record():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    asked = planner(lift, maxPollMs="60000")
    asked.time.then[3.0] = lambda: lift.there["orders"][1].update({0: (0, 10)})
    assert asked.advance(at(p0=9), everything) == at(p0=10)
    assert 3 <= asked.time.now_s < 3.3


def test_what_there_is_when_it_was_aimed_is_all_there_will_be():
    lift = FakeLift(orders=[A, {0: (0, 9)}], payments=[B, {0: (0, 1)}])
    asked = planner(lift, subscribePattern="or.*|p.*|later")
    asked.aim()
    lift.there["orders"][1].update({0: (0, 20), 1: (0, 3)})
    lift.there["later"] = [B, {0: (0, 3)}]
    end = asked.advance(at(p0=3), everything)
    assert end == QueryCheckpoint(
        {"orders": {0: 9}, "payments": {0: 0}}, {"orders": A, "payments": B}, {"orders": {0: 1}, "payments": {0: 1}}
    )
    end = asked.advance(end, everything)
    assert end == QueryCheckpoint(
        {"orders": {0: 9}, "payments": {0: 1}}, {"orders": A, "payments": B}, {"orders": {0: 1}, "payments": {0: 1}}
    )
    assert asked.advance(end, everything) == end
    assert asked.time.now_s == 0
    assert asked.latest().offsets["orders"] == {0: 20, 1: 3}, "the progress shows what there really is"


def test_a_new_stream_of_a_pattern_is_found_while_the_query_runs():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    asked = planner(lift, subscribePattern="or.*")
    asked.advance(at(p0=9), everything)
    lift.there["oranges"] = [B, {0: (2, 3)}]
    end = at(p0=9)
    while end == at(p0=9) and asked.time.now_s < 30:
        end = asked.advance(end, everything)
    assert end == QueryCheckpoint(
        {"orders": {0: 9}, "oranges": {0: 2}}, {"orders": A, "oranges": B}, {"orders": {0: 1}, "oranges": {0: 1}}
    )
    assert asked.advance(end, everything).offsets["oranges"] == {0: 3}


def test_only_what_is_assigned_is_read():
    lift = FakeLift(orders=[A, {0: (0, 9), 1: (0, 5), 2: (0, 1)}])
    asked = planner(lift, assign=json.dumps({"orders": [1, 2]}), startingOffsets="earliest")
    assert asked.begin() == at(p1=0, p2=0)
    assert asked.advance(at(p1=0, p2=0), everything) == at(p1=5, p2=1)
    asked.aim()
    assert asked.advance(at(p1=0, p2=0), everything) == at(p1=5, p2=1)


@pytest.mark.parametrize(
    ("there", "words", "goes_on_at"),
    [
        ([B, {0: (1, 4)}], f"created again .it was {A}, and is {B} now", {"orders": {0: 1}}),
        ([A, {0: (7, 9)}], "offsets 3 to 6 are not there", {"orders": {0: 9}}),
        ([A, {0: (0, 2)}], "ends at offset 2, but the query has read up to 3", {"orders": {0: 2}}),
        (None, "orders is not there", {}),
    ],
)
def test_what_is_lost_is_said_or_passed_over(there, words, goes_on_at, caplog):
    lift = FakeLift(**({} if there is None else {"orders": there}))
    with pytest.raises(DataLossError, match=words) as raised:
        planner(lift).advance(at(p0=3), everything)
    assert "failOnDataLoss" in str(raised.value)
    end = planner(lift, failOnDataLoss="false").advance(at(p0=3), everything)
    assert end.offsets == goes_on_at
    assert "goes on without" in caplog.text


def test_a_new_leader_that_says_less_for_a_moment_is_waited_for():
    lift = FakeLift(orders=[A, {0: (0, 2)}])
    asked = planner(lift)
    asked.time.then[4.0] = lambda: lift.there["orders"][1].update({0: (0, 5)})
    assert asked.advance(at(p0=3), everything) == at(p0=5)


def test_a_partition_without_a_leader_waits_and_the_others_go_on():
    lift = FakeLift(orders=[A, {0: None, 1: (0, 5)}])
    assert planner(lift).advance(at(p0=3, p1=1), everything) == at(p0=3, p1=5)


def test_what_there_is_now_is_read_to_its_end_when_a_leader_is_missing_meanwhile():
    lift = FakeLift(orders=[A, {0: (0, 9), 1: (0, 5)}])
    asked = planner(lift)
    asked.aim()
    lift.there["orders"][1][1] = None
    assert asked.advance(at(p0=3, p1=1), everything) == at(p0=9, p1=1), "the others go on"
    asked.time.then[20.0] = lambda: lift.there["orders"][1].update({1: (0, 7)})
    assert asked.advance(at(p0=9, p1=1), everything) == at(p0=9, p1=5)
    lift.there["orders"][1][1] = None
    assert asked.advance(at(p0=9, p1=5), everything) == at(p0=9, p1=5), "it has been read"


def test_a_leader_that_is_missing_for_good_is_no_end_of_what_there_is_now():
    lift = FakeLift(orders=[A, {0: (0, 9), 1: (0, 5)}])
    asked = planner(lift)
    asked.aim()
    lift.there["orders"][1][1] = None
    with pytest.raises(NatsError, match="nobody says where orders/1 ends"):
        asked.advance(at(p0=9, p1=1), everything)
    assert 60 <= asked.time.now_s < 61
    with pytest.raises(NatsError, match="nobody says where orders/1 ends"):
        asked.advance(at(p0=9), everything)  # of a partition that it has only found


def test_a_cluster_that_is_away_for_a_while_is_waited_for():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    asked = planner(lift)
    asked.advance(at(p0=3), everything)
    lift.failures = [NodeUnavailableError("nobody answers")] * 20
    assert asked.advance(at(p0=3), everything) == at(p0=9)


def test_a_stream_that_never_was_is_named():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    with pytest.raises(NoSuchStreamError, match=r"'ordres'; did you mean 'orders'"):
        planner(lift, subscribe="orders,ordres").advance(at(p0=3), everything)
    with pytest.raises(NoSuchStreamError, match="ordres"):
        planner(lift, subscribe="ordres").begin()


def test_records_are_weighed_now_and_then_and_only_for_a_limit_in_bytes():
    lift = FakeLift(orders=[A, {0: (0, 9), 1: (4, 4)}])
    asked = planner(lift, maxBytesPerTrigger="1000")
    seen = []

    def divide(backlogs):
        seen.append({place: backlog.record_bytes for place, backlog in asked.weighed(backlogs).items()})
        return everything(backlogs)

    asked.advance(at(p0=3, p1=4), divide)
    assert lift.asked == 2, "one look, and one weighing"
    asked.advance(at(p0=3, p1=4), divide)
    assert lift.asked == 3
    assert seen == [{("orders", 0): 100, ("orders", 1): 1_024}] * 2
    unlimited = planner(lift)
    unlimited.advance(at(p0=3, p1=4), everything)
    assert lift.asked == 4


def test_a_stream_that_a_node_does_not_know_for_a_moment_is_waited_for():
    lift = FakeLift()
    asked = planner(lift)
    asked.time.then[4.0] = lambda: lift.there.update(orders=[A, {0: (0, 5)}])
    assert asked.advance(at(p0=3), everything) == at(p0=5)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_of_a_pattern_that_a_node_does_not_know_for_a_moment_is_waited_for(fails):
    lift = FakeLift(payments=[B, {0: (0, 1)}])
    asked = planner(lift, subscribePattern="o.*", failOnDataLoss=fails)
    asked.time.then[4.0] = lambda: lift.there.update(orders=[A, {0: (0, 5)}])
    assert asked.advance(at(p0=3), everything) == at(p0=5), "and not read from its start again"


def test_a_stream_that_is_not_to_be_read_any_more_is_not_waited_for():
    asked = planner(FakeLift(orders=[A, {0: (0, 9)}], payments=[B, {0: (0, 1)}]), subscribe="payments")
    with pytest.raises(DataLossError, match="orders is not there any more, or not among those to be read"):
        asked.advance(at(p0=3), everything)
    assert asked.time.now_s == 0


def test_a_change_of_the_leader_is_no_other_way():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    lift.epochs[0] = [(1, 9), (2, 9)]
    asked = planner(lift)
    end = asked.advance(at(p0=9), everything)
    assert end.is_at(at(p0=9)), "nothing is new, so there is no batch"
    assert asked.advance(at(p0=9), everything).is_at(at(p0=9))
    assert lift.proofs == 1, "the same is not asked again"
    lift.there["orders"][1][0], lift.epochs[0] = (0, 12), [(1, 9), (2, 12)]
    assert asked.advance(at(p0=9), everything) == at(p0=12, epochs={0: 2})
    assert lift.proofs == 1


def test_a_log_that_was_restored_and_has_overtaken_the_query_is_noticed():
    """The query has read up to 9 of epoch 1, and the bucket had 6; others wrote since, in two epochs."""
    lift = FakeLift(orders=[A, {0: (0, 20), 1: (0, 5)}])
    lift.epochs = {0: [(1, 6), (10_001, 9), (10_002, 20)], 1: [(1, 5), (10_001, 5)]}
    start = at(p0=9, p1=5)
    with pytest.raises(DataLossError, match=r"orders partition 0 has other records from offset 6 on than the query"):
        planner(lift).advance(start, everything)
    going_on = planner(lift, failOnDataLoss="false")
    back = going_on.advance(start, everything)
    assert back == at(p0=6, p1=5, epochs={0: 10_002, 1: 10_001}), "it goes back to where they are others"
    assert going_on.advance(back, everything) == at(p0=20, p1=5, epochs={0: 10_002, 1: 10_001})


def test_a_checkpoint_without_epochs_goes_on_and_has_them_then():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    older = QueryCheckpoint({"orders": {0: 5}}, {"orders": A})
    assert planner(lift).advance(older, everything) == at(p0=9)
    assert lift.proofs == 0


def test_nobody_goes_on_while_a_leader_does_not_say_where_epochs_end():
    lift = FakeLift(orders=[A, {0: (0, 9)}])
    lift.epochs[0] = [(1, 6), (2, 9)]
    asked = planner(lift)
    asked.advance(at(p0=5), everything)
    lift.epoch_ends = lambda *_: (_ for _ in ()).throw(NodeUnavailableError("nobody"))
    with pytest.raises(NatsError, match="nobody"):
        planner(lift).advance(at(p0=5), everything)
