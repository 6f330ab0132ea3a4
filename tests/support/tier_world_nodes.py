"""Who is there in a `tier_world`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftpy_log.tier.layout import PartitionPath
    from liftpy_server.tiering.context import Context
    from support.fault_store import FaultStore
    from support.tier_world_log import WorldLog
    from support.tier_world_reading import Reading

__all__ = ["Fork", "Node"]


@dataclass
class Node:
    """A node with a tier worker, which may think that it still leads."""

    name: str
    store: FaultStore
    context: Context
    incarnation: int = 1
    epoch: int = -1
    end: int | None = None  # up to where it thinks the bucket goes; None: it must claim
    crash: tuple[int, bool] | None = None  # at which of the next requests, and whether after it
    interrupted: tuple[int, list[str]] | None = None  # at which one what the other one does comes in between
    asked: int = 0


@dataclass
class Fork:
    """A fork, and what it must hold."""

    path: PartitionPath
    log: WorldLog
    reading: Reading
    epoch: int
