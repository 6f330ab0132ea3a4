"""A directory in place of the bucket for what tasks stage: the driver and all executors see it under the same path.

    liftpy-staging-<id>                                            the marker by which tasks know it
    <stream uuid>~<application>~<batch>~<task>-<nonce>.arrows      what a task has staged: its key, without slashes

All files lie side by side, so that a file is durable when it and the one directory are. Between batches there are none
but the marker. Whatever has another name is somebody else's: it is neither read nor deleted.

A directory of the same path on another machine would be another one. So the driver leaves a marker, and each task looks
for it before it stages anything; and before the driver decides, it looks for all files that it is about to name.
"""

from __future__ import annotations

import os
import re
import socket
from stat import S_ISREG
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftpy_bucket.errors import StagingDirectoryError
from liftpy_bucket.staging.directory import DirectorySource, key_of
from liftpy_bucket.staging.section import is_staged_key
from liftpy_bucket.store.object_store import Entry
from liftpy_spark.options.values import OptionError
from liftpy_spark.sink.place import StagingPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from liftpy_bucket.staging.section import Section
    from liftpy_log.storage.disk import Disk

__all__ = ["DirectoryPlace", "prepare"]

_OPTION: Final = "stagingDirectory"
_MARKER: Final = re.compile(r"liftpy-staging-[0-9a-f]{32}")


class DirectoryPlace(DirectorySource, StagingPlace):
    """Stages rows in a directory that the driver and all executors see under the same path.

    Args:
        directory: Path of the directory, as `check_path` gives it.
        disk: Where it is.
    """

    def __init__(self, directory: str, disk: Disk | None = None) -> None:
        super().__init__(directory, f"option {_OPTION}", disk)
        self.directory: str = directory

    def create(self, key: str, parts: Iterable[pa.Buffer | bytes], nonce: str) -> None:
        """See `StagingPlace.create`; the key has the nonce, so that nobody else writes under it."""
        assert nonce in key, "a name is taken once"
        path = self._file(key)
        try:
            file = self._disk.open(path, create=True)
            try:
                at = 0
                for part in parts:
                    file.write(at, [part])
                    at += len(part)
                file.sync()
            finally:
                file.close()
            self._disk.sync_directory(self._path)
        except OSError as error:
            self._remove(path)  # half of a file would be in the way of the next attempt, on a full disk
            raise self._failure(error) from None

    def check(self, sections: Sequence[Section]) -> None:
        """See `StagingPlace.check`: another machine's directory of this path does not have the files."""
        ends: dict[str, int] = {}
        for section in sections:
            ends[section.key] = max(ends.get(section.key, 0), section.start + section.length)
        for key, end in ends.items():
            path = self._file(key)
            try:
                size = self._size(path)
            except FileNotFoundError:
                size = None
            except OSError as error:
                raise self._failure(error) from None
            if size is None or size < end:
                found = "does not see" if size is None else f"sees {size} of the {end} bytes of"
                raise StagingDirectoryError(
                    f"the driver on {socket.gethostname()} {found} {path}, which a task has staged: mount one and the "
                    f"same directory at {self.directory} on all machines, or leave the option {_OPTION} out to stage "
                    "in the bucket; nothing of the batch was decided or written"
                )

    def entries(self, prefix: str) -> Iterator[Entry]:
        """See `StagingPlace.entries`; of files that go meanwhile it tells nothing."""
        try:
            names = self._disk.names(self._path)
        except OSError as error:
            raise self._failure(error) from None
        for key in sorted(key_of(name) for name in names):
            if not key.startswith(prefix) or not is_staged_key(key):
                continue
            try:
                found = self._file(key).stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failure(error) from None
            if S_ISREG(found.st_mode):
                yield Entry(key, found.st_size, "", found.st_mtime_ns)

    def delete(self, keys: Sequence[str]) -> None:
        """See `StagingPlace.delete`."""
        for path in [self._file(key) for key in keys]:
            try:
                self._disk.remove(path)
            except OSError as error:
                raise self._failure(error) from None

    def mark(self) -> str:
        """The name of a marker that is in the directory; it is made where there is none, and stays.

        Raises:
            OSError: the directory can not be used.
        """
        found = [name for name in self._disk.names(self._path) if _MARKER.fullmatch(name)]
        if found:
            return found[0]
        marker = f"liftpy-staging-{uuid4().hex}"  # two drivers may make one each: then it has two
        self._disk.open(self._path / marker, create=True).close()
        return marker

    def check_seen(self, marker: str, driver: str) -> None:
        """Check that this is the directory that the driver has marked.

        Args:
            marker: Name of the marker.
            driver: The machine of the driver, for messages.

        Raises:
            StagingDirectoryError: it is another one, or there is none.
        """
        try:
            self._disk.open(self._path / marker).close()
        except OSError as error:
            raise StagingDirectoryError(
                f"a task on {socket.gethostname()} does not see the directory {self.directory} of the driver on "
                f"{driver} ({marker} in it: {error.strerror}): mount one and the same directory there on all machines, "
                f"or leave the option {_OPTION} out to stage in the bucket"
            ) from None

    def _size(self, path: Path) -> int:
        file = self._disk.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _remove(self, path: Path) -> None:
        try:
            self._disk.remove(path)
        except OSError as error:
            raise self._failure(error) from None


def prepare(directory: str) -> str:
    """See, on the driver, that rows can be staged in a directory; gives the name of its marker.

    Args:
        directory: Path of the directory.

    Raises:
        OptionError: they can not; the message names the option.
    """
    here = f"on {socket.gethostname()}, where the driver is"
    try:
        marker = DirectoryPlace(directory).mark()
    except FileNotFoundError:
        raise OptionError(_OPTION, f"there is no directory {directory} {here}; make it, or mount it") from None
    except NotADirectoryError:
        raise OptionError(_OPTION, f"{directory} is not a directory {here}") from None
    except OSError as error:
        raise OptionError(_OPTION, f"{directory} can not be used {here}: {error.strerror}") from None
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise OptionError(_OPTION, f"{directory} can not be written to {here}")
    return marker
