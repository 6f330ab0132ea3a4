"""Options of `Lift.process`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from liftpy_client.errors import UsageError
from liftpy_client.group.options import GroupOptions
from liftpy_client.group.transaction import check_run
from liftpy_envelope.subject import check_literal

if TYPE_CHECKING:
    from liftpy_client.message import Message

__all__ = ["Batch", "By", "ProcessOptions", "Retry", "check_group_options"]

By = Literal["key", "subject", "partition"] | Callable[["Message"], Hashable]
"""What keeps messages in order: those for which it is the same are handled one after the other."""

_BYS: Final = ("key", "subject", "partition")
_ROWS_MAX: Final = 1_000_000
_REBALANCE_S_MAX: Final = 3_600.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        raise UsageError(f"{name} must be between {low:g} and {high:g}, not {value!r:.60}")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a handler is called for a message, and how long to wait between the calls.

    The wait before the second call is between half of the first number of `backoff_s` and all of it. It doubles with
    each further call, up to the second number.

    Attributes:
        attempts: Number of calls, the first one included.
        backoff_s: Shortest and longest wait, in seconds.
    """

    attempts: int = 5
    backoff_s: tuple[float, float] = (0.1, 30.0)

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or not 1 <= self.attempts <= 1_000:
            raise UsageError(f"attempts must be between 1 and 1000, not {self.attempts!r:.60}")
        waits: object = self.backoff_s
        if not isinstance(waits, tuple) or len(waits) != 2 or not all(_is_number(wait) for wait in waits):
            raise UsageError(f"backoff_s must be the shortest and the longest wait in seconds, not {waits!r:.60}")
        if not 0 <= waits[0] <= waits[1] <= 3_600:
            raise UsageError(f"backoff_s must grow, between 0 and 3600 seconds, not {waits!r:.60}")

    def wait_s(self, failed: int, jitter: float) -> float:
        """Return the wait after this many failed calls. `jitter` is a random number from 0 to 1."""
        longest = min(self.backoff_s[1], self.backoff_s[0] * 2.0 ** min(failed - 1, 60))
        return longest * (0.5 + jitter / 2)


@dataclass(frozen=True, slots=True)
class Batch:
    """Handle Arrow record batches rather than messages. Each is of one partition.

    Attributes:
        rows: Most rows of a batch.
        wait_s: Longest time that the first row of a batch waits for more.
    """

    rows: int = 5_000
    wait_s: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or not 1 <= self.rows <= _ROWS_MAX:
            raise UsageError(f"rows must be between 1 and {_ROWS_MAX}, not {self.rows!r:.60}")
        _check_range("wait_s", self.wait_s, 0, 3_600)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """How `Lift.process` calls the handler.

    Attributes:
        concurrency: Number of handlers that run at the same time.
        by: What keeps messages in order: `key`, `subject`, `partition`, or a function of the message. Messages without
            a key, or with the value None, have no order.
        retry: How often the handler is called for a message before it counts as failed; by default once.
        dead_letter: Subject of the dead letters: messages whose handler has failed. By default such a message ends the
            process.
        handler_timeout_s: Time limit of a call of the handler.
        batch: Size of record batches. By default the handler gets messages.
        in_flight_messages: Most messages, or batches, that are read and not committed.
        in_flight_bytes: Approximate limit of the bytes of those that are not finished.
        shutdown_timeout_s: How long to wait for handlers when the process is stopped.
        atomic: Whether the handler also gets a `Transaction`, whose outputs are stored once.
        run: A name for this processing of the streams by the group. With another name, outputs are stored again.
    """

    concurrency: int = 16
    by: By = "key"
    retry: Retry = Retry(attempts=1)
    dead_letter: str | None = None
    handler_timeout_s: float = 60.0
    batch: Batch | None = None
    in_flight_messages: int = 10_000
    in_flight_bytes: int = 64 * 1024 * 1024
    shutdown_timeout_s: float = 20.0
    atomic: bool = False
    run: str = ""

    def __post_init__(self) -> None:
        for name, high in (("concurrency", 10_000), ("in_flight_messages", 10_000_000), ("in_flight_bytes", 2**40)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                raise UsageError(f"{name} must be between 1 and {high}, not {value!r:.60}")
        _check_range("handler_timeout_s", self.handler_timeout_s, 0.01, 86_400)
        _check_range("shutdown_timeout_s", self.shutdown_timeout_s, 0, 86_400)
        by: object = self.by
        if by not in _BYS and not callable(by):
            raise UsageError(f"by: {by!r:.60} is not one of {', '.join(_BYS)}, and not a function of a message")
        if inspect.iscoroutinefunction(by):
            raise UsageError(f"by: {by!r:.60} is `async def`; pass a plain function of a message")
        if self.batch is not None and by not in {"key", "partition"}:
            raise UsageError("by: batches are of one partition, and handled in its order; leave `by` out")
        for name, kind in (("retry", Retry), ("batch", Batch)):
            if not isinstance(getattr(self, name), (kind, type(None) if name == "batch" else kind)):
                raise UsageError(f"{name}: {getattr(self, name)!r:.60} is not a liftpy.{kind.__name__}")
        self._check_atomic()
        if self.dead_letter is not None:
            check_literal(self.dead_letter)

    def _check_atomic(self) -> None:
        if self.atomic and self.batch is not None:
            raise UsageError("atomic: a handler of record batches has no transaction; leave `batch` away")
        if check_run(self.run) and not self.atomic:
            raise UsageError("run names a processing with atomic=True, which is not asked for")


def check_group_options(given: GroupOptions | None, handler_timeout_s: float) -> GroupOptions:
    """Options of the member: by default, partitions may take as long to move as handlers take.

    Raises:
        UsageError: they commit nothing by themselves.
    """
    if given is None:
        return GroupOptions(rebalance_timeout_s=min(max(60.0, 6 * handler_timeout_s), _REBALANCE_S_MAX))
    if given.commit_interval_s is None:
        raise UsageError("group_options: commit_interval_s is None, but what handlers finished must be committed")
    return given
