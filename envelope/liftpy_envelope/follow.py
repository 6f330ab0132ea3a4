"""Bodies of the pull protocol's `follow`, by which replicas fetch from the leader of their partitions.

A session over the connection, like `fetch`, with two differences: a follower says after every answer where it goes on,
for what it has on disk is what the leader counts; and an answer takes the partition out of the line until the follower
fetches it again.
"""

from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from liftpy_envelope.bodies import Mark, Number
from liftpy_envelope.errors import FrameError
from liftpy_envelope.limits import FETCH_BYTES_MAX, FETCH_PARTITIONS_MAX, FETCH_WAIT_MS_MAX, LEAPS_MAX
from liftpy_envelope.names import check_name
from liftpy_envelope.pull import PartitionKey

__all__ = [
    "FollowEnd",
    "FollowFetch",
    "FollowQuestion",
    "FollowRefusal",
    "FollowRequest",
    "FollowResponse",
    "FollowResult",
    "FollowWhole",
]

_Flag = Annotated[int, Meta(ge=0, le=1)]
_AT_MOST: Final = Meta(max_length=FETCH_PARTITIONS_MAX)


class FollowRefusal(IntEnum):
    """Why a leader does not answer with what was asked for.

    A number that a newer peer invented is `NOT_LEADER`: ask again later.
    """

    NONE = 0
    NOT_LEADER = 1  # or not in this epoch, or not known here yet
    STALE_INCARNATION = 2  # the follower has restarted or renewed its log, or is not known here yet
    BELOW_START = 3  # the leader no longer has what follows the follower's log
    DIVERGED = 4  # the follower's log is no prefix of the leader's

    @classmethod
    def _missing_(cls, value: object) -> "FollowRefusal | None":
        return cls.NOT_LEADER if isinstance(value, int) else None


class FollowFetch(NamedTuple):
    """A follower fetches one partition from its log end. What it says of itself is what the leader counts.

    Attributes:
        key: The partition.
        incarnation: Incarnation of the follower.
        leader_epoch: Leader epoch in which it follows.
        offset: Log end offset of the follower.
        last_epoch: Leader epoch of its last record; -1 when it has none.
        durable_end: The offset after its last record that is on disk.
        high_watermark: High watermark that the follower knows of; a leader that knows more answers at once.
        seen: Correlation id of the newest response it had seen when it made up its mind; 0 for none. Records that
            were sent after that are not sent again for the same offset.
        verify: 1: it got a damaged batch here; check what is on disk before sending it. Else 0.
        version: Version of the partition in the metadata, as the follower knows it; it tells a new copy's fetches from
            those of the one before.
        knows: 0: its log begins anew, and it is to be told of the ordered producers before; else 1.
    """

    key: PartitionKey
    incarnation: Number
    leader_epoch: Number
    offset: Number
    last_epoch: Mark
    durable_end: Number
    high_watermark: Number
    seen: Number = 0
    verify: _Flag = 0
    version: Number = 0
    knows: _Flag = 1

    def not_led(self) -> "FollowResult":
        """The answer of a node that does not lead the partition, or not in this epoch."""
        return FollowResult(self.key, FollowRefusal.NOT_LEADER, self.incarnation, -1, self.offset, 0, 0)


class FollowQuestion(NamedTuple):
    """Where does the largest epoch end that is not above `last_epoch`?

    Attributes:
        incarnation: Incarnation of the follower.
        leader_epoch: Leader epoch in which it follows.
        question: A number that the answer repeats.
        last_epoch: Leader epoch of the follower's last record.
    """

    key: PartitionKey
    incarnation: Number
    leader_epoch: Number
    question: Number
    last_epoch: Mark

    def not_led(self) -> "FollowEnd":
        """The answer of a node that does not lead the partition, or not in this epoch."""
        return FollowEnd(self.key, FollowRefusal.NOT_LEADER, self.incarnation, -1, self.question, -1, 0)


class FollowRequest(NamedTuple):
    """One round of a session.

    Attributes:
        node_id: The follower.
        bytes_max: About how many bytes of record batches the response may hold; at least one batch always fits.
        wait_ms_max: How long to wait for news.
        fetches: Partitions that enter the session, or go on in it.
        questions: Questions that are answered at once; a partition that is asked about is fetched no longer.
        forget: Partitions that leave the session; before others enter it.
        hears: 1: the follower hears NATS, and could lead; else 0.
    """

    node_id: str
    bytes_max: Annotated[int, Meta(ge=1, le=FETCH_BYTES_MAX)]
    wait_ms_max: Annotated[int, Meta(ge=0, le=FETCH_WAIT_MS_MAX)]
    fetches: Annotated[tuple[FollowFetch, ...], _AT_MOST] = ()
    questions: Annotated[tuple[FollowQuestion, ...], _AT_MOST] = ()
    forget: Annotated[tuple[PartitionKey, ...], _AT_MOST] = ()
    hears: _Flag = 0

    def check(self) -> None:
        """Refuse what is no name of a node, and offsets that contradict each other."""
        check_name(self.node_id, "node")
        for number, fetch in enumerate(self.fetches):
            if fetch.durable_end > fetch.offset or fetch.high_watermark > fetch.offset:
                raise FrameError(f"fetches[{number}]: durable_end or high_watermark is beyond offset {fetch.offset}")


class FollowResult(NamedTuple):
    """The answer to a `FollowFetch`.

    Attributes:
        refusal: Why there are no records, if so.
        incarnation: Incarnation of the follower that asked.
        leader_epoch: Epoch of the leader; -1 where this node does not lead.
        offset: Offset that was asked for.
        high_watermark: Offset after the last committed record.
        log_start: First offset there is.
        body_bytes: Size of the partition's record batches in the response's body, in the order of the results. The
            first batch holds `offset`.
        delete_horizon: Tombstones below this offset may be missing in the leader's log.
        leaps: Leaps of the log's time that the leader knows of: the log's time after it, and how much was leapt over,
            in ns.
        producers_bytes: Size of what the body says, before the batches, of ordered producers that they do not tell of.
    """

    key: PartitionKey
    refusal: FollowRefusal
    incarnation: Number
    leader_epoch: Mark
    offset: Number
    high_watermark: Number
    log_start: Number
    body_bytes: Number = 0
    delete_horizon: Number = 0
    leaps: Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=LEAPS_MAX)] = ()
    producers_bytes: Number = 0

    @property
    def size_bytes(self) -> int:
        """All of it in the response's body."""
        return self.producers_bytes + self.body_bytes


class FollowEnd(NamedTuple):
    """The answer to a `FollowQuestion`.

    Attributes:
        refusal: Why there is no answer, if so.
        incarnation: Incarnation of the follower that asked.
        leader_epoch: Epoch of the leader; -1 where this node does not lead.
        question: The number of the question.
        epoch: The largest epoch of the leader's log that is not above the asked one; -1 when there is none.
        end: The offset after its last record; for -1 the leader's first known offset.
    """

    key: PartitionKey
    refusal: FollowRefusal
    incarnation: Number
    leader_epoch: Mark
    question: Number
    epoch: Mark
    end: Number


class FollowWhole(NamedTuple):
    """The leader's logs hold everything that was published up to some time ago.

    Attributes:
        ago_ns: How long ago that was found when the response was made, ns.
        ends: End of each log below which that is so; -1 where it is not certain any more. A log that is left out has
            the end that was told last on the connection; one of which none was told is not meant.
    """

    ago_ns: Number
    ends: Annotated[tuple[tuple[PartitionKey, Mark], ...], _AT_MOST] = ()


class FollowResponse(NamedTuple):
    """What a round brought; partitions without news are left out."""

    results: Annotated[tuple[FollowResult, ...], _AT_MOST] = ()
    ends: Annotated[tuple[FollowEnd, ...], _AT_MOST] = ()
    whole: FollowWhole | None = None
