"""The objects of a copy: waves of tasks, what they have to tell, and what is looked up anew.

What streams share no pin holds. Where such an object has gone meanwhile, what took its place up to the same offset is
copied instead. All else that is missing or damaged is named, once all that can be copied has been.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.json import Fields
from liftpy_bucket.manifest.pointer_format import fragments_of
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.reading.version import open_version
from liftpy_envelope.errors import LiftError
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.bins import bytes_of
from liftpy_spark.jobs.copy.source import new_id, tail_pieces, whole_piece
from liftpy_spark.jobs.copy.task import CopyItem, CopyTask, copy_objects
from liftpy_spark.jobs.parts import Part
from liftpy_spark.jobs.tasks import JobFailedError, run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.json import Row
    from liftpy_bucket.objects.pointers import StreamObjectPointer
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.copy.source import SourcePartition
    from liftpy_spark.jobs.tasks import Progress

__all__ = ["CopyDamagedError", "CopyProblem", "ObjectCopies", "copy_all"]

_WAVE_TASKS: Final = 256
_LOOKS_MAX: Final = 16
_ITEM_BYTES_LEAST: Final = 1024 * 1024  # what the requests for a small object cost, told in bytes
_PROBLEMS_SHOWN_MAX: Final = 5
_OUTCOME: Final = re.compile("copied|there|missing|corrupt")
_TEXT: Final = re.compile(r"(?s).{0,65536}")


class CopyProblem(NamedTuple):
    """An object that is not what it must be.

    Attributes:
        kind: `missing` or `corrupt`.
        path: Path of the partition that needs it.
        offset: Offset from which on the partition is concerned.
        key: Key of the object.
        text: Error text.
    """

    kind: str
    path: PartitionPath
    offset: int
    key: str
    text: str


class CopyDamagedError(LiftError):
    """Objects of the source are missing or damaged, and nothing was made visible.

    Args:
        problems: All of them.
        labels: Labels of partitions, for people.
    """

    def __init__(self, problems: Sequence[CopyProblem], labels: Mapping[PartitionPath, str]) -> None:
        shown = "; ".join(
            f"{labels[each.path]} from offset {each.offset} on: {each.text}" for each in problems[:_PROBLEMS_SHOWN_MAX]
        )
        more = len(problems) - _PROBLEMS_SHOWN_MAX
        super().__init__(
            f"nothing can be seen at the destination, as the history is not whole: {shown}"
            + (f"; and {more} more objects" if more > 0 else "")
        )
        self.problems = tuple(problems)


class ObjectCopies:
    """What became of objects.

    Attributes:
        copied: How many were written.
        there: How many were there already.
        size: Bytes of those that were written.
        made: Fragments that the source does not have as such, by the first offset of each.
        problems: What could not be copied.
    """

    def __init__(self) -> None:
        self.copied = self.there = self.size = 0
        self.made: dict[PartitionPath, dict[int, StreamObjectPointer]] = {}
        self.problems: list[CopyProblem] = []


class _Wanted(NamedTuple):
    """An object that is to be copied, and for which partition."""

    of: SourcePartition
    item: CopyItem

    @property
    def is_tail(self) -> bool:
        return self.item.base == self.of.root.end


class _Row(NamedTuple):
    """What a task tells of an object."""

    number: int
    outcome: str
    size: int
    key: str
    text: str
    pointer: StreamObjectPointer | None


def copy_all(
    spark: SparkSession,
    source: S3Settings,
    target: S3Settings,
    partitions: Mapping[PartitionPath, SourcePartition],
    labels: Mapping[PartitionPath, str],
    *,
    task_bytes: int,
    progress: Progress | None = None,
) -> ObjectCopies:
    """Copy all objects of partitions.

    Args:
        spark: Spark session.
        source: Where they are.
        target: Where they go.
        partitions: Partitions by their paths.
        labels: Labels of the partitions, for people.
        task_bytes: About how much a task copies.
        progress: Called with how many objects are done, of how many.

    Raises:
        TierError: a manifest can not be read.
        JobFailedError: a task failed for good.
        CopyDamagedError: objects are missing or damaged; all others were copied.
        OvertakenError: what is shared went time and again.
    """
    copies = ObjectCopies()
    total = sum(of.objects for of in partitions.values())
    shares = _shares((each for of in partitions.values() for each in _wanted(source, of)), task_bytes)
    done = 0
    while wave := list(islice(shares, _WAVE_TASKS)):
        objects = sum(map(len, wave))
        moved = None if progress is None else _from(progress, done, objects, total)
        _copy_wave(spark, source, target, wave, copies, moved)
        done += objects
    if copies.problems:
        raise CopyDamagedError(copies.problems, labels)
    return copies


def _from(progress: Progress, before: int, objects: int, total: int) -> Progress:
    return lambda done, tasks: progress(before + objects * done // tasks, total)


def _wanted(source: S3Settings, of: SourcePartition) -> Iterator[_Wanted]:
    """All objects of a partition, in order; the snapshots that name them are read on the way."""
    bare = replace(of.root, epochs=of.epochs, snapshots=(), fragments=())
    for pointer in RootFile(store_of(source), of.path, new_id=new_id).fragments(of.root):
        part = Part(bare, (whole_piece(of.path, pointer),))
        yield _Wanted(of, CopyItem(part, pointer.base, pointer.end, is_own=not pointer.home))
    if of.end > of.root.end:
        yield _Wanted(of, CopyItem(Part(bare, of.tail), of.root.end, of.end, is_own=False))


def _shares(wanted: Iterable[_Wanted], task_bytes: int) -> Iterator[list[_Wanted]]:
    """What a task does each, made as they are asked for: of a large history nobody keeps all in memory."""
    share: list[_Wanted] = []
    total = 0
    for each in wanted:
        size = max(_ITEM_BYTES_LEAST, sum(map(bytes_of, each.item.part.pieces)))
        if share and total + size > task_bytes:
            yield share
            share, total = [], 0
        share.append(each)
        total += size
    if share:
        yield share


def _copy_wave(
    spark: SparkSession,
    source: S3Settings,
    target: S3Settings,
    wave: Sequence[Sequence[_Wanted]],
    copies: ObjectCopies,
    progress: Progress | None,
) -> None:
    waiting = list(wave)
    for _ in range(_LOOKS_MAX):
        flat = [each for share in waiting for each in share]
        numbers = iter(enumerate(flat))
        tasks = [
            CopyTask(source, target, tuple((number, each.item) for number, each in islice(numbers, len(share))))
            for share in waiting
        ]
        told = run_tasks(
            spark, tasks, copy_objects, what="copying", read=partial(_read_rows, count=len(flat)), progress=progress
        )
        rows = sorted((row for task in told for row in task), key=lambda row: row.number)
        if [row.number for row in rows] != list(range(len(flat))):
            raise JobFailedError("copying: tasks did not tell of the objects that they were given")
        waiting = []
        for row in rows:
            wanted = flat[row.number]
            again = _looked_up(source, wanted) if row.outcome == "missing" and wanted.is_tail else None
            if again is None:
                _note(copies, wanted, row)
            else:
                waiting.append([again])
        if not waiting:
            return
        progress = None  # it is about the wave as a whole
    raise OvertakenError(f"objects that streams share went {_LOOKS_MAX} times while they were copied: do it again")


def _read_rows(plain: Any, count: int) -> list[_Row]:
    """What `copy_objects` gave.

    Raises:
        ManifestCorruptError: it is not that.
    """
    rows = Fields("copied", "result", {"copied": plain}, ("copied",)).rows("copied", len(_Row._fields))
    return [
        _Row(
            number=row.number(0, most=count - 1),
            outcome=row.text(1, _OUTCOME),
            size=row.number(2),
            key=row.text(3, _TEXT),
            text=row.text(4, _TEXT),
            pointer=None if row.is_null(5) else _pointer(row),
        )
        for row in rows
    ]


def _pointer(row: Row) -> StreamObjectPointer:
    (pointer,) = fragments_of(Fields("copied", "pointer", {"made": [row.mapping(5)]}, ("made",)), "made")
    return pointer


def _looked_up(source: S3Settings, wanted: _Wanted) -> _Wanted | None:
    """The same range, of what holds it now; None where that is what held it before."""
    version = open_version(store_of(source), wanted.of.path)
    pieces = () if version is None else tail_pieces(version, wanted.item.base, wanted.item.end)
    if pieces == wanted.item.part.pieces:
        return None
    return wanted._replace(item=wanted.item._replace(part=wanted.item.part._replace(pieces=pieces)))


def _problem(wanted: _Wanted, row: _Row) -> CopyProblem:
    return CopyProblem(row.outcome, wanted.of.path, wanted.item.base, row.key, row.text)


def _note(copies: ObjectCopies, wanted: _Wanted, row: _Row) -> None:
    """Take note of what became of an object.

    Raises:
        JobFailedError: the task made something else than it was to make.
    """
    if row.outcome in ("missing", "corrupt"):
        copies.problems.append(_problem(wanted, row))
        return
    copies.copied += row.outcome == "copied"
    copies.there += row.outcome == "there"
    copies.size += row.size if row.outcome == "copied" else 0
    if wanted.item.is_own:
        return
    made, pieces = row.pointer, wanted.item.part.pieces
    if made is None or (made.base, made.end, made.home) != (wanted.item.base, wanted.item.end, ""):
        raise JobFailedError(f"copying: a task made something else of {row.key} than it was to make")
    if not wanted.is_tail and made.setsum != pieces[0].pointer.setsum:
        raise JobFailedError(f"copying: {made.name} has not the records of {row.key}")
    copies.made.setdefault(wanted.of.path, {})[made.base] = made
