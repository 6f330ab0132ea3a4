"""Key compaction: of every key the last record stays, and every record without a key; offsets never change.

A pass reads what came in since the last one, up to where memory ends, and notes the newest offset of every key (see
`offset_map`). Then it goes over the log from its start to there, oldest segments first, and writes those that hold
an older record of one of these keys anew, without it (see `write`); small neighbours become one segment.
Each takes the place of its elders at once and durably (see `swap`), so whoever reads the log sees, at any
time and after any crash, every key's last record. A tombstone goes, some time after it was found to be the last of its
key, with or after all that it deleted.

All of it runs in a thread, or a process, beside the one that owns the log. It works on files that do not change, and
asks the owner for nothing but the swaps and a small file. A pass that the owner overtakes, by retention, a purge or a
cut, is given up, and leaves nothing half done.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from liftpy_log.compaction.offset_map import KeyHasher, OffsetMap
from liftpy_log.compaction.read import read_segment
from liftpy_log.compaction.state import CleanedSegment, SealedSegment, gone_path
from liftpy_log.compaction.survivors import Survivors, in_chunks
from liftpy_log.compaction.write import SegmentWriter
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.segments.segment import segment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from liftpy_log.compaction.state import Cleaned
    from liftpy_log.compaction.swap import LogCompaction
    from liftpy_log.storage.disk import Disk

__all__ = ["CompactionConfig", "CompactionPlan", "CompactionReport", "LogOwner", "compact", "is_due", "plan_compaction"]

_OFFSETS_MAX: Final = 2**31 - 1  # that one segment may cover


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """How a log is compacted.

    Attributes:
        dedupe_window_ns: A segment with a record that is younger than this before the newest record is not touched; so
            all that deduplication asks about is there as it was.
        min_lag_ns: Nor is one with a younger record than this.
        delete_retention_ns: How long tombstones stay after they were first found to be the last of their key.
        min_dirty_ratio: Share of the log that must be dirty before a pass pays.
        segment_bytes: Small neighbours are merged up to this size.
        memory_bytes_max: Memory for the map of keys; a pass goes as far as it lasts. 70 bytes per distinct key, and
            half of that again while it grows.
        codec: `lz4` or `zstd`, for batches made of compressed ones.
    """

    dedupe_window_ns: int
    min_lag_ns: int = 0
    delete_retention_ns: int = 86_400 * 10**9
    min_dirty_ratio: float = 0.5
    segment_bytes: int = 256 * 1024 * 1024
    memory_bytes_max: int = 256 * 1024 * 1024
    codec: str = "zstd"


class CompactionPlan(NamedTuple):
    """What a pass works on: everything of a log that may be compacted, as it was when `plan_compaction` looked.

    Attributes:
        directory: Directory of the partition.
        segments: Segments, oldest first.
        cleaned: How far the log was clean.
        cuts: See `LogCompaction.cuts`.
        now: Time, as for `plan_compaction`.
    """

    directory: Path
    segments: tuple[SealedSegment, ...]
    cleaned: Cleaned
    cuts: int
    now: int


class CompactionReport(NamedTuple):
    """What a pass did.

    Attributes:
        is_complete: Whether it was not given up because the log changed.
        clean_end: How far the log is clean now.
        keys: Distinct keys that were noted.
        memory_bytes: What the map of keys took at most.
        bytes_before: Size of the segments that were written anew.
        bytes_after: Bytes of those that took their place.
        delete_horizon: See `Cleaned.delete_horizon`.
    """

    is_complete: bool
    clean_end: int
    keys: int
    memory_bytes: int
    bytes_before: int
    bytes_after: int
    delete_horizon: int


class LogOwner(Protocol):
    """What a pass asks of whoever owns the log: `LogCompaction` itself, or something that calls it in its thread."""

    def replace_segments(self, old: Sequence[SealedSegment], new: CleanedSegment, cuts: int) -> bool:
        """See `LogCompaction.replace_segments`."""
        ...

    def save_cleaned(self, cleaned: Cleaned, cuts: int) -> bool:
        """See `LogCompaction.save_cleaned`."""
        ...


def is_due(dirty_bytes: int, clean_bytes: int, min_dirty_ratio: float) -> bool:
    """Whether so large a share of the log came in since the last pass that another one pays."""
    return dirty_bytes > 0 and dirty_bytes >= min_dirty_ratio * (dirty_bytes + clean_bytes)


def plan_compaction(
    log: LogCompaction, high_watermark: int, now: int, config: CompactionConfig, *, young_ns: int | None = None
) -> CompactionPlan | None:
    """What a pass would work on now; None when it does not pay. Belongs to the thread that owns the log.

    Args:
        log: Log of the partition.
        high_watermark: Nothing at or above this offset is touched.
        now: Ns, on the scale by which tombstones age; it goes on from pass to pass.
        config: Settings of the compaction.
        young_ns: A segment with a later record is not touched; by default `config.min_lag_ns` before `now`.

    Raises:
        OSError: how far the log is clean could not be read.
    """
    settled_ns = now - config.min_lag_ns if young_ns is None else young_ns
    young = min(settled_ns, log.last_timestamp - config.dedupe_window_ns)
    segments = tuple(
        takewhile(
            lambda segment: segment.next_offset <= high_watermark and segment.max_timestamp <= young,
            log.sealed_segments(),
        )
    )
    cleaned = log.load_cleaned()
    clean_bytes = sum(segment.size for segment in segments if segment.next_offset <= cleaned.clean_end)
    dirty_bytes = sum(segment.size for segment in segments) - clean_bytes
    has_expired = (
        bool(segments)
        and cleaned.tombstones > 0
        and cleaned.expired_end(now, config.delete_retention_ns) > cleaned.delete_horizon
    )
    if not (has_expired or is_due(dirty_bytes, clean_bytes, config.min_dirty_ratio)):
        return None
    return CompactionPlan(log.directory, segments, cleaned, log.cuts, now)


def compact(
    disk: Disk,
    plan: CompactionPlan,
    config: CompactionConfig,
    owner: LogOwner,
    *,
    seed: bytes,
    pause: Callable[[int], None],
) -> CompactionReport:
    """Run one pass, in any thread.

    Args:
        disk: Disk that holds the files.
        plan: Plan that was just made.
        config: Configuration, as for the plan.
        owner: Asked for the swaps.
        seed: Secret random bytes, at least 16; others at every pass will do.
        pause: Called after every half MiB or so that was read, with its bytes: the place to wait, so that the node
            goes on serving. What it raises ends the pass.

    Raises:
        SegmentCorruptError: a segment is damaged; the owner should fail the log with it.
        StorageFullError, PartitionOfflineError: the owner could not do what it was asked for.
        OSError: a file could not be read or written; nothing half done is left but what opening the log removes.
    """
    return _Pass(disk, plan, config, owner, KeyHasher(seed), pause).run()


class _OvertakenError(Exception):
    """The log is not what it was when the pass was planned."""


class _Pass:
    def __init__(
        self,
        disk: Disk,
        plan: CompactionPlan,
        config: CompactionConfig,
        owner: LogOwner,
        hasher: KeyHasher,
        pause: Callable[[int], None],
    ) -> None:
        self._disk, self._plan, self._config, self._owner, self._pause = disk, plan, config, owner, pause
        self._newest = OffsetMap(config.memory_bytes_max)
        self._survivors = Survivors(self._newest, hasher, 0)
        self._segments = list(plan.segments)
        self._cleaned = plan.cleaned
        self._bytes_before = self._bytes_after = 0

    def run(self) -> CompactionReport:
        is_complete = True
        try:
            self._clean()
        except (_OvertakenError, FileNotFoundError):  # a file is gone when retention, or a cut, has deleted it
            is_complete = False
        except SegmentCorruptError:
            if self._owner.save_cleaned(self._cleaned, self._plan.cuts):
                raise
            is_complete = False  # what looked like damage was a cut
        return CompactionReport(
            is_complete=is_complete,
            clean_end=self._cleaned.clean_end,
            keys=len(self._newest),
            memory_bytes=self._newest.memory_bytes,
            bytes_before=self._bytes_before,
            bytes_after=self._bytes_after,
            delete_horizon=self._cleaned.delete_horizon,
        )

    def _clean(self) -> None:
        end = self._note_keys()
        now, retention_ns = self._plan.now, self._config.delete_retention_ns
        seen = self._cleaned.after_pass(end, now, 0, retention_ns)
        self._announce_tombstones(min(end, seen.expired_end(now, retention_ns)))
        self._segments = [segment for segment in self._segments if segment.base_offset < end]
        tombstones = 0
        for group in self._groups():
            self._survivors.tombstones = 0
            if len(group) > 1 or self._has_losses(group[0]):
                self._survivors.tombstones = 0
                self._rewrite(group)
            tombstones += self._survivors.tombstones
        self._merge()
        self._save(self._cleaned.after_pass(end, now, tombstones, retention_ns))

    def _note_keys(self) -> int:
        """Fill the map with the keys of the dirty part. Returns up to where it speaks of all of them."""
        start = self._cleaned.clean_end
        for segment in self._segments:
            if segment.next_offset <= start:
                continue
            for chunk in in_chunks(read_segment(self._disk, segment, self._pause)):
                full_at = self._survivors.note(chunk, start)
                if full_at is not None:
                    return full_at
        return self._segments[-1].next_offset

    def _announce_tombstones(self, end: int) -> None:
        """Before the first tombstone goes it must be known, durably, that some may be gone."""
        self._survivors.tombstone_end = end
        if end > self._cleaned.delete_horizon:
            self._save(self._cleaned.with_delete_horizon(end))

    def _save(self, cleaned: Cleaned) -> None:
        if not self._owner.save_cleaned(cleaned, self._plan.cuts):
            raise _OvertakenError
        self._cleaned = cleaned

    def _groups(self) -> Iterator[list[SealedSegment]]:
        """Neighbours that fit into one segment together."""
        group: list[SealedSegment] = []
        size = 0
        for segment in tuple(self._segments):
            covers = segment.next_offset - group[0].base_offset if group else 0
            if group and (size + segment.size > self._config.segment_bytes or covers > _OFFSETS_MAX):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _has_losses(self, segment: SealedSegment) -> bool:
        """Whether a record of a segment must go; when none must, its tombstones are counted."""
        for chunk in in_chunks(read_segment(self._disk, segment, self._pause)):
            if any(mask is not None for mask in self._survivors.masks(chunk)):
                return True
        return False

    def _merge(self) -> None:
        """Merge what fits into one segment now that it is smaller, so that another pass has nothing to do."""
        groups = [group for group in self._groups() if len(group) > 1]
        while groups:
            for group in groups:
                self._rewrite(group)
            groups = [group for group in self._groups() if len(group) > 1]

    def _rewrite(self, group: Sequence[SealedSegment]) -> None:
        generation = 1 + max(segment.generation for segment in group)
        directory = self._plan.directory
        writer = SegmentWriter(self._disk, directory, group[0].base_offset, generation, self._config.codec)
        try:
            for segment in group:
                for chunk in in_chunks(read_segment(self._disk, segment, self._pause)):
                    for batch, mask in zip(chunk, self._survivors.masks(chunk), strict=True):
                        writer.take(batch, mask)
            cleaned = writer.finish()
            if not self._owner.replace_segments(group, cleaned, self._plan.cuts):
                raise _OvertakenError
        except BaseException:
            writer.discard()
            raise
        self._note_swap(group, cleaned)
        for segment in group:
            self._disk.remove(gone_path(segment.path))

    def _note_swap(self, group: Sequence[SealedSegment], cleaned: CleanedSegment) -> None:
        start = self._segments.index(group[0])
        self._segments[start : start + len(group)] = [
            SealedSegment(
                segment_path(self._plan.directory, cleaned.base_offset, cleaned.generation),
                cleaned.base_offset,
                cleaned.next_offset,
                cleaned.size,
                cleaned.generation,
                cleaned.max_timestamp,
            )
        ]
        self._bytes_before += sum(segment.size for segment in group)
        self._bytes_after += cleaned.size
