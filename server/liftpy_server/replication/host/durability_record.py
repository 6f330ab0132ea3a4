"""Whether this node can prove that its logs hold all that it ever counted as durable. A small file keeps the doubt.

A data directory that is new can prove nothing: it may replace one that was wiped. Nor can one without that file: it
may be a part of a copy. Nor can one whose kernel stopped without a clean stop of the node: streams may count records as
durable before they are on disk, and a disk may have said that they are when they were not. Nor can one of which a small
file is damaged that says what was durable. The doubt stays on disk until the metadata has taken note of it; a second
start before that would otherwise look clean.

A single log can prove nothing either when somebody took it away, to have it copied anew, or when it had failed: who
knows what was put in its place. The directory stays away; the failure stays on disk until there is a new copy, or,
where nobody has one to copy from, until every batch was read and found well.

Nor can a log that ended with bytes that are no whole batch, which were cut off, nor any log after the write-ahead log
ended with something that could not be read: it was never durable, or it is damaged. Nobody can tell. These logs are
not lost: what is left of them was checked, and reaches as far as they say. So the metadata lets them lead where no
other in-sync replica is whole, the longest first; after a loss of power in a whole room that may be all of them. Their
doubt, too, stays on disk until the metadata has taken note of it, and is there before anything is cut off. Of a log
that nobody else has there is no better copy; there a doubt serves nothing.

    standing.json    {"boot_id":...,"doubtful":...,"torn":...,"cut":[[uuid,partition],...],
                      "failed":[[uuid,partition,why],...],"checksum":...}
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftpy_log.errors import FileDamagedError
from liftpy_log.segments.segment import base_offset_of
from liftpy_log.storage.checked_json import load_json, save_json, set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from liftpy_log.storage.disk import Disk
    from liftpy_server.metadata.state import MetadataState, PartitionInfo, StreamInfo

__all__ = ["DurabilityRecord", "has_log", "kernel_boot_id"]

logger = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_CUT_MAX: Final = 100  # that are kept one by one: each is a file that is synced, while the node starts
_FORGOTTEN: Final = "it had failed when the file that says why was damaged"


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


class DurabilityRecord:
    """Keeps, in a small file, whether this node can prove that its logs hold all that counted as durable.

    Args:
        disk: Disk that holds the files.
        path: Path of the file, in the data directory.
        boot_id: Boot id of the kernel that runs.
        is_doubtful: Another file that says what was durable is damaged.

    Raises:
        OSError: it can not be written.
    """

    def __init__(self, disk: Disk, path: Path, boot_id: str | None, *, is_doubtful: bool = False) -> None:
        self._disk = disk
        self._path = path
        self._boot_id = boot_id
        self._failed: dict[tuple[str, int], str] = {}
        self._unusable: set[tuple[str, int]] = set()  # in this run
        self._cut: set[tuple[str, int]] = set()
        self._is_torn = False  # any log may have been cut
        self._known_boot_id, self._is_doubtful = self._load()
        self._is_doubtful = self._is_doubtful or is_doubtful
        self._has_forgotten = self._is_doubtful  # which logs have failed; the metadata may know
        if self._is_doubtful:
            self._save()

    def _load(self) -> tuple[str | None, bool]:
        try:
            kept = load_json(self._disk, self._path)
            self._failed = {(str(uuid), int(number)): str(why) for uuid, number, why in kept["failed"]}
            self._cut = {(str(uuid), int(number)) for uuid, number in kept["cut"]}
            self._is_torn = bool(kept["torn"])
            return kept["boot_id"], bool(kept["doubtful"])
        except FileNotFoundError:
            if self._has_streams():
                logger.error(  # noqa: TRY400 - the trace adds nothing
                    "%s is missing: this node can not prove its logs, and leaves the in-sync replica sets until it has "
                    "caught up",
                    self._path,
                )
        except (FileDamagedError, ValueError, LookupError, TypeError):
            place = set_aside(self._disk, self._path, self._path.parent / "quarantine")
            logger.error(  # noqa: TRY400 - the trace adds nothing
                "%s is damaged, and was moved to %s: this node can not prove its logs, and leaves the in-sync replica "
                "sets until it has caught up",
                self._path,
                place,
            )
        return self._boot_id, True

    def _has_streams(self) -> bool:
        try:
            return bool(self._disk.names(self._path.parent / "streams"))
        except FileNotFoundError:
            return False

    def doubt(self) -> None:
        """Something that was durable is damaged. Who moves it away starts a node that can not prove its logs.

        Raises:
            OSError: that can not be written down.
        """
        self._is_doubtful = True
        self._save()

    def wal_torn(self) -> None:
        """The write-ahead log ended with something that could not be read; of which logs it was, nobody knows.

        Raises:
            OSError: that can not be written down.
        """
        self._is_torn = True
        self._save()

    def log_torn(self, uuid: str, number: int) -> None:
        """A log that others have too ends with bytes that are no whole batch, and is about to be cut.

        Raises:
            OSError: that can not be written down.
        """
        if self._is_torn or (uuid, number) in self._cut:
            return
        self._cut.add((uuid, number))
        self._is_torn = len(self._cut) > _CUT_MAX
        try:
            self._save()
        except OSError:
            self._cut.remove((uuid, number))
            self._is_torn = False
            raise

    def is_proven(self, state: MetadataState, node_id: str, *, was_clean: bool) -> bool:
        """Whether the logs are whole; when they may not be, that is on disk on return.

        Args:
            state: Metadata, which says which streams have a replica here.
            node_id: Id of this node.
            was_clean: The node had stopped cleanly.
        """
        has_restarted = self._boot_id != self._known_boot_id
        if has_restarted and not was_clean and _has_copies_elsewhere(state, node_id):
            self._is_doubtful = True
            self._save()
        return not self._is_doubtful

    def lost_logs(
        self, state: MetadataState, node_id: str, known_end: Callable[[str, int], int] = lambda *_: 0
    ) -> list[tuple[str, int]]:
        """Uuid and number of partitions whose log here has failed, or is gone.

        The only log of a partition counts as gone where it is known to have had records. If it has failed it is
        offline, and nobody could take its place.

        Whether the metadata counts on this node's copy now says nothing: a proposal to do so may be under way. Of a
        stream that is new there may be no log yet, on any node; then no node counts until all have said so.

        Args:
            state: Metadata, which says which streams have a replica here.
            node_id: Id of this node.
            known_end: Known end of a partition: records below it were committed, as this node knows.
        """

        def is_lost(stream: StreamInfo, number: int, partition: PartitionInfo) -> bool:
            if len(partition.replicas) > 1:
                return (stream.uuid, number) in self._failed or not self._has_log(stream, number)
            end = max(known_end(stream.uuid, number), partition.first_end)
            return end > partition.empty_log_start and not self._has_log(stream, number)

        return [
            (stream.uuid, number)
            for stream, number, info in _kept_here(state, node_id)
            if is_lost(stream, number, info)
        ]

    def cut_logs(self, state: MetadataState, node_id: str) -> list[tuple[str, int]]:
        """Uuid and number of partitions of several replicas whose log here may lack its end.

        Args:
            state: Metadata, which says which streams have a replica here.
            node_id: Id of this node.
        """
        return [
            (stream.uuid, number)
            for stream, number, partition in _kept_here(state, node_id)
            if len(partition.replicas) > 1
            if self._is_torn or (stream.uuid, number) in self._cut
        ]

    def failed_logs(self, state: MetadataState, node_id: str) -> list[tuple[str, int]]:
        """Uuid and number of partitions of several replicas whose log has failed, or can not be used, and is there.

        Args:
            state: Metadata, which says which streams have a replica here, and what they told of their logs before.
            node_id: Id of this node.
        """
        for stream, number, partition in _kept_here(state, node_id):
            if self._has_forgotten and node_id in partition.failed:
                self._failed.setdefault((stream.uuid, number), _FORGOTTEN)
        return [
            (stream.uuid, number)
            for stream, number, partition in _kept_here(state, node_id)
            if len(partition.replicas) > 1
            if (stream.uuid, number) in self._failed or (stream.uuid, number) in self._unusable
            if self._has_log(stream, number)
        ]

    def _has_log(self, stream: StreamInfo, number: int) -> bool:
        return has_log(self._disk, self._path.parent / "streams" / f"{stream.name}.{stream.uuid}" / str(number))

    def why_failed(self, uuid: str, number: int) -> str | None:
        """Why a log had failed that has not been renewed since; None for one that is well."""
        return self._failed.get((uuid, number))

    def log_failed(self, uuid: str, number: int, why: str) -> None:
        """A log has failed: what is found in its place after a restart proves nothing."""
        if (uuid, number) in self._failed:
            return
        self._failed[uuid, number] = why
        try:
            self._save()
        except OSError as error:
            logger.error("%s could not be written: %s", self._path, error)  # noqa: TRY400 - the trace adds nothing

    def log_unusable(self, uuid: str, number: int) -> None:
        """A log can not be used in this run of the node, which says nothing of what is on disk."""
        self._unusable.add((uuid, number))

    def forget(self, uuid: str, number: int) -> None:
        """A log that had failed was set aside or dropped, or is well again.

        Raises:
            OSError: it can not be written down.
        """
        self._unusable.discard((uuid, number))
        if self._failed.pop((uuid, number), None) is not None:
            self._save()

    def doubt_recorded(self, state: MetadataState, node_id: str) -> None:
        """The metadata has taken note of the doubt. Failures are kept, but those of logs that are not here any more."""
        self._known_boot_id, self._is_doubtful = self._boot_id, False
        self._is_torn = self._has_forgotten = False
        self._cut.clear()
        here = {
            (stream.uuid, number) for stream, number, _ in _kept_here(state, node_id) if self._has_log(stream, number)
        }
        self._failed = {place: why for place, why in self._failed.items() if place in here}
        self._save()

    def _save(self) -> None:
        failed = [[uuid, number, why] for (uuid, number), why in sorted(self._failed.items())]
        doubts = {"boot_id": self._known_boot_id, "doubtful": self._is_doubtful, "torn": self._is_torn}
        cut = [list(place) for place in sorted(self._cut)]
        save_json(self._disk, self._path, doubts | {"cut": cut, "failed": failed})


def _kept_here(state: MetadataState, node_id: str) -> Iterator[tuple[StreamInfo, int, PartitionInfo]]:
    return (
        (stream, number, partition)
        for stream in state.streams.values()
        for number, partition in enumerate(stream.partitions)
        if node_id in partition.replicas
    )


def _has_copies_elsewhere(state: MetadataState, node_id: str) -> bool:
    """Whether there is anything here of which a better copy may be on another node."""
    return any(len(partition.replicas) > 1 for _, _, partition in _kept_here(state, node_id))
