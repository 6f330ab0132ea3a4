"""What a tier worker can be asked for, and what it answers. The modules of `jobs` do it.

In all of them `uuid` (32 hexadecimal digits) and `partition` say which partition is meant, `epoch` is that of its
leader, `node` the id of a node, and `epochs` are rows of (leader epoch, first offset), oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_server.workers.requests import WorkerRequest

Epochs = tuple[tuple[int, int], ...]
Producers = tuple[tuple[str, int, int, int, int, int], ...]
"""Of each ordered producer (id in hexadecimal, epoch, sequence, offset, records, time in ns) of its highest batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Whole record batches in a file.

    Attributes:
        path: Path of the file.
        position: Where the first one begins, bytes.
        length: Length of all of them, bytes.
    """

    path: str
    position: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingResult:
    """It was done; there is nothing to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The owner of the bucket (None if it has no catalog), and the generation of the catalog."""

    cluster_id: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJob(WorkerRequest[ProbeResult]):
    """Job that finds out which cluster owns the bucket, and tests the store."""

    job: ClassVar[str] = "probe"
    result: ClassVar[type[Any]] = ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsResult:
    """Requests by kind (see `CountingStore`), bytes, and objects that were deleted."""

    counts: dict[str, int]
    bytes_in: int
    bytes_out: int
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsJob(WorkerRequest[CountsResult]):
    """What the worker has asked of the store since it was started."""

    job: ClassVar[str] = "counts"
    result: ClassVar[type[Any]] = CountsResult


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryResult:
    """What the bucket has of a partition.

    Attributes:
        start: The first offset that is wanted.
        end: Offset after the last one that is there, in shared objects too.
        root_end: Offset after the last one in objects of its own.
        proven_end: What is below stays counted, whoever claims it next.
        epochs: Leader epochs up to `end`.
        delete_horizon: Tombstones below may be gone.
        bytes: Bytes of what is there.
        records: Records of what is there.
        sealed: Nothing is added any more.
        set_bytes: Bytes of what is in shared objects.
        new_bytes: Bytes of objects that key compaction has not looked at.
        holders: Nodes whose shared objects hold some of it.
        merges: There are objects to be merged.
        is_new: There was nothing before.
        record_hash: Hash of a record in the sums of the partition.
        producers: Ordered producers, as the root has them.
    """

    start: int
    end: int
    root_end: int
    proven_end: int
    epochs: Epochs
    delete_horizon: int
    bytes: int
    records: int
    sealed: bool
    set_bytes: int
    new_bytes: int
    holders: tuple[str, ...]
    merges: bool
    is_new: bool
    record_hash: str
    producers: Producers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookJob(WorkerRequest[HistoryResult]):
    """Look what the bucket has of a partition. The log begins at `log_start`, and `epochs` are its."""

    job: ClassVar[str] = "look"
    result: ClassVar[type[Any]] = HistoryResult
    uuid: str
    partition: int
    log_start: int
    epochs: Epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimJob(WorkerRequest[HistoryResult]):
    """Claim a partition for a leadership.

    Attributes:
        node: Node of the leader.
        log_start: Where the partition begins on the disk, and in the bucket if that has nothing of it.
        epochs: Epochs of the log.
        create: Begin a history where there is none.
        cluster_id: Cluster whose catalog must name the stream before a history is begun; None where there is none.
        record_hash: Hash of records in a history that is begun, see `liftpy_bucket.objects.record_hash`.
    """

    job: ClassVar[str] = "claim"
    result: ClassVar[type[Any]] = HistoryResult
    uuid: str
    partition: int
    epoch: int
    node: str
    log_start: int
    epochs: Epochs
    create: bool
    cluster_id: str | None = None
    record_hash: str = str(RecordHash.BLAKE2B)


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherObject:
    """What becomes one more object: up to `end`, from the end before. See `UploadJob`."""

    end: int
    slices: tuple[LogSlice, ...]
    producers: Producers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedObject:
    """An object of an upload counts: up to `end`, of so many bytes of record batches, and with so many stored bytes."""

    end: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadResult:
    """Result of an upload.

    Attributes:
        end: End of the last object. That of one before the last where the next one could not be made: whoever goes on
            from there is told why.
        records: Number of records.
        bytes: Bytes of record batches.
        stored_bytes: Stored bytes of the objects.
    """

    end: int
    records: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadJob(WorkerRequest[UploadResult]):
    """Move [base, end) of a partition into the bucket, and what follows.

    Attributes:
        epochs: Epochs of the log.
        slices: Whole batches that cover the range.
        keeps_replies: Whether the stream keeps reply subjects.
        further: Where more is to be moved, what becomes an object each.
        producers: What the leader knows of ordered producers below `end`.
    """

    job: ClassVar[str] = "upload"
    result: ClassVar[type[Any]] = UploadResult
    part: ClassVar[type[Any]] = UploadedObject
    uuid: str
    partition: int
    epoch: int
    epochs: Epochs
    base: int
    end: int
    slices: tuple[LogSlice, ...]
    keeps_replies: bool
    further: tuple[FurtherObject, ...] = ()
    producers: Producers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMemberUpload:
    """A range of one partition for a shared object; `tier_epoch` is the leader epoch of its claim, see `UploadJob`.

    `epochs` are those of the log, as many as it takes to say of which epoch every offset is; empty: the records tell.
    `record_hash` is that of the partition, as its claim told.
    """

    uuid: str
    partition: int
    tier_epoch: int
    base: int
    end: int
    slices: tuple[LogSlice, ...]
    keeps_replies: bool
    record_hash: str
    epochs: Epochs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedMember:
    """A partition that was uploaded, up to `end`."""

    uuid: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedMember:
    """A partition whose slices could not be read, and why; see `TierWorkError`."""

    uuid: str
    partition: int
    code: str
    message: str
    retriable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSetResult:
    """`stored_bytes` are those of the object, `manifest_bytes` those of the manifest that names it."""

    members: tuple[UploadedMember, ...]
    skipped: tuple[SkippedMember, ...]
    stored_bytes: int
    manifest_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSetJob(WorkerRequest[UploadSetResult]):
    """Move a range of each of many partitions into one shared object; each partition at most once."""

    job: ClassVar[str] = "upload_set"
    result: ClassVar[type[Any]] = UploadSetResult
    node: str
    incarnation: int
    members: tuple[SetMemberUpload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmJob(WorkerRequest[NothingResult]):
    """Job that confirms that a claim is in force."""

    job: ClassVar[str] = "confirm"
    result: ClassVar[type[Any]] = NothingResult
    uuid: str
    partition: int
    epoch: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainResult:
    """The history begins at `start` now; whether more is to be deleted at once, or once a pin ends."""

    start: int
    more: bool
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainJob(WorkerRequest[RetainResult]):
    """Let go of what lies below `start`, and delete it."""

    job: ClassVar[str] = "retain"
    result: ClassVar[type[Any]] = RetainResult
    uuid: str
    partition: int
    epoch: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStartResult:
    """Where a history is to begin, and the time of what is oldest from there on, see `first_wanted`."""

    start: int
    oldest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStartJob(WorkerRequest[WantedStartResult]):
    """Find out where a history is to begin; changes nothing.

    Attributes:
        before_ns: What is older may go; 0 is no limit.
        stored_bytes_max: Bytes of the objects that lie below `below`, so much may stay; -1 is no limit.
        below: What the bucket holds from there on is counted as part of the log.
    """

    job: ClassVar[str] = "wanted_start"
    result: ClassVar[type[Any]] = WantedStartResult
    uuid: str
    partition: int
    before_ns: int
    stored_bytes_max: int
    below: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """How many objects, or shares of objects, became others; `more`: there is, or may be, more to be merged."""

    merged: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob(WorkerRequest[MergeResult]):
    """Merge what there is to be merged of a partition."""

    job: ClassVar[str] = "merge"
    result: ClassVar[type[Any]] = MergeResult
    uuid: str
    partition: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult:
    """What became of a compaction.

    Attributes:
        compacted: How many objects became others.
        delete_horizon: Tombstones below this offset may be gone now.
        compacted_end: Below this offset no key has two records.
        bytes: Bytes of what is there now.
        records: Records of what is there now.
    """

    compacted: int
    delete_horizon: int
    compacted_end: int
    bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactJob(WorkerRequest[CompactResult]):
    """Let go of records that newer ones of the same key supersede; nothing at or above `clean_end` is touched."""

    job: ClassVar[str] = "compact"
    result: ClassVar[type[Any]] = CompactResult
    uuid: str
    partition: int
    epoch: int
    min_compaction_lag_ns: int
    delete_retention_ns: int
    clean_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """How many objects were deleted, their bytes, whether there is more to be done at once, or once a pin ends."""

    deleted: int
    freed: int
    more: bool
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectJob(WorkerRequest[CollectResult]):
    """Delete what no root, snapshot or pin names; what was never named lies around for `grace_ns`."""

    job: ClassVar[str] = "collect"
    result: ClassVar[type[Any]] = CollectResult
    uuid: str
    partition: int
    grace_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSetsResult:
    """How many objects lost what counts no more, were merged, dropped from the manifest, deleted, and are left."""

    trimmed: int
    merged: int
    dropped: int
    deleted: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSetsJob(WorkerRequest[CollectSetsResult]):
    """Merge the shared objects of a node, and delete those of which nothing counts any more."""

    job: ClassVar[str] = "collect_sets"
    result: ClassVar[type[Any]] = CollectSetsResult
    node: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptSetsResult:
    """What became of the shared objects of nodes that are gone.

    Attributes:
        dropped: Number of objects that manifests name no more.
        deleted: Number of objects that were deleted.
        left: Objects that are still named.
        returned: Nodes that write again, which were left alone.
    """

    dropped: int
    deleted: int
    left: int
    returned: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptSetsJob(WorkerRequest[AdoptSetsResult]):
    """Clear up after nodes that are gone: all but those that are `present`."""

    job: ClassVar[str] = "adopt_sets"
    result: ClassVar[type[Any]] = AdoptSetsResult
    present: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStreamResult:
    """How many objects were deleted, their bytes, and whether forks, cursors or the grace period may hold others."""

    deleted: int
    freed: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStreamJob(WorkerRequest[DropStreamResult]):
    """Delete what a deleted stream of so many partitions has left."""

    job: ClassVar[str] = "drop_stream"
    result: ClassVar[type[Any]] = DropStreamResult
    uuid: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedStream:
    """A stream that the catalog has as deleted."""

    uuid: str
    partitions: int
    deleted_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCatalogResult:
    """The catalog as it is now; `written`: this wrote it."""

    version: int
    written: bool
    deleted: tuple[DeletedStream, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutCatalogJob(WorkerRequest[PutCatalogResult]):
    """Have the catalog say what the metadata say.

    Attributes:
        streams: Streams by uuid, as `Description.of` gives them.
        deleted: UUIDs of those that were deleted last.
        collected: UUIDs of deleted streams of which the bucket holds nothing more.
        now_ns: Time by the wall clock, ns since the epoch.
    """

    job: ClassVar[str] = "catalog"
    result: ClassVar[type[Any]] = PutCatalogResult
    cluster_id: str
    streams: dict[str, Any]
    deleted: tuple[str, ...]
    collected: tuple[str, ...]
    now_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageIdsResult:
    """Message ids of records in the bucket.

    Attributes:
        ids: Oldest first, each as (time in ns, offset, id in hexadecimal digits).
        start: The offset from which on they are all there.
        more: There may be others below that.
    """

    ids: tuple[tuple[int, int, str], ...]
    start: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageIdsJob(WorkerRequest[MessageIdsResult]):
    """Read ids below the offset `before`, newest first, of messages from `since_ns` on; about `limit` of them."""

    job: ClassVar[str] = "message_ids"
    result: ClassVar[type[Any]] = MessageIdsResult
    uuid: str
    partition: int
    before: int
    since_ns: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAtTimeResult:
    """`offset` is that of the first record not before the time; None where all are earlier."""

    offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAtTimeJob(WorkerRequest[OffsetAtTimeResult]):
    """Look for a time (ns)."""

    job: ClassVar[str] = "offset_at_time"
    result: ClassVar[type[Any]] = OffsetAtTimeResult
    uuid: str
    partition: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Offsets that can not be read, for an object is `code` "missing" or "corrupt"."""

    start: int
    end: int
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """A chunk of a staged section in a file, as an envelope without options, and the subject of its records."""

    subject: str
    position: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStagedResult:
    """The chunks of a staged section, in order."""

    batches: tuple[StagedBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStagedJob(WorkerRequest[ReadStagedResult]):
    """Write the chunks of a staged section to a file, whose path is `path`; see `StagedSection`."""

    job: ClassVar[str] = "read_staged"
    result: ClassVar[type[Any]] = ReadStagedResult
    key: str
    start: int
    length: int
    chunks: int
    crc: int
    path: str
    directory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchChunkResult:
    """What was written to the file; there is none where there is a hole.

    Attributes:
        start: The first offset in the file.
        end: Offset after the last one.
        bytes: Bytes of record batches.
        following: Where fetches end that follow on one another from `end` on, so that they can be asked for side by
            side; as far as that can be told.
        hole: The object that holds the first offset is missing or damaged.
    """

    start: int = 0
    end: int = 0
    bytes: int = 0
    following: tuple[int, ...] = ()
    hole: Hole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchChunkJob(WorkerRequest[FetchChunkResult]):
    """Write a range of a partition's history to a file, as record batches that cover all offsets of it.

    Attributes:
        offset: The first that is wanted.
        end: Nothing from there on is wanted.
        enough: Nor need what begins there or later be fetched.
        bytes_max: About how many bytes of batches to write.
        codec: Codec of the batches: none, lz4 or zstd.
        path: Path of the file.
        until: All up to this offset is to be written, while it is not far more than `bytes_max`.
        following_bytes: Bytes of each fetch that may follow; none is foreseen with 0.
        nodes: Nodes whose shared objects hold the offset, as far as the leader knows.
    """

    job: ClassVar[str] = "fetch"
    result: ClassVar[type[Any]] = FetchChunkResult
    uuid: str
    partition: int
    offset: int
    end: int
    enough: int
    bytes_max: int
    codec: str
    path: str
    until: int | None = None
    following_bytes: int = 0
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCatalogResult:
    """A page of the streams that can be brought back, of `total`; `written_ns` is the time of the catalog."""

    cluster_id: str
    version: int
    written_ns: int
    total: int
    streams: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCatalogJob(WorkerRequest[ReadCatalogResult]):
    """Read which streams there are, `limit` of them behind the uuid `after`."""

    job: ClassVar[str] = "read_catalog"
    result: ClassVar[type[Any]] = ReadCatalogResult
    after: str
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCatalogResult:
    """Streams of this cluster that the catalog does not know; where there are some nothing is changed."""

    strangers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCatalogJob(WorkerRequest[TakeCatalogResult]):
    """Make the bucket of a cluster that is gone this cluster's own, which has `streams`."""

    job: ClassVar[str] = "take_catalog"
    result: ClassVar[type[Any]] = TakeCatalogResult
    cluster_id: str
    from_cluster_id: str
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtPartitionsResult:
    """States of partitions as `PartitionPlan.to_plain` gives them, in the order of the request."""

    partitions: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtPartitionsJob(WorkerRequest[LookAtPartitionsResult]):
    """Look where the histories of partitions, (uuid, number), end in the bucket."""

    job: ClassVar[str] = "look_at_partitions"
    result: ClassVar[type[Any]] = LookAtPartitionsResult
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceStreamsResult:
    """Streams as in `ReadCatalogResult`, each with `plans`, those of its partitions by number."""

    streams: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceStreamsJob(WorkerRequest[FenceStreamsResult]):
    """Have nobody add anything to streams any more, and tell where they end."""

    job: ClassVar[str] = "fence_streams"
    result: ClassVar[type[Any]] = FenceStreamsResult
    cluster_id: str
    node: str
    uuids: tuple[str, ...]
