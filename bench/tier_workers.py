"""Worker processes of their own, without a node: what an upload and a read cost of a core and of memory."""

from __future__ import annotations

import asyncio
import os
import shutil
import time

from bench.processes import cpu_s
from bench.rig import resident
from bench.tier_logs import LogFile
from bench.tier_rig import worker_of
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_envelope.settings import to_plain
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.requests import ClaimJob, CountsJob, FetchChunkJob, MergeJob, UploadJob
from liftpy_server.tier.worker.process import TierWorker
from liftpy_server.workers.requests import from_plain

__all__ = ["measure_workers"]

_PARTITIONS = 3  # uploads at once, as of a node
_UPLOADS = 4  # of each, so that there is something to be merged
_UPLOAD_BATCHES = 60  # of 1 MiB each: four uploads fit into one merged object
_FETCH_BYTES = 8 << 20  # of one read-ahead
_FETCHES = 2  # at once
_CONTENT = {"epoch": 0, "epochs": [[0, 0]]}


async def measure_workers(home, settings, prefix, size):
    """Upload, merge, and read it all again.

    Args:
        home: for local files.
        settings: where the bucket is.
        prefix: distinguishes the streams of this run, a number.
        size: of a value, bytes.

    Returns:
        By "upload", "merge" and "read": MiB of record batches, seconds of CPU, seconds, and peak MiB of the process.
    """
    home.mkdir()
    config = TierConfig(**settings)
    streams = [f"{prefix:016x}{number:016x}" for number in range(_PARTITIONS)]
    logs = [LogFile(home / f"{number}.log", size) for number in range(_PARTITIONS)]
    figures, ends = {}, []
    worker = TierWorker(to_plain(config), "upload")
    try:
        for uuid in streams:
            claim = {"node": "n1", "log_start": 0, "create": True, "record_hash": str(RecordHash.XXH3), **_CONTENT}
            await _call(worker, ClaimJob, uuid=uuid, partition=0, **claim)
        pid = worker_of(os.getpid(), "upload")
        spent = []
        for _ in range(_UPLOADS):
            for log in logs:
                log.start_over()
            slices = [log.write(_UPLOAD_BATCHES) for log in logs]
            spent.append(await _timed(pid, [_upload(worker, *pair) for pair in zip(streams, slices, strict=True)]))
            spent[-1][0] = sum(log.bytes for log in logs) / 2**20
        figures["upload"] = [*map(sum, zip(*spent, strict=True)), resident(pid)[1] / 2**20]
        merges = [_merge(worker, uuid) for uuid in streams]
        total = figures["upload"][0]
        figures["merge"] = [total, *(await _timed(pid, merges))[1:], resident(pid)[1] / 2**20]
        ends = [log.end for log in logs]
    finally:
        await worker.close()
    figures["read"] = await _read(home, config, streams, ends)
    shutil.rmtree(home)
    return figures


async def _call(worker, kind, **arguments):
    return await worker.call(from_plain(kind, arguments))


async def _timed(pid, calls):
    """[0, seconds of CPU, seconds] of what a worker is asked for all at once."""
    began, cpu = time.perf_counter(), cpu_s(pid)
    await asyncio.gather(*calls)
    return [0, cpu_s(pid) - cpu, time.perf_counter() - began]


async def _upload(worker, uuid, written):
    base, end, slices = written
    await _call(
        worker, UploadJob, uuid=uuid, partition=0, base=base, end=end, slices=slices, keeps_replies=False, **_CONTENT
    )


async def _merge(worker, uuid):
    merged, more = 0, True
    while more:
        answer = await worker.call(MergeJob(uuid=uuid, partition=0, epoch=0))
        merged, more = merged + answer.merged, answer.more
    assert merged == _UPLOADS, f"{merged} objects were merged, and {_UPLOADS} should have been"


async def _read(home, config, streams, ends):
    worker = TierWorker(to_plain(config), "read")
    try:
        await worker.call(CountsJob())
        pid = worker_of(os.getpid(), "read")
        began, cpu = time.perf_counter(), cpu_s(pid)
        places = asyncio.Semaphore(_FETCHES)
        read = await asyncio.gather(
            *(_read_stream(worker, places, home, uuid, end) for uuid, end in zip(streams, ends, strict=True))
        )
        return [sum(read) / 2**20, cpu_s(pid) - cpu, time.perf_counter() - began, resident(pid)[1] / 2**20]
    finally:
        await worker.close()


async def _read_stream(worker, places, home, uuid, end):
    """Fetch one stream, piece by piece. Returns the bytes of record batches."""
    offset = size = 0
    path = home / f"{uuid}.fetched"
    wanted = {"uuid": uuid, "partition": 0, "end": end, "enough": end, "bytes_max": _FETCH_BYTES, "codec": "none"}
    while offset < end:
        async with places:
            answer = await _call(worker, FetchChunkJob, offset=offset, path=str(path), **wanted)
        size += answer.bytes
        offset = answer.end
    path.unlink()
    return size
