"""A disk that is soon full."""

from __future__ import annotations

import errno
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILL_BYTES = 1 << 20


class SmallDisk:
    """A file system of its own for a node's data, where the right to mount one exists; and a file that fills it.

    Args:
        data: the node's data directory.
        size: of the file system.
    """

    def __init__(self, data: Path, size: int) -> None:
        self._data = data
        self._filler = data / "lost+found"
        data.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(data)]
        self.refusal = subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()

    @property
    def is_there(self) -> bool:
        """Whether it could be mounted."""
        return not self.refusal

    def fill(self, leave_bytes: int) -> None:
        """Leave no more than this."""
        try:
            with self._filler.open("ab", buffering=0) as file:
                while (free := psutil.disk_usage(str(self._data)).free) > leave_bytes:
                    file.write(bytes(min(free - leave_bytes, FILL_BYTES)))
        except OSError as error:  # the node was quicker to take what was left
            if error.errno != errno.ENOSPC:
                raise

    def free(self) -> None:
        """Make room."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        if self.is_there:
            subprocess.run(["umount", "-l", str(self._data)], check=True)


@contextmanager
def small_disk_of(data: Path, size: int) -> Iterator[SmallDisk]:
    """One of this size for a node's data; the test is skipped where it can not be mounted."""
    disk = SmallDisk(data, size)
    if not disk.is_there:
        pytest.skip(f"a small file system needs the right to mount one: {disk.refusal}")
    try:
        yield disk
    finally:
        disk.close()
