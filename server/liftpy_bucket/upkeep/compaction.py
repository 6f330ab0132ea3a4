"""Key compaction of what is in the bucket: of every key the last record stays, and every record without a key.

A pass reads the keys of what came in since the last one, up to where memory ends, and notes the newest offset of each
(see `liftpy_log.compaction.offset_map`). Then it goes over all fragments, oldest first; those with an older record of
one of these keys are written anew without it. Each result can be committed by itself, in the order in which it comes: a
record goes only when a newer one of its key is in the bucket, so whoever reads, at any time and after any crash, sees
every key's last record.

Below `clean_end` no key has two records. A fragment that holds tombstones when it comes to lie below is written anew
with the time of that in its footer, `liftpy.cleaned_ns`. A tombstone goes when that is `delete_retention` ago: so long
had what it deletes been gone, and a reader that began later never saw it. Who was away for longer is told by
`delete_horizon`, which is part of the same commit.

Fragments of which a pin holds anything are not touched, and all that follows the first of them stays dirty, for what
is superseded may be in there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from liftpy_bucket.objects.merging import Source, check_sum
from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.objects.read import ObjectReader, fragment_key
from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.objects.write import ObjectWriter
from liftpy_log.compaction.compact import is_due
from liftpy_log.compaction.offset_map import KeyHasher, OffsetMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    import numpy.typing as npt

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.setsum import Setsum
    from liftpy_bucket.objects.write import Written
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["HistoryCompaction", "HistoryCompactionConfig", "HistoryPlan", "Replacement", "plan_history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCompactionConfig:
    """How the history of a partition is compacted.

    Attributes:
        min_lag_ns: An object with a younger record is not touched.
        delete_retention_ns: How long tombstones stay after what they delete is gone.
        min_dirty_ratio: Share of the history that must be dirty before a pass pays.
        object_bytes: Neighbours that are written anew become one object up to this size.
        memory_bytes_max: Memory for the map of keys, 70 bytes per distinct key; a pass goes as far as it lasts.
    """

    min_lag_ns: int = 0
    delete_retention_ns: int = 86_400 * 10**9
    min_dirty_ratio: float = 0.5
    object_bytes: int = 256 * 1024 * 1024
    memory_bytes_max: int = 256 * 1024 * 1024


class HistoryPlan(NamedTuple):
    """What a pass works on.

    Attributes:
        path: Path of the partition.
        pointers: All fragments that may be compacted, oldest first.
        compacted_end: Offset up to which the root is compacted.
        delete_horizon: Delete horizon of the root.
        held: (first offset, offset after the last one or None for all that follow) of what cursors and pins hold.
        now_ns: When this is, ns since the epoch.
    """

    path: PartitionPath
    pointers: tuple[StreamObjectPointer, ...]
    compacted_end: int
    delete_horizon: int
    held: tuple[tuple[int, int | None], ...]
    now_ns: int

    def is_held(self, pointer: StreamObjectPointer) -> bool:
        """Whether a pin holds any of what a fragment answers for."""
        return any(start < pointer.end and (end is None or end > pointer.base) for start, end in self.held)


def plan_history(
    pointers: Iterable[StreamObjectPointer],
    *,
    path: PartitionPath,
    compacted_end: int,
    delete_horizon: int,
    clean_end: int,
    held: Iterable[tuple[int, int | None]],
    now_ns: int,
    config: HistoryCompactionConfig,
) -> HistoryPlan | None:
    """What a pass would work on now; None when it does not pay.

    Args:
        pointers: All fragments of the history, oldest first.
        path: Path of the partition.
        compacted_end: Offset up to which the root is compacted.
        delete_horizon: Delete horizon of the root.
        clean_end: Nothing at or above this offset is touched.
        held: (first offset, offset after the last one or None for all that follow) of what cursors and pins hold.
        now_ns: Ns since the epoch.
        config: Settings of the compaction.
    """
    young = now_ns - config.min_lag_ns
    chosen = tuple(takewhile(lambda each: each.end <= clean_end and each.last_timestamp <= young, pointers))
    clean_bytes = sum(each.size for each in chosen if each.end <= compacted_end)
    dirty_bytes = sum(each.size for each in chosen) - clean_bytes
    if not is_due(dirty_bytes, clean_bytes, config.min_dirty_ratio):
        return None
    return HistoryPlan(path, chosen, compacted_end, delete_horizon, tuple(held), now_ns)


_READERS_MAX: Final = 64
_KEYS: Final = ("offset", "key")


class Replacement(NamedTuple):
    """A new object for some that follow on one another.

    Attributes:
        old: What it takes the place of.
        new: What was written.
        sink: Sink that receives the bytes.
        nonce: Nonce of the object.
        collected: The sum of the records that are not in it any more.
        delete_horizon: Tombstones below this offset may be gone when it has taken their place.
    """

    old: tuple[StreamObjectPointer, ...]
    new: Written
    sink: BinaryIO
    nonce: str
    collected: Setsum
    delete_horizon: int

    def pointer(self, name: str) -> StreamObjectPointer:
        """What a root says of the new object, which answers for the whole range of the old ones."""
        first, last, new = self.old[0], self.old[-1], self.new
        return StreamObjectPointer(
            name=name,
            base=first.base,
            end=last.end,
            records=new.records,
            size=new.extent.size,
            footer=new.extent.footer,
            digest=new.extent.digest,
            first_timestamp=new.first_timestamp if new.records else first.first_timestamp,
            last_timestamp=new.last_timestamp if new.records else last.last_timestamp,
            setsum=new.setsum,
        )


class HistoryCompaction:
    """One pass of key compaction over the history of a partition.

    Args:
        store: Where the fragments are.
        plan: What to work on.
        config: Settings of the compaction.
        seed: Secret random bytes, at least 16; others at every pass will do.
        open_sink: Makes what an object is written to: a temporary file, for example. Who takes a replacement closes it.
        new_nonce: Makes nonces for objects.

    Attributes:
        clean_end: Below this offset no key has two records, once all replacements are committed; it becomes the
            root's `compacted_end` with the last of them, or by itself where there are none.
        keys: Distinct keys that were noted.
        memory_bytes: What the map of keys took at most.
    """

    def __init__(
        self,
        store: ObjectStore,
        plan: HistoryPlan,
        config: HistoryCompactionConfig,
        *,
        seed: bytes,
        open_sink: Callable[[], BinaryIO],
        new_nonce: Callable[[], str],
    ) -> None:
        self._store, self._plan, self._config = store, plan, config
        self._open_sink, self._new_nonce = open_sink, new_nonce
        self._hasher = KeyHasher(seed)
        self._newest = OffsetMap(config.memory_bytes_max)
        self._readers: OrderedDict[str, ObjectReader] = OrderedDict()
        self._delete_horizon = plan.delete_horizon
        self.clean_end = plan.compacted_end

    @property
    def keys(self) -> int:
        """Number of distinct keys noted."""
        return len(self._newest)

    @property
    def memory_bytes(self) -> int:
        """Maximum memory of the map of keys so far, bytes."""
        return self._newest.memory_bytes

    def run(self) -> Iterator[Replacement]:
        """What takes the place of what, oldest first. Taking only some of them, in this order, does no harm.

        Raises:
            ManifestCorruptError: an object's records do not give the sum that its pointer says.
            ObjectCorruptError: an object is damaged.
            StoreError: an object could not be fetched.
            OSError: a sink could not be made, or not take what was to be written.
        """
        noted_end = self._note_keys()
        first_held = next((each.base for each in self._plan.pointers if self._plan.is_held(each)), noted_end)
        self.clean_end = max(self._plan.compacted_end, min(noted_end, first_held))
        group: list[tuple[StreamObjectPointer, int]] = []
        size = 0
        for pointer in self._plan.pointers:
            cleaned_ns = self._cleaned_ns(pointer) if pointer.base < noted_end else None
            if group and (
                cleaned_ns is None
                or bool(cleaned_ns) != bool(group[-1][1])
                or size + pointer.size > self._config.object_bytes
            ):
                yield self._rewritten(group)
                group, size = [], 0
            if cleaned_ns is not None:
                group.append((pointer, cleaned_ns))
                size += pointer.size
        if group:
            yield self._rewritten(group)

    def _reader(self, pointer: StreamObjectPointer) -> ObjectReader:
        key = fragment_key(self._plan.path, pointer)
        reader = self._readers.pop(key, None)
        if reader is None:
            reader = ObjectReader(self._store, key, pointer.extent)
            reader.check_fragment(self._plan.path, pointer)
        self._readers[key] = reader
        if len(self._readers) > _READERS_MAX:
            self._readers.popitem(last=False)
        return reader

    def _note_keys(self) -> int:
        """Fill the map with the keys of the dirty part. Returns up to where it speaks of all of them."""
        start = self._plan.compacted_end
        for pointer in self._plan.pointers:
            if pointer.end <= start:
                continue
            for rows in self._reader(pointer).rows(start, pointer.end, columns=_KEYS):
                keys, offsets = _keyed(rows)
                taken = self._newest.put(self._hasher.hash(keys), offsets) if len(offsets) else 0
                if taken < len(offsets):
                    return int(offsets[taken])
        return max(start, self._plan.pointers[-1].end)

    def _stays(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows no newer one of their key supersedes."""
        stays = np.ones(rows.num_rows, np.bool_)
        keys, offsets = _keyed(rows)
        if len(offsets):
            stays[np.asarray(rows.column("key").is_valid())] = self._newest.newest(self._hasher.hash(keys)) <= offsets
        return stays

    def _is_expired(self, pointer: StreamObjectPointer) -> bool:
        """Whether the tombstones of a fragment go."""
        cleaned_ns = self._reader(pointer).metadata.cleaned_ns
        return (
            pointer.end <= self._plan.compacted_end
            and cleaned_ns > 0
            and cleaned_ns + self._config.delete_retention_ns <= self._plan.now_ns
        )

    def _cleaned_ns(self, pointer: StreamObjectPointer) -> int | None:
        """Since when a fragment is clean after this pass, 0 when it is not; None when it stays as it is."""
        if self._plan.is_held(pointer):
            return None
        reader = self._reader(pointer)
        footer = reader.metadata
        becomes_clean = pointer.end <= self.clean_end and (
            pointer.end > self._plan.compacted_end or not footer.cleaned_ns
        )
        has_losses = (
            (footer.tombstones > 0 and (becomes_clean or self._is_expired(pointer)))
            or any(not self._stays(reader.read(group.index, _KEYS)).all() for group in footer.row_groups)
        )  # fmt: skip
        if not has_losses:
            return None
        if pointer.end > self.clean_end:
            return 0
        return self._plan.now_ns if becomes_clean else footer.cleaned_ns

    def _rewritten(self, group: Sequence[tuple[StreamObjectPointer, int]]) -> Replacement:
        sink, nonce = self._open_sink(), self._new_nonce()
        path = self._plan.path
        try:
            writer = ObjectWriter(
                sink,
                uuid=path.uuid,
                partition=path.partition,
                nonce=nonce,
                keeps_replies=any(self._reader(pointer).metadata.keeps_replies for pointer, _ in group),
                record_hash=self._reader(group[0][0]).record_hash,
                cleaned_ns=max(cleaned_ns for _, cleaned_ns in group),
            )
            collected = NO_RECORDS
            for pointer, _ in group:
                collected += self._copy(pointer, writer)
            written = writer.finish()
        except BaseException:
            sink.close()
            raise
        return Replacement(
            tuple(pointer for pointer, _ in group), written, sink, nonce, collected, self._delete_horizon
        )

    def _copy(self, pointer: StreamObjectPointer, writer: ObjectWriter) -> Setsum:
        """Write what stays of a fragment. Returns the sum of what does not."""
        reader = self._reader(pointer)
        is_expired = self._is_expired(pointer)
        before, dropped = writer.setsum, NO_RECORDS
        for group in reader.row_groups:
            rows = reader.read(group.index)
            stays = self._stays(rows)
            if is_expired:
                goes = stays & np.asarray(rows.column("key").is_valid()) & np.asarray(rows.column("value").is_null())
                if goes.any():
                    stays &= ~goes
                    last = int(rows.column("offset").to_numpy()[goes][-1])
                    self._delete_horizon = max(self._delete_horizon, last + 1)
            if not stays.all():
                dropped += setsum_of(rows.filter(pa.array(~stays)), reader.record_hash)
                rows = rows.filter(pa.array(stays))
            writer.write(rows)
        check_sum(Source(reader.key, (), pointer.setsum), writer.setsum - before + dropped)
        return dropped


def _keyed(rows: pa.RecordBatch) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]]:
    """Keys and offsets of the rows that have a key."""
    keys = rows.column("key")
    offsets: npt.NDArray[np.int64] = rows.column("offset").to_numpy()
    if not keys.null_count:
        return keys, offsets
    return keys.drop_null(), offsets[np.asarray(keys.is_valid())]
