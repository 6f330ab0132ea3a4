"""The data directory of a node: who it belongs to, which version wrote it, and that only one process uses it.

liftpy.json                       {"format":1,"node_id":...,"checksum":...}; no checksum where somebody wrote it by hand
lock                              locked while a node runs
checkpoint                        see `checkpoint`
metadata/                         journal and snapshot: see the server's metadata
standing.json                     whether the node can prove that its logs are whole
wal/                              see `wal`
streams/<name>.<uuid>/<partition>/
quarantine/                       directories that no stream knows, and damaged replicas; never deleted by liftpy
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Final

from liftpy_log.errors import DataDirError
from liftpy_log.storage.checked_json import CHECKSUM, encode_json, find_checksum
from liftpy_log.storage.disk import OsDisk, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DataDir"]

_FORMAT: Final = 1
_IDENTITY: Final = "liftpy.json"


class DataDir:
    """An opened and locked data directory. `open` refuses anything that is not ours to write to."""

    def __init__(self, root: Path, lock: int) -> None:
        self.root = root
        self._lock = lock

    @property
    def checkpoint_path(self) -> Path:
        """Path of the checkpoint file."""
        return self.root / "checkpoint"

    @property
    def wal_directory(self) -> Path:
        """Where the write-ahead log is."""
        return self.root / "wal"

    @property
    def streams_directory(self) -> Path:
        """Where the streams are."""
        return self.root / "streams"

    @property
    def quarantine_directory(self) -> Path:
        """Where directories go that no stream knows."""
        return self.root / "quarantine"

    @classmethod
    def open(cls, root: Path, node_id: str) -> DataDir:
        """Open or create a data directory.

        Raises:
            DataDirError: it is not ours, of a newer version, of another node, in use, read-only or full.
        """
        try:
            OsDisk().make_directory(root)
            lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise DataDirError(f"data directory {root}: {error.strerror}; {_advice(error)}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DataDirError(
                f"data directory {root} is in use by a running node: stop that one, or choose another data directory"
            ) from None
        try:
            _check_identity(root, node_id)
        except OSError as error:
            os.close(lock)
            raise DataDirError(f"data directory {root}: {error.strerror}; {_advice(error)}") from error
        except DataDirError:
            os.close(lock)
            raise
        return cls(root, lock)

    def close(self) -> None:
        """Let another process use the directory."""
        os.close(self._lock)


def _advice(error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "make it writable for this user, or choose another with --data-dir"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full: make room, or choose another with --data-dir"
    return "choose another with --data-dir"


def _check_identity(root: Path, node_id: str) -> None:
    path = root / _IDENTITY
    if not path.exists():
        strangers = sorted(
            name
            for name in (entry.name for entry in root.iterdir())
            if name not in {"lock", f"{_IDENTITY}.tmp", "lost+found"}
        )
        if strangers:
            raise DataDirError(
                f"{root} is not a liftpy data directory: it holds {', '.join(strangers[:3])} but no {_IDENTITY}; "
                "choose an empty directory with --data-dir"
            )
        write_atomically(OsDisk(), path, encode_json({"format": _FORMAT, "node_id": node_id}))
        return
    if not os.access(root, os.W_OK):
        raise PermissionError(errno.EACCES, "Permission denied")
    version, owner = _read_identity(path, node_id)
    if not isinstance(version, int) or version > _FORMAT:
        raise DataDirError(f"{root} was written by a newer liftpy (format {version}); this one reads format {_FORMAT}")
    if owner != node_id:
        raise DataDirError(f"{root} belongs to node {owner!r}, not to {node_id!r}; choose another with --data-dir")


def _read_identity(path: Path, node_id: str) -> tuple[Any, Any]:
    body = path.read_bytes()
    try:
        identity = json.loads(body)
        if find_checksum(body.removesuffix(b"\n")) is not True and set(identity) != {"format", "node_id"}:
            raise ValueError(CHECKSUM)
        return identity["format"], identity["node_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        told = json.dumps({"format": _FORMAT, "node_id": node_id})
        raise DataDirError(
            f"{path} is damaged: it says which node this data directory is of. If that is node {node_id!r}, replace "
            f"its content by {told} and start again; nothing else is lost"
        ) from None
