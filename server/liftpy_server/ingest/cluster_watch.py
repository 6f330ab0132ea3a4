"""Which servers of the NATS cluster can not reach the one that we listen to, as far as they tell.

A server names the others of its cluster (`connect_urls`), and says so again when it loses its last route to one of
them or has one again. What is published at a server without a route to ours does not come. A server that has ended is
no reason to wait: nobody publishes there. That is told apart by knocking: a port that refuses has no server. One that
answers, or whose host says nothing, may have publishers.

A server that does not come back under its address although another comes in its place is taken to be replaced.

A server that had no route when we came is never named by ours. So other servers are asked as well: those that ours
names, and those that the user does. An address that only they name, and at which a server of the same cluster answers,
has no route to ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftpy_server.nats.server_pool import of_same_cluster
from liftpy_server.settings.limits import ROUTE_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ClusterWatch", "LostServer", "unnamed"]

_SHOWN_MAX: Final = 3


@dataclass(eq=False, slots=True)
class LostServer:
    """A server that is named no longer.

    Attributes:
        places: its addresses; of those that came back it has none any more.
        whole_s: everything that was published at it before had arrived when its loss was told, if it was told at once.
        back_s: since when it is named again, or another in its place.
        is_silent: it was knocked at, and there may be somebody.
    """

    places: set[str]
    whole_s: float
    back_s: float | None = None
    is_silent: bool = False


class ClusterWatch:
    """Finds servers of the NATS cluster without a route to the one that this node listens to. Times are elapsed time.

    Attributes:
        cause: Cause of the gap that there is while a server is lost; None while none is.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lost: list[LostServer] = []
        self.cause: str | None = None

    @property
    def away(self) -> list[LostServer]:
        """Servers that lost their route and have not got it back."""
        return [server for server in self._lost if server.back_s is None]

    def told(self, info: dict[str, Any], place: str, whole_s: float, now_s: float) -> bool:
        """A server has said which others it reaches.

        Args:
            info: what it said.
            place: its own address.
            whole_s: everything that was published before, and reached the server, has arrived.
            now_s: Current time in seconds.

        Returns:
            Whether there is one that it reached before and reaches no longer.
        """
        listed = _named(info)
        vanished = self._known - listed - {place}
        arrived = listed - self._known
        self._known = listed
        for server in self.away:
            arrived -= server.places
            server.places -= listed
            if not server.places:
                server.back_s = now_s
        if arrived and self.away:
            self.away[0].back_s = now_s
        if info.get("ldm") or not vanished:  # a server that is going to shut down names itself no longer
            return False
        self._is_lost(LostServer(vanished, whole_s))
        return True

    def found(self, places: Iterable[str], whole_s: float, now_s: float) -> bool:
        """A server of the cluster is found that ours has not named since we came.

        Args:
            places: its addresses.
            whole_s: what was published before was not for us.
            now_s: Current time in seconds.

        Returns:
            Whether that is news.
        """
        fresh = {*places}.difference(*(server.places for server in self._lost))
        if not fresh:
            return False
        self._is_lost(LostServer(fresh, whole_s, is_silent=True))
        fresh -= self._known
        if not fresh:  # it has been named meanwhile
            self._lost[-1].back_s = now_s
        return True

    def _is_lost(self, server: LostServer) -> None:
        self._lost.append(server)
        self.cause = self.cause or f"a route between NATS servers was lost: {_shown(server.places)}"

    def is_gone(self, server: LostServer) -> None:
        """There is no server any more where this one was."""
        self._lost.remove(server)

    def is_whole(self, now_s: float) -> bool:
        """Whether every server has a route again, and has had it for long enough to know what is subscribed here."""
        self._lost = [each for each in self._lost if each.back_s is None or now_s - each.back_s < ROUTE_GRACE_S]
        if not self._lost:
            self.cause = None
        return not self._lost


def unnamed(own: Mapping[str, Any], place: str, others: Iterable[Mapping[str, Any]]) -> set[str]:
    """Addresses that other servers name and ours does not.

    Args:
        own: what our server says of itself.
        place: its address.
        others: what the others say of themselves. They do not count if they are of another cluster.
    """
    told = (_named(info) for info in others if of_same_cluster(own, info))
    return set[str]().union(*told) - _named(own) - {place}


def _named(info: Mapping[str, Any]) -> set[str]:
    return {url for url in info.get("connect_urls") or () if isinstance(url, str)}


def _shown(places: Iterable[str]) -> str:
    names = sorted(places)
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else "")
