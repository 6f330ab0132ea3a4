"""What a node that ran before can prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.metadata.state import MetadataState
from liftpy_server.replication.host.standing import Standing

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk


def proven(disk: Disk, root: Path) -> Standing:
    """Of a node that has registered, and has no doubt left."""
    standing = Standing(disk, root / "standing.json", "boot")
    standing.settled(MetadataState(), "a")
    return standing
