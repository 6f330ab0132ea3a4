"""Gaps on disk, so that they are still known after a restart: one small file per stream, `gaps.json` in its directory.

Written by a thread of its own, so that recording a gap never waits for the disk. Losing the newest change in a crash
is harmless: the restart is a gap itself.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import parse_settings
from liftpy_log.disk import write_atomically
from liftpy_server.stream_state import Gap

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from liftpy_log.disk import Disk
    from liftpy_server.stream_state import StreamState

__all__ = ["GapFile"]

logger = logging.getLogger(__name__)


class GapFile:
    """Keeps one stream's gaps.

    Args:
        disk: where.
        path: the file.
        executor: with one thread, so that writes stay in order.
    """

    def __init__(self, disk: Disk, path: Path, executor: Executor) -> None:
        self._disk = disk
        self._path = path
        self._executor = executor
        self._unwritten: bytes | None = None

    def load(self) -> list[Gap]:
        """The gaps of earlier runs; a file that can not be read is logged and left behind."""
        try:
            return [parse_settings(Gap, gap) for gap in json.loads(self._path.read_bytes())]
        except FileNotFoundError:
            return []
        except (ConfigError, ValueError, TypeError, RecursionError, OSError) as error:
            logger.warning("%s can not be read (%s); the gaps in it are forgotten", self._path, error)
            return []

    def save(self, stream: StreamState) -> None:
        """Write the gaps as they are now, soon; what has not been written yet is replaced."""
        was_written = self._unwritten is None
        self._unwritten = json.dumps([gap.to_plain() for gap in stream.gaps]).encode()
        if was_written:
            self._executor.submit(self._write)

    def _write(self) -> None:
        """In the executor's thread."""
        content, self._unwritten = self._unwritten, None
        assert content is not None, "submitted once for each that is not written"
        try:
            write_atomically(self._disk, self._path, content, at_once=False)
        except OSError as error:
            logger.warning("%s can not be written: %s", self._path, error)
