"""Opening a partition's directory: which segments are there, what they hold, and which epochs they went through."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from liftpy_log.epochs import EpochHistory
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.recovery import recover_active, recover_sealed
from liftpy_log.scan import walk_headers
from liftpy_log.segment import LOG_SUFFIX, Segment, base_offset_of, segment_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.disk import Disk, File
    from liftpy_log.files import FileCache

__all__ = ["open_segments", "rebuild_epochs"]


def open_segments(
    disk: Disk, files: FileCache, directory: Path, *, durable_end: int, verify_bytes: int, first_offset: int
) -> list[Segment]:
    """The segments of a partition, oldest first, recovered and durable; a new one where there is none.

    Args:
        disk: where.
        files: the node's open files.
        directory: of the partition; created when it is missing.
        durable_end: records below this offset are known to have been durable.
        verify_bytes: how much of the newest segment to check beyond what its index asks for.
        first_offset: base offset of the first segment of an empty log.

    Raises:
        SegmentCorruptError: something other than a torn tail is wrong.
    """
    disk.make_directory(directory)
    bases = sorted(base for name in disk.names(directory) if (base := base_offset_of(name)) is not None)
    segments = [Segment(disk, directory, base) for base in bases]
    if not segments:
        if durable_end > first_offset:
            raise SegmentCorruptError(
                segment_path(directory, first_offset),
                0,
                f"there is no segment, but records up to {durable_end} were durable",
            )
        segment, file = Segment.create(disk, directory, first_offset)
        files.add(segment, file)
        segments.append(segment)
    for segment, successor in pairwise(segments):
        recover_sealed(segment, files.get(segment), successor.base_offset)
    active_file = files.get(segments[-1])
    recover_active(segments[-1], active_file, durable_end=durable_end, verify_bytes=verify_bytes)
    active_file.sync()  # what a killed process had written is in the kernel, and not necessarily on disk
    _remove_strays(disk, directory, segments)
    return segments


def _remove_strays(disk: Disk, directory: Path, segments: Sequence[Segment]) -> None:
    """Remove half-written index files, and index files without a segment."""
    known = {segment.path.stem for segment in segments}
    for name in disk.names(directory):
        stem, _, suffix = name.partition(".")
        if stem.isdigit() and (suffix.endswith("tmp") or (f".{suffix}" != LOG_SUFFIX and stem not in known)):
            disk.remove(directory / name)


def rebuild_epochs(segments: Sequence[Segment], files: FileCache) -> EpochHistory:
    """The epoch history of a log, from the first and last batch of every segment and, where they differ, from inside.

    Raises:
        SegmentCorruptError: a batch on the way is damaged.
    """
    epochs = EpochHistory()
    for segment in segments:
        if not segment.size:
            continue
        file = files.get(segment)
        _, first = next(walk_headers(file, 0, segment.size))
        _, last = segment.locate(file, segment.next_offset - 1)
        epochs.begin(first.leader_epoch, first.base_offset)
        if last.leader_epoch != first.leader_epoch:
            _find_epochs(epochs, segment, file, first, last)
    return epochs


def _find_epochs(epochs: EpochHistory, segment: Segment, file: File, low: BatchHeader, high: BatchHeader) -> None:
    """Bisect between two batches of different epochs for every change in between."""
    if low.next_offset == high.base_offset:
        epochs.begin(high.leader_epoch, high.base_offset)
        return
    _, middle = segment.locate(file, (low.next_offset + high.base_offset) // 2)
    if middle.base_offset == high.base_offset:
        _, middle = segment.locate(file, low.next_offset)
    if middle.leader_epoch != low.leader_epoch:
        _find_epochs(epochs, segment, file, low, middle)
    if middle.leader_epoch != high.leader_epoch:
        _find_epochs(epochs, segment, file, middle, high)
