"""Closes a connection to NATS, also one that is lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["close_nats"]

logger = logging.getLogger(__name__)


async def close_nats(nats: Client) -> None:
    """Close a connection. What is unsent on a lost one is dropped: its acks were awaited before, or by nobody."""
    if not nats.is_connected:
        # With unsent bytes nats-py would flush the lost connection, and raise what that raises.
        nats._pending_data_size = 0  # noqa: SLF001
    try:
        await nats.close()
    except OSError as error:
        logger.debug("NATS: lost while it was closed: %s", error)
