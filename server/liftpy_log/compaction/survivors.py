"""Which records key compaction keeps: the last of every key, and all that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from liftpy_envelope.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from liftpy_log.batches.stored import StoredBatch
    from liftpy_log.compaction.offset_map import KeyHasher, OffsetMap

__all__ = ["Survivors", "in_chunks"]

_CHUNK_BYTES: Final = 256 * 1024
_BINARY: Final = pa.binary()


def in_chunks(batches: Iterable[StoredBatch]) -> Iterator[list[StoredBatch]]:
    """Batches in groups of about `_CHUNK_BYTES`: small ones cost little when many are looked at together."""
    chunk: list[StoredBatch] = []
    size = 0
    for batch in batches:
        if chunk and size + batch.header.length > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(batch)
        size += batch.header.length
    if chunk:
        yield chunk


class Survivors:
    """Decides with a map of the newest offset of every key.

    Args:
        newest: Map of the newest offset of each key.
        hasher: Hasher of its keys.
        tombstone_end: Tombstones below this offset go.

    Attributes:
        tombstone_end: See above.
        tombstones: How many were kept since it was set to 0.
    """

    def __init__(self, newest: OffsetMap, hasher: KeyHasher, tombstone_end: int) -> None:
        self._newest = newest
        self._hasher = hasher
        self.tombstone_end = tombstone_end
        self.tombstones = 0

    def note(self, batches: Sequence[StoredBatch], start: int) -> int | None:
        """Put the keys from offset `start` on into the map. Returns where it was full; None when it was not."""
        keys, offsets, _ = _keys_of(batches)
        is_wanted = np.asarray(keys.is_valid()) & (offsets >= start)
        if not is_wanted.any():
            return None
        wanted = offsets[is_wanted]
        taken = self._newest.put(self._hasher.hash(keys.filter(pa.array(is_wanted))), wanted)
        return int(wanted[taken]) if taken < len(wanted) else None

    def masks(self, batches: Sequence[StoredBatch]) -> list[npt.NDArray[np.bool_] | None]:
        """Return for each batch the mask of the records that stay; None is all of them."""
        keys, offsets, is_null = _keys_of(batches)
        has_key = np.asarray(keys.is_valid())
        stays = np.ones(len(offsets), np.bool_)
        if has_key.any():
            newest = self._newest.newest(self._hasher.hash(keys.drop_null()))
            stays[has_key] = newest <= offsets[has_key]
        is_tombstone = has_key & is_null & stays
        goes = is_tombstone & (offsets < self.tombstone_end)
        stays &= ~goes
        self.tombstones += int(is_tombstone.sum()) - int(goes.sum())
        ends = np.cumsum([batch.header.record_count for batch in batches])
        masks = np.split(stays, ends[:-1])
        return [None if mask.all() else mask for mask in masks]


def _keys_of(
    batches: Sequence[StoredBatch],
) -> tuple[pa.BinaryArray, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Keys and offsets of the records of some batches, and whether their value is null."""
    keys, offsets, is_null = [], [], []
    for batch in batches:
        header = batch.header
        if not header.columns & Column.KEY:
            keys.append(pa.nulls(header.record_count, _BINARY))
            offsets.append(np.zeros(header.record_count, np.int64))
            is_null.append(np.zeros(header.record_count, np.bool_))
            continue
        records = batch.records
        keys.append(records.column("key"))
        offsets.append(batch.offsets(records))
        if header.columns & Column.VALUE:
            is_null.append(np.asarray(records.column("value").is_null()))
        else:
            is_null.append(np.ones(header.record_count, np.bool_))
    return pa.concat_arrays(keys), np.concatenate(offsets), np.concatenate(is_null)
