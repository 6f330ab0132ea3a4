"""The set manifests of nodes that are gone: nobody else would let go of the shared objects that nothing needs any more.

What counts of them is moved into objects of their own by the leaders of the partitions. Who adopts a manifest writes it
by compare-and-swap, in the incarnation that wrote it last: a node that comes back, which is a later one, takes it over
again, and whoever adopted it is refused from then on. Two that adopt the same one overtake each other, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.errors import LineageError, OvertakenError
from liftpy_bucket.upkeep.collecting_stream_sets import CollectedSets, SetCollector
from liftpy_server.tier.jobs.parts.roots import newest_set
from liftpy_server.tier.jobs.parts.stream_set_nodes import nodes_with_sets
from liftpy_server.tier.requests import AdoptSetsResult

if TYPE_CHECKING:
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import AdoptSetsJob

__all__ = ["adopt_sets"]


def adopt_sets(context: Context, request: AdoptSetsJob) -> AdoptSetsResult:
    """Delete the shared objects of nodes that are gone, of which nothing counts any more.

    Args:
        context: Context of the worker.
        request: What is wanted.
    """
    dropped = deleted = left = 0
    returned = []
    for node in nodes_with_sets(context.store):
        if node in request.present:
            continue
        try:
            collected = _adopt(context, node)
        except (LineageError, OvertakenError):  # it is not gone, or another one has adopted it
            returned.append(node)
            continue
        dropped, deleted = dropped + collected.dropped, deleted + collected.deleted
        left += 0 if collected.loaded is None else len(collected.loaded.manifest.objects)
    return AdoptSetsResult(dropped=dropped, deleted=deleted, left=left, returned=tuple(returned))


def _adopt(context: Context, node: str) -> CollectedSets:
    loaded = newest_set(context, node)
    collector = SetCollector(
        context.store,
        node,
        0 if loaded is None else loaded.manifest.incarnation,
        new_id=context.new_id,
        now_ns=context.now_ns,
        grace_ns=context.grace_ns,
        progress=lambda _done, _total, _text: context.progress(),
        pages=context.pages,
    )
    try:
        collected = collector.run()
    except BaseException:
        context.sets.drop(node)  # it may have been written
        raise
    if collected.loaded is not None:
        context.sets.keep(node, collected.loaded)
    return collected
