"""The disk, as an argument: the few operations that the log needs, on the real one and in tests on a simulated one."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from liftpy_envelope.ipc import BufferLike

__all__ = ["Disk", "File", "OsDisk", "OsFile", "is_full", "lacks_descriptor", "read_whole", "write_atomically"]

_IOVECS_MAX = 1_000
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EAGAIN}) | _NO_DESCRIPTOR


class File(Protocol):
    """An open file. Positions are always explicit, so that readers and the writer never disturb each other."""

    def write(self, position: int, parts: Sequence[BufferLike]) -> None:
        """Write all parts one after the other from `position` on.

        Raises:
            OSError: not everything was written; some of it may have been.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def size(self) -> int:
        """Current size in bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file back to `size` bytes."""
        ...

    def sync(self) -> None:
        """Return when everything written is on disk."""
        ...

    def fileno(self) -> int:
        """The descriptor, for `sendfile`."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class Disk(Protocol):
    """Operations on files and directories by name."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open a file for reading and writing; with `create` it must not exist yet."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Sorted names in a directory."""
        ...

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        """Create a directory and its parents; no error when it is there.

        Without `durable` it is for the caller to `sync_directory` its parents before anything in it counts.
        """
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; no error when it is gone."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename, replacing `new`; durable after `sync_directory`."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Return when the names in a directory are on disk."""
        ...


class OsFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, position: int, parts: Sequence[BufferLike]) -> None:
        """See `File.write`."""
        if len(parts) == 1:
            total = len(parts[0])
            written = os.pwrite(self._descriptor, parts[0], position)
        elif len(parts) > _IOVECS_MAX:
            for start in range(0, len(parts), _IOVECS_MAX):
                some = parts[start : start + _IOVECS_MAX]
                self.write(position, some)
                position += sum(map(len, some))
            return
        else:
            total = sum(map(len, parts))
            written = os.pwritev(self._descriptor, parts, position)
        if written == total:
            return
        if written == 0:
            raise OSError(errno.ENOSPC, "nothing was written")
        # Rare: a write that stopped at the end of the disk.
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            position += written
            written = os.pwrite(self._descriptor, rest, position)
            if written == 0:
                raise OSError(errno.ENOSPC, "nothing was written")
            rest = rest[written:]

    def read(self, position: int, size: int) -> bytes:
        """See `File.read`."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        chunks = [data]
        missing = size - len(data)
        while missing:
            data = os.pread(self._descriptor, missing, position + size - missing)
            if not data:
                break
            chunks.append(data)
            missing -= len(data)
        return b"".join(chunks)

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """See `File.sync`."""
        _sync(os.fdatasync, self._descriptor)

    def fileno(self) -> int:
        """See `File.fileno`."""
        return self._descriptor

    def close(self) -> None:
        """See `File.close`."""
        os.close(self._descriptor)


class OsDisk:
    """The disk of the operating system.

    Args:
        spare_count: Descriptors that are held so that files can be opened when others have taken all that are left.
    """

    def __init__(self, spare_count: int = 0) -> None:
        self._spare_count = spare_count
        self._spare: list[int] = []
        self._lock = Lock()
        self._fill_spare()

    def _fill_spare(self) -> None:
        with self._lock, suppress(OSError):
            while len(self._spare) < self._spare_count:
                self._spare.append(os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _give_up_spare(self) -> bool:
        with self._lock:
            if self._spare:
                os.close(self._spare.pop())
                return True
            return False

    def _open(self, path: Path, flags: int) -> int:
        while True:
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._give_up_spare():
                    raise
            else:
                break
        if len(self._spare) < self._spare_count:
            self._fill_spare()
        return descriptor

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        """See `Disk.open`."""
        return OsFile(self._open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)))

    def names(self, directory: Path) -> list[str]:
        """See `Disk.names`."""
        return sorted(entry.name for entry in directory.iterdir())

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        """See `Disk.make_directory`."""
        if directory.is_dir():
            return
        self.make_directory(directory.parent, durable=durable)
        directory.mkdir(mode=0o750, exist_ok=True)
        if durable:
            self.sync_directory(directory.parent)

    def remove(self, path: Path) -> None:
        """See `Disk.remove`."""
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        """See `Disk.rename`."""
        old.replace(new)

    def sync_directory(self, directory: Path) -> None:
        """See `Disk.sync_directory`."""
        descriptor = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(os.fsync, descriptor)
        finally:
            os.close(descriptor)


def _sync(sync: Callable[[int], None], descriptor: int) -> None:
    """A sync that failed for whatever reason may have dropped what it should have written: that never passes."""
    try:
        sync(descriptor)
    except OSError as error:
        if is_full(error):
            raise OSError(errno.EIO, f"a sync failed: {error.strerror}") from error
        raise


def is_full(error: OSError) -> bool:
    """Whether an operation failed for lack of room: it may be tried again when there is some.

    On the disk, in memory, or in the table of open files, which others may have filled for a moment.
    """
    return error.errno in _FULL


def lacks_descriptor(error: OSError) -> bool:
    """Whether a file could not be opened, as too many are: whatever was to be done with it was not begun."""
    return error.errno in _NO_DESCRIPTOR


def read_whole(disk: Disk, path: Path) -> bytes:
    """The content of a file.

    Raises:
        FileNotFoundError: there is none.
    """
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def write_atomically(disk: Disk, path: Path, data: bytes, *, durable: bool = True, at_once: bool = True) -> None:
    """Replace a file as a whole: after a crash either the old content is there or the new one.

    Args:
        disk: Disk that holds the files.
        path: The file.
        data: Content that the file is to have.
        durable: Return only when the new content is on disk; a cache that is checked when it is read needs less.
        at_once: Return only when a crash does not bring the old content back; thousands of files may wait for that.
    """
    temporary = path.with_name(path.name + ".tmp")
    disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.write(0, [data])
        if durable:
            file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    if durable and at_once:
        disk.sync_directory(path.parent)
