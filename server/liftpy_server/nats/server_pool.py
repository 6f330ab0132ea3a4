"""Which NATS server to try next: those that the user names, and those that the servers name."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

__all__ = ["ServerAddress", "ServerPool", "of_same_cluster"]

_PORT: Final = 4222
_WAIT_S: Final = 0.25  # after a failure; doubled with each one that follows
_WAIT_S_MAX: Final = 1.0
_DOUBLINGS_MAX: Final = 2


@dataclass(slots=True, eq=False)
class ServerAddress:
    """Where a server is.

    Attributes:
        host: Name or address of the host.
        port: Port of the server.
        user: User from the URL, or a token when there is no `password`.
        password: Password from the URL.
        wants_tls: Whether the URL says so.
        tls_name: What its certificate must be for.
        failures: Number of failures in a row.
        not_before: When it may be tried again, by the loop's clock.
    """

    host: str
    port: int
    user: str | None
    password: str | None
    wants_tls: bool
    tls_name: str
    failures: int = 0
    not_before: float = 0.0

    @property
    def place(self) -> str:
        """Host and port of the server, for messages and comparisons."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read `nats://user:password@host:port`, or a part of it."""
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host = parts.hostname or "127.0.0.1"
        return cls(host, parts.port or _PORT, parts.username, parts.password, parts.scheme == "tls", host)


class ServerPool:
    """The known NATS servers, and which of them to try next.

    Args:
        urls: Those that the user names, which are never forgotten.
        rng: Shuffles, so that a thousand connections do not meet at one server.
    """

    def __init__(self, urls: Iterable[str], rng: random.Random) -> None:
        self._rng = rng
        self._named = [ServerAddress.parse(url) for url in urls]
        rng.shuffle(self._named)
        self._learned: dict[str, ServerAddress] = {}

    @property
    def addresses(self) -> list[ServerAddress]:
        """Addresses of all known servers."""
        return [*self._named, *self._learned.values()]

    def next(self, avoided: ServerAddress | None = None) -> ServerAddress | None:
        """The one that may be tried first; None when there is no other than `avoided`."""
        found = [address for address in self.addresses if avoided is None or address.place != avoided.place]
        return min(found, key=lambda address: address.not_before, default=None)

    def learn(self, info: dict[str, Any], told_by: ServerAddress) -> None:
        """A server has told which servers there are; those that it no longer names are forgotten, but for itself."""
        named = {address.place for address in self._named}
        listed = [url for url in info.get("connect_urls") or [] if isinstance(url, str)]
        self._rng.shuffle(listed)
        learned = {} if told_by.place in named else {told_by.place: told_by}
        for url in listed:
            try:
                address = ServerAddress.parse(url)
            except ValueError:
                continue
            if address.place not in named:
                address.wants_tls, address.user, address.password = told_by.wants_tls, told_by.user, told_by.password
                if _is_ip(address.host):  # certificates are for names
                    address.tls_name = told_by.tls_name
                learned.setdefault(address.place, self._learned.get(address.place, address))
        self._learned = learned

    def failed(self, address: ServerAddress, now_s: float) -> None:
        """It could not be reached, or did not last."""
        wait_s = min(_WAIT_S * 2 ** min(address.failures, _DOUBLINGS_MAX), _WAIT_S_MAX)
        address.failures += 1
        address.not_before = now_s + wait_s * (0.5 + self._rng.random())

    @staticmethod
    def left(address: ServerAddress, now_s: float) -> None:
        """It was good until now; others are tried before it."""
        address.failures, address.not_before = 0, now_s


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def of_same_cluster(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether another server, and not our own under another address, has the same cluster."""
    cluster = own.get("cluster")
    return bool(cluster) and other.get("cluster") == cluster and other.get("server_id") != own.get("server_id")
