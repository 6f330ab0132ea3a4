"""What a bucket holds of a cluster that is gone: every stream, and where the history of each partition ends.

`plan` reads; `fence` also ends the claims of the leaders that were, so that what it says stays true: whatever a node
of the old cluster that still runs uploads afterwards is refused, or lies beyond the end and does not count.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ObjectCorruptError, OvertakenError, RootMissingError
from liftpy_bucket.layout import PartitionPath, slot_of
from liftpy_bucket.manifest.root.changes import claim, create
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile, page_cache
from liftpy_bucket.reading.resolving import counts, resolve
from liftpy_bucket.upkeep.missed import check_root_never_was, check_set_never_was
from liftpy_server.tier.jobs.parts.stream_set_nodes import nodes_with_sets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from liftpy_bucket.manifest.catalog import Catalog, CatalogStream
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.reading.resolving import Resolved
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["EPOCH_GAP", "Bucket", "PartitionPlan", "RestorePlan", "StreamPlan"]

EPOCH_GAP: Final = 10_000
"""A restored partition begins so many leader epochs beyond those that the bucket knows.

The cluster before may have had some that never reached the bucket; if one of them came again, a consumer that has read
records of it would take the new ones for their continuation.
"""

_THREADS: Final = 16
_ATTEMPTS: Final = 5
_AMISS: Final = (ObjectCorruptError, RootMissingError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What the bucket holds of a partition.

    Attributes:
        uuid: UUID of the stream.
        partition: Number of the partition.
        start: The first offset that is still wanted.
        end: The offset after the last one: the recovery point.
        last_epoch: The highest leader epoch that the bucket knows of, of a record or of a claim; 0 for none.
        record_epoch: Leader epoch of the last record; -1 where there is none.
        records: How many there are.
        stored_bytes: Size of the objects that hold only this partition's records, bytes.
        newest_ns: Timestamp of the last record, ns; 0 when there is none.
        problem: Why it is not as it should be; "" when nothing is wrong.
        is_readable: What the bucket says of it makes sense; otherwise nothing else here is known.
    """

    uuid: str
    partition: int
    start: int = 0
    end: int = 0
    last_epoch: int = 0
    record_epoch: int = -1
    records: int = 0
    stored_bytes: int = 0
    newest_ns: int = 0
    problem: str = ""
    is_readable: bool = True

    @property
    def marks(self) -> dict[str, int]:
        """Where the restored partition begins, as the metadata command `restore_stream` wants it."""
        return {
            "leader_epoch": self.last_epoch + EPOCH_GAP,
            "log_start": self.start,
            "local_start": self.end,
            "newest_ns": self.newest_ns,
        }

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> Self:
        """What `to_plain` wrote."""
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """A stream of the cluster that is gone.

    Attributes:
        uuid: UUID of the stream.
        stream: What the catalog says of it.
        partitions: Partitions by number.
    """

    uuid: str
    stream: CatalogStream
    partitions: tuple[PartitionPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What can be restored.

    Attributes:
        cluster_id: Cluster id of the cluster that is gone.
        streams: Those that were not deleted, in the order of their names.
    """

    cluster_id: str
    streams: tuple[StreamPlan, ...]

    @property
    def partitions(self) -> list[PartitionPlan]:
        """Of all streams."""
        return [partition for stream in self.streams for partition in stream.partitions]

    @property
    def problems(self) -> list[PartitionPlan]:
        """Those of which something is wrong."""
        return [partition for partition in self.partitions if partition.problem]

    @property
    def newest_ns(self) -> int:
        """Timestamp of the newest record of all, ns: how far back a restored cluster is thrown."""
        return max((partition.newest_ns for partition in self.partitions), default=0)


class Bucket:
    """Reads what there is.

    Set manifests are read once, and pages of them as they are needed; a claim makes sure that what came later does not
    count.

    Args:
        store: The bucket.
        new_id: A new name for an attempt, each time another one.
        tell: Called as partitions are read; says that the work goes on.
    """

    def __init__(
        self, store: ObjectStore, *, new_id: Callable[[], str], tell: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._new_id = new_id
        self._tell = tell
        self._sets: dict[str, _Set] = {}
        self._nodes: list[str] | None = None
        self._pages = page_cache()

    def plan(self, catalog: Catalog, progress: Callable[[int, int], None] | None = None) -> RestorePlan:
        """Read where all partitions of all streams end.

        Args:
            catalog: Catalog of the cluster that is gone.
            progress: Told of how many partitions are read, of how many.

        Raises:
            StoreError: the bucket can not be read.
            BucketVersionError: a newer liftpy wrote something of it.
        """
        live = sorted((stream.name, uuid) for uuid, stream in catalog.streams.items() if stream.deleted_ns is None)
        paths = [PartitionPath(uuid, number) for _, uuid in live for number in range(catalog.streams[uuid].partitions)]
        paths.sort(key=lambda path: slot_of(*path))  # so that a page of a set manifest is read once
        done = 0
        found: dict[PartitionPath, PartitionPlan] = {}
        for first in range(0, len(paths), _THREADS):
            some = paths[first : first + _THREADS]
            found |= dict(zip(some, self.look(some), strict=True))
            done += len(some)
            if progress is not None:
                progress(done, len(paths))
        streams = tuple(_stream_plan(uuid, catalog.streams[uuid], found) for _, uuid in live)
        return RestorePlan(cluster_id=catalog.cluster_id, streams=streams)

    def look(self, paths: Sequence[PartitionPath]) -> list[PartitionPlan]:
        """Read where partitions end, side by side.

        Raises:
            StoreError, BucketVersionError: see `plan`.
        """
        return self._each(self._look, paths)

    def fence(self, paths: Sequence[PartitionPath], node: str) -> list[PartitionPlan]:
        """Read where partitions end, and have none of the leaders that were add anything that counts.

        Args:
            paths: Paths of the partitions; those of which the bucket holds nothing get a root.
            node: Id of the node that does it.

        Raises:
            OvertakenError: somebody else goes on writing.
            StoreError, BucketVersionError: see `plan`.
        """
        return self._each(partial(self._fence, node=node), paths)

    def _each(
        self, look: Callable[[PartitionPath], PartitionPlan], paths: Iterable[PartitionPath]
    ) -> list[PartitionPlan]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="restore") as pool:
            plans = []
            for plan in pool.map(look, paths):
                self._tell()
                plans.append(plan)
            return plans

    def _look(self, path: PartitionPath) -> PartitionPlan:
        try:
            loaded = RootFile(self._store, path, new_id=self._new_id).load()
            if loaded is None:
                check_root_never_was(self._store, path, self._shared(path))
                return _nothing(path)
            return _plan_of(loaded.root, self._resolved(loaded.root))
        except _AMISS as error:
            return replace(_nothing(path), problem=str(error), is_readable=False)

    def _fence(self, path: PartitionPath, *, node: str) -> PartitionPlan:
        file = RootFile(self._store, path, new_id=self._new_id)
        for _ in range(_ATTEMPTS):
            try:
                return self._claimed(file, path, file.load(), node)
            except OvertakenError:
                continue  # by the leader that was, and it can not be many times
            except _AMISS as error:
                return replace(_nothing(path), problem=str(error), is_readable=False)
        raise OvertakenError(
            f"partition {path.partition} of stream {path.uuid}: another cluster goes on writing to the bucket; stop "
            "its nodes first"
        )

    def _claimed(self, file: RootFile, path: PartitionPath, loaded: Loaded | None, node: str) -> PartitionPlan:
        if loaded is None:
            check_root_never_was(self._store, path, self._shared(path))
            file.commit(None, create(path, epoch=EPOCH_GAP, node=node, start=0))
            return replace(_nothing(path), last_epoch=EPOCH_GAP)
        plan = _plan_of(loaded.root, self._resolved(loaded.root))
        if loaded.root.sealed:  # nobody adds anything
            return plan
        epoch = plan.last_epoch + EPOCH_GAP
        file.commit(loaded, claim(loaded.root, epoch=epoch, node=node, start=plan.end))
        return replace(plan, last_epoch=epoch)

    def _resolved(self, root: Root) -> Resolved:
        resolved = self._resolve(root, {})
        if resolved.end < root.claims[-1].start:  # claimed since the sets were read, perhaps
            resolved = self._resolve(root, self._sets)
        return resolved

    def _resolve(self, root: Root, outdated: Mapping[str, _Set]) -> Resolved:
        path = PartitionPath(root.uuid, root.partition)
        known = dict(outdated)
        parts = {}
        for node in {each.node for each in root.claims}:
            members = self._sets.get(node)
            if members is None or known.get(node) is members:
                members = self._sets[node] = self._load(node)
            parts[node] = self._part(node, path)
        return resolve(root, {node: part for node, part in parts.items() if part is not None})

    def _part(self, node: str, path: PartitionPath) -> SetPart | None:
        """What a node shares of a partition."""
        for _ in range(_ATTEMPTS):
            loaded = self._sets[node].loaded
            if loaded is None:
                return None
            try:
                return self._file(node).part(loaded.manifest, path)
            except OvertakenError:  # the node that was goes on writing
                self._sets[node] = self._load(node)
        raise OvertakenError(f"node {node} of another cluster goes on writing to the bucket; stop it first")

    def _shared(self, path: PartitionPath) -> Iterator[SetPart]:
        """What nodes, all there are, share of a partition."""
        if self._nodes is None:
            self._nodes = nodes_with_sets(self._store)
        for node in self._nodes:
            if node not in self._sets:
                self._sets[node] = self._load(node)
            part = self._part(node, path)
            if part is not None:
                yield part

    def _load(self, node: str) -> _Set:
        loaded = self._file(node).load()
        if loaded is None:
            check_set_never_was(self._store, node)
        return _Set(loaded)

    def _file(self, node: str) -> SetManifestFile:
        return SetManifestFile(self._store, node, new_id=self._new_id, pages=self._pages)


@dataclass(frozen=True, slots=True)
class _Set:
    """The set manifest of a node as it was read; one read again is another one.

    Attributes:
        loaded: Set manifest; None where the node has none.
    """

    loaded: LoadedSet | None


def _stream_plan(uuid: str, stream: CatalogStream, found: Mapping[PartitionPath, PartitionPlan]) -> StreamPlan:
    partitions = tuple(found[PartitionPath(uuid, number)] for number in range(stream.partitions))
    if not stream.config.get("tier", True):
        text = "its history was not sent to the bucket (tier = false): it comes back empty"
        partitions = tuple(replace(each, problem=text) if not each.records else each for each in partitions)
    return StreamPlan(uuid=uuid, stream=stream, partitions=partitions)


def _nothing(path: PartitionPath) -> PartitionPlan:
    return PartitionPlan(uuid=path.uuid, partition=path.partition)


def _plan_of(root: Root, resolved: Resolved) -> PartitionPlan:
    pointers: tuple[SnapshotPointer | StreamObjectPointer, ...] = (*root.snapshots, *root.fragments)
    members = [each.member for each in resolved.members]
    epochs = [epoch for epoch, _ in resolved.epochs] + [each.epoch for each in root.claims]
    times = [each.last_timestamp for each in pointers[-1:]] + [each.last_timestamp for each in members]
    return PartitionPlan(
        uuid=root.uuid,
        partition=root.partition,
        start=root.start,
        end=resolved.end,
        last_epoch=max(epochs),
        record_epoch=resolved.epochs[-1][0] if resolved.epochs else -1,
        records=sum(each.records for each in pointers) + sum(each.records for each in members),
        stored_bytes=sum(each.size for each in pointers),
        newest_ns=max(times, default=0),
        problem="; ".join(_problems(root, resolved)),
    )


def _problems(root: Root, resolved: Resolved) -> list[str]:
    found = []
    behind = [
        member.base for node, _, member in resolved.ignored if member.base > resolved.end and counts(member, node, root)
    ]
    following = min([*behind, *(each.start for each in root.claims if each.start > resolved.end)], default=None)
    if following is not None:
        text = f"there is a gap: nothing from offset {resolved.end} to {following}, and what follows is left out"
        found.append(text)
    if root.sealed:
        found.append("it is sealed in the bucket: what is published from now on stays on disk")
    return found
