"""Record batches and answers as a leader sent them, checked before anyone relies on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.batch import HEADER_SIZE, check_body, read_header
from liftpy_envelope.errors import BatchCorruptError
from liftpy_log.ids.ordered import decode_ordered
from liftpy_server.replication.core.inputs import FetchAnswered
from liftpy_server.replication.core.ranges import BatchRange

if TYPE_CHECKING:
    from collections.abc import Generator

    import pyarrow as pa

    from liftpy_envelope.batch import BatchHeader
    from liftpy_envelope.follow import FollowResult
    from liftpy_log.ids.ordered import ToldProducers

__all__ = ["FollowedBatches", "check_batches", "check_producers", "fetched", "ranges_of"]

_BATCHES_PER_PASS: Final = 256  # checked before the event loop gets its turn: about a millisecond


class FollowedBatches(NamedTuple):
    """Whole batches of a leader, unchanged, and their headers: the `records` of a `FetchAnswered`.

    Attributes:
        told: What the leader says of ordered producers that the headers do not tell of.
    """

    data: pa.Buffer
    headers: list[BatchHeader]
    told: ToldProducers | None = None


def check_batches(
    data: pa.Buffer, offset: int, last_epoch: int, leader_epoch: int
) -> Generator[None, None, FollowedBatches]:
    """Check that whole and well batches continue a log. Yields where the event loop may have its turn.

    Args:
        data: The batches.
        offset: The log end offset; the first batch holds it.
        last_epoch: Leader epoch of the log's last record; no batch may be of an earlier epoch.
        leader_epoch: No batch may be of a later epoch.

    Raises:
        BatchCorruptError, BatchTruncatedError, BatchVersionError: they do not.
    """
    headers: list[BatchHeader] = []
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        header = read_header(view, position)
        end = position + header.length
        body_at = position + HEADER_SIZE
        check_body(header, data.slice(body_at, min(end, size) - body_at))
        next_offset = header.next_offset
        if header.base_offset != offset and (headers or not header.base_offset < offset < next_offset):
            raise BatchCorruptError(
                f"a batch with the offsets {header.base_offset} to {next_offset - 1} does not follow on {offset}"
            )
        if not last_epoch <= header.leader_epoch <= leader_epoch:
            raise BatchCorruptError(
                f"the batch at offset {header.base_offset} is of epoch {header.leader_epoch}, which is not between the "
                f"epoch {last_epoch} of the one before and the leader's {leader_epoch}"
            )
        headers.append(header)
        offset, last_epoch, position = next_offset, header.leader_epoch, end
        if len(headers) % _BATCHES_PER_PASS == 0:
            yield
    return FollowedBatches(data, headers)


def check_producers(data: pa.Buffer) -> ToldProducers:
    """What a leader says of ordered producers.

    Raises:
        BatchCorruptError: it is damaged.
    """
    told = decode_ordered(data.to_pybytes())
    if told is None:
        raise BatchCorruptError("what it says of ordered producers is damaged")
    return told


def ranges_of(headers: list[BatchHeader], offset: int) -> tuple[BatchRange, ...]:
    """One range for every epoch; the first begins at `offset`, also where its batch begins before."""
    if len(headers) == 1:
        return (BatchRange(epoch=headers[0].leader_epoch, base=offset, end=headers[0].next_offset),)
    ends: dict[int, int] = {}  # by epoch, which only ascend
    for header in headers:
        ends[header.leader_epoch] = header.next_offset
    bases = (offset, *ends.values())
    return tuple(
        BatchRange(epoch=epoch, base=base, end=end) for (epoch, end), base in zip(ends.items(), bases, strict=False)
    )


def fetched(result: FollowResult, batches: FollowedBatches) -> FetchAnswered:
    """What the replica is told."""
    return FetchAnswered(
        result=result,
        ranges=ranges_of(batches.headers, result.offset),
        records=batches if batches.headers or batches.told else None,
    )
