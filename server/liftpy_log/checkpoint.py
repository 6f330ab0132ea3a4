"""How far every partition of a node was committed: one small file, written every few seconds and at a clean stop.

    magic u32 | version u32 | crc32c u32 of version and msgpack | 4 pad | msgpack [clean, [partition, ...]]
    partition   [uuid, partition, high watermark, log time, [[time ns, log end], ...]]
    log time    [ns, [[to ns, amount ns], ...]], or nil

The file is a lower bound, never the truth: the log is. It lets recovery tell a torn tail from durable records that
are gone, says up to when logs held all that was published, and how far the time of each log had gone on
without records (see `log_time`).

It is read before everything else and written every few seconds, so its version is that of the data directory: whoever
changes any format in there raises it. An older liftpy then refuses to start, and changes nothing.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import google_crc32c
import msgpack

from liftpy_envelope.unpacking import OWN_FILE, unpack
from liftpy_log.errors import CheckpointCorruptError, DataDirError
from liftpy_log.log_time import Leap, LogTimeState
from liftpy_log.storage.checked_json import set_aside
from liftpy_log.storage.disk import read_whole, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from liftpy_log.storage.disk import Disk

__all__ = ["Checkpoint", "load_checkpoint", "open_checkpoint", "save_checkpoint"]

logger = logging.getLogger(__name__)

_MAGIC: Final = 0x504B434C
_VERSION: Final = 5
_HEAD: Final = struct.Struct("<III4x")


@dataclass(slots=True)
class Checkpoint:
    """What the file says.

    Attributes:
        clean: The node had made everything durable and stopped.
        high_watermarks: High watermarks by (stream uuid, partition).
        times: Times of the logs, likewise.
        wholes: By (stream uuid, partition), (time ns, end): what was published before that time is in the log below
            that end.
    """

    clean: bool = False
    high_watermarks: dict[tuple[bytes, int], int] = field(default_factory=dict)
    times: dict[tuple[bytes, int], LogTimeState] = field(default_factory=dict)
    wholes: dict[tuple[bytes, int], list[tuple[int, int]]] = field(default_factory=dict)

    def mark(self, uuid: str, partition: int) -> int:
        """The high watermark of a partition of a stream with that uuid, in hexadecimal digits; 0 when none is known."""
        return self.high_watermarks.get((bytes.fromhex(uuid), partition), 0)

    def forget(self, uuid: str, partition: int) -> None:
        """The log of which it tells is not there any more."""
        for told in (self.high_watermarks, self.times, self.wholes):
            told.pop((bytes.fromhex(uuid), partition), None)


def save_checkpoint(disk: Disk, path: Path, checkpoint: Checkpoint) -> None:
    """Write the file, durably and as a whole."""
    rows = [
        [*key, mark, checkpoint.times.get(key), checkpoint.wholes.get(key, ())]
        for key, mark in checkpoint.high_watermarks.items()
    ]
    content = msgpack.packb([checkpoint.clean, rows])
    write_atomically(disk, path, _head(_VERSION, content) + content)


def load_checkpoint(disk: Disk, path: Path) -> Checkpoint | None:
    """Read the file; None when there is none.

    Raises:
        CheckpointCorruptError: it is damaged.
        DataDirError: a newer liftpy wrote it.
    """
    try:
        data = read_whole(disk, path)
    except FileNotFoundError:
        return None
    content = data[_HEAD.size :]
    version = _HEAD.unpack_from(data)[1] if len(data) >= _HEAD.size else 0
    if version > _VERSION and data[: _HEAD.size] == _head(version, content):
        raise DataDirError(
            f"{path} has version {version}: a newer liftpy ran in this data directory, and this one knows version "
            f"{_VERSION} at most. Start the newer one again; nothing was changed"
        )
    if data[: _HEAD.size] != _head(_VERSION, content):
        raise CheckpointCorruptError(f"{path} is damaged: its checksum is not that of its bytes")
    clean, rows = unpack(content, OWN_FILE)
    times = {
        (uuid, partition): LogTimeState(time[0], tuple(Leap(*leap) for leap in time[1]))
        for uuid, partition, _, time, _ in rows
        if time is not None
    }
    marks = {(uuid, partition): mark for uuid, partition, mark, *_ in rows}
    wholes = {(uuid, partition): [(at_ns, end) for at_ns, end in pairs] for uuid, partition, *_, pairs in rows if pairs}
    return Checkpoint(clean, marks, times, wholes)


def _head(version: int, content: bytes) -> bytes:
    """The checksum covers the version, so that a turned bit is not taken for a newer liftpy."""
    crc = google_crc32c.extend(google_crc32c.value(version.to_bytes(4, "little")), content)
    return _HEAD.pack(_MAGIC, version, crc)


def open_checkpoint(disk: Disk, path: Path, quarantine: Path) -> tuple[Checkpoint, bool]:
    """What a node knew when it stopped last.

    Returns:
        The checkpoint, an empty one where there is none; and whether it was damaged: then it was moved to `quarantine`,
        and the node can not prove that its logs are whole.

    Raises:
        DataDirError: a newer liftpy wrote it; it stays where it is.
    """
    try:
        return load_checkpoint(disk, path) or Checkpoint(), False
    except CheckpointCorruptError as error:
        place = set_aside(disk, path, quarantine)
        logger.error("%s; it was moved to %s, and the node starts without it", error, place)  # noqa: TRY400
        return Checkpoint(), True
