"""What a node remembers of a stream while it runs: its settings as they are now, its counts and its gaps."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from liftpy_server.limits import GAPS_KEPT_MAX, LOG_REPEAT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from liftpy_envelope.errors import AckErrorCode
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.metadata.state import StreamInfo

__all__ = ["LED_ELSEWHERE", "Gap", "StreamCounters", "StreamState"]

logger = logging.getLogger(__name__)

LED_ELSEWHERE: Final = "another node led the partition before"
_LOG_REPEAT_NS: Final = int(LOG_REPEAT_S * 1e9)


@dataclass(slots=True, kw_only=True)
class Gap:
    """A time during which messages may have been published that are not in the stream.

    Attributes:
        since_ns: last moment at which nothing was missing.
        until_ns: first moment at which nothing was missing again; None while the gap lasts.
        cause: what happened.
        messages: how many messages are missing; None when nobody can know.
    """

    since_ns: int
    until_ns: int | None
    cause: str
    messages: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class StreamCounters:
    """Counts since the node started."""

    messages: int = 0
    bytes: int = 0
    batches: int = 0
    duplicates: int = 0
    lookalikes: int = 0
    unsupported_stored: int = 0
    gaps: int = 0
    committed_lost: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class StreamState:
    """One stream on this node.

    Args:
        info: from the metadata.
        on_gap: called when there is a new gap, when one ends, and now and then while one grows, so that it can be kept.
        gaps: those of earlier runs, oldest first.

    Attributes:
        gaps: the newest gaps, in the order in which they began.
        lapse: the gap that lasts, if there is one: nobody listens for the stream's messages now, or not for all.
    """

    def __init__(self, info: StreamInfo, on_gap: Callable[[StreamState], None], gaps: Iterable[Gap] = ()) -> None:
        self.uuid = info.uuid
        self.config: StreamConfig = info.config
        self.paused = info.paused
        self.read_only = info.read_only
        self._partitions = info.partitions
        self.counters = StreamCounters()
        self.gaps: list[Gap] = list(gaps)[-GAPS_KEPT_MAX:]
        self.lapse = next((gap for gap in reversed(self.gaps) if gap.until_ns is None), None)
        self._on_gap = on_gap
        self._refusals: dict[str, _Refusals] = {}

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def update(self, info: StreamInfo) -> None:
        """Take over settings that changed."""
        self.config = info.config
        self.paused = info.paused
        self.read_only = info.read_only
        self._partitions = info.partitions

    def purged_below(self, partition: int) -> int:
        """Records of a partition below this offset were purged; a log may begin above it for other reasons."""
        return self._partitions[partition].log_start

    def open_gap(self, since_ns: int, cause: str) -> None:
        """Messages may be missing from `since_ns` on; a gap that lasts already goes on under its own cause."""
        if self.lapse is not None:
            return
        self.lapse = self._add(Gap(since_ns=since_ns, until_ns=None, cause=cause))
        logger.log(_level_of(cause), "stream %s: messages may be missing from now on: %s", self.name, cause)
        self._on_gap(self)

    def close_gap(self, until_ns: int) -> None:
        """Nothing is missing from `until_ns` on."""
        gap, self.lapse = self.lapse, None
        if gap is None:
            return
        gap.until_ns = max(until_ns, gap.since_ns)
        seconds = (gap.until_ns - gap.since_ns) / 1e9
        logger.log(_level_of(gap.cause), "stream %s: gap of %.3f s closed (%s)", self.name, seconds, gap.cause)
        self._on_gap(self)

    def lapse_ongoing(self) -> bool:
        """Whether a gap lasts."""
        return self.lapse is not None

    def whole_until_ns(self) -> int:
        """The last moment at which the stream was known to be listening, as far as its gaps tell; 0 when none does."""
        return max((gap.until_ns for gap in self.gaps if gap.until_ns is not None), default=0)

    def count_refused(self, code: AckErrorCode, description: str, *, answered: bool, now_ns: int) -> None:
        """Count a message that was refused; one whose publisher could not be told is a gap of known size."""
        name = code.name.lower()
        self.counters.refused[name] += 1
        if answered:
            return
        known = self._refusals.get(name)
        if known is None or now_ns - known.last_ns >= _LOG_REPEAT_NS:
            gap = self._add(Gap(since_ns=now_ns, until_ns=now_ns, cause=name, messages=0))
            known = self._refusals[name] = _Refusals(gap)
        gap, known.last_ns = known.gap, now_ns
        gap.messages = (gap.messages or 0) + 1
        gap.until_ns = max(now_ns, gap.since_ns)
        if now_ns - known.told_ns >= _LOG_REPEAT_NS:
            known.told_ns = now_ns
            logger.warning("stream %s refuses messages of publishers that ask for no ack: %s", self.name, description)
            self._on_gap(self)

    def keep_gaps(self) -> None:
        """Have what grew since it was kept last kept too, before the node stops."""
        if self._refusals:
            self._on_gap(self)

    def _add(self, gap: Gap) -> Gap:
        """Add a gap; the oldest that is over makes room for it."""
        self.counters.gaps += 1
        if len(self.gaps) >= GAPS_KEPT_MAX:
            gone = next(old for old in self.gaps if old is not self.lapse)
            self.gaps.remove(gone)
            self._refusals = {name: known for name, known in self._refusals.items() if known.gap is not gone}
        self.gaps.append(gap)
        return gap


def _level_of(cause: str) -> int:
    """When a node dies thousands of streams get another leader; the log has one line for all of them."""
    return logging.DEBUG if cause == LED_ELSEWHERE else logging.WARNING


@dataclass(slots=True)
class _Refusals:
    """The gap of messages refused for one reason.

    Attributes:
        last_ns: when the last message was refused.
        told_ns: when the gap was logged and kept last.
    """

    gap: Gap
    last_ns: int = 0
    told_ns: int = 0
