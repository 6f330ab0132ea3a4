"""A node-wide write-ahead log, so that a thousand dirty partitions cost one fdatasync.

    wal/<sequence:020d>.wal
      head    magic u32 | version u32 | sequence u64
      entry   magic u32 | kind u16 | path_length u16 | data_length u32 | data_crc32c u32 | position u64
              | header_crc32c u32 | 4 pad | path, padded to 8 | data

An entry repeats bytes that stand in a segment already but may not be on disk there: writing them again at the same
position is all that recovery does, so applying an entry twice is harmless. A `VOID` entry cancels the earlier ones of
a directory; whoever cuts a log back writes one first. A file is removed when every segment it speaks of has been
synced itself, which happens a few segments at a time, before the next file is full.

The end of the newest file may be torn: what was being written when the node died was acknowledged to nobody.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from liftpy_log.errors import WalCorruptError
from liftpy_log.limits import WAL_FILE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy_envelope.ipc import BufferLike
    from liftpy_log.disk import Disk, File
    from liftpy_log.partition_log import PartitionLog, Unsynced
    from liftpy_log.segment import Segment

__all__ = ["WriteAheadLog", "replay_wal"]

logger = logging.getLogger(__name__)

_FILE_MAGIC: Final = 0x4C41574C
_ENTRY_MAGIC: Final = 0x4557414C
_VERSION: Final = 1
_FILE_HEAD: Final = struct.Struct("<IIQ")
_ENTRY_HEAD: Final = struct.Struct("<IHHIIQI4x")
_HEADER_CRC_AT: Final = 24
_DATA: Final = 1
_VOID: Final = 2
_SUFFIX: Final = ".wal"


def _encode_entry(kind: int, path: str, position: int, data: Sequence[BufferLike]) -> list[BufferLike]:
    name = path.encode()
    crc = length = 0
    for part in data:
        crc = google_crc32c.extend(crc, part)
        length += len(part)
    head = _ENTRY_HEAD.pack(_ENTRY_MAGIC, kind, len(name), length, crc, position, 0)
    header_crc: int = google_crc32c.extend(google_crc32c.value(head), name)
    sealed = head[:_HEADER_CRC_AT] + header_crc.to_bytes(4, "little") + head[_HEADER_CRC_AT + 4 :]
    return [sealed + name + bytes(-len(name) % 8), *data]


class WriteAheadLog:
    """The writing side. Belongs to the thread that runs group commit rounds.

    Args:
        disk: where.
        directory: of the node's write-ahead log files.
        root: the data directory; segments are named relative to it.
        file_bytes_max: size at which a file is closed.
    """

    def __init__(self, disk: Disk, directory: Path, root: Path, file_bytes_max: int = WAL_FILE_BYTES_MAX) -> None:
        self._disk = disk
        self._directory = directory
        self._root = root
        self._file_bytes_max = file_bytes_max
        disk.make_directory(directory)
        self._sequence = max((sequence for sequence, _ in _files(disk, directory)), default=0)
        self._file: File | None = None
        self._size = 0
        self._segments: dict[Segment, PartitionLog] = {}
        self._closed: deque[tuple[Path, list[tuple[Segment, PartitionLog]]]] = deque()

    def write_round(self, batches: Sequence[tuple[PartitionLog, Sequence[Unsynced]]]) -> None:
        """Make batches durable.

        Args:
            batches: for each log its contiguous batches in one segment.

        Raises:
            OSError: they may not be durable; the file is given up.
        """
        parts: list[BufferLike] = []
        for log, run in batches:
            segment = run[0].segment
            path = segment.path.relative_to(self._root).as_posix()
            parts += _encode_entry(_DATA, path, run[0].position, [part for entry in run for part in entry.parts])
            self._segments[segment] = log
        self._write(parts)

    def void(self, directory: Path) -> None:
        """Cancel, durably, every earlier entry for the segments of a partition's directory."""
        self._write(_encode_entry(_VOID, directory.relative_to(self._root).as_posix(), 0, []))

    def _write(self, parts: list[BufferLike]) -> None:
        if self._file is None or self._size >= self._file_bytes_max:
            self._begin_file()
        assert self._file is not None
        try:
            self._file.write(self._size, parts)
            self._file.sync()
        except OSError:
            self._end_file()
            raise
        self._size += sum(map(len, parts))

    def _begin_file(self) -> None:
        self._end_file()
        self._sequence += 1
        path = self._path(self._sequence)
        file = self._disk.open(path, create=True)
        head = _FILE_HEAD.pack(_FILE_MAGIC, _VERSION, self._sequence)
        file.write(0, [head])
        self._disk.sync_directory(self._directory)
        self._file, self._size = file, len(head)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._closed.append((self._path(self._sequence), list(self._segments.items())))
        self._file, self._segments = None, {}

    def _path(self, sequence: int) -> Path:
        return self._directory / f"{sequence:020d}{_SUFFIX}"

    def segments_to_sync(self, written_bytes: int) -> Iterator[tuple[Segment, PartitionLog]]:
        """Segments to sync after a round that wrote so much; removes the files that nothing needs any more.

        The caller syncs each segment before it asks for the next. The pace is such that the files before the present
        one are gone before it is full.
        """
        if not self._closed:
            return
        waiting = sum(len(segments) for _, segments in self._closed)
        for _ in range(1 + waiting * written_bytes // self._file_bytes_max):
            path, segments = self._closed[0]
            if segments:
                yield segments[-1]
                segments.pop()
            if not segments:
                self._disk.remove(path)
                self._closed.popleft()
                if not self._closed:
                    return

    def close(self, *, remove: bool) -> None:
        """Stop. `remove` deletes every file: the caller has synced all segments."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            for _, path in _files(self._disk, self._directory):
                self._disk.remove(path)


class _Entry(NamedTuple):
    kind: int
    path: str
    position: int
    data: bytes


def replay_wal(disk: Disk, directory: Path, root: Path) -> int:
    """Write what the write-ahead log holds into the segments, make them durable, and remove the log.

    Call it before any partition is opened.

    Returns:
        How many bytes had not been in their segments.

    Raises:
        WalCorruptError: an entry that was durable is damaged.
    """
    disk.make_directory(directory)
    files = _files(disk, directory)
    entries: list[_Entry] = []
    for sequence, path in files:
        for entry in _read_file(disk, path, sequence):
            if entry.kind == _VOID:
                entries = [earlier for earlier in entries if Path(earlier.path).parent.as_posix() != entry.path]
            else:
                entries.append(entry)
    restored = _apply(disk, root, entries)
    for _, path in files:
        disk.remove(path)
    return restored


def _apply(disk: Disk, root: Path, entries: list[_Entry]) -> int:
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
            if file is not None and file.read(entry.position, len(entry.data)) != entry.data:
                file.write(entry.position, [entry.data])
                restored += len(entry.data)
        for file in open_files.values():
            if file is not None:
                file.sync()
    finally:
        for file in open_files.values():
            if file is not None:
                file.close()
    return restored


def _files(disk: Disk, directory: Path) -> list[tuple[int, Path]]:
    names = [name for name in disk.names(directory) if name.endswith(_SUFFIX)]
    return [(int(name.removesuffix(_SUFFIX)), directory / name) for name in names]


def _read_file(disk: Disk, path: Path, sequence: int) -> Iterator[_Entry]:
    file = disk.open(path)
    try:
        content = file.read(0, file.size())
    finally:
        file.close()
    if content[: _FILE_HEAD.size] != _FILE_HEAD.pack(_FILE_MAGIC, _VERSION, sequence):
        if len(content) < _FILE_HEAD.size or not any(content):
            return  # it was just begun
        raise WalCorruptError(f"{path} is no write-ahead log of this version of liftpy")
    position = _FILE_HEAD.size
    while position < len(content):
        found = _decode_entry(content, position)
        if found is None:
            if _entry_after(content, position):
                raise WalCorruptError(
                    f"{path} is damaged at byte {position}, with good entries after it: acknowledged records may be "
                    "missing on disk; restore the file, or move it away to go on without it"
                )
            logger.info("%s ends with %d bytes of an unfinished write", path, len(content) - position)
            return
        entry, position = found
        yield entry


def _decode_entry(content: bytes, position: int) -> tuple[_Entry, int] | None:
    path_at = position + _ENTRY_HEAD.size
    if path_at > len(content):
        return None
    magic, kind, path_length, data_length, data_crc, at, header_crc = _ENTRY_HEAD.unpack_from(content, position)
    path = content[path_at : path_at + path_length]
    bare = content[position : position + _HEADER_CRC_AT] + bytes(4) + content[position + _HEADER_CRC_AT + 4 : path_at]
    if magic != _ENTRY_MAGIC or google_crc32c.extend(google_crc32c.value(bare), path) != header_crc:
        return None
    data_at = path_at + path_length + -path_length % 8
    data = content[data_at : data_at + data_length]
    if len(data) < data_length or google_crc32c.value(data) != data_crc:
        return None
    return _Entry(kind, path.decode(), at, data), data_at + data_length


def _entry_after(content: bytes, position: int) -> bool:
    magic = _ENTRY_MAGIC.to_bytes(4, "little")
    found = content.find(magic, position + 1)
    while found >= 0:
        if _decode_entry(content, found) is not None:
            return True
        found = content.find(magic, found + 1)
    return False
