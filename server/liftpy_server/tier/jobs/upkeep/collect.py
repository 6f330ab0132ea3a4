"""What is not wanted any more goes: by retention, by purging, with its stream, or because nothing names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root.reach import is_ours
from liftpy_bucket.upkeep.collecting import Collected, Collector
from liftpy_bucket.upkeep.collecting_stream_sets import SetCollector
from liftpy_server.tier.jobs.parts.roots import check_in_force, find, newest, path_of, resolved
from liftpy_server.tier.jobs.upkeep.merge_stream_sets import merge_sets
from liftpy_server.tier.jobs.upkeep.trim_stream_sets import trim_sets
from liftpy_server.tier.requests import CollectResult, CollectSetsResult, DropStreamResult, RetainResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.manifest.root.format import Root
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import CollectJob, CollectSetsJob, DropStreamJob, RetainJob

__all__ = ["collect", "collect_sets", "drop_stream", "retain"]

_FOR_EVER_NS: Final = 2**62  # what was never named, and a fork that has no root yet, are for `collect`


def retain(context: Context, request: RetainJob) -> RetainResult:
    """Let go of what lies below an offset, and delete it; what a pin holds stays, and so does what is above it.

    Args:
        context: Context of the worker.
        request: What is wanted.

    Raises:
        LineageError: this leader has no claim in force.
        OvertakenError: others write this root; try again.
    """
    path, start, epoch = path_of(request), request.start, request.epoch
    root = newest(context, path).root
    check_in_force(root, epoch)
    if start <= root.start:
        return RetainResult(start=root.start, more=False, pinned=False)
    collected = _collect(context, path, start, _FOR_EVER_NS, lambda root: check_in_force(root, epoch), looks=False)
    root = root if collected.loaded is None else collected.loaded.root
    return RetainResult(start=root.start, more=collected.more, pinned=collected.pinned)


def collect(context: Context, request: CollectJob) -> CollectResult:
    """Delete what no root, snapshot or pin names.

    Args:
        context: Context of the worker.
        request: What is wanted.
    """
    collected = _collect(context, path_of(request), 0, request.grace_ns)
    return CollectResult(deleted=collected.deleted, freed=collected.freed, more=collected.more, pinned=collected.pinned)


def collect_sets(context: Context, request: CollectSetsJob) -> CollectSetsResult:
    """Merge the shared objects of a node, without what counts no more, and delete those that are not needed any more.

    Args:
        context: Context of the worker.
        request: What is wanted.

    Raises:
        LineageError: a later incarnation of the node has written.
        OvertakenError: somebody else writes this manifest; try again.
    """
    node, incarnation = request.node, request.incarnation
    collector = SetCollector(
        context.store,
        node,
        incarnation,
        new_id=context.new_id,
        now_ns=context.now_ns,
        grace_ns=context.grace_ns,
        progress=lambda _done, _total, _text: context.progress(),
        pages=context.pages,
    )
    try:
        trimmed = trim_sets(context, node, incarnation)
        merged = merge_sets(context, node, incarnation)
        collected = collector.run()
    except BaseException:
        context.sets.drop(node)  # it may have been written, or be so old that what it names is gone
        raise
    if collected.loaded is not None:
        context.sets.keep(node, collected.loaded)
    left = 0 if collected.loaded is None else len(collected.loaded.manifest.objects)
    return CollectSetsResult(
        trimmed=trimmed, merged=merged, dropped=collected.dropped, deleted=collected.deleted, left=left
    )


def drop_stream(context: Context, request: DropStreamJob) -> DropStreamResult:
    """Delete what a deleted stream has left, but for what forks and pins hold. Its roots stay, and say that it ended.

    What nothing names may be somebody's work in progress: a fork, or an upload that was late. It has the grace period.

    Args:
        context: Context of the worker.
        request: What is wanted.
    """
    deleted, freed, pinned = 0, 0, False
    for partition in range(request.partitions):
        path = PartitionPath(request.uuid, partition)
        loaded = find(context, path)
        more = loaded is not None
        while loaded is not None and more:
            collected = _collect(context, path, resolved(context, loaded.root).end, context.grace_ns)
            deleted, freed, more = deleted + collected.deleted, freed + collected.freed, collected.more
            if not more:
                pinned |= collected.pinned or _has_objects(context, path)
    return DropStreamResult(deleted=deleted, freed=freed, pinned=pinned)


def _has_objects(context: Context, path: PartitionPath) -> bool:
    """Whether something is left that a later look may delete."""
    return any(is_ours(path, entry.key) for entry in context.store.list(path.directory))


def _collect(
    context: Context,
    path: PartitionPath,
    start: int,
    grace_ns: int,
    check: Callable[[Root], None] | None = None,
    *,
    looks: bool = True,
) -> Collected:
    collector = Collector(
        context.store,
        path,
        new_id=context.new_id,
        now_ns=context.now_ns,
        grace_ns=grace_ns,
        progress=lambda _done, _total, _text: context.progress(),
    )
    collected = collector.run(start, check, looks=looks)
    if collected.loaded is not None:
        context.roots.keep(path, collected.loaded)
    return collected
