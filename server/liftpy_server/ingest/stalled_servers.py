"""NATS servers that stand still while this node subscribes.

A server that stands still goes on one day. Then it takes what publishers have sent it, and only after that, maybe, it
reads who subscribed elsewhere in that time: these messages go nowhere. So servers are asked after each subscription.
One whose host takes a connection, and that says nothing for long, stands still. Messages may be missing until it has
spoken again, and some seconds more, as with a route that is back.

When it stands still for `ROUTE_SILENT_S_MAX` the others end their routes to it, and say so to `ClusterWatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftpy_server.settings.limits import ROUTE_GRACE_S, ROUTE_SILENT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_server.ingest.binding import Binding

__all__ = ["StalledServers"]


@dataclass(slots=True)
class _Stalled:
    """A server, what was subscribed while it stood still, and until when at most that matters."""

    bindings: dict[Binding, None]
    until_s: float
    has_spoken: bool = False


class StalledServers:
    """Finds NATS servers that accept connections and answer nothing. Times are elapsed time."""

    def __init__(self) -> None:
        self._known: dict[str, _Stalled] = {}

    @property
    def silent(self) -> list[str]:
        """Addresses of those that have not spoken since."""
        return [place for place, known in self._known.items() if not known.has_spoken]

    @property
    def cause(self) -> str | None:
        """Why messages may be missing; None while no server stands still."""
        return next((_cause(place) for place in self._known), None)

    def cause_of(self, binding: Binding) -> str | None:
        """Why messages of a subscription may be missing."""
        return next((_cause(place) for place, known in self._known.items() if binding in known.bindings), None)

    def found(self, place: str, bindings: Iterable[Binding], now_s: float) -> None:
        """A server stands still, or did, since these were subscribed."""
        known = self._known.setdefault(place, _Stalled({}, 0.0))
        known.bindings.update(dict.fromkeys(bindings))
        known.until_s, known.has_spoken = now_s + ROUTE_SILENT_S_MAX, False

    def spoke(self, place: str, now_s: float) -> None:
        """Note that a server was heard."""
        known = self._known[place]
        known.until_s, known.has_spoken = now_s + ROUTE_GRACE_S, True

    def is_gone(self, place: str) -> list[Binding]:
        """It has ended. Returns what it matters to no longer."""
        return list(self._known.pop(place).bindings)

    def over(self, now_s: float) -> list[Binding]:
        """Forget those that know by now who subscribed; returns what they matter to no longer."""
        over = [place for place, known in self._known.items() if now_s >= known.until_s]
        return [binding for place in over for binding in self.is_gone(place)]


def _cause(place: str) -> str:
    return f"a NATS server stood still when this node subscribed: {place}"
