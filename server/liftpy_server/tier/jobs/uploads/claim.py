"""A claim: what a leader does before it moves anything of a partition into the bucket, once per leadership.

It ends the claim of the leader before, at the offset up to which that one's uploads count; see `resolving`. Most
of all it sees that the bucket holds the history of this log, and not of another one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.lineage import check_lineage
from liftpy_bucket.manifest.root.changes import claim, create
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_server.tier.jobs.parts.members import size_of
from liftpy_server.tier.jobs.parts.merge_plan import run_to_merge, sizes_to_merge
from liftpy_server.tier.jobs.parts.roots import check_never_was, check_sets_are_there, file_of, find, path_of, resolved
from liftpy_server.tier.requests import HistoryResult

if TYPE_CHECKING:
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.reading.resolving import Resolved
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import ClaimJob, Epochs, LookJob

__all__ = ["claim_partition", "look"]

_ATTEMPTS: Final = 4


def claim_partition(context: Context, request: ClaimJob) -> HistoryResult:
    """Claim a partition for a leadership.

    To claim again what is claimed tells what is there, and writes the root anew: a worker that died, and an upload
    whose outcome is not known, are got over in this way, for what may still be under way is refused from then on. A
    sealed partition is looked at, and not claimed.

    Args:
        context: What the jobs of the worker share.
        request: What is wanted.

    Raises:
        LineageError: another leader has claimed it, or bucket and log hold different histories.
        ObjectMissingError: the bucket has nothing of it, and `create` is not set.
        RootMissingError: the bucket has objects of it, and the root or the manifest that names them is gone.
        NotNamedError: the bucket has nothing of it, and the catalog does not name the stream yet.
        ForeignBucketError: the catalog is another cluster's.
        OvertakenError: others claim it at the same moment.
    """
    path = path_of(request)
    with context.roots.alone(path, context.progress):
        for _ in range(_ATTEMPTS):
            try:
                return _claim(context, path, request)
            except OvertakenError:
                continue
            except BaseException:
                context.roots.drop(path)  # it may have been written
                raise
    raise OvertakenError(f"the root of {path.directory} was changed by others {_ATTEMPTS} times while we tried to")


def look(context: Context, request: LookJob) -> HistoryResult:
    """What the bucket has of a partition; nothing is claimed.

    Args:
        context: What the jobs of the worker share.
        request: What is wanted.

    Raises:
        LineageError: bucket and log hold different histories.
        ObjectMissingError: the bucket has nothing of it.
        RootMissingError: the bucket has objects of it, and the root or the manifest that names them is gone.
    """
    path = path_of(request)
    loaded = find(context, path)
    if loaded is None:
        check_never_was(context, path, request.log_start)
        raise ObjectMissingError(path.root)
    root = loaded.root
    held = resolved(context, root)
    check_sets_are_there(context, root, held.end, request.log_start)
    _check(root, held, request.epochs)
    return _answer(context, root, held)


def _claim(context: Context, path: PartitionPath, request: ClaimJob) -> HistoryResult:
    epoch, node, file = request.epoch, request.node, file_of(context, path)
    loaded = find(context, path)
    is_new = loaded is None
    if loaded is None:
        if not request.create:
            raise ObjectMissingError(path.root)
        if (cluster_id := request.cluster_id) is not None:
            context.naming.check(path.uuid, cluster_id)
        check_never_was(context, path, request.log_start)
        record_hash = RecordHash(request.record_hash)
        first = create(path, epoch=epoch, node=node, start=request.log_start, record_hash=record_hash)
        loaded = file.commit(None, first)
    held = resolved(context, loaded.root)
    check_sets_are_there(context, loaded.root, held.end, request.log_start)
    current = loaded.root.claims[-1]
    is_settled = loaded.root.sealed or (is_new and (current.epoch, current.node) == (epoch, node))
    # Refuses a deposed leader before its log is compared, which may differ, and would be none of its business.
    change = None if is_settled else claim(loaded.root, epoch=epoch, node=node, start=held.end)
    _check(loaded.root, held, request.epochs)
    if change is not None:
        loaded = file.commit(loaded, change)
        if loaded.root.claims[-1] != change.root.claims[-1]:
            raise OvertakenError(f"{path.root} was claimed by somebody else at the same moment")
    context.roots.keep(path, loaded)
    answer = replace(_answer(context, loaded.root, held), is_new=is_new)
    # The commit went to the root of which the sets were read: nobody has claimed it in between.
    return answer if change is None else replace(answer, proven_end=held.end)


def _check(root: Root, held: Resolved, log: Epochs) -> None:
    check_lineage(f"partition {root.partition} of stream {root.uuid}", held.epochs, log, root.start, held.end)


def _answer(context: Context, root: Root, held: Resolved) -> HistoryResult:
    set_bytes = sum(map(size_of, held.members))
    children: tuple[SnapshotPointer | StreamObjectPointer, ...] = (*root.snapshots, *root.fragments)
    return HistoryResult(
        start=root.start,
        end=held.end,
        root_end=root.end,
        proven_end=held.end if root.sealed else root.end,
        epochs=tuple(held.epochs),
        delete_horizon=root.delete_horizon,
        bytes=sum(each.size for each in children) + set_bytes,
        records=sum(each.records for each in children) + sum(each.member.records for each in held.members),
        sealed=root.sealed,
        set_bytes=set_bytes,
        new_bytes=sum(each.size for each in children if each.end > root.compacted_end) + set_bytes,
        holders=tuple(sorted({each.node for each in held.members})),
        merges=bool(run_to_merge(sizes_to_merge(context, root.fragments), context.object_bytes)),
        is_new=False,
        record_hash=str(root.record_hash),
        producers=root.producers,
    )
