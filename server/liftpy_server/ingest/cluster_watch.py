"""Which servers of the NATS cluster can not reach the one that we listen to, as far as they tell.

A server names the others of its cluster (`connect_urls`), and says so again when it loses its last route to one of
them or has one again. What is published at a server without a route to ours does not come. A server that has ended is
no reason to wait: nobody publishes there. That is told apart by knocking: a port that refuses has no server. One that
answers, or whose host says nothing, may have publishers.

A server without a route that is there all the same had fallen silent, perhaps long before its loss was told. One that
is back before anybody has knocked may have been silent, too, or it was started again. Then it has another id.

A server that does not come back under its address although another comes in its place is taken to be replaced.

A server that had no route when we came is never named by ours. So other servers are asked as well: those that ours
names, and those that the user does. An address that only they name, and at which a server of the same cluster answers,
has no route to ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
        places: Addresses of the server; of those that came back it has none any more.
        whole_s: Everything that was published at it before had arrived when its loss was told, if it was told at once.
        ids: What the server called itself before, by address; without those that are not known.
        back_s: Time since when it is named again, or another in its place, seconds.
        fell_silent: Whether it had no route, and was there all the same; None until it is looked for.
        named: All of its addresses, also those that came back.
    """

    places: set[str]
    whole_s: float
    ids: dict[str, str] = field(default_factory=dict)
    back_s: float | None = None
    fell_silent: bool | None = None
    named: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.named = frozenset(self.places)

    def is_same(self, place: str, server_id: str) -> bool:
        """Whether the server that answers at one of its addresses may be this one; it may if its id is not known."""
        return self.ids.get(place, server_id) == server_id


class ClusterWatch:
    """Finds servers of the NATS cluster without a route to the one that this node listens to. Times are elapsed time.

    Attributes:
        cause: Cause of the gap that there is while a server is lost; None while none is.
        losses: How often one was.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lost: list[LostServer] = []
        self._ids: dict[str, str] = {}
        self.cause: str | None = None
        self.losses = 0

    @property
    def unidentified(self) -> set[str]:
        """Addresses of servers that have a route, and whose ids are not known."""
        return self._known - self._ids.keys()

    def introduced(self, others: Mapping[str, Mapping[str, Any]], losses: int) -> None:
        """Servers have said who they are, by address, since there were so many `losses`.

        If one has been lost meanwhile, what answered may have taken its place.
        """
        if losses == self.losses:
            named = {place: info.get("server_id") for place, info in others.items() if place in self._known}
            self._ids |= {place: name for place, name in named.items() if isinstance(name, str)}

    @property
    def unclear(self) -> list[LostServer]:
        """Servers that are lost, or were, and may be there without a route, or may have been, for all that is known."""
        return [server for server in self._lost if server.back_s is None or server.fell_silent is None]

    @property
    def away(self) -> list[LostServer]:
        """Servers that lost their route and have not got it back."""
        return [server for server in self._lost if server.back_s is None]

    def told(self, info: dict[str, Any], place: str, whole_s: float, now_s: float) -> bool:
        """A server has said which others it reaches.

        Args:
            info: What it said.
            place: Address of the server that told it.
            whole_s: Everything that was published before, and reached the server, has arrived.
            now_s: Current time in seconds.

        Returns:
            Whether there is one that it reached before and reaches no longer.
        """
        listed = _named(info)
        vanished = self._known - listed - {place}
        arrived = listed - self._known
        self._known = listed
        if isinstance(server_id := info.get("server_id"), str):
            self._ids[place] = server_id
        for server in self.away:
            arrived -= server.places
            server.places -= listed
            if not server.places:
                server.back_s = now_s
        if arrived and self.away:
            self.away[0].back_s = now_s
        if info.get("ldm") or not vanished:  # a server that is going to shut down names itself no longer
            return False
        ids = {place: self._ids.pop(place) for place in vanished & self._ids.keys()}
        self._is_lost(LostServer(vanished, whole_s, ids))
        return True

    def found(self, places: Iterable[str], whole_s: float, now_s: float) -> bool:
        """A server of the cluster is found that ours has not named since we came.

        Args:
            places: Addresses of the server.
            whole_s: What was published before was not for us.
            now_s: Current time in seconds.

        Returns:
            Whether that is news.
        """
        fresh = {*places}.difference(*(server.places for server in self._lost))
        if not fresh:
            return False
        self._is_lost(LostServer(fresh, whole_s, fell_silent=True))
        fresh -= self._known
        if not fresh:  # it has been named meanwhile
            self._lost[-1].back_s = now_s
        return True

    def _is_lost(self, server: LostServer) -> None:
        self._lost.append(server)
        self.losses += 1
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
        own: What our server says of itself.
        place: Address of the server.
        others: What the others say of themselves. They do not count if they are of another cluster.
    """
    told = (_named(info) for info in others if of_same_cluster(own, info))
    return set[str]().union(*told) - _named(own) - {place}


def _named(info: Mapping[str, Any]) -> set[str]:
    return {url for url in info.get("connect_urls") or () if isinstance(url, str)}


def _shown(places: Iterable[str]) -> str:
    names = sorted(places)
    return ", ".join(names[:_SHOWN_MAX]) + (f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else "")
