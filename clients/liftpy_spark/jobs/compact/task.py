"""What tasks of key compaction do: look at footers, read keys, write objects anew. A row group at a time."""

from __future__ import annotations

import mmap
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa

from liftpy_bucket.manifest.json import Fields
from liftpy_bucket.manifest.pointer_format import fragment_plain, fragments_of
from liftpy_bucket.objects.merging import Source as Summed
from liftpy_bucket.objects.merging import check_sum
from liftpy_bucket.objects.read import ObjectReader, fragment_key
from liftpy_bucket.objects.record_hash import setsum_of
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.objects.write import ObjectWriter
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.upkeep.compaction import Replacement
from liftpy_log.compaction.offset_map import KeyHasher
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.compact.keys import KEY_COLUMNS, candidates_of, keyed, superseded_within
from liftpy_spark.jobs.compact.plan import FooterFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.objects.setsum import Setsum
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.compact.plan import Rewrite, RewriteSource

__all__ = ["Made", "Pass", "look_at", "read_keys", "read_looks", "read_made", "rewrite"]

_MADE: Final = ("made", "collected", "dropped", "delete_horizon")


class Pass(NamedTuple):
    """What all tasks of a pass are given.

    Attributes:
        settings: Settings of the bucket.
        path: Path of the partition.
        epoch: The leader epoch in its root, for names.
        new_start: Records below this offset supersede nothing: they were looked at before.
        delete_horizon: Delete horizon of the root.
        seed: Secret random bytes, of which the hashes of keys are made.
    """

    settings: S3Settings
    path: PartitionPath
    epoch: int
    new_start: int
    delete_horizon: int
    seed: bytes

    def reader(self, pointer: StreamObjectPointer) -> ObjectReader:
        """What reads an object, after its footer was found to be that of what the root means."""
        key = fragment_key(self.path, pointer)
        reader = ObjectReader(store_of(self.settings), key, pointer.extent)
        reader.check_fragment(self.path, pointer)
        return reader


class Made(NamedTuple):
    """What came of a rewrite.

    Attributes:
        pointer: Pointer to the new object; None where no record is left.
        collected: The sum of the records that are not in it any more.
        dropped: How many these are.
        delete_horizon: Tombstones below this offset may be gone with it.
    """

    pointer: StreamObjectPointer | None
    collected: Setsum
    dropped: int
    delete_horizon: int


def look_at(given: tuple[Pass, Sequence[StreamObjectPointer]]) -> list[FooterFacts]:
    """Read the footers of objects."""
    work, pointers = given
    footers = (work.reader(pointer).metadata for pointer in pointers)
    return [FooterFacts(footer.tombstones, footer.cleaned_ns, footer.keeps_replies) for footer in footers]


def read_looks(plain: Any) -> list[FooterFacts]:
    """What `look_at` gave, after it has travelled.

    Raises:
        ManifestCorruptError, ValueError: it is not that.
    """
    rows = Fields("footers", "result", {"looks": plain}, ("looks",)).rows("looks", len(FooterFacts._fields))
    return [FooterFacts(row.number(0), row.number(1), row.flag(2)) for row in rows]


def read_keys(work: Pass, places: Sequence[tuple[int, StreamObjectPointer]]) -> Iterator[pa.RecordBatch]:
    """Read the keys of objects: rows as in `CANDIDATES`.

    Raises:
        ObjectCorruptError: an object is damaged.
        StoreError: one could not be fetched.
    """
    hasher = KeyHasher(work.seed)
    for place, pointer in places:
        reader = work.reader(pointer)
        for group in reader.row_groups:
            found = candidates_of(reader.read(group.index, KEY_COLUMNS), hasher, place, work.new_start)
            if found.num_rows:
                yield found


def rewrite(work: Pass, given: Rewrite, superseded: Iterator[npt.NDArray[np.int64]]) -> dict[str, Any]:
    """Write an object for neighbours, without what is superseded and without tombstones whose time is over.

    Args:
        work: Compaction pass.
        given: What is written anew.
        superseded: Offsets of records that a row group besides their own supersedes, ascending, in pieces.

    Returns:
        what `read_made` reads.

    Raises:
        ManifestCorruptError: an object's records do not give the sum that its pointer says.
        ObjectCorruptError: an object is damaged.
        StoreError: an object could not be fetched, or not be written.
    """
    nonce, path, pointers = uuid4().hex, work.path, given.pointers
    name = f"{pointers[0].base:020d}-{work.epoch}-{nonce}.parquet"
    with TemporaryFile() as file:
        writer = ObjectWriter(
            file,
            uuid=path.uuid,
            partition=path.partition,
            nonce=nonce,
            keeps_replies=given.keeps_replies,
            record_hash=work.reader(pointers[0]).record_hash,
            cleaned_ns=given.cleaned_ns,
        )
        copy = _Copy(work, writer, _Superseded(superseded))
        for source in given.sources:
            copy.take(source)
        written = writer.finish()
        made = Replacement(pointers, written, file, nonce, copy.collected, copy.delete_horizon)
        if written.records:
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as body:
                create_once(store_of(work.settings), path.fragment(name), body, nonce)
    return {
        "made": [fragment_plain(made.pointer(name))] if written.records else [],
        "collected": made.collected.hex(),
        "dropped": sum(each.records for each in pointers) - written.records,
        "delete_horizon": made.delete_horizon,
    }


def read_made(plain: Any) -> Made:
    """What `rewrite` gave, after it has travelled.

    Raises:
        ManifestCorruptError, ValueError: it is not that.
    """
    fields = Fields("made", "result", plain, _MADE)
    pointers = fragments_of(fields, "made")
    if len(pointers) > 1:
        raise fields.bad("made", "is more than one object")
    pointer = pointers[0] if pointers else None
    return Made(pointer, fields.setsum("collected"), fields.number("dropped"), fields.number("delete_horizon"))


class _Superseded:
    """Offsets that come in pieces, taken from below as far as they are wanted."""

    def __init__(self, pieces: Iterator[npt.NDArray[np.int64]]) -> None:
        self._pieces = pieces
        self._rest: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._is_over = False

    def take(self, end: int) -> npt.NDArray[np.int64]:
        """Return the offsets below `end` that were not taken yet."""
        taken = []
        while not self._is_over:
            count = int(self._rest.searchsorted(end))
            taken.append(self._rest[:count])
            self._rest = self._rest[count:]
            if len(self._rest):
                break
            piece = next(self._pieces, None)
            self._is_over = piece is None
            if piece is not None:
                self._rest = piece
        return np.concatenate(taken) if taken else np.empty(0, np.int64)


class _Copy:
    """Copies what stays of objects."""

    def __init__(self, work: Pass, writer: ObjectWriter, superseded: _Superseded) -> None:
        self._work = work
        self._superseded = superseded
        self._hasher = KeyHasher(work.seed)
        self._writer = writer
        self.collected = NO_RECORDS
        self.delete_horizon = work.delete_horizon

    def take(self, source: RewriteSource) -> None:
        """Copy what stays of one."""
        reader = self._work.reader(source.pointer)
        before, dropped = self._writer.setsum, NO_RECORDS
        for group in reader.row_groups:
            rows = reader.read(group.index)
            stays = self._stays(rows)
            if source.is_expired:
                stays &= ~self._expired(rows, stays)
            if not stays.all():
                dropped += setsum_of(rows.filter(pa.array(~stays)), reader.record_hash)
                rows = rows.filter(pa.array(stays))
            self._writer.write(rows)
        check_sum(Summed(reader.key, (), source.pointer.setsum), self._writer.setsum - before + dropped)
        self.collected += dropped

    def _stays(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows no newer one of their key supersedes, in this row group or another one."""
        all_offsets: npt.NDArray[np.int64] = rows.column("offset").to_numpy()
        stays = ~np.isin(all_offsets, self._superseded.take(int(all_offsets[-1]) + 1), assume_unique=True)
        keys, offsets = keyed(rows)
        if len(offsets):
            first = int(offsets.searchsorted(self._work.new_start))
            within = superseded_within(self._hasher.hash(keys), first)
            stays[np.flatnonzero(np.asarray(rows.column("key").is_valid()))[within]] = False
        return stays

    def _expired(self, rows: pa.RecordBatch, stays: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of the rows that stay otherwise are tombstones; notes that they are gone."""
        is_keyed, has_value = (np.asarray(rows.column(name).is_valid()) for name in ("key", "value"))
        goes: npt.NDArray[np.bool_] = stays & is_keyed & ~has_value
        if goes.any():
            self.delete_horizon = max(self.delete_horizon, int(rows.column("offset").to_numpy()[goes][-1]) + 1)
        return goes
