"""Exporting by Spark: the driver plans ranges of offsets, tasks write each of them as a file, the driver commits.

Every version that is read is pinned while it is. What streams share no pin holds: where an object has gone meanwhile,
its range is looked up anew. So is what was pinned for a shorter time than the export took.

An export goes on where the one before ended, whatever became of that: the target says which offsets it has.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import uuid4

from liftpy_bucket.errors import ObjectMissingError, OvertakenError
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.reading.version import TierVersion, open_version
from liftpy_envelope.errors import LiftError
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.bins import TASK_BYTES, bins_of, bytes_of
from liftpy_spark.jobs.export.files import check_apart
from liftpy_spark.jobs.export.task import ExportedFile, ExportTask, MissingPiece, export_range, read_exported
from liftpy_spark.jobs.parts import Part, bare_root
from liftpy_spark.jobs.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.reading.version import Piece
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.export.files import ExportPlace
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["ExportPlan", "ExportRange", "ExportRefusedError", "ExportResult", "ExportTarget", "export", "plan_export"]

_PIN_NAME: Final = "spark-export"
_HOLD_S: Final = 6 * 3_600.0
_WAVE_TASKS: Final = 256
_LOOKS_MAX: Final = 16


class ExportRefusedError(LiftError):
    """What the target has is not of this history."""


class ExportRange(NamedTuple):
    """A range of offsets that becomes one file.

    Attributes:
        path: Path of the partition.
        start: The first offset.
        end: The offset after the last one.
        part: What holds it.
        size: About how many bytes of the bucket that is.
    """

    path: PartitionPath
    start: int
    end: int
    part: Part
    size: int


class ExportTarget(Protocol):
    """What files are exported to."""

    place: ExportPlace

    def covered(self, path: PartitionPath) -> list[tuple[int, int]]:
        """The ranges [start, end) of a partition that it has, in ascending order, without overlaps."""

    def file_name(self, path: PartitionPath, start: int, end: int) -> str:
        """How the file of a range is called."""

    def commit(self, ranges: Sequence[ExportRange], files: Sequence[ExportedFile]) -> None:
        """Take files into it, those of each partition in order; once, however often they come."""


class ExportPlan(NamedTuple):
    """What an export would do: how many files it would write, of about how many bytes of the bucket."""

    files: int
    size: int


class ExportResult(NamedTuple):
    """What an export did: how many files it wrote, the records in them, and their bytes."""

    files: int
    records: int
    size: int


def plan_export(
    settings: S3Settings, paths: Sequence[PartitionPath], target: ExportTarget, *, task_bytes: int = TASK_BYTES
) -> ExportPlan:
    """What `export` would do now.

    Args:
        settings: Settings of the bucket.
        paths: Paths of the partitions.
        target: What is exported to.
        task_bytes: About how much a task reads.

    Raises:
        TierError: a manifest can not be read.
        ExportRefusedError: the target has more than the bucket.
        ExportPlaceError: the target lies in the bucket of the cluster.
    """
    check_apart(target.place, settings)
    store = store_of(settings)
    versions = [version for path in paths if (version := open_version(store, path)) is not None]
    ranges = [each for version in versions for each in _ranges(version, [*version.pieces()], target, task_bytes)]
    return ExportPlan(len(ranges), sum(each.size for each in ranges))


def export(
    spark: SparkSession,
    settings: S3Settings,
    stream: str,
    paths: Sequence[PartitionPath],
    target: ExportTarget,
    *,
    include_headers: bool = False,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
    hold_s: float = _HOLD_S,
) -> ExportResult:
    """Write what a target does not have yet of a stream.

    Args:
        spark: Spark session.
        settings: Settings of the bucket.
        stream: The name of the stream.
        paths: Paths of the partitions.
        target: What is exported to.
        include_headers: Whether there is a column `headers`.
        progress: Called with what is done, of how much.
        task_bytes: About how much a task reads.
        hold_s: Time for which the objects are held if this is killed, seconds.

    Raises:
        TierError: something in the bucket can not be read, or no pin can be written there.
        JobFailedError: a task failed for good; what was committed before stays.
        ExportRefusedError: the target has more than the bucket.
        ExportPlaceError: the target lies in the bucket of the cluster.
        LiftError: the target did not take it.
    """
    check_apart(target.place, settings)
    target.place.clear()
    done = ExportResult(0, 0, 0)
    with _held(settings, paths, hold_s) as versions:
        ranges = [each for version, pieces in versions for each in _ranges(version, pieces, target, task_bytes)]
        waiting, total = iter(ranges), len(ranges)
        before = 0
        while wave := list(islice(waiting, _WAVE_TASKS)):
            moved = None if progress is None else _from(progress, before, total)
            files = _written(spark, settings, stream, wave, target, include_headers, moved)
            target.commit(wave, files)
            before += len(wave)
            there = [file for file in files if file.records]
            done = ExportResult(
                done.files + len(there),
                done.records + sum(file.records for file in there),
                done.size + sum(file.size for file in there),
            )
    return done


def _from(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


@contextmanager
def _held(
    settings: S3Settings, paths: Sequence[PartitionPath], hold_s: float
) -> Iterator[list[tuple[TierVersion, list[Piece]]]]:
    """The newest version of each partition, and its pieces; what its root names is pinned as long as this lasts."""
    store = store_of(settings)
    held: list[tuple[TierVersion, list[Piece]]] = []
    with ExitStack() as undo:
        for path in paths:
            if RootFile(store, path, new_id=_new_id).load() is None:
                continue
            pins = Pins(store, path, new_id=_new_id, now_ns=time.time_ns)
            pin = pins.hold_version(_PIN_NAME, int(hold_s * 1e9))
            undo.callback(_release, pins, pin)
            assert pin.root is not None, "it pins a version"
            newest = open_version(store, path)
            assert newest is not None, "a root is never deleted while it is pinned"
            pinned = TierVersion(store, path, pin.root, None)
            behind = (piece._replace(start=max(piece.start, pinned.end)) for piece in newest.pieces(pinned.end))
            held.append((newest, [*pinned.pieces(), *behind]))
        yield held


def _release(pins: Pins, pin: object) -> None:
    try:
        pins.release(pin)  # type: ignore[arg-type]  # what `hold_version` gave
    except OvertakenError:
        return  # a collector has found it expired at this moment: then it is gone as well


def _new_id() -> str:
    return uuid4().hex


def _ranges(
    version: TierVersion, pieces: Sequence[Piece], target: ExportTarget, task_bytes: int
) -> Iterator[ExportRange]:
    """What is to be written of a partition, in order."""
    covered = target.covered(version.path)
    if covered and covered[-1][1] > version.end:
        raise ExportRefusedError(
            f"{target.place.url} has offsets of partition {version.path.home} up to {covered[-1][1]}, and the bucket "
            f"only up to {version.end}: was it restored from an older state? Export to a place of its own"
        )
    for start, end in _left(version.start, version.end, covered):
        inside = [piece for piece in pieces if piece.end > start and piece.start < end and piece.pointer.records]
        bins = bins_of([bytes_of(piece) for piece in inside], task_bytes)
        edges = [start, *(max(start, inside[each.start].start) for each in bins[1:]), end]
        for number, share in enumerate(bins):
            part = Part(bare_root(version), tuple(inside[at] for at in share))
            size = sum(map(bytes_of, part.pieces))
            yield ExportRange(version.path, edges[number], edges[number + 1], part, size)


def _left(start: int, end: int, covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of [start, end) is not covered."""
    for first, last in covered:
        if first > start:
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end


def _written(
    spark: SparkSession,
    settings: S3Settings,
    stream: str,
    wave: Sequence[ExportRange],
    target: ExportTarget,
    include_headers: bool,  # noqa: FBT001 (passed on as it came)
    progress: Progress | None,
) -> list[ExportedFile]:
    """The files of ranges; an object that is gone is looked for under its new name."""
    files: dict[int, ExportedFile] = {}
    ranges = dict(enumerate(wave))
    for _ in range(_LOOKS_MAX):
        tasks = [
            ExportTask(
                settings=settings,
                place=target.place,
                name=target.file_name(each.path, each.start, each.end),
                stream=stream,
                part=each.part,
                start=each.start,
                end=each.end,
                include_headers=include_headers,
            )
            for each in ranges.values()
        ]
        done = run_tasks(spark, tasks, export_range, what="exporting", read=read_exported, progress=progress)
        missing: dict[int, str] = {}
        for number, result in zip(list(ranges), done, strict=True):
            if isinstance(result, MissingPiece):
                missing[number] = result.key
            else:
                files[number] = result
        if not missing:
            return [files[number] for number in range(len(wave))]
        ranges = {number: _looked_up(settings, wave[number], key) for number, key in missing.items()}
        progress = None  # it is about the wave as a whole
    raise OvertakenError(f"objects went {_LOOKS_MAX} times while they were exported: export at a quieter time")


def _looked_up(settings: S3Settings, wanted: ExportRange, missing: str) -> ExportRange:
    """What holds a range now.

    Raises:
        ObjectMissingError: the missing object, still: it is lost.
    """
    version = open_version(store_of(settings), wanted.path)
    pieces = () if version is None else tuple(version.pieces(wanted.start, wanted.end))
    if version is None or any(piece.key == missing for piece in pieces):
        raise ObjectMissingError(missing)
    return wanted._replace(part=Part(bare_root(version), pieces))
