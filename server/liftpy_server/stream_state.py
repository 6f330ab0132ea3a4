"""What a node remembers of a stream while it runs: its settings as they are now, its counts and its gaps."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from liftpy_server.limits import GAPS_KEPT_MAX, LOG_REPEAT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.errors import AckErrorCode
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.metadata.state import StreamInfo

__all__ = ["Gap", "StreamCounters", "StreamState"]

logger = logging.getLogger(__name__)


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
        return asdict(self)


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
    refused: Counter[str] = field(default_factory=Counter)


class StreamState:
    """One stream on this node.

    Args:
        info: from the metadata.
        on_gap: called when a gap is recorded or changes, so that it can be kept.
    """

    def __init__(self, info: StreamInfo, on_gap: Callable[[StreamState], None]) -> None:
        self.uuid = info.uuid
        self.config: StreamConfig = info.config
        self.paused = info.paused
        self.read_only = info.read_only
        self.counters = StreamCounters()
        self.gaps: deque[Gap] = deque(maxlen=GAPS_KEPT_MAX)
        self._on_gap = on_gap
        self._logged_ns: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def update(self, info: StreamInfo) -> None:
        """Take over settings that changed."""
        self.config = info.config
        self.paused = info.paused
        self.read_only = info.read_only

    def open_gap(self, since_ns: int, cause: str) -> None:
        """Messages may be missing from `since_ns` on."""
        if self.gaps and self.gaps[-1].until_ns is None:
            return
        self.gaps.append(Gap(since_ns=since_ns, until_ns=None, cause=cause))
        self.counters.gaps += 1
        logger.warning("stream %s: messages may be missing from now on: %s", self.name, cause)
        self._on_gap(self)

    def close_gap(self, until_ns: int) -> None:
        """Nothing is missing from `until_ns` on."""
        if not self.gaps or self.gaps[-1].until_ns is not None:
            return
        gap = self.gaps[-1]
        gap.until_ns = until_ns
        seconds = (until_ns - gap.since_ns) / 1e9
        logger.warning("stream %s: gap of %.3f s closed (%s)", self.name, seconds, gap.cause)
        self._on_gap(self)

    def lapse_ongoing(self) -> bool:
        """Whether a gap is open."""
        return bool(self.gaps) and self.gaps[-1].until_ns is None

    def count_refused(self, code: AckErrorCode, description: str, *, answered: bool, now_ns: int) -> None:
        """Count a message that was refused; one whose publisher could not be told is a gap of known size."""
        name = code.name.lower()
        self.counters.refused[name] += 1
        if answered:
            return
        last = self.gaps[-1] if self.gaps else None
        if last is not None and last.cause == name and last.messages is not None and self._is_recent(last, now_ns):
            last.messages += 1
            last.until_ns = now_ns
        else:
            self.gaps.append(Gap(since_ns=now_ns, until_ns=now_ns, cause=name, messages=1))
            self.counters.gaps += 1
        if now_ns - self._logged_ns.get(name, 0) >= LOG_REPEAT_S * 1e9:
            self._logged_ns[name] = now_ns
            logger.warning("stream %s refuses messages of publishers that ask for no ack: %s", self.name, description)
            self._on_gap(self)

    @staticmethod
    def _is_recent(gap: Gap, now_ns: int) -> bool:
        return gap.until_ns is not None and now_ns - gap.until_ns < LOG_REPEAT_S * 1e9
