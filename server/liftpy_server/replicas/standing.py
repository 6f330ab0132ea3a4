"""Whether this node can prove that its logs hold all that it ever counted as durable. A small file keeps the doubt.

A data directory that is new can prove nothing: it may replace one that was wiped. Nor can one whose kernel stopped
without a clean stop of the node, where streams count records as durable before they are on disk. The doubt stays on
disk until the metadata has taken note of it; a second start before that would otherwise look clean.

A single log can prove nothing either when somebody took it away, to have it copied anew, or when it had failed: who
knows what was put in its place. The directory stays away, and the failure on disk, until the metadata has taken note.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftpy_envelope.stream_config import SyncMode
from liftpy_log.disk import read_whole, write_atomically
from liftpy_log.errors import DataDirError
from liftpy_log.segment import base_offset_of

if TYPE_CHECKING:
    from liftpy_log.disk import Disk
    from liftpy_server.metadata.state import MetadataState, StreamInfo

__all__ = ["Standing", "has_log", "kernel_boot_id"]

logger = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def kernel_boot_id() -> str | None:
    """What changes when the kernel starts; None where it does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def has_log(disk: Disk, directory: Path) -> bool:
    """Whether a partition's directory is there, with at least one segment.

    Raises:
        OSError: it can not be read.
    """
    try:
        return any(base_offset_of(name) is not None for name in disk.names(directory))
    except FileNotFoundError:
        return False


class Standing:
    """See the module.

    Args:
        disk: where.
        path: of the file.
        boot_id: of the kernel that runs.
        is_new: the data directory held no streams directory yet.

    Raises:
        DataDirError: the file is damaged.
        OSError: it can not be written.
    """

    def __init__(self, disk: Disk, path: Path, boot_id: str | None, *, is_new: bool) -> None:
        self._disk = disk
        self._path = path
        self._boot_id = boot_id
        self._failed: set[tuple[str, int]] = set()
        self._known_boot_id, self._is_doubtful = self._load(is_new=is_new)
        if self._is_doubtful:
            self._save()

    def _load(self, *, is_new: bool) -> tuple[str | None, bool]:
        try:
            data = read_whole(self._disk, self._path)
        except FileNotFoundError:
            return self._boot_id, is_new
        try:
            kept = json.loads(data)
            self._failed = {(str(uuid), int(number)) for uuid, number in kept.get("failed", ())}
            return kept["boot_id"], bool(kept["doubtful"])
        except (ValueError, LookupError, TypeError, AttributeError):
            raise DataDirError(
                f"{self._path} is damaged; delete it if this data directory lost nothing, or the directory if it did"
            ) from None

    def is_proven(self, state: MetadataState, node_id: str, *, was_clean: bool) -> bool:
        """Whether the logs are whole; when they may not be, that is on disk on return.

        Args:
            state: which streams have a replica here.
            node_id: this node.
            was_clean: the node had stopped cleanly.
        """
        has_restarted = self._boot_id != self._known_boot_id
        if has_restarted and not was_clean and _counts_early(state, node_id):
            self._is_doubtful = True
            self._save()
        return not self._is_doubtful

    def lost_logs(self, state: MetadataState, node_id: str) -> list[tuple[str, int]]:
        """Uuid and number of partitions that count on this node's copy, which has failed, or is not there.

        Of a stream that is new there may be none yet, on any node; then no node counts until all have said so.

        Args:
            state: which streams have a replica here.
            node_id: this node.
        """
        return [
            (stream.uuid, number)
            for stream in state.streams.values()
            for number, partition in enumerate(stream.partitions)
            if node_id in partition.isr and len(partition.replicas) > 1
            if (stream.uuid, number) in self._failed or not self._has_log(stream, number)
        ]

    def _has_log(self, stream: StreamInfo, number: int) -> bool:
        return has_log(self._disk, self._path.parent / "streams" / f"{stream.name}.{stream.uuid}" / str(number))

    def log_failed(self, uuid: str, number: int) -> None:
        """A replica's log has failed: what is found in its place after a restart proves nothing."""
        if (uuid, number) in self._failed:
            return
        self._failed.add((uuid, number))
        try:
            self._save()
        except OSError as error:
            logger.error("%s could not be written: %s", self._path, error)  # noqa: TRY400 - the trace adds nothing

    def log_renewed(self, uuid: str, number: int) -> None:
        """A log that had failed was set aside, and another begun in its place.

        Raises:
            OSError: it can not be written down.
        """
        self._failed.discard((uuid, number))
        self._save()

    def settled(self) -> None:
        """The metadata has taken note."""
        self._known_boot_id, self._is_doubtful = self._boot_id, False
        self._failed.clear()
        self._save()

    def _save(self) -> None:
        failed = sorted(self._failed)
        content = {"boot_id": self._known_boot_id, "doubtful": self._is_doubtful, "failed": failed}
        write_atomically(self._disk, self._path, json.dumps(content).encode() + b"\n")


def _counts_early(state: MetadataState, node_id: str) -> bool:
    """Whether a replicated stream here counts records as durable that the kernel alone has."""
    return any(
        len(each.replicas) > 1 and node_id in each.replicas
        for stream in state.streams.values()
        if stream.config.sync is not SyncMode.ALWAYS
        for each in stream.partitions
    )
