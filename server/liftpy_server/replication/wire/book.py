"""What a link still has to ask of its leader, and what it asked. Pure: it sends nothing, and knows no time.

Of every partition only the last request matters. It is kept until it is answered, so that another connection can be
told all that the one before left open.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from liftpy_envelope.follow import FollowFetch, FollowQuestion, FollowRequest

if TYPE_CHECKING:
    from liftpy_envelope.follow import FollowEnd, FollowResult
    from liftpy_envelope.pull import PartitionKey

__all__ = ["FollowBook"]

_ROWS_MAX: Final = 2_000  # of a request: far below what a frame holds, and some 10 ms of a leader's time


class _Asked:
    """The last request about a partition."""

    __slots__ = ("is_answered", "is_sent", "request", "seen")

    def __init__(self, request: FollowFetch | FollowQuestion, seen: int) -> None:
        self.request = request
        self.seen = seen
        self.is_sent = False
        self.is_answered = False


class FollowBook:
    """The last request about each partition, until it is answered.

    Args:
        node_id: Id of the follower.
        bytes_max: Maximum bytes of record batches in one response.
        wait_ms_max: Time for which the leader keeps a request waiting, ms.

    Attributes:
        hears: This node hears NATS.
    """

    def __init__(self, node_id: str, bytes_max: int, wait_ms_max: int) -> None:
        self._node_id = node_id
        self._bytes_max = bytes_max
        self._wait_ms_max = wait_ms_max
        self._asked: dict[PartitionKey, _Asked] = {}
        self._unsent: dict[PartitionKey, None] = {}  # fetches
        self._unasked: dict[PartitionKey, None] = {}  # questions
        self._known: set[PartitionKey] = set()  # to the leader, on this connection
        self._forget: dict[PartitionKey, None] = {}
        self._damaged: set[PartitionKey] = set()
        self._seen = 0
        self.hears = False

    @property
    def has_unsent(self) -> bool:
        """Whether there is anything to ask that was not asked."""
        return bool(self._unsent or self._unasked or self._forget)

    @property
    def has_reports(self) -> bool:
        """Whether `take_report` has anything to say."""
        return bool(self._unsent or self._forget)

    @property
    def has_questions(self) -> bool:
        """Whether anything of that wants an answer of its own."""
        return bool(self._unasked)

    def put(self, request: FollowFetch | FollowQuestion) -> None:
        """Ask this about a partition; it takes the place of what was asked before."""
        self._asked[request.key] = _Asked(request, self._seen)
        self._queue(request)

    def _queue(self, request: FollowFetch | FollowQuestion) -> None:
        key = request.key
        if isinstance(request, FollowFetch):
            self._unasked.pop(key, None)
            self._unsent[key] = None
        else:
            self._unsent.pop(key, None)
            self._unasked[key] = None

    def drop(self, key: PartitionKey) -> None:
        """Ask nothing more about a partition."""
        self._asked.pop(key, None)
        self._unsent.pop(key, None)
        self._unasked.pop(key, None)
        self._damaged.discard(key)
        if key in self._known:
            self._known.discard(key)
            self._forget[key] = None

    def is_parked(self, key: PartitionKey) -> bool:
        """Whether the last request is a fetch that was sent on this connection and not answered."""
        asked = self._asked.get(key)
        is_open = asked is not None and asked.is_sent and not asked.is_answered
        return is_open and asked is not None and isinstance(asked.request, FollowFetch)

    def begin(self) -> None:
        """Another connection: all that is not answered is asked again."""
        self._seen = 0
        self._known.clear()
        self._forget.clear()
        self._unsent.clear()
        self._unasked.clear()
        for asked in self._asked.values():
            asked.is_sent = False
            asked.seen = 0
            if not asked.is_answered:
                self._queue(asked.request)

    def take(self) -> FollowRequest:
        """The next request; some of what is unsent when it is much, and an empty one when there is nothing."""
        forget = self._forgotten()
        questions = self._first(self._unasked, _ROWS_MAX - len(forget))
        fetches = self._first(self._unsent, _ROWS_MAX - len(forget) - len(questions))
        return self._request(fetches, questions, forget)

    def take_report(self) -> FollowRequest:
        """As `take`, without questions: the request that waits at the leader is the one that is answered."""
        forget = self._forgotten()
        return self._request(self._first(self._unsent, _ROWS_MAX - len(forget)), [], forget)

    def _forgotten(self) -> tuple[PartitionKey, ...]:
        if not self._forget:
            return ()
        return tuple(self._first(self._forget, _ROWS_MAX))

    @staticmethod
    def _first(keys: dict[PartitionKey, None], count: int) -> list[PartitionKey]:
        """Take the first keys away."""
        if len(keys) <= count:
            taken = list(keys)
            keys.clear()
            return taken
        taken = list(islice(keys, count))
        for key in taken:
            del keys[key]
        return taken

    def _request(
        self, fetches: list[PartitionKey], questions: list[PartitionKey], forget: tuple[PartitionKey, ...]
    ) -> FollowRequest:
        return FollowRequest(
            *(self._node_id, self._bytes_max, self._wait_ms_max),
            tuple([self._fetch_of(key) for key in fetches]),
            tuple([self._question_of(key) for key in questions]),
            forget,
            int(self.hears),
        )

    def _sent(self, key: PartitionKey) -> _Asked:
        self._known.add(key)
        asked = self._asked[key]
        asked.is_sent = True
        return asked

    def _fetch_of(self, key: PartitionKey) -> FollowFetch:
        asked = self._sent(key)
        assert isinstance(asked.request, FollowFetch)
        return asked.request._replace(seen=asked.seen, verify=int(key in self._damaged))

    def _question_of(self, key: PartitionKey) -> FollowQuestion:
        request = self._sent(key).request
        assert isinstance(request, FollowQuestion)
        return request

    def fetched(self, result: FollowResult) -> FollowFetch | None:
        """The newest fetch of the partition that a result is about; None when nobody wants it any more."""
        asked = self._asked.get(result.key)
        return asked.request if asked is not None and isinstance(asked.request, FollowFetch) else None

    def answered(self, answer: FollowResult | FollowEnd) -> bool:
        """Take note that an answer is handed on. False when nobody wants it any more."""
        asked = self._asked.get(answer.key)
        if asked is None:
            return False
        request = asked.request
        if isinstance(request, FollowFetch):
            is_of_it = getattr(answer, "offset", None) == request.offset
        else:
            is_of_it = getattr(answer, "question", None) == request.question
        if is_of_it:
            asked.is_answered = True
            self._damaged.discard(answer.key)
        return True

    def saw(self, correlation_id: int) -> None:
        """All of a response was handed on: what is put from now on was made knowing it."""
        self._seen = correlation_id

    def damaged(self, key: PartitionKey) -> None:
        """What came of this partition was damaged: the leader is to check what it sends next."""
        self._damaged.add(key)
