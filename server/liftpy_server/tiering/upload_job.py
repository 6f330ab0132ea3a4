"""An upload: record batches of one partition become a stream object, and the root names it.

Two writes in steady state, the object and the root, and no look. Whatever happens between them leaves at most an
object that nothing names. Of the record batches a few MiB are in memory at a time, and the object that they become.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from liftpy_log.tier.errors import LineageError, SealedError
from liftpy_log.tier.fragment_read import trimmed
from liftpy_log.tier.lineage import check_lineage, cut_epochs, join_epochs
from liftpy_log.tier.merging import Source
from liftpy_log.tier.root_changes import Change, append
from liftpy_log.tier.rows import rows_of_many
from liftpy_server.tiering.fragments import Stored, store_fragment
from liftpy_server.tiering.members import sources_of
from liftpy_server.tiering.memory_budget import WORK_BYTES
from liftpy_server.tiering.roots import check_in_force, commit, known, newest, path_of, resolved
from liftpy_server.tiering.slices import batches_in, slices_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_log.tier.layout import PartitionPath
    from liftpy_log.tier.resolving import Resolved
    from liftpy_log.tier.root import Root
    from liftpy_server.tiering.context import Context

__all__ = ["upload"]


def upload(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    """Move [base, end) of a partition into the bucket.

    What set objects hold of it between the end of the root and `base` is moved in front, into the same object.

    Args:
        context: of the worker.
        arguments: `uuid`, `partition`, `epoch` (of the leader), `epochs` ([leader epoch, first offset] of its log),
            `base`, `end`, `slices` ([{path, position, length}]: whole batches that cover the range), `keeps_replies`.

    Returns:
        `end`, `records`, `bytes` (of record batches), `stored_bytes` (of the object).

    Raises:
        LineageError: this leader has no claim in force, or the bucket does not end at `base`.
        OvertakenError: others write this root; nothing was committed, claim anew.
        SliceGoneError, BatchCorruptError, BatchVersionError: see `slices`.
    """
    path, size = path_of(arguments), sum(each.length for each in slices_of(arguments))
    with context.roots.alone(path, context.progress), context.memory.hold(size + WORK_BYTES, context.progress):
        begun, front = _begin(context, path, arguments)
        stored = _store(context, begun, front, arguments)
        commit(context, path, lambda root: _append(root, stored, front, arguments), created=stored.created)
    return {
        "end": arguments["end"],
        "records": stored.pointer.records,
        "bytes": size,
        "stored_bytes": stored.pointer.size,
    }


def _begin(context: Context, path: PartitionPath, arguments: dict[str, Any]) -> tuple[Root, Resolved | None]:
    """The root to append to, and what sets hold in front of the range, if they do."""
    try:
        root = known(context, path).root
        return root, _front(context, root, arguments)
    except LineageError:
        root = newest(context, path).root
        return root, _front(context, root, arguments)


def _front(context: Context, root: Root, arguments: dict[str, Any]) -> Resolved | None:
    base = arguments["base"]
    check_in_force(root, arguments["epoch"])
    if root.sealed:
        raise SealedError(f"partition {root.partition} of stream {root.uuid} is sealed in the bucket: nothing is added")
    if root.end == base:
        return None
    front = resolved(context, root, own=root.claims[-1].node) if root.end < base else None
    there = front.end if front else root.end
    if there != base:
        raise LineageError(
            f"partition {root.partition} of stream {root.uuid} ends at offset {there} in the bucket; what begins at "
            f"{base} does not follow on it"
        )
    return front


def _store(context: Context, root: Root, front: Resolved | None, arguments: dict[str, Any]) -> Stored:
    def store(*, keeps_replies: bool) -> Stored:
        sources: Iterable[Source] = [_local(arguments, keeps_replies=keeps_replies)]
        if front is not None:
            sources = chain(sources_of(context, front.members), sources)
        end, epoch = arguments["end"], arguments["epoch"]
        return store_fragment(
            *(context, root, sources),
            base=root.end,
            end=end,
            epoch=epoch,
            keeps_replies=keeps_replies,
            expected_bytes=sum(each.length for each in slices_of(arguments)),
        )

    if front is None or arguments["keeps_replies"]:
        return store(keeps_replies=arguments["keeps_replies"])
    try:
        return store(keeps_replies=False)
    except ValueError:  # the stream kept replies when the members were uploaded, and does not any more
        return store(keeps_replies=True)


def _local(arguments: dict[str, Any], *, keeps_replies: bool) -> Source:
    base, end = arguments["base"], arguments["end"]
    batches = batches_in(slices_of(arguments), base, end)
    pieces = (trimmed(rows, base, end) for rows in rows_of_many(batches, keeps_replies=keeps_replies))
    return Source("the local log", pieces, None)


def _append(root: Root, stored: Stored, front: Resolved | None, arguments: dict[str, Any]) -> Change:
    base, log = arguments["base"], [(epoch, start) for epoch, start in arguments["epochs"]]
    there = root.epochs if front is None else front.epochs
    check_lineage(f"partition {root.partition} of stream {root.uuid}", there, log, root.start, base)
    before = () if front is None else cut_epochs(there, stored.pointer.base, base)
    epochs = join_epochs(before, cut_epochs(log, base, arguments["end"]))
    return append(root, stored.pointer, epoch=arguments["epoch"], epochs=epochs)
