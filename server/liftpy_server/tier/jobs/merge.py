"""Background merging of one partition: shared objects become its own, small objects become large ones.

Nothing is lost or doubled on the way: the sums of what goes and of what comes are compared before anything is named.
"""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.lineage import cut_epochs
from liftpy_bucket.manifest.root.changes import Change, append, replace
from liftpy_bucket.objects.merging import merge_fragments
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.store.conditional import create_once
from liftpy_server.tier.jobs.parts.file_body import body_of
from liftpy_server.tier.jobs.parts.members import size_of, sources_of
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.merge_plan import run_to_merge, sizes_to_merge
from liftpy_server.tier.jobs.parts.roots import Created, check_in_force, commit, file_of, newest, path_of, resolved
from liftpy_server.tier.jobs.parts.stream_objects import Stored, drafted, fragment_name, put_draft
from liftpy_server.tier.requests import MergeResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import FragmentPointer
    from liftpy_bucket.reading.resolving import ResolvedMember
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import MergeJob

__all__ = ["merge"]

_RUNS_MAX: Final = 8


def merge(context: Context, request: MergeJob) -> MergeResult:
    """Merge what there is to be merged of a partition.

    Args:
        context: of the worker.
        request: what is wanted.

    Raises:
        LineageError: this leader has no claim in force.
        OvertakenError: others write this root; try again.
    """
    path, epoch = path_of(request), request.epoch
    merged, is_left = _move_members(context, path, epoch)
    for _ in range(_RUNS_MAX):
        count = _merge_run(context, path, epoch)
        if not count:
            break
        merged += count
    return MergeResult(merged=merged, left=is_left)


def _move_members(context: Context, path: PartitionPath, epoch: int) -> tuple[int, bool]:
    """What sets hold of the partition becomes an object of its own. Says how many did, and whether some are left."""
    with context.roots.alone(path, context.progress):
        root = newest(context, path).root
        check_in_force(root, epoch)
        if root.sealed:
            return 0, False
        held = resolved(context, root)
        members = _some(held.members, context.object_bytes)
        if not members:
            return 0, False
        with context.memory.hold(sum(map(size_of, members)) + WORK_BYTES, context.progress):
            stored = _stored(context, root, members, epoch)
        epochs = cut_epochs(held.epochs, root.end, members[-1].end)

        def change_of(root: Root) -> Change:
            check_in_force(root, epoch)
            return append(root, stored.pointer, epoch=epoch, epochs=epochs)

        commit(context, path, change_of, stored.created)
    return len(members), len(members) < len(held.members)


def _stored(context: Context, root: Root, members: Sequence[ResolvedMember], epoch: int) -> Stored:
    def store(*, keeps_replies: bool) -> Stored:
        draft = drafted(
            *(context, PartitionPath(root.uuid, root.partition), sources_of(context, members)),
            base=root.end,
            end=members[-1].end,
            epoch=epoch,
            keeps_replies=keeps_replies,
            expected_bytes=sum(map(size_of, members)),
        )
        with draft as made:
            return put_draft(context, root, made)

    try:
        return store(keeps_replies=False)
    except ValueError:  # there are replies
        return store(keeps_replies=True)


def _some(members: Sequence[ResolvedMember], bytes_max: int) -> list[ResolvedMember]:
    """The first members, as many as make an object of full size."""
    some: list[ResolvedMember] = []
    size = 0
    for member in members:
        size += size_of(member)
        if some and size > bytes_max:
            break
        some.append(member)
    return some


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


def _merged(context: Context, path: PartitionPath, run: Sequence[FragmentPointer], epoch: int) -> FragmentPointer:
    """Written into a file without a name first: it may be larger than what may be held in memory."""
    nonce = context.new_id()
    name = fragment_name(run[0].base, epoch, nonce)
    with TemporaryFile() as file:
        written = merge_fragments(context.store, path, run, file, nonce=nonce)
        pa.default_memory_pool().release_unused()
        context.progress()
        with body_of(context, file) as body:
            create_once(context.store, path.fragment(name), body, nonce)
    return written.pointer(name, base=run[0].base, end=run[-1].end)
