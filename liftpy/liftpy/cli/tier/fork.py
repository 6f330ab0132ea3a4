"""What `liftpy tier fork` does: a stream that begins with what another one has in the bucket.

No object of the stream's own is copied, whatever its length; the newest records, in objects that streams share, are.

The roots are made first, then the catalog names the stream: from then on it can be brought into a cluster, as a restore
brings one back. What fails before that is taken back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy.cli.tier.bucket import new_id, now_ns
from liftpy.cli.tier.checks import parts_of
from liftpy.cli.tier.progress import show_progress
from liftpy_bucket.errors import OutcomeUnknownError, OvertakenError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.catalog import CatalogStream
from liftpy_bucket.manifest.lineage import cut_epochs
from liftpy_bucket.manifest.root.changes import append
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.merging import Source
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.forking import fork
from liftpy_bucket.upkeep.missed import check_root_never_was
from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.parts.roots import commit
from liftpy_server.tier.jobs.parts.stream_objects import drafted, put_draft
from liftpy_server.tier.jobs.upkeep.collect import drop_stream
from liftpy_server.tier.requests import DropStreamJob

if TYPE_CHECKING:
    from liftpy.cli.tier.bucket import FoundStream, OpenBucket
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.reading.version import TierVersion
    from liftpy_server.tier.jobs.parts.stream_objects import Stored

__all__ = ["ForkedPartition", "ForkedStream", "fork_stream"]

_ATTEMPTS: Final = 5
_NODE: Final = "fork"  # in the claim, until a leader makes its own
_MEMORY_BYTES: Final = 256 << 20


class ForkedPartition(NamedTuple):
    """A partition of the fork.

    Attributes:
        partition: Number of the partition.
        end: The offset at which it goes on by itself.
        copied: How many offsets before that were in objects that streams share, and had to be copied.
    """

    partition: int
    end: int
    copied: int


class ForkedStream(NamedTuple):
    """A fork, as the bucket has it.

    Attributes:
        uuid: UUID of the new stream.
        name: Name of the fork.
        source: Name of the stream whose history it has.
        partitions: Partitions of the fork.
    """

    uuid: str
    name: str
    source: str
    partitions: tuple[ForkedPartition, ...]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"partitions": [each._asdict() for each in self.partitions]}


def fork_stream(bucket: OpenBucket, source_name: str, name: str, subject: str) -> ForkedStream:
    """Make a fork of all partitions of a stream.

    Args:
        bucket: Bucket that has it.
        source_name: Name of the stream that there is.
        name: Name of the new stream.
        subject: Subject that it is to store.

    Raises:
        ConfigError: the name or the subject cannot be one.
        LiftError: there is a stream of this name, or none to fork.
        TierError: it could not be done, and was taken back.
    """
    source = bucket.stream(source_name)
    config = StreamConfig.from_plain(dict(source.stream.config) | {"name": name, "subject": subject})
    if any(found.stream.name == name for found in bucket.streams()):
        raise LiftError(f"the bucket has a stream {name} already: give the fork another name")
    uuid = new_id()
    context = Context(
        bucket.store, new_id=new_id, now_ns=now_ns, memory_bytes_max=_MEMORY_BYTES, object_bytes=_MEMORY_BYTES
    )
    try:
        partitions = _fork_partitions(context, source, uuid)
        _enter(bucket, uuid, source, config)
    except BaseException:
        # Let the roots that were made name nothing, so that what they pinned is free again.
        drop_stream(context, DropStreamJob(uuid=uuid, partitions=source.stream.partitions))
        raise
    return ForkedStream(uuid, name, source.stream.name, partitions)


def _fork_partitions(context: Context, source: FoundStream, uuid: str) -> tuple[ForkedPartition, ...]:
    total = source.stream.partitions
    forked = []
    with show_progress(f"forking {source.stream.name}") as move:
        for number in range(total):
            forked.append(_fork_partition(context, source, uuid, number))
            move(number + 1, total)
    return tuple(forked)


def _fork_partition(context: Context, source: FoundStream, uuid: str, number: int) -> ForkedPartition:
    path, target = PartitionPath(source.uuid, number), PartitionPath(uuid, number)
    loaded = RootFile(context.store, path, new_id=new_id).load()
    if loaded is None:
        check_root_never_was(context.store, path, parts_of(context.store, path))
        return ForkedPartition(number, 0, 0)  # there is nothing of it yet; the fork's begins empty, too
    epoch = max(epoch for epoch, *_ in (*loaded.root.epochs, *((each.epoch,) for each in loaded.root.claims)))
    forked = fork(context.store, path, target, epoch=epoch, node=_NODE, new_id=new_id)
    version = open_version(context.store, path)
    if version is None or version.end <= forked.end:
        return ForkedPartition(number, forked.end, 0)
    _copy(context, version, forked.loaded.root, epoch)
    return ForkedPartition(number, version.end, version.end - forked.end)


def _copy(context: Context, version: TierVersion, root: Root, epoch: int) -> None:
    """Give the fork an object of its own with what the source has behind, mostly in objects that streams share."""
    base, end, target = root.end, version.end, PartitionPath(root.uuid, root.partition)

    def store(*, keeps_replies: bool) -> Stored:
        draft = drafted(
            *(context, target, lambda: [Source(version.path.root, version.read(base, end), None)]),
            base=base,
            end=end,
            epoch=epoch,
            keeps_replies=keeps_replies,
            record_hash=root.record_hash,
        )
        with draft as made:
            return put_draft(context, root, made)

    try:
        stored = store(keeps_replies=False)
    except ValueError:  # there are replies
        stored = store(keeps_replies=True)
    epochs = cut_epochs(version.epochs, base, end)
    commit(context, target, lambda root: append(root, stored.pointer, epoch=epoch, epochs=epochs), stored.created)


def _enter(bucket: OpenBucket, uuid: str, source: FoundStream, config: StreamConfig) -> None:
    """Have the catalog name the fork."""
    stream = CatalogStream(
        name=config.name, config=config.to_plain(), partitions=source.stream.partitions, created_ns=now_ns()
    )
    for _ in range(_ATTEMPTS):
        loaded = bucket.catalog_file.load()
        if loaded is None:
            break
        catalog = loaded.catalog
        if uuid in catalog.streams:
            return  # an attempt whose outcome was not known
        after = replace(catalog, version=catalog.version + 1, streams={**catalog.streams, uuid: stream})
        try:
            bucket.catalog_file.commit(loaded, after)
        except (OvertakenError, OutcomeUnknownError):
            continue
        return
    raise OvertakenError("the catalog is written so often that the fork could not be entered: try again")
