"""Merging by Spark: the driver plans runs of small objects, tasks write one object for each, the driver commits.

What goes in comes out: a task compares the sums of what it read with what the manifest says, and a commit is refused
that would not conserve the sum of the partition. An object that was written and not committed is garbage.

It is the leader of a partition that merges. So this is done only where none can be.
"""

from __future__ import annotations

import mmap
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.boundary import check
from liftpy_bucket.manifest.json import Fields
from liftpy_bucket.manifest.pointer_format import fragment_plain, fragments_of
from liftpy_bucket.manifest.root.changes import replace
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.merging import merge_fragments
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.store.conditional import create_once
from liftpy_envelope.errors import LiftError
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.bins import bins_of
from liftpy_spark.jobs.tasks import JobFailedError, run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["LeaderAtWorkError", "MergeRun", "merge", "plan_merge"]

_RUNS_PER_COMMIT: Final = 64
_ATTEMPTS: Final = 4


class LeaderAtWorkError(LiftError):
    """A node may be the leader of the partition, and must be the only one that merges."""


class MergeRun(NamedTuple):
    """Neighbours that become one object.

    Attributes:
        path: Path of the partition.
        epoch: The leader epoch in its root.
        pointers: Pointers to the objects, ascending.
    """

    path: PartitionPath
    epoch: int
    pointers: tuple[StreamObjectPointer, ...]


class _MergeTask(NamedTuple):
    """What a task gets."""

    settings: S3Settings
    run: MergeRun


def plan_merge(
    settings: S3Settings,
    paths: Sequence[PartitionPath],
    *,
    object_bytes: int,
    alone: bool,
    labels: Mapping[PartitionPath, str] | None = None,
) -> list[MergeRun]:
    """What `merge` would do now, in order.

    Args:
        settings: Settings of the bucket.
        paths: Paths of the partitions.
        object_bytes: How large objects become at most; those of more than half of it stay as they are.
        alone: No node writes to this bucket.
        labels: Names of the partitions, for messages; by default they are called by uuid and number.

    Raises:
        LeaderAtWorkError: one may, to a partition that is not sealed.
        TierError: a manifest can not be read.
    """
    named = labels or {}
    shown = [(path, named.get(path, f"partition {path.home}")) for path in paths]
    return [run for path, label in shown for run in _runs(settings, path, label, object_bytes, alone=alone)]


def _runs(
    settings: S3Settings, path: PartitionPath, label: str, object_bytes: int, *, alone: bool
) -> Iterator[MergeRun]:
    file = RootFile(store_of(settings), path, new_id=_new_id)
    loaded = file.load()
    if loaded is None:
        return
    root = loaded.root
    if not alone and not root.sealed:
        raise LeaderAtWorkError(
            f"{label} is tiered by node {root.claims[-1].node}, which merges by itself and must be the "
            "only one that does; merge a sealed partition, or say that no node writes to this bucket any more (--alone)"
        )
    there = list(file.fragments(root))
    # What belongs to a partition of which this one is a fork stays as it is: it is there once for both.
    sizes = [object_bytes if each.home or each.size * 2 > object_bytes else each.size for each in there]
    for share in bins_of(sizes, object_bytes):
        if len(share) > 1:
            yield MergeRun(path, root.claims[-1].epoch, tuple(there[at] for at in share))


def merge(
    spark: SparkSession, settings: S3Settings, runs: Sequence[MergeRun], *, progress: Progress | None = None
) -> int:
    """Merge runs of objects.

    Args:
        spark: Spark session.
        settings: Settings of the bucket.
        runs: What `plan_merge` gave.
        progress: Called with what is done, of how much.

    Returns:
        how many objects became others.

    Raises:
        JobFailedError: a task failed for good; what was committed before stays.
        OvertakenError: others changed what was merged: plan anew.
        TierError: it could not be committed, or it can not be told; the same again is harmless.
    """
    for start in range(0, len(runs), _RUNS_PER_COMMIT):
        wave = runs[start : start + _RUNS_PER_COMMIT]
        moved = None if progress is None else _from(progress, start, len(runs))
        born = {path: _version(settings, path) for path in dict.fromkeys(run.path for run in wave)}
        tasks = [_MergeTask(settings, run) for run in wave]
        made = run_tasks(spark, tasks, _merge_run, what="merging", read=_read_pointer, progress=moved)
        for run, pointer in zip(wave, made, strict=True):
            _check(run, pointer)
        for path, version in born.items():
            _commit(settings, path, [pair for pair in zip(wave, made, strict=True) if pair[0].path == path], version)
    return sum(len(run.pointers) for run in runs)


def _from(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def _merge_run(task: _MergeTask) -> dict[str, Any]:
    """Write the object of a run; gives the pointer to it, as manifests write it."""
    store, path, pointers = store_of(task.settings), task.run.path, task.run.pointers
    nonce = _new_id()
    name = f"{pointers[0].base:020d}-{task.run.epoch}-{nonce}.parquet"
    with TemporaryFile() as file:
        written = merge_fragments(store, path, pointers, file, nonce=nonce)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as body:
            create_once(store, path.fragment(name), body, nonce)
    return fragment_plain(written.pointer(name, base=pointers[0].base, end=pointers[-1].end))


def _read_pointer(plain: Any) -> StreamObjectPointer:
    """What `_merge_run` gave.

    Raises:
        ManifestCorruptError: it is not a pointer.
    """
    (pointer,) = fragments_of(Fields("merged", "result", {"merged": [plain]}, ("merged",)), "merged")
    return pointer


def _check(run: MergeRun, made: StreamObjectPointer) -> None:
    """See that an object is that of a run: of the same offsets, with the same records.

    Raises:
        JobFailedError: it is not.
    """
    total = Setsum.total(each.setsum for each in run.pointers)
    if (made.base, made.end, made.setsum) != (run.pointers[0].base, run.pointers[-1].end, total):
        raise JobFailedError(
            f"merging: a task wrote {made.name} for {run.path.root} from offset {run.pointers[0].base} on, and it has "
            "not the records that it was to have; nothing of this step was committed"
        )


def _version(settings: S3Settings, path: PartitionPath) -> int:
    """Of the root, before objects are written that it is to name."""
    loaded = RootFile(store_of(settings), path, new_id=_new_id).load()
    return 0 if loaded is None else loaded.root.version


def _commit(
    settings: S3Settings, path: PartitionPath, made: Sequence[tuple[MergeRun, StreamObjectPointer]], born: int
) -> None:
    """Name the new objects of a partition, which were begun at a version of its root, all at once.

    Raises:
        OvertakenError: others changed what was merged, or were faster each time.
    """
    store = store_of(settings)
    file = RootFile(store, path, new_id=_new_id)
    start, end = made[0][0].pointers[0].base, made[-1][0].pointers[-1].end
    goes = {each.name for run, _ in made for each in run.pointers}
    failure: OvertakenError | None = None
    for _ in range(_ATTEMPTS):
        loaded = file.load()
        if loaded is None:
            break
        root = loaded.root
        there = [each for each in file.fragments(root) if each.base < end and each.end > start]
        if not goes <= {each.name for each in there}:
            break
        if root.version != born:
            check(store, path.directory, path.fragment(made[0][1].name), born)
        kept = [each for each in there if each.name not in goes]
        new = sorted([*kept, *(pointer for _, pointer in made)], key=lambda each: each.base)
        snapshots = file.snapshots(root, start, end)
        try:
            file.commit(loaded, replace(root, there, new, collected=NO_RECORDS, snapshots=snapshots))
        except OvertakenError as error:
            failure = error
            continue
        return
    raise failure or OvertakenError(f"{path.root} names other objects by now than those that were merged: merge again")


def _new_id() -> str:
    return uuid4().hex
