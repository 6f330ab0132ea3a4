"""A directory in place of the bucket, from which staged rows are read; who stages them there sees it, too.

    <stream uuid>~<application>~<batch>~<task>-<nonce>.arrows      what a task has staged: its key, without slashes

Whatever has another name is somebody else's, and is not read.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ObjectMissingError, StagingDirectoryError
from liftpy_bucket.staging.section import STAGING, is_staged_key
from liftpy_bucket.staging.source import SectionSource
from liftpy_log.storage.disk import OsDisk

if TYPE_CHECKING:
    from liftpy_log.storage.disk import Disk

__all__ = ["DirectorySource", "check_path", "key_of"]

_PATH_BYTES_MAX: Final = 3_072  # with the name of a file, less than what Linux takes


def check_path(path: str) -> str:
    """The path of a directory, in its shortest form.

    Raises:
        ValueError: it does not say the same everywhere.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path!r:.200} is no absolute path, which means the same directory on all machines")
    if ".." in path.split("/") or "\0" in path or len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise ValueError(f"{path!r:.200} is no plain path: it has '..' or a null byte, or is too long")
    return str(Path(path))


class DirectorySource(SectionSource):
    """Reads staged rows from a directory.

    Args:
        directory: Path of the directory, as `check_path` gives it.
        setting: What names it, for messages.
        disk: Where it is.
    """

    loss = (
        "is its directory mounted here, is it that of the machine that staged it, and who empties it? Nothing else has "
        "these rows until they are in the stream"
    )

    def __init__(self, directory: str, setting: str, disk: Disk | None = None) -> None:
        self._path = Path(directory)
        self._setting = setting
        self._disk = disk or OsDisk()

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `SectionSource.read`."""
        try:
            file = self._disk.open(self._file(key))
            try:
                return file.read(start, length)
            finally:
                file.close()
        except FileNotFoundError:
            raise ObjectMissingError(key) from None
        except OSError as error:
            raise self._failure(error) from None

    def name(self, key: str) -> str:
        """See `SectionSource.name`."""
        return f"staged file {self._path / _name_of(key)}"

    def _file(self, key: str) -> Path:
        if not is_staged_key(key):
            raise StagingDirectoryError(f"{key!r:.200} is no name that tasks stage under in {self._path}")
        return self._path / _name_of(key)

    def _failure(self, error: OSError) -> StagingDirectoryError:
        return StagingDirectoryError(
            f"{platform.node()} can not use the directory {self._path} ({self._setting}): {error.strerror}"
        )


def _name_of(key: str) -> str:
    return key.removeprefix(STAGING).replace("/", "~")


def key_of(name: str) -> str:
    """The key of what is staged in a file of this name."""
    return STAGING + name.replace("~", "/")
