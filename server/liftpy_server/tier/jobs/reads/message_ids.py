"""A job of a worker process: ids of the newest messages of a history, for the deduplication window of its leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.read import trimmed
from liftpy_bucket.reading.version import open_version
from liftpy_server.tier.requests import MessageIdsResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_bucket.objects.read import ObjectReader
    from liftpy_bucket.reading.version import TierVersion
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_server.tier.requests import MessageIdsJob

__all__ = ["message_ids"]

_GROUPS_MAX: Final = 64  # row groups that one call looks at
_IDS: Final = "message_id"
_PLACES: Final = ("offset", "timestamp_ns")


class _Group(NamedTuple):
    """A row group, and the offsets of it that count."""

    reader: ObjectReader
    number: int
    start: int
    end: int


def message_ids(store: ObjectStore, request: MessageIdsJob) -> MessageIdsResult:
    """The ids of messages, from the newest on back; of row groups without any only the column of ids is read.

    Args:
        store: Object store of the bucket.
        request: What is wanted.

    Raises:
        TierError: the bucket can not be read.
    """
    path, before = PartitionPath(request.uuid, request.partition), request.before
    version = open_version(store, path)
    first = None if version is None else version.offset_at_time(request.since_ns)
    if version is None or first is None or first >= before:
        return MessageIdsResult(ids=(), start=before, more=False)
    limit, found, start = request.limit, list[tuple[int, int, str]](), before
    for number, group in enumerate(_groups(version, first, before)):
        if number == _GROUPS_MAX or len(found) >= limit:
            return MessageIdsResult(ids=tuple(found), start=start, more=True)
        found[:0] = _ids_of(group)
        start = group.start
    if len(found) > limit:
        found = found[-limit:]
        return MessageIdsResult(ids=tuple(found), start=found[0][1], more=True)
    return MessageIdsResult(ids=tuple(found), start=first, more=False)


def _groups(version: TierVersion, first: int, before: int) -> Iterator[_Group]:
    """Newest first."""
    for piece in reversed(list(version.pieces(first, before))):
        reader, start, end = version.reader(piece), max(first, piece.start), min(before, piece.end)
        for index in reversed(reader.covering(start, end)):
            yield _Group(reader, index, max(start, reader.row_groups[index].first), end)


def _ids_of(group: _Group) -> list[tuple[int, int, str]]:
    ids = group.reader.read(group.number, (_IDS,)).column(_IDS)
    if ids.null_count == len(ids):
        return []
    places = group.reader.read(group.number, _PLACES)
    rows = pa.RecordBatch.from_arrays([*(places.column(name) for name in _PLACES), ids], [*_PLACES, _IDS])
    columns = (trimmed(rows, group.start, group.end).column(name).to_pylist() for name in (*_PLACES, _IDS))
    return [(time, offset, key.hex()) for offset, time, key in zip(*columns, strict=True) if key is not None]
