"""What a batch of messages costs in the core of its leader."""

from __future__ import annotations

import time

from liftpy_envelope.follow import FollowFetch
from liftpy_envelope.pull import PartitionKey
from liftpy_server.replication.core.inputs import Durable, FollowerFetched, LogAppended
from liftpy_server.replication.core.ranges import BatchRange

KEY = PartitionKey(bytes(16), 0)
ROUNDS = 10
BATCHES = 1_000
STEP_S_MAX = 10e-6


def test_a_step_of_a_busy_leader_takes_a_few_microseconds(leader):
    for node in "bc":
        leader.fetch(node, 10)
    best_s = float("inf")
    for _ in range(ROUNDS):
        steps = []
        for end in range(leader.log.end + 1, leader.log.end + 1 + BATCHES):
            fetch = {"incarnation": 1, "leader_epoch": 5, "offset": end, "last_epoch": 5, "durable_end": end}
            steps.append(LogAppended(ranges=(BatchRange(epoch=5, base=end - 1, end=end),)))
            steps.append(Durable(end=end))
            steps += [
                FollowerFetched(node_id=node, fetch=FollowFetch(KEY, high_watermark=end - 1, **fetch)) for node in "bc"
            ]
        begun_s = time.thread_time()
        for given in steps:
            leader.give(given)
        best_s = min(best_s, (time.thread_time() - begun_s) / len(steps))
    assert leader.log.high_watermark == leader.log.end
    assert best_s < STEP_S_MAX
