"""What a node does with the write-ahead log that it finds when it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from liftpy_log.durability.wal_format import (
    VOID,
    NotWellError,
    WalEntry,
    decode_head,
    decode_round,
    find_later_head,
    is_other_version,
    list_files,
)
from liftpy_log.errors import StorageFullError, WalCorruptError
from liftpy_log.storage.disk import is_full, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_log.storage.disk import Disk, File

__all__ = ["replay_wal"]

logger = logging.getLogger(__name__)


def replay_wal(disk: Disk, directory: Path, root: Path, on_torn: Callable[[], None] = lambda: None) -> int:
    """Write what the write-ahead log holds into the segments, make them durable, and remove the log.

    Call it before any partition is opened.

    Args:
        disk: Disk that holds the files.
        directory: Directory of the write-ahead log.
        root: The data directory.
        on_torn: Called, before anything is changed, when the log ends with what was never durable, or is damaged there:
            nobody can tell.

    Returns:
        How many bytes had not been in their segments.

    Raises:
        WalCorruptError: an entry that was durable is damaged.
        StorageFullError: there is no room to restore what is missing in the segments.
    """
    disk.make_directory(directory)
    files = [(sequence, path, read_whole(disk, path)) for sequence, path in list_files(disk, directory)]
    ends = _known_ends(files)
    entries: list[WalEntry] = []
    with_void = set()
    for sequence, path, content in files:
        for entry in _durable_entries(content, path, sequence, ends.get(sequence), on_torn):
            if entry.kind == VOID:
                with_void.add(path)
                entries = [earlier for earlier in entries if Path(earlier.path).parent.as_posix() != entry.path]
            else:
                entries.append(entry)
    restored = _apply(disk, root, entries)
    for _, path, _ in files:
        if path in with_void:
            disk.sync_directory(directory)  # no older file may come back without what cancels its entries
        disk.remove(path)
    disk.sync_directory(directory)  # files of this life get the names of those that were removed, now or at a stop
    return restored


def _known_ends(files: list[tuple[int, Path, bytes]]) -> dict[int, int]:
    """By sequence, how far a file was durable; without those of which no file that is left knows it."""
    ends: dict[int, int] = {}
    for sequence, path, content in files:
        if is_other_version(content):
            raise WalCorruptError(
                f"{path} is no write-ahead log of this version of liftpy: start the version that wrote it, and stop it"
            )
        head = decode_head(content, 0, sequence)
        if head is not None:
            ends[head.previous_sequence] = head.previous_end
    return ends


def _durable_entries(
    content: bytes, path: Path, sequence: int, known_end: int | None, on_torn: Callable[[], None]
) -> Iterator[WalEntry]:
    position, end = 0, len(content) if known_end is None else known_end
    while position < end:
        try:
            entries, next_position = decode_round(content, position, sequence)
        except NotWellError as error:
            if known_end is not None or find_later_head(content, position, sequence) is not None:
                raise WalCorruptError(
                    f"{path} is damaged at byte {error.position}, where it was durable: acknowledged records may be "
                    "missing on disk; restore the file, or move it away to go on without it"
                ) from error
            logger.warning("%s ends with %d bytes of an unfinished write", path, end - position)
            on_torn()
            return
        yield from entries
        position = next_position


def _apply(disk: Disk, root: Path, entries: list[WalEntry]) -> int:
    restored = 0
    open_files: dict[str, File | None] = {}
    try:
        for entry in entries:
            if entry.path not in open_files:
                try:
                    open_files[entry.path] = disk.open(root / entry.path)
                except FileNotFoundError:
                    open_files[entry.path] = None  # deleted since: by retention, a purge, or with its stream
            file = open_files[entry.path]
            if file is not None:
                if file.read(entry.position, len(entry.data)) != entry.data:
                    restored += len(entry.data)
                # In any case: after a sync that failed the kernel shows bytes that it will never write by itself.
                _restore(file, root / entry.path, entry)
        for file in open_files.values():
            if file is not None:
                file.sync()
    finally:
        for file in open_files.values():
            if file is not None:
                file.close()
    return restored


def _restore(file: File, path: Path, entry: WalEntry) -> None:
    try:
        file.write(entry.position, [entry.data])
    except OSError as error:
        if not is_full(error):
            raise
        raise StorageFullError(
            f"no room to restore {len(entry.data)} bytes of {path} from the write-ahead log: make room and start again"
        ) from error
