"""Opening a partition's directory: which segments are there, what they hold, and which epochs they went through."""

from __future__ import annotations

import logging
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, BatchVersionError
from liftpy_log.cut_mark import CutState, load_cut_mark, remove_cut_mark, save_cut_mark
from liftpy_log.epochs import EpochHistory
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.segments.leftovers import drop_replaced, generation_of
from liftpy_log.segments.recovery import recover_active, recover_sealed
from liftpy_log.segments.scan import read_batch
from liftpy_log.segments.segment import Segment, base_offset_of, remove_newest, remove_oldest, segment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from liftpy_envelope.batch import BatchHeader
    from liftpy_log.cut_mark import CutMark
    from liftpy_log.segments.recovery import TornTail
    from liftpy_log.storage.disk import Disk, File
    from liftpy_log.storage.files import FileCache

__all__ = ["check_batches", "open_segments", "rebuild_epochs"]

logger = logging.getLogger(__name__)

_STRAY_NAME: Final = re.compile(r"([0-9]{20}(?:\.c[0-9]{8})?)\.(?:(?:index|timeindex)(\.tmp)?|log(\.tmp|\.gone))")


def open_segments(
    disk: Disk,
    files: FileCache,
    directory: Path,
    *,
    durable_end: int,
    verify_bytes: int,
    first_offset: int,
    on_torn: Callable[[TornTail], None],
    durable_names: bool = True,
) -> list[Segment]:
    """The segments of a partition, oldest first, recovered and durable; a new one where there is none.

    Args:
        disk: Disk that holds the files.
        files: The node's open files.
        directory: Directory of the partition; created when it is missing.
        durable_end: Records below this offset are known to have been durable.
        verify_bytes: How much of the newest segment to check beyond what its index asks for.
        first_offset: Records below this offset were purged; an empty log begins here.
        on_torn: Called before a torn tail is cut off; an error that it raises leaves it there.
        durable_names: The names of an empty log are on disk when this returns.

    Raises:
        SegmentCorruptError: something other than a torn tail is wrong.
    """
    disk.make_directory(directory, durable=durable_names)
    names = disk.names(directory)
    places = sorted((base, generation_of(name)) for name in names if (base := base_offset_of(name)) is not None)
    segments = [Segment(disk, directory, base, generation) for base, generation in places]
    drop_replaced(disk, files, segments)
    mark = load_cut_mark(disk, directory)
    if mark is not None:
        durable_end = _heed_cut(disk, files, directory, segments, mark, durable_end)
    while len(segments) > 1 and segments[1].base_offset <= first_offset:  # a crash may leave some of a purge
        remove_oldest(disk, files, segments, 1)
    if not segments:
        if durable_end > first_offset:
            raise SegmentCorruptError(
                segment_path(directory, first_offset),
                0,
                f"there is no segment, but records up to {durable_end} were durable",
            )
        segments.append(_create(disk, files, directory, first_offset, durable=durable_names))
    if not durable_names and len(names) <= 1 and _is_bare(files, segments, max(first_offset, durable_end)):
        segments[0].start_over()
        return segments
    active = _recover_newest(disk, files, segments, durable_end, verify_bytes, on_torn)
    if not active.size and (durable_names or len(segments) > 1):
        disk.sync_directory(directory)  # the process that created it may have been killed before it did this
    for segment, successor in pairwise(segments):
        recover_sealed(segment, files.get(segment), successor.base_offset)
    if active.next_offset < first_offset:  # the end of what was purged was lost, and offsets only grow
        remove_oldest(disk, files, segments, 1)
        disk.sync_directory(directory)
        active = _create(disk, files, directory, first_offset)
        segments.append(active)
    files.get(active).sync()  # what a killed process had written is in the kernel, and not necessarily on disk
    _remove_strays(disk, directory, segments)
    return segments


def _is_bare(files: FileCache, segments: Sequence[Segment], offset: int) -> bool:
    """Whether there is nothing but the empty file of a log that begins at `offset` or behind it: nothing to sync."""
    return len(segments) == 1 and segments[0].base_offset >= offset and not files.get(segments[0]).size()


def _create(disk: Disk, files: FileCache, directory: Path, base_offset: int, *, durable: bool = True) -> Segment:
    segment, file = Segment.create(disk, directory, base_offset, durable=durable)
    files.add(segment, file)
    return segment


def _heed_cut(
    disk: Disk, files: FileCache, directory: Path, segments: list[Segment], mark: CutMark, durable_end: int
) -> int:
    """Finish a cut that a crash interrupted. Returns up to where records are known to be durable."""
    if mark.state is CutState.DONE:
        if durable_end > mark.old_end:
            remove_cut_mark(disk, directory)  # the checkpoint is younger than the cut
        return mark.durable_end(durable_end)
    if mark.state is CutState.RENEWING:
        remove_newest(disk, files, segments, None)
        segments.append(_create(disk, files, directory, mark.end))
    else:
        kept = next((segment for segment in segments if segment.base_offset == mark.base_offset), None)
        if kept is None:
            raise SegmentCorruptError(segment_path(directory, mark.base_offset), mark.position, "the file is missing")
        remove_newest(disk, files, segments, kept)
        kept.discard_index()
        file = files.get(kept)
        file.truncate(min(file.size(), mark.position))
        file.sync()
    logger.warning("cut the log in %s back to offset %d, as was begun before the crash", directory, mark.end)
    save_cut_mark(disk, directory, mark._replace(state=CutState.DONE))
    return mark.durable_end(durable_end)


def _recover_newest(
    disk: Disk,
    files: FileCache,
    segments: list[Segment],
    durable_end: int,
    verify_bytes: int,
    on_torn: Callable[[TornTail], None],
) -> Segment:
    """Recover the segment that grows: the newest, or when nothing is in that, its elder, which grows on.

    A roll may have failed because there was no room for the name of the newest; a power loss may bring the name back
    after its elder grew.
    """
    newest = segments[-1]
    file = files.get(newest)
    is_only = len(segments) == 1
    if is_only or file.size():
        recover_active(newest, file, durable_end=durable_end, verify_bytes=verify_bytes, on_torn=on_torn)
    if is_only or newest.size:
        return newest
    elder = segments[-2]
    durable_end = max(durable_end, newest.base_offset)  # it was synced before its successor was created
    elder_file = files.get(elder)
    recover_active(elder, elder_file, durable_end=durable_end, verify_bytes=verify_bytes, on_torn=on_torn)
    segments.pop()
    files.forget(newest)
    newest.remove()
    disk.sync_directory(newest.path.parent)
    return elder


def _remove_strays(disk: Disk, directory: Path, segments: Sequence[Segment]) -> None:
    """Remove half-written files, those of segments that were replaced, and index files without a segment."""
    known = {segment.path.stem for segment in segments}
    for name in disk.names(directory):
        found = _STRAY_NAME.fullmatch(name)
        if found is not None and (found[2] or found[3] or found[1] not in known):
            disk.remove(directory / name)


def check_batches(segments: Sequence[Segment], files: FileCache) -> None:
    """Read every batch of a log that was opened.

    Raises:
        SegmentCorruptError: one is damaged.
    """
    for segment in segments:
        file, position = files.get(segment), 0
        while position < segment.size:
            try:
                header, _ = read_batch(file, position, segment.size)
            except (BatchTruncatedError, BatchCorruptError, BatchVersionError) as error:
                raise SegmentCorruptError(segment.path, position, str(error)) from error
            position += header.length


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
        _, first = next(segment.headers(file, 0))
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
