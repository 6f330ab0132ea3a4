from __future__ import annotations

from typing import Any

import pytest

from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowRefusal, FollowResult
from liftpy_envelope.pull import PartitionKey
from liftpy_server.replication.core import inputs
from liftpy_server.replication.core.ranges import BatchRange
from liftpy_server.replication.core.replica import Replica
from liftpy_server.replication.core.view import LogMarks, PartitionView, ReplicationTimes

KEY = PartitionKey(bytes(range(16)), 0)
TIMES = ReplicationTimes(
    replica_lag_max_s=8.0, leader_timeout_s=2.0, request_timeout_s=1.0, retry_s=0.5, preferred_return_s=5.0
)


class Bench:
    """One replica on a bench: tell it things at a time, look at what it wants."""

    def __init__(
        self, node: str = "a", *, epochs: Any = (), end: int = 0, durable: int | None = None, hw: int = 0, **log: Any
    ):
        durable = end if durable is None else durable
        self.log = LogMarks(end=end, durable_end=durable, high_watermark=hw, epochs=epochs, **log)
        self.replica = Replica(node, 1, KEY, self.log, TIMES)
        self.now_s = 100.0
        self.plain: dict[str, Any] = {
            "revision": 1,
            "uuid": KEY.uuid.hex(),
            "replicas": ("a", "b", "c"),
            "isr": ("a", "b", "c"),
            "leader": "a",
            "leader_epoch": 5,
            "version": 1,
            "min_isr": 2,
            "incarnations": {"a": 1, "b": 1, "c": 1, "d": 1},
        }

    def give(self, given: Any) -> list[Any]:
        return self.replica.step(given, self.now_s)

    def view(self, **changes: Any) -> list[Any]:
        self.plain = self.plain | {"revision": self.plain["revision"] + 1} | changes
        return self.give(inputs.ViewChanged(view=PartitionView(**self.plain)))

    def tick(self, after_s: float = 0.0, *, heard: str = "", paused_s: float = 0.0) -> list[Any]:
        """Ticks every half second, as a shell gives them; the effects of all of them.

        Args:
            after_s: for how long; 0 for one tick now.
            heard: those that are heard all the time, by sessions where a fetch of this partition waits.
            paused_s: that the first of the ticks tells.
        """
        effects = []
        until_s = self.now_s + after_s
        while True:
            self.now_s = min(until_s, self.now_s + 0.5)
            effects += self.give(inputs.Tick(paused_s=paused_s, heard_s=dict.fromkeys(heard, self.now_s - 0.1)))
            paused_s = 0.0
            if self.now_s >= until_s:
                return effects

    def append(self, count: int, epoch: int = 5) -> list[Any]:
        base = self.log.end
        return self.give(inputs.LogAppended(ranges=(BatchRange(epoch=epoch, base=base, end=base + count),)))

    def durable(self, end: int | None = None) -> list[Any]:
        return self.give(inputs.Durable(end=self.log.end if end is None else end))

    def fetch(self, node: str, durable_end: int, **changes: Any) -> list[Any]:
        """A follower fetches."""
        offset = changes.pop("offset", durable_end)
        last_epoch = self.log.epochs.end_offset(10**9, self.log.end)[0]
        if offset < self.log.end and offset > 0:
            last_epoch = max((epoch for epoch, start in self.log.epochs.entries if start < offset), default=0)
        request: dict[str, Any] = {
            "incarnation": 1,
            "leader_epoch": self.plain["leader_epoch"],
            "offset": offset,
            "last_epoch": last_epoch if offset else -1,
            "durable_end": durable_end,
            "high_watermark": 0,
        }
        node_id = changes.pop("node_id", node)
        return self.give(inputs.FollowerFetched(node_id=node_id, fetch=FollowFetch(KEY, **request | changes)))

    def ask(self, node: str, last_epoch: int, **changes: Any) -> list[Any]:
        question: dict[str, Any] = {
            "incarnation": 1,
            "leader_epoch": self.plain["leader_epoch"],
            "question": 1,
            "last_epoch": last_epoch,
        }
        return self.give(inputs.FollowerAsked(node_id=node, question=FollowQuestion(KEY, **question | changes)))

    def answer_end(self, asked: FollowQuestion, epoch: int, end: int, **changes: Any) -> list[Any]:
        """The leader answers this follower's question."""
        answer: dict[str, Any] = {
            "refusal": FollowRefusal.NONE,
            "incarnation": asked.incarnation,
            "leader_epoch": asked.leader_epoch,
            "question": asked.question,
            "epoch": epoch,
            "end": end,
        }
        return self.give(FollowEnd(asked.key, **answer | changes))

    def answer(self, asked: FollowFetch, *ranges: tuple[int, int, int], hw: int = 0, **changes: Any) -> list[Any]:
        """The leader answers this follower's fetch with ranges of (epoch, base, end)."""
        answer: dict[str, Any] = {
            "refusal": FollowRefusal.NONE,
            "incarnation": asked.incarnation,
            "leader_epoch": asked.leader_epoch,
            "offset": asked.offset,
            "high_watermark": hw,
            "log_start": 0,
        }
        records = changes.pop("records", None)
        sent = tuple(BatchRange(epoch=epoch, base=base, end=end) for epoch, base, end in ranges)
        return self.give(
            inputs.FetchAnswered(result=FollowResult(asked.key, **answer | changes), ranges=sent, records=records)
        )


@pytest.fixture
def leader() -> Bench:
    """Leads epoch 5 with ten durable records of epoch 3, nothing of which it knows to be committed."""
    bench = Bench("a", epochs=[(3, 0)], end=10)
    bench.view()
    return bench
