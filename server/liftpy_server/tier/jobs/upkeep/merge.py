"""Background merging of one partition: shared objects become its own, small objects become large ones.

Nothing is lost or doubled on the way: the sums of what goes and of what comes are compared before anything is named.
"""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import pyarrow as pa

from liftpy_bucket.manifest.root.changes import Change, replace
from liftpy_bucket.objects.merging import merge_fragments
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.store.conditional import create_once
from liftpy_server.tier.jobs.parts.context import LONG_NS
from liftpy_server.tier.jobs.parts.file_body import body_of
from liftpy_server.tier.jobs.parts.members import move_members
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.merge_plan import run_to_merge, sizes_to_merge
from liftpy_server.tier.jobs.parts.roots import Created, check_in_force, commit, file_of, newest, path_of
from liftpy_server.tier.jobs.parts.stream_objects import fragment_name
from liftpy_server.tier.requests import MergeResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import MergeJob

__all__ = ["merge"]


def merge(context: Context, request: MergeJob) -> MergeResult:
    """Merge what there is to be merged of a partition, or as much of it as some seconds allow.

    Args:
        context: What the jobs of the worker share.
        request: What is wanted.

    Raises:
        LineageError: this leader has no claim in force.
        OvertakenError: others write this root; try again.
    """
    path, epoch = path_of(request), request.epoch
    began_ns = context.now_ns()
    merged, more = move_members(context, path, epoch)
    while not more and (count := _merge_run(context, path, epoch)):
        merged += count
        more = context.now_ns() - began_ns > LONG_NS
    return MergeResult(merged=merged, more=more)


def _merge_run(context: Context, path: PartitionPath, epoch: int) -> int:
    root = newest(context, path).root
    check_in_force(root, epoch)
    start = root.snapshots[-1].base if root.snapshots else 0
    there = list(file_of(context, path).fragments(root, start))
    run = [there[place] for place in run_to_merge(sizes_to_merge(context, there), context.object_bytes)]
    if not run:
        return 0
    with context.memory.hold(WORK_BYTES, context.progress):
        pointer = _merged(context, path, run, epoch)

    def change_of(root: Root) -> Change:
        check_in_force(root, epoch)
        snapshots = file_of(context, path).snapshots(root, run[0].base, run[-1].end)
        return replace(root, run, [pointer], collected=NO_RECORDS, snapshots=snapshots)

    with context.roots.alone(path, context.progress):
        commit(context, path, change_of, Created(path.fragment(pointer.name), root.version))
    return len(run)


def _merged(
    context: Context, path: PartitionPath, run: Sequence[StreamObjectPointer], epoch: int
) -> StreamObjectPointer:
    """Written into a file without a name first: it may be larger than what may be held in memory."""
    nonce = context.new_id()
    name = fragment_name(run[0].base, epoch, nonce)
    with TemporaryFile() as file:
        written = merge_fragments(context.store, path, run, file, nonce=nonce)
        pa.default_memory_pool().release_unused()  # all of the file counts as memory next, while it is sent
        context.progress()
        with body_of(context, file) as body:
            create_once(context.store, path.fragment(name), body, nonce)
    return written.pointer(name, base=run[0].base, end=run[-1].end)
