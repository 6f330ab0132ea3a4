"""Options of a member of a consumer group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from liftpy_client.errors import UsageError
from liftpy_client.group.subscriptions import is_pattern
from liftpy_envelope.groups import (
    CLIENT_BYTES_MAX,
    GROUP_BYTES_MAX,
    REBALANCE_TIMEOUTS_MS,
    SESSION_TIMEOUTS_MS,
    SUBSCRIPTIONS_MAX,
)
from liftpy_envelope.names import check_name
from liftpy_envelope.stream_config import INTERNAL_PREFIX

__all__ = ["GroupOptions", "PartitionsCallback", "check_group_name", "check_streams"]

PartitionsCallback = Callable[[list[tuple[str, int]]], Awaitable[Any] | Any]
"""Told of partitions, as pairs of stream and number. A plain function, or one that is awaited."""

_SHOWN_LENGTH: Final = 60
_STARTS: Final = ("earliest", "latest", "new")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of a member of a consumer group.

    A callback that raises ends the consumer, and the iteration raises its exception. A callback must not close the
    consumer.

    Attributes:
        instance_id: Id of a static member, unique in the group. The process can restart within the session timeout
            without moving partitions. If two processes have the same id, the older one is fenced.
        session_timeout_s: Seconds without a heartbeat after which the member is removed, and others get its partitions.
        rebalance_timeout_s: Seconds that the member has to release partitions. If the coordinator is unreachable for
            this long and for two sessions, the member counts all its partitions as lost.
        handler_timeout_s: Seconds for which the application may have an item in hand. When partitions move, the member
            waits for the item in hand so long, up to half of `rebalance_timeout_s`. An application that takes longer
            counts as stuck: the member gives its partitions back, so that others continue, and joins again when the
            application requests the next item. None for as long as it takes.
        commit_interval_s: Seconds between automatic commits of processed offsets. They are also committed on closing
            and before partitions are revoked. None to commit only with `commit()`.
        start: Where to start in partitions without a committed offset: at the `earliest` message, at the `latest`
            committed one, or with `new` messages.
        on_assigned: Called with assigned partitions, before their first message.
        on_revoked: Called with revoked partitions, after their last message and before their offsets are committed;
            also on closing.
        on_lost_partitions: Called with partitions that others may have already, because this member was away for too
            long. Their offsets cannot be committed any more.
    """

    instance_id: str | None = None
    session_timeout_s: float = 10.0
    rebalance_timeout_s: float = 60.0
    handler_timeout_s: float | None = 300.0
    commit_interval_s: float | None = 5.0
    start: Literal["earliest", "latest", "new"] = "earliest"
    on_assigned: PartitionsCallback | None = None
    on_revoked: PartitionsCallback | None = None
    on_lost_partitions: PartitionsCallback | None = None

    def __post_init__(self) -> None:
        if self.instance_id is not None:
            _check_text(self.instance_id, CLIENT_BYTES_MAX, "instance_id")
        _check_time(self.session_timeout_s, SESSION_TIMEOUTS_MS, "session_timeout_s")
        _check_time(self.rebalance_timeout_s, REBALANCE_TIMEOUTS_MS, "rebalance_timeout_s")
        for name in ("handler_timeout_s", "commit_interval_s"):
            given_s = getattr(self, name)
            is_time = isinstance(given_s, (int, float)) and 0.01 <= given_s <= 86_400
            if given_s is not None and not is_time:
                shown = f"{given_s!r:.{_SHOWN_LENGTH}}"
                raise UsageError(f"{name} must be between 0.01 and 86400, or None, not {shown}")
        for name in ("on_assigned", "on_revoked", "on_lost_partitions"):
            callback = getattr(self, name)
            if callback is not None and not callable(callback):
                raise UsageError(f"{name}: {callback!r:.{_SHOWN_LENGTH}} cannot be called")
        if self.start not in _STARTS:
            raise UsageError(
                f"start: {self.start!r} is not one of {', '.join(_STARTS)}: a group goes on from what it "
                "has committed; to move it elsewhere, reset it"
            )


def check_group_name(name: object) -> str:
    """`name`, when it is one of a group.

    Raises:
        UsageError: it is not 1 to 255 bytes of printable text.
    """
    return _check_text(name, GROUP_BYTES_MAX, "group")


def check_streams(names: object) -> tuple[str, ...]:
    """The streams that a group consumes, by name or pattern.

    Raises:
        UsageError: there are none, too many, or one twice, or one is liftpy's own.
        NameInvalidError: one is no name of a stream.
    """
    if not isinstance(names, (list, tuple)) or not names:
        raise UsageError(f"streams: {names!r:.80} is not a list of at least one stream")
    if len(names) > SUBSCRIPTIONS_MAX:
        raise UsageError(f"streams: {len(names)} are too many; a group consumes up to {SUBSCRIPTIONS_MAX}")
    checked = tuple(name if is_pattern(name) else check_name(name) for name in names)
    twice = sorted(name for name, count in Counter(checked).items() if count > 1)
    if twice:
        raise UsageError(f"streams: {twice[0]!r} is named twice")
    internal = [name for name in checked if name.startswith(INTERNAL_PREFIX)]
    if internal:
        raise UsageError(f"streams: {internal[0]!r} is liftpy's own, and can be read only without a group")
    return checked


def _check_text(value: object, bytes_max: int, what: str) -> str:
    if isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= bytes_max:
        return value
    shown = f"{value!r:.{_SHOWN_LENGTH}}" + ("..." if len(repr(value)) > _SHOWN_LENGTH else "")
    size = f" ({len(str(value))} characters)" if isinstance(value, str) else ""
    raise UsageError(
        f"{what}: {shown}{size} is not allowed: use 1 to {bytes_max} bytes of text without control characters"
    )


def _check_time(value_s: float, allowed_ms: range, what: str) -> None:
    is_number = isinstance(value_s, (int, float))
    if not is_number or not allowed_ms.start / 1000 <= value_s < allowed_ms.stop / 1000:
        shown = f"{value_s!r:.{_SHOWN_LENGTH}}"
        raise UsageError(
            f"{what} must be between {allowed_ms.start / 1000:g} and {allowed_ms[-1] / 1000:g}, not {shown}"
        )
