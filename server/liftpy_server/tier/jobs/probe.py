"""Whether a bucket can be used at all: asked once, before anything is moved to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import ForeignBucketError, StoreUnfitError
from liftpy_bucket.layout import CATALOG, NOT_HISTORY
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.store.probe import PROBES, probe
from liftpy_server.tier.requests import ProbeResult

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import ProbeJob

__all__ = ["check_names", "probe_bucket"]

_OURS: Final = frozenset({CATALOG, "streams", "sets", *(name.rstrip("/") for name in (*NOT_HISTORY, PROBES))})
_BEHIND_SLASH: Final = "0"  # the character that follows on "/"


def probe_bucket(context: Context, _request: ProbeJob) -> ProbeResult:
    """Find out which cluster owns the bucket, and test the store. Nothing is written into the bucket of another.

    Raises:
        StoreUnfitError: the store ignores conditions, or does something else that we can not live with.
        ForeignBucketError: below the prefix there is something that is not ours.
        BucketVersionError: a newer liftpy wrote the catalog.
    """
    check_names(context.store)
    loaded = CatalogFile(context.store, new_id=context.new_id).load()
    probe(context.store, context.new_id())
    if loaded is None:
        return ProbeResult(cluster_id=None, generation=0)
    return ProbeResult(cluster_id=loaded.catalog.cluster_id, generation=loaded.catalog.generation)


def check_names(store: ObjectStore) -> None:
    """See that all below the prefix is liftpy's. One listing per name at the top, whatever lies below it.

    Raises:
        ForeignBucketError: something is not.
        StoreUnfitError: the store lists what it was not asked for.
    """
    behind = ""
    while (entry := next(store.list("", behind), None)) is not None:
        if entry.key <= behind:
            raise StoreUnfitError(f"the store lists {entry.key} when it is asked for what follows on {behind}")
        top = entry.key.partition("/")[0]
        if top not in _OURS:
            raise ForeignBucketError(
                f"below the prefix there is the object {entry.key}, which is not ours: move it elsewhere, or give "
                "liftpy a prefix of its own"
            )
        behind = top + _BEHIND_SLASH
