"""The command by which nodes tell events of themselves. It changes nothing else: its place in the log orders them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.events import KINDS, TOLD, Event
from liftpy_envelope.names import check_name
from liftpy_server.metadata.changes import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.metadata.changes import Draft

__all__ = ["EVENT_OPERATIONS", "TOLD_AT_ONCE_MAX"]

TOLD_AT_ONCE_MAX: Final = 100
_TEXT_MAX: Final = 500


def _tell_events(draft: Draft, _now: int, *, node_id: str, events: list[list[Any]]) -> None:
    """Tell of these events: [kind, time in ns, stream or None, partition or None, details] each."""
    if node_id not in draft.nodes:
        raise RefusedError(ErrorCode.CONFLICT, f"there is no node {node_id!r:.80}")
    if len(events) > TOLD_AT_ONCE_MAX:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{len(events)} events; at most {TOLD_AT_ONCE_MAX} at once")
    draft.tell(tuple(_event(node_id, *event) for event in events))


def _event(
    node_id: str, kind: str, time_ns: int, stream: str | None, partition: int | None, details: dict[str, Any]
) -> Event:
    kinds = [type(each) for each in (time_ns, details)]
    if not (kind in TOLD and kinds == [int, dict] and 0 <= time_ns < 2**63):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{kind!r:.80} is no event that a node tells of itself")
    if stream is not None:
        check_name(stream)
    if partition is not None and (type(partition) is not int or stream is None):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{kind}: {partition!r:.80} is no partition")
    allowed = {*KINDS[kind].fields, "cause"}
    kept = {name: _bounded(value) for name, value in details.items() if name in allowed}
    return Event(kind, time_ns, stream, partition, node_id, kept)


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if value is None or (isinstance(value, (bool, int, float)) and isfinite(value)):
        return value
    raise RefusedError(ErrorCode.INVALID_REQUEST, f"{value!r:.80} is no text and no number")


EVENT_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {"tell_events": _tell_events}
