"""Ordered producers, as a root remembers them: of each the highest batch below the root's end.

A partition stores a batch of an ordered producer only if its (epoch, sequence) is above all that it has of it. Its disk
remembers that; a partition that is brought back from the bucket finds it here.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.manifest.json import INT64_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_bucket.manifest.json import Fields

__all__ = ["HighestBatch", "highest_of", "producers_of"]

_PRODUCERS_MAX: Final = 10_000  # as many as a partition remembers
_INT32_MAX: Final = 2**31 - 1
_PRODUCER: Final = re.compile(r"[0-9a-f]{32}")


class HighestBatch(NamedTuple):
    """The highest batch of an ordered producer.

    Attributes:
        producer: Id of the producer, 32 hexadecimal digits.
        epoch: Epoch of the producer, above 0.
        sequence: Place of the batch in the order of the epoch.
        offset: Offset of its last record.
        records: Number of its records.
        time_ns: Timestamp of its last record, in nanoseconds since the epoch.
    """

    producer: str
    epoch: int
    sequence: int
    offset: int
    records: int
    time_ns: int


def highest_of(batches: Iterable[HighestBatch]) -> tuple[HighestBatch, ...]:
    """Of each producer the highest batch; the newest producers, where there are more than are remembered."""
    found: dict[str, HighestBatch] = {}
    for batch in batches:
        known = found.get(batch.producer)
        if known is None or (known.epoch, known.sequence) < (batch.epoch, batch.sequence):
            found[batch.producer] = batch
    return tuple(sorted(found.values(), key=lambda batch: batch.offset)[-_PRODUCERS_MAX:])


def producers_of(fields: Fields, end: int) -> tuple[HighestBatch, ...]:
    """Read those of a root, which are below its end and ascend by offset. A root without any does not have the field.

    Raises:
        ManifestCorruptError: they make no sense.
    """
    if not fields.has("producers"):
        return ()
    producers = tuple(
        HighestBatch(
            producer=row.text(0, _PRODUCER),
            epoch=row.number(1, 1, _INT32_MAX),
            sequence=row.number(2),
            offset=row.number(3, 0, end - 1),
            records=row.number(4, 1, _INT32_MAX),
            time_ns=row.number(5, INT64_MIN),
        )
        for row in fields.rows("producers", 6)
    )
    if not 0 < len(producers) <= _PRODUCERS_MAX:
        raise fields.bad("producers", f"has {len(producers)} rows, and not 1 to {_PRODUCERS_MAX}")
    if len({each.producer for each in producers}) < len(producers):
        raise fields.bad("producers", "has one twice")
    if any(later.offset <= earlier.offset for earlier, later in pairwise(producers)):
        raise fields.bad("producers", "does not ascend by offset")
    return producers
