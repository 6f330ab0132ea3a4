"""What can go wrong with a log on disk. Every error names the file, and the position where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BatchBoundaryError",
    "BatchesRefusedError",
    "CheckpointCorruptError",
    "DataDirError",
    "FileDamagedError",
    "OffsetOutOfRangeError",
    "PartitionOfflineError",
    "SegmentCorruptError",
    "StorageFullError",
    "UnfinishedCutError",
    "WalCorruptError",
]


class DataDirError(LiftError):
    """The data directory can not be used; the message says why and what to do."""


class FileDamagedError(LiftError):
    """A small file is not what was written.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is damaged: its checksum is not that of its bytes")
        self.path = path


class StorageFullError(LiftError):
    """The disk has no room; nothing of the refused batch stayed behind."""

    retriable = True


class PartitionOfflineError(LiftError):
    """The partition met an error that it must not work past: an I/O error, or bytes that changed."""


class UnfinishedCutError(PartitionOfflineError):
    """The log is being cut back, which lacks room, memory or files: whoever opens the log finishes it."""


class SegmentCorruptError(PartitionOfflineError):
    """Bytes that were written well are not what they were.

    Attributes:
        path: The segment's file.
        position: Where in it the damaged batch begins.
    """

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}: {reason}. The partition stays offline so that nothing after this "
            "place is lost; restore the file from a copy, or delete the stream"
        )
        self.path = path
        self.position = position


class OffsetOutOfRangeError(LiftError):
    """The offset is not in the log.

    Attributes:
        offset: The offset asked for.
        log_start: First offset there is.
        log_end: Offset after the last one.
    """

    def __init__(self, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(f"offset {offset} is outside the log, which holds {log_start} to {log_end}")
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class BatchesRefusedError(LiftError):
    """Batches do not continue the log that they were to be appended to.

    Attributes:
        directory: Directory of the log.
    """

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(f"batches that do not continue the log in {directory} were refused: {reason}")
        self.directory = directory


class BatchBoundaryError(LiftError):
    """A log can not be cut inside of a batch.

    Attributes:
        offset: Where it was to be cut.
        base_offset: Where the batch begins that holds the offset.
        next_offset: Where it ends.
    """

    def __init__(self, offset: int, base_offset: int, next_offset: int) -> None:
        super().__init__(
            f"no batch begins at offset {offset}: it is inside of the one from {base_offset} to {next_offset}"
        )
        self.offset = offset
        self.base_offset = base_offset
        self.next_offset = next_offset


class CheckpointCorruptError(LiftError):
    """The checkpoint file's checksum does not match."""


class WalCorruptError(LiftError):
    """A write-ahead log that was durable can not be read to its end."""
