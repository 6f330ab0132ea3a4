"""What a tier worker can be asked for, by the kind of request, and what does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from liftpy_server.tier import requests
from liftpy_server.tier.jobs.catalog import put_catalog
from liftpy_server.tier.jobs.probe import probe_bucket
from liftpy_server.tier.jobs.reads.fetch import fetch, offset_at_time
from liftpy_server.tier.jobs.reads.message_ids import message_ids
from liftpy_server.tier.jobs.reads.staged import read_staged
from liftpy_server.tier.jobs.restores.restore import fence_streams, look_at_partitions, read_catalog, take_catalog
from liftpy_server.tier.jobs.upkeep.collect import collect, collect_sets, drop_stream, retain
from liftpy_server.tier.jobs.upkeep.compact import compact
from liftpy_server.tier.jobs.upkeep.merge import merge
from liftpy_server.tier.jobs.upkeep.retention_start import wanted_start
from liftpy_server.tier.jobs.uploads.adopt import adopt_sets
from liftpy_server.tier.jobs.uploads.claim import claim_partition, look
from liftpy_server.tier.jobs.uploads.confirm import confirm
from liftpy_server.tier.jobs.uploads.upload import upload
from liftpy_server.tier.jobs.uploads.upload_stream_set import upload_set
from liftpy_server.workers.requests import WorkerRequest, from_plain, to_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["JOBS", "Work", "run"]


Q = TypeVar("Q", bound=WorkerRequest[Any])


class Work(NamedTuple):
    """A kind of request, and what does it."""

    kind: type[WorkerRequest[Any]]
    do: Callable[[Context, Any], Any]


def counts(context: Context, _request: requests.CountsJob) -> requests.CountsResult:
    """What this worker has asked of the store since it was started."""
    store = context.store
    return requests.CountsResult(
        counts=dict(store.counts), bytes_in=store.bytes_in, bytes_out=store.bytes_out, deleted=store.deleted
    )


def _work(kind: type[Q], do: Callable[[Context, Q], Any]) -> Work:
    return Work(kind, do)


def _on_store(kind: type[Q], do: Callable[[ObjectStore, Q], Any]) -> Work:
    """A job that needs nothing but the store."""
    return Work(kind, lambda context, request: do(context.store, request))


JOBS: Final[Mapping[str, Work]] = {
    work.kind.job: work
    for work in (
        _work(requests.AdoptSetsJob, adopt_sets),
        _on_store(requests.PutCatalogJob, put_catalog),
        _work(requests.ClaimJob, claim_partition),
        _work(requests.CollectJob, collect),
        _work(requests.CollectSetsJob, collect_sets),
        _work(requests.CompactJob, compact),
        _work(requests.ConfirmJob, confirm),
        _work(requests.CountsJob, counts),
        _work(requests.DropStreamJob, drop_stream),
        _work(requests.FenceStreamsJob, fence_streams),
        _on_store(requests.FetchChunkJob, fetch),
        _work(requests.LookJob, look),
        _work(requests.LookAtPartitionsJob, look_at_partitions),
        _work(requests.MergeJob, merge),
        _on_store(requests.MessageIdsJob, message_ids),
        _on_store(requests.OffsetAtTimeJob, offset_at_time),
        _work(requests.ProbeJob, probe_bucket),
        _work(requests.ReadCatalogJob, read_catalog),
        _on_store(requests.ReadStagedJob, read_staged),
        _work(requests.RetainJob, retain),
        _work(requests.TakeCatalogJob, take_catalog),
        _work(requests.UploadJob, upload),
        _work(requests.UploadSetJob, upload_set),
        _work(requests.WantedStartJob, wanted_start),
    )
}


def run(context: Context, job: str, arguments: Any) -> Any:
    """Run a job.

    Args:
        context: What the jobs of the worker share.
        job: The name of it.
        arguments: The request as plain values.

    Returns:
        The result as plain values.
    """
    kind, do = JOBS[job]
    result = do(context, from_plain(kind, arguments))
    assert isinstance(result, kind.result), f"the job {job!r} gave {type(result).__name__}"
    return to_plain(result)
