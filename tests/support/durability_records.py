"""What a node that ran before can prove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.metadata.state import MetadataState
from liftpy_server.replication.host.durability_record import DurabilityRecord

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk


def proven(disk: Disk, root: Path) -> DurabilityRecord:
    """Of a node that has registered, and has no doubt left."""
    durability_record = DurabilityRecord(disk, root / "standing.json", "boot")
    durability_record.doubt_recorded(MetadataState(), "a")
    return durability_record
