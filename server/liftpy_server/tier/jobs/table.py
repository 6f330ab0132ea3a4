"""What a tier worker can be asked for, by name; each module says what its arguments and its result are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_server.tier.jobs.adopt import adopt_sets
from liftpy_server.tier.jobs.catalog import put_catalog
from liftpy_server.tier.jobs.claim import claim_partition, look
from liftpy_server.tier.jobs.collect import collect, collect_sets, drop_stream, retain
from liftpy_server.tier.jobs.compact import compact
from liftpy_server.tier.jobs.confirm import confirm
from liftpy_server.tier.jobs.fetch import fetch, offset_at_time
from liftpy_server.tier.jobs.merge import merge
from liftpy_server.tier.jobs.message_ids import message_ids
from liftpy_server.tier.jobs.probe import probe_bucket
from liftpy_server.tier.jobs.restore import RESTORE_JOBS
from liftpy_server.tier.jobs.retention_start import wanted_start
from liftpy_server.tier.jobs.upload import upload
from liftpy_server.tier.jobs.upload_stream_set import upload_set

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_server.tier.jobs.parts.context import Context, Job

__all__ = ["JOBS", "counts"]


def counts(context: Context, _arguments: dict[str, Any]) -> dict[str, Any]:
    """What this worker has asked of the store since it was started.

    Returns:
        `counts` (requests by kind, see `CountingStore`), `bytes_in`, `bytes_out`.
    """
    store = context.store
    return {"counts": dict(store.counts), "bytes_in": store.bytes_in, "bytes_out": store.bytes_out}


def _on_store(job: Callable[[ObjectStore, dict[str, Any]], dict[str, Any]]) -> Job:
    """A job that needs nothing but the store."""
    return lambda context, arguments: job(context.store, arguments)


JOBS: Mapping[str, Job] = {
    "adopt_sets": adopt_sets,
    "catalog": _on_store(put_catalog),
    "claim": claim_partition,
    "collect": collect,
    "collect_sets": collect_sets,
    "compact": compact,
    "confirm": confirm,
    "counts": counts,
    "drop_stream": drop_stream,
    "fetch": _on_store(fetch),
    "look": look,
    "merge": merge,
    "message_ids": _on_store(message_ids),
    "offset_at_time": _on_store(offset_at_time),
    "probe": probe_bucket,
    "retain": retain,
    "upload": upload,
    "upload_set": upload_set,
    "wanted_start": wanted_start,
    **RESTORE_JOBS,
}
