"""Whether the disk has room for another entry: asked before a lone voter tries, which must stop if there is none.

In a cluster of several a voter whose disk is full stops, and the others go on. A lone one has no others: it refuses
changes of the metadata instead, and goes on serving what it has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from liftpy_server.metadata.errors import MetadataUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_room"]

_ROOM_BYTES_MIN: Final = 1024 * 1024


def check_room(folder: Path, what: str) -> None:
    """Do nothing when there is room.

    Raises:
        MetadataUnavailableError: the disk is as good as full; nothing changed.
    """
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < _ROOM_BYTES_MIN:
        raise MetadataUnavailableError(
            f"{what}: the disk of {folder} is full ({free} bytes are left, and the metadata want {_ROOM_BYTES_MIN})"
        )
