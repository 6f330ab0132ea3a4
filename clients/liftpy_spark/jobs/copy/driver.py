"""Copying histories from one bucket to another by Spark, so that a cluster can be restored from there.

The driver reads roots at one version of each and pins them, tasks copy and compare objects, and when all of them are
there the driver writes what names them. It may be killed at any step and repeated: what is there is not copied again,
and before the last step nothing of it can be seen.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import ForeignBucketError, ObjectMissingError, StoreDeniedError
from liftpy_bucket.layout import CATALOG, PartitionPath
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.store.probe import probe
from liftpy_spark.jobs.access import is_within, store_of
from liftpy_spark.jobs.bins import TASK_BYTES
from liftpy_spark.jobs.copy.catalog import choose, is_internal
from liftpy_spark.jobs.copy.roots import CopyRefusedError, of_its_own, with_tail
from liftpy_spark.jobs.copy.source import THREADS, held, new_id
from liftpy_spark.jobs.copy.target import (
    catalog_of,
    check_there,
    enter,
    put_cursors,
    put_root,
    put_snapshots,
    snapshots_below,
)
from liftpy_spark.jobs.copy.waves import copy_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.manifest.catalog import Catalog, CatalogStream
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.copy.catalog import Choice
    from liftpy_spark.jobs.copy.source import SourcePartition
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["CopyPlan", "CopyResult", "CopyStream", "copy_history", "plan_copy"]

_HOLD_S: Final = 24 * 3_600.0


class CopyStream(NamedTuple):
    """A stream that is copied, as the source has it.

    Attributes:
        uuid: UUID of the stream.
        name: Name of the stream.
        partitions: How many of them the source has something of.
        objects: How many it will have at the destination.
        records: Number of records in the objects, about.
        size: Size of the objects, without those that streams share, bytes.
        shared_records: How many of the records are in objects that streams share.
    """

    uuid: str
    name: str
    partitions: int
    objects: int
    records: int
    size: int
    shared_records: int


class CopyPlan(NamedTuple):
    """What a copy is of.

    Attributes:
        streams: Those that are copied, by name.
        notes: What one should know, for people.
    """

    streams: tuple[CopyStream, ...]
    notes: tuple[str, ...]


class CopyResult(NamedTuple):
    """What a copy did.

    Attributes:
        plan: What it was of.
        copied: How many objects were written.
        there: How many were there already.
        size: Bytes of those that were written.
    """

    plan: CopyPlan
    copied: int
    there: int
    size: int


def plan_copy(source: S3Settings, target: S3Settings, names: Sequence[str] = ()) -> CopyPlan:
    """What `copy_history` would copy now; nothing is written anywhere. All manifests are read, and no objects.

    Args:
        source: Where histories are.
        target: Where they are to go.
        names: Names of streams, or their uuids; () for all.

    Raises:
        CopyRefusedError: it would be refused.
        TierError: a manifest can not be read.
    """
    store = store_of(source)

    def look(of: SourcePartition) -> None:
        for _ in snapshots_below(store, of.root):
            pass  # it is read, and compared with its name

    with _chosen(source, target, names, 0.0) as (_, choice, partitions):
        with ThreadPoolExecutor(THREADS, thread_name_prefix="copy") as pool:
            list(pool.map(look, partitions.values()))
        return _plan(choice, partitions)


def copy_history(
    spark: SparkSession,
    source: S3Settings,
    target: S3Settings,
    names: Sequence[str] = (),
    *,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
    hold_s: float = _HOLD_S,
) -> CopyResult:
    """Copy streams, with all that the source has of them, and see that every record is what it was.

    Args:
        spark: Spark session.
        source: Where histories are.
        target: Where they go: a prefix without anything, with an earlier copy, or with the catalog of a cluster.
        names: Names of streams, or their uuids; () for all.
        progress: Called with how many objects are done, of how many.
        task_bytes: About how much a task copies.
        hold_s: Time for which objects of the source are held if this is killed, seconds; 0 holds nothing, and writes
            nothing to the source: for one that nobody else writes to either.

    Raises:
        CopyRefusedError: the destination has another history of a stream.
        CopyDamagedError: objects of the source are missing or damaged.
        StoreUnfitError: the store of the destination ignores conditions.
        TierError: something can not be read or written.
        JobFailedError: a task failed for good.
    """
    store, into = store_of(source), store_of(target)
    probe(into, new_id())
    with _chosen(source, target, names, hold_s) as (catalog, choice, partitions):
        labels = _labels(choice.copied)
        copies = copy_all(spark, source, target, partitions, labels, task_bytes=task_bytes, progress=progress)
        _put_roots(store, into, choice.copied, partitions, copies.made)
        enter(into, catalog, choice.copied, names)
        return CopyResult(_plan(choice, partitions), copies.copied, copies.there, copies.size)


@contextmanager
def _chosen(
    source: S3Settings, target: S3Settings, names: Sequence[str], hold_s: float
) -> Iterator[tuple[Catalog, Choice, Mapping[PartitionPath, SourcePartition]]]:
    """What is copied, held as long as this lasts, once nothing at the destination is in its way."""
    store, into = store_of(source), store_of(target)
    _check_apart(source, target)
    catalog = catalog_of(store)
    if catalog is None:
        raise ForeignBucketError(f"{source.shown} has no catalog of liftpy: is the prefix right?")
    if _written(store) == _written(into):
        raise CopyRefusedError(f"{source.shown} and {target.shown} have one catalog, so they are the same place")
    choice = choose(catalog, catalog_of(into), names)
    with ExitStack() as stack:
        kept = stack.enter_context(held(store, _groups(choice.kept), 0.0))
        try:
            copied = stack.enter_context(held(store, _groups(choice.copied), hold_s))
        except StoreDeniedError as error:
            if hold_s:
                error.add_note("where the source may only be read, and nobody writes to it, say --hold 0")
            raise
        _check_all(into, _labels(choice.kept), kept.values(), may_be_ahead=True)
        _check_all(into, _labels(choice.copied), copied.values(), may_be_ahead=False)
        yield catalog, choice, copied


def _check_apart(source: S3Settings, target: S3Settings) -> None:
    """See that of two places none lies in the other, as far as their addresses tell.

    Raises:
        CopyRefusedError: one does.
    """
    inside = is_within(target, source), is_within(source, target)
    if all(inside):
        raise CopyRefusedError(f"source and destination are the same: {source.shown}")
    if any(inside):
        raise CopyRefusedError(
            f"of {source.shown} and {target.shown} one lies below the prefix of the other, and nodes would refuse the "
            "upper one, as there are objects that are not theirs: copy to a prefix beside it, or to another bucket"
        )


def _written(store: ObjectStore) -> tuple[str, str, int] | None:
    """Which object the catalog is, and since when: a place that has two addresses has the same one at both."""
    try:
        nonce = store.head(CATALOG).nonce
    except ObjectMissingError:
        return None
    (entry,) = (each for each in store.list(CATALOG) if each.key == CATALOG)
    return nonce, entry.etag, entry.modified_ns


def _check_all(
    into: ObjectStore, labels: Mapping[PartitionPath, str], partitions: Iterable[SourcePartition], *, may_be_ahead: bool
) -> None:
    def check(of: SourcePartition) -> None:
        check_there(into, labels[of.path], of, may_be_ahead=may_be_ahead)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="copy") as pool:
        list(pool.map(check, partitions))


def _groups(streams: Mapping[str, CatalogStream]) -> list[list[PartitionPath]]:
    """The partitions of liftpy's own streams, and those of all others."""
    groups: list[list[PartitionPath]] = [[], []]
    for uuid, stream in streams.items():
        groups[not is_internal(stream)] += [PartitionPath(uuid, number) for number in range(stream.partitions)]
    return groups


def _labels(streams: Mapping[str, CatalogStream]) -> dict[PartitionPath, str]:
    return {
        PartitionPath(uuid, number): f"{stream.name}/{number}"
        for uuid, stream in streams.items()
        for number in range(stream.partitions)
    }


def _plan(choice: Choice, partitions: Mapping[PartitionPath, SourcePartition]) -> CopyPlan:
    by_stream: dict[str, list[SourcePartition]] = {}
    for path, each in partitions.items():
        by_stream.setdefault(path.uuid, []).append(each)
    streams = []
    for uuid, stream in sorted(choice.copied.items(), key=lambda each: (each[1].name, each[0])):
        of = by_stream.get(uuid, [])
        held = [(each.objects, each.records, each.size, each.shared_records) for each in of]
        totals = [sum(column) for column in zip(*held, strict=True)] or [0, 0, 0, 0]
        streams.append(CopyStream(uuid, stream.name, len(of), *totals))
    return CopyPlan(tuple(streams), choice.notes)


def _put_roots(
    store: ObjectStore,
    into: ObjectStore,
    streams: Mapping[str, CatalogStream],
    partitions: Mapping[PartitionPath, SourcePartition],
    made: Mapping[PartitionPath, Mapping[int, StreamObjectPointer]],
) -> None:
    """Write what names the objects, once all of them are there; the roots when all else of that is."""
    labels = _labels(streams)

    def prepare(of: SourcePartition) -> Root:
        put_cursors(store, into, of.path)
        return _root(store, into, of, made.get(of.path, {}))

    with ThreadPoolExecutor(THREADS, thread_name_prefix="copy") as pool:
        roots = dict(zip(partitions, pool.map(prepare, partitions.values()), strict=True))
        for group in reversed(_groups(streams)):  # what groups have committed comes behind the records
            there = [path for path in group if path in roots]
            list(pool.map(lambda path: put_root(into, labels[path], roots[path]), there))


def _root(store: ObjectStore, into: ObjectStore, of: SourcePartition, made: Mapping[int, StreamObjectPointer]) -> Root:
    """The root that a partition gets; the snapshots that it names are written."""
    tail = made.get(of.root.end)
    fragments_made = {base: each for base, each in made.items() if each is not tail}
    root, snapshots = of.root, snapshots_below(store, of.root)
    if fragments_made:  # a fork: it is to be a stream by itself
        fragments = RootFile(store, of.path, new_id=new_id).fragments(of.root)
        root, snapshots = of_its_own(of.root, [fragments_made.get(each.base, each) for each in fragments])
    put_snapshots(into, of.path, snapshots)
    return with_tail(root, of.epochs, tail)
