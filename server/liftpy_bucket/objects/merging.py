"""Small objects become larger ones: what goes in comes out, and the sums prove it.

Rows pass one row group at a time, so merging takes the memory of two of them, whatever is merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.errors import ManifestCorruptError, ObjectCorruptError
from liftpy_bucket.objects.read import ObjectReader, fragment_key
from liftpy_bucket.objects.write import ROW_GROUP_BYTES, ObjectWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import SetMember, StreamObjectPointer
    from liftpy_bucket.objects.record_hash import RecordHash
    from liftpy_bucket.objects.setsum import Setsum
    from liftpy_bucket.objects.sinks import ByteSink
    from liftpy_bucket.objects.write import Written
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Source", "check_sum", "fragment_source", "member_source", "merge", "merge_fragments"]


class Source(NamedTuple):
    """Something that is merged.

    Attributes:
        key: Key of the object that it is read from.
        rows: Rows of the source.
        setsum: Setsum of its rows, as a root says, or the footer of a member; None where only a part of it is taken.
    """

    key: str
    rows: Iterable[pa.RecordBatch]
    setsum: Setsum | None


def fragment_source(reader: ObjectReader, path: PartitionPath, pointer: StreamObjectPointer) -> Source:
    """A whole fragment that the root of `path` names.

    Raises:
        ObjectCorruptError: it is not what the pointer means.
        StoreError: it could not be fetched.
    """
    reader.check_fragment(path, pointer)
    return Source(reader.key, (reader.read(group.index) for group in reader.row_groups), pointer.setsum)


def member_source(reader: ObjectReader, member: SetMember, start: int, end: int) -> Source:
    """A member of a stream-set object, or the part of it that counts.

    Args:
        reader: Reader of the member.
        member: The member.
        start: The first offset that counts.
        end: The offset after the last one that does.

    Raises:
        ObjectCorruptError: the object does not hold what the member says.
        StoreError: it could not be fetched.
    """
    reader.check_member(member)
    is_whole = start <= member.base and end >= member.end
    rows = reader.rows(start, end)
    return Source(reader.key, rows, reader.setsum if is_whole else None)


def merge(
    sources: Iterable[Source],
    sink: ByteSink,
    *,
    path: PartitionPath,
    nonce: str,
    keeps_replies: bool,
    record_hash: RecordHash,
    row_group_bytes: int = ROW_GROUP_BYTES,
    cleaned_ns: int = 0,
    pool: Executor | None = None,
) -> Written:
    """Write one fragment of the records of several objects of a partition.

    Args:
        sources: Ascending by offset. They are taken one after the other, so they may be made while they are.
        sink: What is written to, a file for example; it stays open.
        path: Path of the partition.
        nonce: Nonce of this attempt.
        keeps_replies: Whether there is a column `reply`.
        record_hash: Hash of the partition.
        row_group_bytes: About how large a row group is, before compression.
        cleaned_ns: See `liftpy_bucket.upkeep.compaction`.
        pool: Writes a row group while rows of the next one are taken; None: nobody else does.

    Raises:
        ManifestCorruptError: an object's records do not give the sum that its manifest says.
        ObjectCorruptError: an object is damaged, or its records do not follow on those before.
        StoreError: an object could not be fetched.
        OSError: the sink could not take it.
    """
    writer = ObjectWriter(
        sink,
        uuid=path.uuid,
        partition=path.partition,
        nonce=nonce,
        keeps_replies=keeps_replies,
        record_hash=record_hash,
        row_group_bytes=row_group_bytes,
        cleaned_ns=cleaned_ns,
        pool=pool,
    )
    try:
        for source in sources:
            before = writer.setsum
            for rows in source.rows:
                try:
                    writer.write(rows)
                except ValueError as error:
                    raise ObjectCorruptError(source.key, str(error)) from error
            check_sum(source, writer.setsum - before)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def check_sum(source: Source, found: Setsum) -> None:
    """Compare the sum of a source's records with what is said of them.

    Raises:
        ManifestCorruptError: they differ.
    """
    if source.setsum is not None and found != source.setsum:
        raise ManifestCorruptError(
            source.key, f"its records sum up to {found.hex()}, and must sum up to {source.setsum.hex()}"
        )


def merge_fragments(
    store: ObjectStore,
    path: PartitionPath,
    pointers: Sequence[StreamObjectPointer],
    sink: ByteSink,
    *,
    nonce: str,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> Written:
    """Write one fragment of the records of fragments that follow on one another.

    It counts as cleaned when all with tombstones do, since the latest time that any of them does.

    Args:
        store: Where they are.
        path: Path of the partition.
        pointers: Pointers to the objects in their root, ascending; at least one.
        sink: Sink, as for `merge`.
        nonce: Nonce of this attempt.
        row_group_bytes: About how large a row group is, before compression.

    Raises:
        ManifestCorruptError, ObjectCorruptError, StoreError, OSError: as `merge`.
    """
    readers = [ObjectReader(store, fragment_key(path, each), each.extent) for each in pointers]
    cleaned = [reader.metadata.cleaned_ns for reader in readers if reader.metadata.tombstones]
    return merge(
        (fragment_source(reader, path, pointer) for reader, pointer in zip(readers, pointers, strict=True)),
        sink,
        path=path,
        nonce=nonce,
        keeps_replies=any(reader.metadata.keeps_replies for reader in readers),
        record_hash=readers[0].record_hash,
        row_group_bytes=row_group_bytes,
        cleaned_ns=max(cleaned, default=0) if all(cleaned) else 0,
    )
