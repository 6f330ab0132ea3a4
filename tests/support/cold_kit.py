"""A bucket behind a partition, without a store and without a worker process: what was tiered, batch by batch."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy_envelope.batch import read_header
from liftpy_server.partition.cold_side import ColdSide
from liftpy_server.tier.reads.reads import ColdReads
from support.plain_worker import PlainWorker

if TYPE_CHECKING:
    from liftpy_envelope.batch import BatchHeader
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.errors import TierWorkError
    from support.server_kit import Kit


class InlineExecutor(Executor):
    """Does everything at once."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class Bucket(PlainWorker):
    """Answers as the worker does whose jobs read the bucket.

    Args:
        group: how many batches are fetched together at least, as those of a row group are.

    Attributes:
        calls: (job, arguments) of all calls so far.
        is_open: calls are answered while it is set.
        error: what calls fail with.
        hole: what comes instead of offsets from its `start` up to its `end`.
        damage: called with the bytes of a chunk, returns what comes.
        foreseen: how many fetches it says the ends of.
        starts: how often it was asked for what is not there, so that it begins.
    """

    def __init__(self, group: int = 3) -> None:
        self.group = group
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.error: TierWorkError | None = None
        self.hole: dict[str, Any] | None = None
        self.damage: Any = lambda data: data
        self.foreseen = 4
        self.starts = 0
        self._batches: dict[int, list[tuple[BatchHeader, bytes]]] = {}

    def tier(self, partition: Partition, end: int | None = None) -> None:
        """Take what is committed and not here yet, batch by batch, up to the one that ends at `end` or before."""
        end = partition.high_watermark if end is None else end
        batches = self._batches.setdefault(partition.number, [])
        tiered = batches[-1][0].next_offset if batches else partition.log.log_start
        for segment in partition.log.segments:
            data, position = segment.path.read_bytes()[: segment.size], 0
            while position < len(data):
                header = read_header(data, position)
                if header.base_offset >= tiered and header.next_offset <= end:
                    batches.append((header, data[position : position + header.length]))
                position += header.length
        if not batches:
            return
        tiered = batches[-1][0].next_offset
        epochs = [(header.leader_epoch, header.base_offset) for header, _ in batches]
        if partition.cold is None:
            partition.cold = ColdSide(batches[0][0].base_offset, tiered, epochs)
        else:
            partition.cold.advance(tiered, epochs)

    async def answer(self, job: str, /, **arguments: Any) -> dict[str, Any]:
        if job == "message_ids":
            self.starts += 1
            if self.error is not None:
                raise self.error
            return {}
        self.calls.append((job, arguments))
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        batches = self._batches[arguments["partition"]]
        if job == "offset_at_time":
            times = [header for header, _ in batches if header.max_timestamp >= arguments["timestamp"]]
            return {"offset": times[0].base_offset if times else None}
        assert job == "fetch"
        if self.hole is not None and self.hole["start"] <= arguments["offset"] < self.hole["end"]:
            return {"hole": self.hole}
        at = next(n for n, (header, _) in enumerate(batches) if header.next_offset > arguments["offset"])
        first = at // self.group * self.group
        until = arguments["until"]
        ends = [self._group_end(batches, first)]
        while len(ends) <= self.foreseen and ends[-1] < len(batches):
            ends.append(self._group_end(batches, ends[-1]))
        cuts = [batches[end - 1][0].next_offset for end in ends]
        taken = batches[first : ends[0] if until not in cuts else ends[cuts.index(until)]]
        end = taken[-1][0].next_offset
        Path(arguments["path"]).write_bytes(self.damage(b"".join(data for _, data in taken)))
        return {"start": taken[0][0].base_offset, "end": end, "following": [cut for cut in cuts if cut > end]}

    def _group_end(self, batches: list[tuple[BatchHeader, bytes]], first: int) -> int:
        return min(first - first % self.group + self.group, len(batches))

    async def close(self) -> None:
        self.is_open.set()

    @property
    def fetched(self) -> list[int]:
        """The offsets that were asked for."""
        return [arguments["offset"] for job, arguments in self.calls if job == "fetch"]


def cold_reads(kit: Kit, bucket: Bucket, directory: Path, **limits: Any) -> ColdReads:
    """What a node has in front of a bucket."""
    settings = {"cache_bytes": 64 << 20, "read_ahead_bytes": 4 << 20} | limits
    reads = ColdReads(bucket, kit.disk, kit.files, InlineExecutor(), directory / "cold", **settings)
    reads.start()
    return reads


async def settle(turns: int = 12) -> None:
    """Let everything happen that can."""
    for _ in range(turns):
        await asyncio.sleep(0)
