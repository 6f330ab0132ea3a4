"""A round of a node: the little that many partitions have becomes one shared object, named by one set manifest.

Three writes, however many partitions there are: the object, pages of the manifest, and the manifest. The very first
round has one more: a manifest that names nothing, so that shared objects without a manifest are always those of one
that somebody deleted. The members of a leader that was deposed meanwhile stand in the manifest and do not count; see
`resolving`. The rows of one member are in memory at a time, and the object.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy_bucket.layout import set_object_key
from liftpy_bucket.manifest.lineage import cut_epochs
from liftpy_bucket.manifest.stream_sets.changes import add, adopt, begin
from liftpy_bucket.objects.pointers import member_order
from liftpy_bucket.objects.read import trimmed
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.rows.convert import rows_of_many
from liftpy_bucket.objects.write_stream_set import SetWriter, WrittenSet
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.upkeep.missed import check_set_never_was
from liftpy_envelope.errors import BatchCorruptError, BatchVersionError
from liftpy_server.tier.errors import SliceGoneError, plain_error
from liftpy_server.tier.jobs.parts.memory_budget import WORK_BYTES
from liftpy_server.tier.jobs.parts.roots import newest_set
from liftpy_server.tier.jobs.parts.slices import batches_in
from liftpy_server.tier.requests import SkippedMember, UploadedMember, UploadSetResult

if TYPE_CHECKING:
    import pyarrow as pa

    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.manifest.stream_sets.format import SetManifest
    from liftpy_bucket.objects.pointers import SetMember
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.jobs.parts.object_buffer import ObjectBuffer
    from liftpy_server.tier.requests import Epochs, SetMemberUpload, UploadSetJob

__all__ = ["set_object_name", "upload_set"]


def set_object_name(sequence: int, nonce: str) -> str:
    """How a stream-set object is called."""
    return f"{sequence:020d}-{nonce}.parquet"


def upload_set(context: Context, request: UploadSetJob) -> UploadSetResult:
    """Move a range of each of many partitions into the bucket.

    Args:
        context: Context of the worker.
        request: What is wanted.

    Raises:
        SliceGoneError, BatchCorruptError, BatchVersionError: so it is with every member; that of the first one.
        LineageError: a later incarnation of the node has written.
        RootMissingError: the set manifest of the node is gone: a new one would forget what it named.
        OvertakenError: somebody else writes this manifest; nothing counts of what was uploaded, try again.
    """
    node = request.node
    members = sorted(request.members, key=member_order)
    size = sum(each.length for member in members for each in member.slices)
    with context.sets.alone(node, context.progress), context.memory.hold(size + WORK_BYTES, context.progress):
        loaded = context.sets.get(node) or newest_set(context, node)
        if loaded is None:
            check_set_never_was(context.store, node)
        else:
            adopt(loaded.manifest, request.incarnation)  # one that is over does no work
        nonce = context.new_id()
        made = context.buffers.filled(size, lambda sink: _write(context, sink, node, nonce, members))
        with made as (sink, (written, skipped)):
            if loaded is None:
                loaded = _commit(context, None, begin(node, request.incarnation))
            manifest = adopt(loaded.manifest, request.incarnation)
            name = set_object_name(manifest.sequence, nonce)
            with sink.body() as body:
                create_once(context.store, set_object_key(node, name), body, nonce)
        committed = _commit(context, loaded, add(manifest, written.pointer(name)))
    told = tuple(UploadedMember(uuid=each.uuid, partition=each.partition, end=each.end) for each in written.members)
    return UploadSetResult(
        members=told, skipped=tuple(skipped), stored_bytes=written.extent.size, manifest_bytes=committed.size
    )


def _commit(context: Context, loaded: LoadedSet | None, manifest: SetManifest) -> LoadedSet:
    try:
        committed = context.set_file(manifest.node).commit(loaded, manifest)
    except BaseException:
        context.sets.drop(manifest.node)  # it may have been written
        raise
    return context.sets.keep(manifest.node, committed)


def _write(
    context: Context, sink: ObjectBuffer, node: str, nonce: str, members: list[SetMemberUpload]
) -> tuple[WrittenSet, list[SkippedMember]]:
    writer = SetWriter(sink, node=node, nonce=nonce)
    skipped: list[SkippedMember] = []
    first_error: Exception | None = None
    for member in members:
        try:
            pieces = _rows_of(member)  # all of them, before there is anything of the member in the object
        except (SliceGoneError, BatchCorruptError, BatchVersionError) as error:
            first_error = first_error or error
            skipped.append(SkippedMember(uuid=member.uuid, partition=member.partition, **plain_error(error)))
            continue
        range_ = (member.tier_epoch, member.base, member.end)
        writer.begin(member.uuid, member.partition, *range_, record_hash=RecordHash(member.record_hash))
        for rows in pieces:
            writer.write(rows)
        context.progress()
    if first_error is not None and len(skipped) == len(members):
        raise first_error
    written = writer.finish()
    epochs = {(each.uuid, each.partition): each.epochs for each in members}
    kept = [_with_epochs(each, epochs[each.uuid, each.partition]) for each in written.members]
    return written._replace(members=tuple(kept)), skipped


def _with_epochs(member: SetMember, log: Epochs) -> SetMember:
    """With the epochs that the log says: where key compaction was, the first record of one may be gone."""
    told = cut_epochs(log, member.base, member.end)
    return replace(member, epochs=told) if told and told[0][1] == member.base else member


def _rows_of(member: SetMemberUpload) -> list[pa.RecordBatch]:
    base, end = member.base, member.end
    batches = batches_in(member.slices, base, end)
    return [trimmed(rows, base, end) for rows in rows_of_many(batches, keeps_replies=member.keeps_replies)]
