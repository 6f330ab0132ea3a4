"""A follower's session: the partitions that one other node follows over one connection, and which of them have news.

    READY    has been fetched, or called: it is looked at in the next round
    WAITING  nothing new: costs nothing, and calls when there is something
    LAZY     as WAITING, and its high watermark has moved: told with those of others, `FOLLOW_HW_DELAY_S` later
    SENT     was answered: out of the line until the follower fetches it again

A follower fetches again whenever it has more on disk, also while records for the same offset are under way to it.
What it says counts at once, but those records are not sent twice: a fetch tells which response its maker had seen.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.follow import FollowRefusal, FollowResult
from liftpy_envelope.limits import FETCH_PARTITIONS_MAX
from liftpy_log.errors import OffsetOutOfRangeError, PartitionOfflineError
from liftpy_log.storage.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_envelope.follow import FollowEnd, FollowFetch, FollowQuestion, FollowRequest
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.partition_log import PartitionLog
    from liftpy_log.reader import Slice

__all__ = ["FOLLOW_HW_DELAY_S", "FollowFound", "FollowSession", "FollowedPartition"]

FOLLOW_HW_DELAY_S: Final = 0.05
_SHARE_BYTES_MIN: Final = 128 * 1024  # of a response, for each partition in line; smaller reads only cost


class FollowedPartition(Protocol):
    """What a session needs of a partition that this node has a replica of."""

    @property
    def log(self) -> PartitionLog:
        """Its records."""
        ...

    def follower_fetched(self, node_id: str, fetch: FollowFetch) -> FollowResult:
        """Let what the follower says of itself count. Without a refusal records are sent, or waited for."""
        ...

    def follower_asked(self, node_id: str, question: FollowQuestion) -> FollowEnd:
        """Where an epoch ends."""
        ...

    def follower_news(self, fetch: FollowFetch) -> FollowResult:
        """How things are now for a fetch that was taken; a refusal when this replica leads in its epoch no longer."""
        ...

    @property
    def awaits_producers(self) -> bool:
        """Whether this replica does not know yet what there is to be told of ordered producers."""
        ...

    def told_producers(self, fetch: FollowFetch, end: int) -> bytes:
        """What a follower is to be told of ordered producers with the records below `end`; see `FollowResult`."""
        ...

    def wait_follower(self, wake: Callable[[bool], None], node_id: str) -> None:
        """Call `wake` once: with True at the next append or change of role, with False when the HW moves."""
        ...

    def stop_waiting_follower(self, wake: Callable[[bool], None]) -> None:
        """Do not call `wake` any more."""
        ...

    def whole_end(self, asked_s: float) -> int | None:
        """The end below which is all that was published before `asked_s`; None when that is not certain."""
        ...

    def fail(self, reason: str) -> None:
        """The log is damaged: give up for good, and say why."""
        ...


class FollowFound(NamedTuple):
    """News of one partition: what to say of it, and the batches to send, from its files or from memory."""

    result: FollowResult
    partition: FollowedPartition | None = None
    slices: Sequence[Slice] = ()
    verify: bool = False
    batches: Sequence[bytes] = ()
    producers: bytes = b""

    @property
    def is_urgent(self) -> bool:
        """Whether there is more to say than that the high watermark has moved."""
        return self.result.size_bytes > 0 or self.result.refusal is not FollowRefusal.NONE


class _Entry:
    """One partition in the session."""

    __slots__ = ("fetch", "hint", "is_due", "is_waiting", "node_id", "partition", "refused", "sent_id", "wake")

    def __init__(
        self,
        node_id: str,
        fetch: FollowFetch,
        partition: FollowedPartition | None,
        wake: Callable[[bool], None],
    ) -> None:
        self.node_id = node_id
        self.fetch = fetch
        self.partition = partition
        self.wake = wake
        self.refused: FollowResult | None = None
        self.hint: Slice | None = None
        self.sent_id = 0  # the response that has records for the offset of `fetch`
        self.is_waiting = False
        self.is_due = False


class FollowSession:
    """The partitions that one follower fetches over one connection, and which of them have news.

    Args:
        replicas: The partition with a key, or why there is none here.
        on_news: Called when some partition may have any.
    """

    def __init__(
        self, replicas: Callable[[PartitionKey], FollowedPartition | ErrorCode], on_news: Callable[[], None]
    ) -> None:
        self._replicas = replicas
        self._on_news = on_news
        self._entries: dict[PartitionKey, _Entry] = {}
        self._ready: dict[PartitionKey, None] = {}
        self._lazy: dict[PartitionKey, None] = {}
        self._lazy_due_s = float("inf")
        self._asked_s = float("-inf")
        self._told_ends: dict[PartitionKey, int] = {}

    @property
    def due_s(self) -> float:
        """When high watermarks are to be told, by the clock of `collect`; infinity when none has moved."""
        return self._lazy_due_s

    def apply(self, request: FollowRequest) -> list[FollowEnd]:
        """Let partitions enter, go on and leave, and answer the questions."""
        for key in request.forget:
            self._drop(key)
        ends = [self._end(question, request) for question in request.questions]
        for fetch in request.fetches:
            self._enter(fetch, request)
        return ends

    def _end(self, question: FollowQuestion, request: FollowRequest) -> FollowEnd:
        self._drop(question.key)
        partition = self._replicas(question.key)
        if isinstance(partition, ErrorCode):
            return question.not_led()
        return partition.follower_asked(request.node_id, question)

    def _enter(self, fetch: FollowFetch, follower: FollowRequest) -> None:
        key = fetch.key
        found = self._replicas(key)
        partition = None if isinstance(found, ErrorCode) else found
        entry = self._entries.get(key)
        if entry is None or entry.partition is not partition:
            self._drop(key)
            entry = self._entries[key] = _Entry(follower.node_id, fetch, partition, partial(self._woken, key))
        else:
            self._rest(entry)
            if fetch[1:4] != entry.fetch[1:4] or fetch.knows != entry.fetch.knows or entry.sent_id <= fetch.seen:
                entry.sent_id = 0
        entry.fetch = fetch
        answer = fetch.not_led() if partition is None else partition.follower_fetched(follower.node_id, fetch)
        entry.refused = answer if answer.refusal else None
        if entry.refused is not None or not entry.sent_id:
            self._ready[key] = None

    def _woken(self, key: PartitionKey, is_urgent: bool) -> None:  # noqa: FBT001 - as the protocol has it
        """Look at the partition soon, urgent or not: it calls no second time, and what comes next may be urgent."""
        del is_urgent
        self._entries[key].is_waiting = False
        self._ready[key] = None
        self._on_news()

    def _rest(self, entry: _Entry) -> None:
        """Out of the line."""
        key = entry.fetch.key
        self._ready.pop(key, None)
        self._lazy.pop(key, None)
        entry.is_due = False
        if entry.is_waiting:
            assert entry.partition is not None
            entry.partition.stop_waiting_follower(entry.wake)
            entry.is_waiting = False

    def _drop(self, key: PartitionKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._rest(entry)

    def close(self) -> None:
        """Leave every partition alone."""
        for key in list(self._entries):
            self._drop(key)

    def collect(self, bytes_max: int, correlation_id: int, now_s: float) -> list[FollowFound]:
        """News of the partitions that have any, up to about `bytes_max` of batches.

        Where several are in line, none takes more than its share; those that do not fit stay at the head of the line.

        Args:
            bytes_max: One batch fits whatever its size.
            correlation_id: Correlation id of the response that the news go into.
            now_s: The clock of `due_s`.
        """
        if now_s >= self._lazy_due_s:
            self._lazy_due_s = float("inf")
            for key in self._lazy:
                self._entries[key].is_due = True
                self._ready[key] = None
        share = max(bytes_max // max(1, len(self._ready)), _SHARE_BYTES_MIN)
        found: list[FollowFound] = []
        for key in list(self._ready):
            if bytes_max <= 0 or len(found) == FETCH_PARTITIONS_MAX:
                break
            entry = self._entries[key]
            news = self._look(entry, min(share, bytes_max))
            if news is None or not (news.is_urgent or entry.is_due):
                self._wait(entry, is_lazy=news is not None, now_s=now_s)
                continue
            self._rest(entry)
            found.append(news)
            if news.result.body_bytes:
                entry.sent_id = correlation_id
            bytes_max -= news.result.size_bytes
            if news.slices:
                entry.hint = news.slices[-1]
        return found

    def _wait(self, entry: _Entry, *, is_lazy: bool, now_s: float) -> None:
        key = entry.fetch.key
        del self._ready[key]
        if is_lazy:
            self._lazy[key] = None
            self._lazy_due_s = min(self._lazy_due_s, now_s + FOLLOW_HW_DELAY_S)
        if not entry.is_waiting:
            assert entry.partition is not None, "who is not here has nothing to wait for"
            entry.partition.wait_follower(entry.wake, entry.node_id)
            entry.is_waiting = True

    def whole(self, asked_s: float) -> tuple[float, list[tuple[PartitionKey, int]]] | None:
        """The ends below which logs hold all that was published before some time, where others were told before.

        Where there are too many to tell at once that time is an earlier one than `asked_s`, until all are told. None
        where everything was told already. What is returned must be sent: it counts as told.
        """
        if asked_s <= self._asked_s:
            return None
        told = self._told_ends
        followed = {key: entry.partition for key, entry in self._entries.items() if entry.partition is not None}
        ends = {key: partition.whole_end(asked_s) for key, partition in followed.items()}
        changed = [(key, -1) for key in told if ends.get(key) is None]
        changed += [(key, end) for key, end in ends.items() if end is not None and told.get(key) != end]
        if len(changed) <= FETCH_PARTITIONS_MAX:
            self._asked_s = asked_s
        del changed[FETCH_PARTITIONS_MAX:]
        for key, end in changed:
            if end == -1:
                del told[key]
            else:
                told[key] = end
        return self._asked_s, changed

    def unreadable(self, news: FollowFound, error: Exception) -> FollowFound:
        """What to say instead of `news` whose batches can not be read.

        A partition with damage is given up; one that only lacks a file descriptor, or whose segments were replaced or
        dropped since they were looked up, is fetched again later.
        """
        assert news.partition is not None
        if not (isinstance(error, OSError) and is_full(error)) and not _is_overtaken(news, error):
            news.partition.fail(str(error))
        self._drop(news.result.key)
        return FollowFound(news.result._replace(refusal=FollowRefusal.NOT_LEADER, body_bytes=0, producers_bytes=0))

    def _look(self, entry: _Entry, bytes_max: int) -> FollowFound | None:
        """News of one partition; None when there are none."""
        partition, fetch = entry.partition, entry.fetch
        if entry.refused is not None or partition is None:
            return FollowFound(entry.refused or fetch.not_led())
        answer = partition.follower_news(fetch)
        if answer.refusal:
            return FollowFound(answer)
        if not fetch.knows and partition.awaits_producers:
            return None
        log = partition.log
        has_more = log.log_end > fetch.offset
        if not has_more and answer.high_watermark <= fetch.high_watermark and fetch.knows:
            return None
        if has_more and log.recent is not None and fetch.offset >= log.log_start and log.failure is None:
            batches = () if fetch.verify else log.recent.read(fetch.offset, bytes_max)
            if batches:  # as they were appended: they tell of their producers
                found = FollowFound(answer._replace(body_bytes=sum(map(len, batches))), partition, batches=batches)
                return _telling(found, fetch, fetch.offset)
        if has_more:
            return self._read(entry, partition, answer, bytes_max)
        return _telling(FollowFound(answer, partition), fetch, fetch.offset)

    def _read(
        self, entry: _Entry, partition: FollowedPartition, result: FollowResult, bytes_max: int
    ) -> FollowFound | None:
        """News whose batches are in files."""
        log, fetch = partition.log, entry.fetch
        try:
            slices = log.read(fetch.offset, log.log_end, bytes_max, entry.hint)
        except OffsetOutOfRangeError as error:  # retention went on while the follower's fetch was on its way
            return FollowFound(result._replace(refusal=FollowRefusal.BELOW_START, log_start=error.log_start))
        except (PartitionOfflineError, OSError) as error:
            return self.unreadable(FollowFound(result, partition), error)
        if not slices and result.high_watermark <= fetch.high_watermark and fetch.knows:
            return None
        size = sum(piece.length for piece in slices)
        found = FollowFound(result._replace(body_bytes=size), partition, slices, bool(fetch.verify))
        return _telling(found, fetch, slices[-1].next_offset if slices else fetch.offset)


def _telling(found: FollowFound, fetch: FollowFetch, end: int) -> FollowFound:
    """News with what is to be told of ordered producers, of records below `end`."""
    assert found.partition is not None
    told = found.partition.told_producers(fetch, end)
    return found._replace(result=found.result._replace(producers_bytes=len(told)), producers=told) if told else found


def _is_overtaken(news: FollowFound, error: Exception) -> bool:
    assert news.partition is not None
    segments = news.partition.log.segments
    return isinstance(error, FileNotFoundError) and any(piece.segment not in segments for piece in news.slices)
