"""What lies in a node's quarantine: damaged files, replicas that were copied anew, directories that no stream knows.

quarantine/<stream>.<uuid>.<partition>.<time ns>/    a replica; `why.txt` in it says why it is there
quarantine/<stream>.<uuid>/                          a directory that no stream knew when the node started
quarantine/<name>.<number>                           a small file that was damaged
"""

from __future__ import annotations

import re
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["WHY_FILE", "Quarantined", "find_quarantined"]

WHY_FILE: Final = "why.txt"

_WHY_BYTES_MAX: Final = 1_000
_STREAM: Final = re.compile(r"(?P<stream>[\w-]+)\.(?P<uuid>[0-9a-f]{32})(?:\.(?P<partition>\d{1,9})\.\d+)?", re.ASCII)
_UNKNOWN_STREAM: Final = "no stream of the cluster knew it when the node started"
_DAMAGED: Final = "the file was damaged"
_UNTOLD: Final = "the node's log says why"


class Quarantined(NamedTuple):
    """A file or directory in quarantine.

    Attributes:
        name: Name of the file or directory.
        stream: Stream to which it belonged; None for files of the node.
        uuid: UUID of that stream.
        partition: Partition of that stream; None for all that the node had of it.
        size_bytes: Size in bytes of all files in it.
        moved_ns: When it came there, by the file system's clock.
        why: Reason, as text.
    """

    name: str
    stream: str | None
    uuid: str | None
    partition: int | None
    size_bytes: int
    moved_ns: int
    why: str


def find_quarantined(directory: Path) -> Iterator[Quarantined]:
    """What is there, newest first.

    Raises:
        OSError: the directory is there, and can not be read; or somebody cleans up just now.
    """
    try:
        entries = [(path.lstat(), path) for path in directory.iterdir()]
    except FileNotFoundError:
        return
    for stat, path in sorted(entries, key=lambda found: found[0].st_ctime_ns, reverse=True):
        is_directory = S_ISDIR(stat.st_mode)
        known = _STREAM.fullmatch(path.name) if is_directory else None
        partition = None if known is None else known["partition"]
        yield Quarantined(
            name=path.name,
            stream=None if known is None else known["stream"],
            uuid=None if known is None else known["uuid"],
            partition=None if partition is None else int(partition),
            size_bytes=sum(_sizes(path)) if is_directory else stat.st_size,
            moved_ns=stat.st_ctime_ns,
            why=_why(path, is_whole_stream=partition is None) if is_directory else _DAMAGED,
        )


def _sizes(directory: Path) -> Iterator[int]:
    for path in directory.rglob("*"):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue
        if S_ISREG(stat.st_mode):
            yield stat.st_size


def _why(directory: Path, *, is_whole_stream: bool) -> str:
    try:
        with (directory / WHY_FILE).open("rb") as file:
            return file.read(_WHY_BYTES_MAX).decode(errors="replace").strip()
    except FileNotFoundError:
        return _UNKNOWN_STREAM if is_whole_stream else _UNTOLD
