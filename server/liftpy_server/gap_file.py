"""Gaps on disk, so that they are still known after a restart: one small file per stream, `gaps.json` in its directory.

    {"gaps":[{"since_ns":...,"until_ns":...,"cause":...,"messages":...},...],"checksum":...}

Written by a thread of its own, so that recording a gap never waits for the disk. Losing the newest change in a crash
is harmless: the restart is a gap itself.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import parse_settings
from liftpy_log.checked_json import encode_json, load_json, set_aside
from liftpy_log.disk import write_atomically
from liftpy_log.errors import FileDamagedError
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
        quarantine: where a file goes that is damaged.

    Attributes:
        has_forgotten: the file was damaged when it was loaded.
    """

    def __init__(self, disk: Disk, path: Path, executor: Executor, quarantine: Path) -> None:
        self._disk = disk
        self._quarantine = quarantine
        self.has_forgotten = False
        self._path = path
        self._executor = executor
        self._unwritten: bytes | None = None

    def load(self) -> list[Gap]:
        """The gaps of earlier runs; a file that is damaged is set aside, and the log says so."""
        try:
            return [parse_settings(Gap, gap) for gap in load_json(self._disk, self._path)["gaps"]]
        except FileNotFoundError:
            return []
        except (FileDamagedError, ConfigError, LookupError, TypeError) as error:
            place = set_aside(self._disk, self._path, self._quarantine)
            self.has_forgotten = True
            logger.error("%s; it was moved to %s, and the gaps in it are forgotten", error, place)  # noqa: TRY400
            return []

    def save(self, stream: StreamState) -> None:
        """Write the gaps as they are now, soon; what has not been written yet is replaced."""
        was_written = self._unwritten is None
        self._unwritten = encode_json({"gaps": [gap.to_plain() for gap in stream.gaps]})
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
