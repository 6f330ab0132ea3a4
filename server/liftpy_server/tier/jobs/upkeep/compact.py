"""Key compaction of a partition's history in the bucket."""

from __future__ import annotations

import os
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.pins.pin import held_ranges
from liftpy_bucket.manifest.root.changes import Change, replace
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.version import TierVersion
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.upkeep.compaction import HistoryCompaction, HistoryCompactionConfig, plan_history
from liftpy_bucket.upkeep.live import settled_pins
from liftpy_log.compaction.compact import is_due
from liftpy_server.tier.jobs.parts.file_body import body_of
from liftpy_server.tier.jobs.parts.members import move_members, size_of
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.roots import Created, check_in_force, commit, file_of, newest, path_of, resolved
from liftpy_server.tier.jobs.parts.stream_objects import fragment_name
from liftpy_server.tier.requests import CompactResult

if TYPE_CHECKING:
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.upkeep.compaction import HistoryPlan, Replacement
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import CompactJob

__all__ = ["compact"]

_MAP_BYTES_MAX: Final = 128 * 1024 * 1024  # of keys: what does not fit is for the next pass
_SEED_BYTES: Final = 32


def compact(context: Context, request: CompactJob) -> CompactResult:
    """Let go of records that newer ones of the same key supersede, where it pays; what a pin holds stays.

    Args:
        context: What the jobs of the worker share.
        request: What is wanted.

    Raises:
        LineageError: this leader has no claim in force.
        OvertakenError: others write this root, or somebody pins what was to go; try again.
    """
    path = path_of(request)
    root = newest(context, path).root
    check_in_force(root, request.epoch)
    config = HistoryCompactionConfig(
        min_lag_ns=request.min_compaction_lag_ns,
        delete_retention_ns=request.delete_retention_ns,
        object_bytes=context.object_bytes,
        memory_bytes_max=_MAP_BYTES_MAX,
    )
    _move(context, path, root, config, request)
    root = newest(context, path).root
    plan = _plan(context, path, root, config, request.clean_end)
    compacted = 0
    if plan is not None:
        with context.memory.hold(_MAP_BYTES_MAX + WORK_BYTES, context.progress):
            compacted = _run(context, path, plan, config, request.epoch)
        root = newest(context, path).root
    held = resolved(context, root).members
    children: tuple[SnapshotPointer | StreamObjectPointer, ...] = (*root.snapshots, *root.fragments)
    return CompactResult(
        compacted=compacted,
        delete_horizon=root.delete_horizon,
        compacted_end=root.compacted_end,
        bytes=sum(each.size for each in children) + sum(map(size_of, held)),
        records=sum(each.records for each in children) + sum(each.member.records for each in held),
    )


def _move(
    context: Context, path: PartitionPath, root: Root, config: HistoryCompactionConfig, request: CompactJob
) -> None:
    """What shared objects hold becomes the partition's own, if a pass over it would pay: it goes by key from there."""
    held = resolved(context, root)
    children: tuple[SnapshotPointer | StreamObjectPointer, ...] = (*root.snapshots, *root.fragments)
    clean_bytes = sum(each.size for each in children if each.end <= root.compacted_end)
    dirty_bytes = sum(each.size for each in children) - clean_bytes + sum(map(size_of, held.members))
    if not held.members or not is_due(dirty_bytes, clean_bytes, config.min_dirty_ratio):
        return
    until = request.clean_end
    if config.min_lag_ns:
        version = TierVersion(context.store, path, root, held, ReadingCache(context.store))
        young = version.offset_at_time(context.now_ns() - config.min_lag_ns)
        until = until if young is None else min(until, young)
    is_left = True
    while is_left:
        moved, is_left = move_members(context, path, request.epoch, until)
        is_left &= moved > 0


def _plan(
    context: Context, path: PartitionPath, root: Root, config: HistoryCompactionConfig, clean_end: int
) -> HistoryPlan | None:
    return plan_history(
        file_of(context, path).fragments(root),
        path=path,
        compacted_end=root.compacted_end,
        delete_horizon=root.delete_horizon,
        clean_end=clean_end,
        held=_held(context, path),
        now_ns=context.now_ns(),
        config=config,
    )


def _held(context: Context, path: PartitionPath) -> tuple[tuple[int, int | None], ...]:
    now_ns = context.now_ns()
    pins = settled_pins(context.store, file_of(context, path), new_id=context.new_id, now_ns=now_ns)
    return held_ranges(pins, now_ns)


def _run(context: Context, path: PartitionPath, plan: HistoryPlan, config: HistoryCompactionConfig, epoch: int) -> int:
    seed, born = os.urandom(_SEED_BYTES), newest(context, path).root.version
    work = HistoryCompaction(context.store, plan, config, seed=seed, open_sink=TemporaryFile, new_nonce=context.new_id)
    compacted = 0
    for replacement in work.run():
        context.progress()
        _put(context, path, replacement, epoch, born)
        compacted += len(replacement.old)

    def mark(root: Root) -> Change | None:
        check_in_force(root, epoch)
        if root.compacted_end >= work.clean_end:
            return None
        return replace(root, (), (), collected=NO_RECORDS, snapshots={}, compacted_end=work.clean_end)

    with context.roots.alone(path, context.progress):
        commit(context, path, mark)
    return compacted


def _put(context: Context, path: PartitionPath, replacement: Replacement, epoch: int, born: int) -> None:
    old = replacement.old
    name = fragment_name(old[0].base, epoch, replacement.nonce)
    new, created = [], None
    with replacement.sink as sink:
        if replacement.new.records:
            with body_of(context, sink) as body:
                create_once(context.store, path.fragment(name), body, replacement.nonce)
            new, created = [replacement.pointer(name)], Created(path.fragment(name), born)

    def change_of(root: Root) -> Change:
        check_in_force(root, epoch)
        _check_free(context, path, old)  # after the root was read: whoever pins since makes it move on
        return replace(
            root,
            old,
            new,
            collected=replacement.collected,
            snapshots=file_of(context, path).snapshots(root, old[0].base, old[-1].end),
            delete_horizon=replacement.delete_horizon,
        )

    with context.roots.alone(path, context.progress):
        commit(context, path, change_of, created)


def _check_free(context: Context, path: PartitionPath, old: tuple[StreamObjectPointer, ...]) -> None:
    start, end = old[0].base, old[-1].end
    for held_start, held_end in _held(context, path):
        if held_start < end and (held_end is None or held_end > start):
            raise OvertakenError(
                f"offset {max(start, held_start)} of {path.directory} was pinned while it was compacted"
            )
