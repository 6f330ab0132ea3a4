"""The log of a partition of the stream of the groups, read back piece by piece; first what is in the bucket alone.

Reading and decoding go on in a thread; what comes of them is taken in slices, between which the event loop does
everything else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_envelope.batch import decode_records
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, LiftError
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.reader import pin_all, unpin_all
from liftpy_log.segments.scan import read_batch
from liftpy_server.groups.core.replay import GroupsReplay
from liftpy_server.groups.host.limits import READ_BYTES_MAX, SLICE_ROWS
from liftpy_server.tier.reads.reads import ColdUnavailableError, is_cold, is_unknown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import File
    from liftpy_log.storage.files import FileCache
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.reads.reads import ColdReads

    Rows = tuple[list[bytes], list[bytes | None]]

__all__ = ["ReplayError", "read_groups"]


class ReplayError(LiftError):
    """The log of a partition of the stream of the groups ends in the midst of a batch."""


async def read_groups(
    partition: Partition, files: FileCache, executor: Executor, cold: ColdReads | None = None
) -> GroupsReplay:
    """Replay all that is committed.

    Args:
        partition: Partition of the stream of the groups.
        files: The node's open files.
        executor: Reads from the disk.
        cold: Reads the bucket; None where there is none.

    Raises:
        LiftError: the log can not be read, or a newer liftpy wrote it.
        OSError: the disk fails.
    """
    replay = GroupsReplay()
    loop = asyncio.get_running_loop()
    if cold is not None and is_unknown(partition):
        raise ColdUnavailableError("what the bucket has of the groups' offsets is not known yet")
    offset, end = partition.start, partition.high_watermark
    while offset < end:
        pieces = pin_all(files, await _read(partition, offset, end, cold))
        try:
            if not pieces:
                name, number = partition.stream.name, partition.number
                raise ReplayError(f"stream {name} partition {number}: nothing can be read from offset {offset} on")
            slices = await loop.run_in_executor(executor, _decode, pieces)
        except SegmentCorruptError as error:
            if cold is None or not cold.discard(piece for _, piece in pieces):
                partition.fail(str(error))
            raise
        finally:
            unpin_all(files, pieces)
        for keys, values in slices:
            replay.apply(keys, values)
            await asyncio.sleep(0)
        offset = pieces[-1][1].next_offset
    return replay


async def _read(partition: Partition, offset: int, end: int, cold: ColdReads | None) -> Sequence[Slice]:
    if cold is not None and is_cold(partition, offset):
        return await cold.read_now(partition, offset, READ_BYTES_MAX)
    return partition.log.read(offset, end, READ_BYTES_MAX)


def _decode(pieces: Sequence[tuple[File, Slice]]) -> list[Rows]:
    """Keys and values of the records, a slice at a time. Waits for the disk.

    Raises:
        SegmentCorruptError: a batch is damaged.
        BatchVersionError: a newer liftpy wrote one.
    """
    slices: list[Rows] = []
    for file, piece in pieces:
        position, end = piece.position, piece.position + piece.length
        while position < end:
            try:
                header, body = read_batch(file, position, end)
                records = decode_records(header, body)
            except (BatchCorruptError, BatchTruncatedError) as error:
                raise SegmentCorruptError(piece.segment.path, position, str(error)) from error
            for start in range(0, records.num_rows, SLICE_ROWS):
                part = records.slice(start, SLICE_ROWS)
                slices.append((part.column("key").to_pylist(), part.column("value").to_pylist()))
            position += header.length
    return slices
