"""Key compaction by Spark: of every key the last record stays in the bucket, by the rules of the node's own.

See `liftpy_bucket.upkeep.compaction` for the rules. Three steps for each partition, one partition after the other:

1. Tasks read the footers of its objects: how many tombstones there are, and since when they are clean.
2. Tasks read the keys, and Spark brings the rows of a key together: what has a newer one is superseded.
3. Tasks write objects anew without that, and the driver names them in the root, up to 128 at once, oldest first.

A record goes only when a newer one of its key is in the bucket, so whatever is committed may stand as it is. Who is
killed leaves objects that nothing names, for the collector. A leader may be at work all the while: who comes second to
a root is refused and looks again. But it could not tell its readers that tombstones are gone, as it reads the root
only now and then; so they stay unless no node works with the bucket.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.compaction import HistoryCompactionConfig, plan_history
from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.bins import TASK_BYTES, bins_of
from liftpy_spark.jobs.compact.commit import commit, held, root_file
from liftpy_spark.jobs.compact.frames import find_superseded, run_rewrites
from liftpy_spark.jobs.compact.plan import Rules, clean_end_of, plan_rewrites
from liftpy_spark.jobs.compact.task import Pass, look_at, read_looks
from liftpy_spark.jobs.tasks import JobFailedError, run_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_bucket.upkeep.compaction import HistoryPlan
    from liftpy_spark.jobs.compact.plan import FooterFacts, Rewrite
    from liftpy_spark.jobs.tasks import Progress

__all__ = [
    "CompactPlan",
    "CompactResult",
    "NotCompactedError",
    "compact",
    "config_of",
    "plan_compact",
    "shared_records",
]

_ATTEMPTS: Final = 3
_REWRITES_PER_COMMIT: Final = 128
_FOOTERS_PER_TASK: Final = 256
_SEED_BYTES: Final = 32


class NotCompactedError(LiftError):
    """The stream keeps all records of a key."""


class CompactPlan(NamedTuple):
    """What is done for a partition.

    Attributes:
        epoch: The leader epoch in its root.
        history: What the pass works on.
    """

    epoch: int
    history: HistoryPlan

    @property
    def objects(self) -> int:
        """How many are looked at."""
        return len(self.history.pointers)

    @property
    def size(self) -> int:
        """Bytes of these."""
        return sum(each.size for each in self.history.pointers)

    @property
    def new_bytes(self) -> int:
        """Bytes of what came in since the last pass."""
        return sum(each.size for each in self.history.pointers if each.end > self.history.compacted_end)


class CompactResult(NamedTuple):
    """What was done.

    Attributes:
        dropped: How many records went.
        replaced: How many objects became others.
        made: How many there are in their place.
        bytes_before: Size of the objects before, bytes.
        bytes_after: Size of the objects after, bytes.
    """

    dropped: int = 0
    replaced: int = 0
    made: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def config_of(name: str, config: Mapping[str, Any], *, object_bytes: int) -> HistoryCompactionConfig:
    """How the history of a stream is compacted; it always pays, as somebody asks for it.

    Args:
        name: Name of the stream.
        config: Settings of the stream, as the catalog has them.
        object_bytes: Neighbours that are written anew become one object up to this size.

    Raises:
        NotCompactedError: the stream is not to be compacted.
        LiftError: the settings make no sense.
    """
    stream = StreamConfig.from_plain(config)
    if not stream.compact:
        raise NotCompactedError(
            f"stream {name} keeps all records of a key (compact = false), so nothing was done; if only the last record "
            f"of each is wanted, say so first: liftpy stream edit {name} --compact. The bucket's catalog has it some "
            "seconds later"
        )
    return HistoryCompactionConfig(
        min_lag_ns=int(stream.min_compaction_lag_s * 1e9),
        delete_retention_ns=int(stream.delete_retention_s * 1e9),
        min_dirty_ratio=0.0,
        object_bytes=object_bytes,
    )


def plan_compact(
    settings: S3Settings, paths: Sequence[PartitionPath], config: HistoryCompactionConfig
) -> list[CompactPlan]:
    """What `compact` would work on now; nothing of partitions to which nothing came since the last pass.

    Args:
        settings: Settings of the bucket.
        paths: The partitions.
        config: Configuration of the compaction.

    Raises:
        TierError: a manifest can not be read.
    """
    plans = (_plan(settings, path, config) for path in paths)
    return [plan for plan in plans if plan is not None]


def shared_records(settings: S3Settings, paths: Sequence[PartitionPath]) -> int:
    """How many records partitions have in objects that streams share, of which no pass takes note.

    Args:
        settings: Settings of the bucket.
        paths: The partitions.

    Raises:
        TierError: a manifest can not be read.
    """
    store = store_of(settings)
    versions = (open_version(store, path) for path in paths)
    return sum(
        piece.pointer.records
        for version in versions
        if version is not None and version.end > version.root.end
        for piece in version.pieces(version.root.end)
    )


def _plan(settings: S3Settings, path: PartitionPath, config: HistoryCompactionConfig) -> CompactPlan | None:
    file, now_ns = root_file(settings, path), time.time_ns()
    loaded = file.load()
    if loaded is None:
        return None
    root = loaded.root
    history = plan_history(
        file.fragments(root),
        path=path,
        compacted_end=root.compacted_end,
        delete_horizon=root.delete_horizon,
        clean_end=root.end,
        held=held(settings, path, now_ns),
        now_ns=now_ns,
        config=config,
    )
    return None if history is None else CompactPlan(root.claims[-1].epoch, history)


def compact(
    spark: SparkSession,
    settings: S3Settings,
    plans: Sequence[CompactPlan],
    config: HistoryCompactionConfig,
    *,
    alone: bool,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
) -> CompactResult:
    """Compact partitions.

    Args:
        spark: The session.
        settings: Settings of the bucket.
        plans: What `plan_compact` gave.
        config: Configuration, as for the plans.
        alone: No node works with this bucket, so that tombstones may go.
        progress: Called with what is done, of how much.
        task_bytes: About how much of the bucket a task of the second step reads the keys of.

    Raises:
        JobFailedError: a task failed for good; what was committed before stays.
        OvertakenError: others changed or pinned what was compacted, each time; the same.
        TierError: it could not be committed, or it can not be told; the same again is harmless.
    """
    rules = Rules(config.object_bytes, config.delete_retention_ns if alone else None)
    steps = _Steps(progress, sum(_tasks_of(plan, task_bytes) for plan in plans))
    done = CompactResult()
    for first in plans:
        plan: CompactPlan | None = first
        for attempts_left in reversed(range(_ATTEMPTS)):
            if plan is None:
                break
            work = _Run(spark, settings, plan, rules, steps, task_bytes)
            try:
                work.run()
                break
            except (OvertakenError, JobFailedError, ObjectMissingError) as error:
                if not attempts_left or not (isinstance(error, OvertakenError) or work.is_overtaken()):
                    raise
                plan = _plan(settings, plan.history.path, config)
            finally:
                done = CompactResult(*map(sum, zip(done, work.done, strict=True)))
    return done


def _tasks_of(plan: CompactPlan, task_bytes: int) -> int:
    """Of the first two steps."""
    return -(-plan.objects // _FOOTERS_PER_TASK) + len(_key_bins(plan.history, task_bytes))


def _key_bins(history: HistoryPlan, task_bytes: int) -> list[list[tuple[int, StreamObjectPointer]]]:
    """Objects, with their places, whose keys tasks read: not of what is held and clean, as it takes no part."""
    places = [
        (place, each)
        for place, each in enumerate(history.pointers)
        if each.end > history.compacted_end or not history.is_held(each)
    ]
    return [[places[at] for at in share] for share in bins_of([each.size for _, each in places], task_bytes)]


class _Run:
    """One pass over a partition.

    Attributes:
        done: What was committed so far.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: S3Settings,
        plan: CompactPlan,
        rules: Rules,
        steps: _Steps,
        task_bytes: int,
    ) -> None:
        self._spark, self._settings, self._history, self._rules = spark, settings, plan.history, rules
        self._steps, self._task_bytes = steps, task_bytes
        history, seed = plan.history, os.urandom(_SEED_BYTES)
        self._pass = Pass(settings, history.path, plan.epoch, history.compacted_end, history.delete_horizon, seed)
        self._left = {*history.pointers}
        self.done = CompactResult()

    def run(self) -> None:
        """Do all of it."""
        looks = self._looks()
        bins = _key_bins(self._history, self._task_bytes)
        with find_superseded(self._spark, self._pass, bins, self._steps.next(len(bins))) as found:
            rewrites = list(plan_rewrites(self._history, looks, found.places, self._rules))
            clean_end = clean_end_of(self._history)
            waves = range(0, max(1, len(rewrites)), _REWRITES_PER_COMMIT)
            for start in waves:
                wave = rewrites[start : start + _REWRITES_PER_COMMIT]
                born = self._version()
                made = run_rewrites(self._spark, found, self._pass, wave, self._steps.next(len(wave))) if wave else []
                is_last = start == waves[-1]
                pairs = list(zip(wave, made, strict=True))
                commit(self._settings, self._history.path, pairs, born, clean_end if is_last else None)
                self._count(pairs)

    def is_overtaken(self) -> bool:
        """Whether the root names others by now than the objects that were to be looked at and were not replaced."""
        file = root_file(self._settings, self._history.path)
        loaded = file.load()
        return loaded is None or not self._left <= {*file.fragments(loaded.root)}

    def _looks(self) -> list[FooterFacts]:
        pointers = self._history.pointers
        given = [
            (self._pass, pointers[start : start + _FOOTERS_PER_TASK])
            for start in range(0, len(pointers), _FOOTERS_PER_TASK)
        ]
        progress = self._steps.next(len(given))
        found = run_tasks(self._spark, given, look_at, what="reading footers", read=read_looks, progress=progress)
        looks = [look for each in found for look in each]
        if len(looks) != len(pointers):
            raise JobFailedError(f"reading footers: tasks told of {len(looks)} objects, and not of {len(pointers)}")
        return looks

    def _version(self) -> int:
        """Of the root, before objects are written that it is to name."""
        loaded = root_file(self._settings, self._history.path).load()
        return 0 if loaded is None else loaded.root.version

    def _count(self, pairs: Sequence[tuple[Rewrite, Any]]) -> None:
        old = [pointer for given, _ in pairs for pointer in given.pointers]
        new = [made.pointer for _, made in pairs if made.pointer is not None]
        self._left -= {*old}
        now = (
            *(sum(made.dropped for _, made in pairs), len(old), len(new)),
            *(sum(each.size for each in old), sum(each.size for each in new)),
        )
        self.done = CompactResult(*map(sum, zip(self.done, now, strict=True)))


class _Steps:
    """Tells of all steps together: how many tasks are done, of those that are known by then."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._before = self._current = 0

    def next(self, count: int) -> Progress | None:
        """Begin with a step of so many tasks; gives what is told of it."""
        progress = self._progress
        if progress is None:
            return None
        before = self._before = self._before + self._current
        self._current = count
        total = self._total = max(self._total, before + count)
        return lambda done, _: progress(before + min(done, count), total)
