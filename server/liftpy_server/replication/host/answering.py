"""A replica's side towards those who follow it: their fetches come in, and wait here until there is something new."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from liftpy_envelope.follow import FollowEnd, FollowRefusal, FollowResult
from liftpy_server.replication.core.inputs import FollowerAsked, FollowerFetched

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.follow import FollowFetch, FollowQuestion
    from liftpy_log.log_time import Leap
    from liftpy_log.partition_log import PartitionLog
    from liftpy_server.replication.core.inputs import Input
    from liftpy_server.replication.core.replica import Replica

__all__ = ["Answering"]


class Answering(ABC):
    """Answers the fetches and questions of followers, and wakes those that wait.

    Args:
        log: The records that are sent.

    Attributes:
        answer: What the core answered last.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.answer: FollowResult | FollowEnd | None = None
        self._wakes: dict[Callable[[bool], None], str] = {}

    @property
    @abstractmethod
    def core(self) -> Replica:
        """The state machine of the replica."""

    @property
    @abstractmethod
    def leaps(self) -> tuple[Leap, ...]:
        """What is known of leaps of the log's time."""

    @abstractmethod
    def step(self, given: Input) -> None:
        """Give the core an input."""

    @property
    def parked_nodes(self) -> set[str]:
        """Followers whose fetch waits here for news."""
        return set(self._wakes.values())

    def _answer(self, given: Input) -> FollowResult | FollowEnd | None:
        """What the core answers; None when the replica is closed."""
        self.answer = None
        self.step(given)
        return self.answer

    def follower_fetched(self, node_id: str, fetch: FollowFetch) -> FollowResult:
        """A follower fetches. Without a refusal in the answer it may be sent records, or wait for some."""
        answer = self._answer(FollowerFetched(node_id=node_id, fetch=fetch))
        return answer if isinstance(answer, FollowResult) else fetch.not_led()

    def follower_asked(self, node_id: str, question: FollowQuestion) -> FollowEnd:
        """A follower asks where an epoch ends."""
        answer = self._answer(FollowerAsked(node_id=node_id, question=question))
        return answer if isinstance(answer, FollowEnd) else question.not_led()

    def follower_news(self, fetch: FollowFetch) -> FollowResult:
        """The answer, without records, to a fetch that has waited."""
        leader = self.core.leader
        if leader is None or leader.view.leader_epoch != fetch.leader_epoch:
            return fetch.not_led()
        marks = self.core.log
        return FollowResult(
            *(fetch.key, FollowRefusal.NONE, fetch.incarnation, fetch.leader_epoch, fetch.offset),
            *(marks.high_watermark, marks.start),
            delete_horizon=self.log.compaction.delete_horizon,
            leaps=self.leaps,
        )

    def wait_follower(self, wake: Callable[[bool], None], node_id: str) -> None:
        """Call `wake` once, at the next change; with False when only the high watermark moved."""
        self._wakes[wake] = node_id

    def stop_waiting_follower(self, wake: Callable[[bool], None]) -> None:
        """Take back a `wait_follower`."""
        self._wakes.pop(wake, None)

    def wake_followers(self, *, is_urgent: bool) -> None:
        """There is something new, or another role: fetches that wait are answered as things are now."""
        if self._wakes:
            wakes, self._wakes = self._wakes, {}
            for wake in wakes:
                wake(is_urgent)
