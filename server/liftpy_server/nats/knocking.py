"""Whether a NATS server listens at one of its addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

from liftpy_server.nats.server_pool import ServerAddress
from liftpy_server.settings.limits import KNOCK_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["nobody_listens"]


async def nobody_listens(places: Iterable[str]) -> bool:
    """Whether the host of a server says that no server is there; False when one answers, or nobody does.

    Args:
        places: The server's addresses. Those of this host count only when there are no others: a server names every
            address of its host, and some of them, such as those of bridges of containers, every host has.
    """
    addresses = [ServerAddress.parse(place) for place in places]
    remote = [address for address in addresses if not _is_ours(address)]
    refused = await asyncio.gather(*(_is_refused(address) for address in remote or addresses))
    return True in refused and False not in refused


async def _is_refused(address: ServerAddress) -> bool | None:
    """None when nobody says anything."""
    try:
        async with asyncio.timeout(KNOCK_TIMEOUT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, address.host, address.port
            )
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return None
    transport.abort()
    return False


def _is_ours(address: ServerAddress) -> bool:
    """Whether it is an address of this host: what is sent there is sent from there."""
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        return False
    try:
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sender:
            sender.connect((address.host, address.port))
            return bool(sender.getsockname()[0] == address.host)
    except OSError:
        return False
