"""What `liftpy tier verify`, `scrub` and `export-list` do: they only read the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.markup import escape

from liftpy.cli.run import stdout, tell_warnings
from liftpy.cli.tier.bucket import new_id
from liftpy.cli.tier.progress import show_progress
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes
from liftpy_bucket.errors import BucketVersionError, ManifestCorruptError
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.upkeep.exporting import export_list
from liftpy_bucket.upkeep.missed import check_root_never_was, trace_of
from liftpy_bucket.upkeep.scrubbing import scrub
from liftpy_bucket.upkeep.verifying import Problem, verify
from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy.cli.tier.bucket import OpenBucket, Place
    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_bucket.upkeep.exporting import Export, ExportedObject
    from liftpy_bucket.upkeep.verifying import Report

__all__ = [
    "Checked",
    "Exported",
    "check",
    "export",
    "judged",
    "parts_of",
    "tell_checked",
    "tell_exported",
    "tell_nothing",
    "tell_urls",
]

_SETS: Final = "sets/"
_BEHIND_SLASH: Final = "0"  # the character that follows on "/"
_NOTHING: Final = "nothing in the bucket"
_EXTRA_SHOWN: Final = "not named by any manifest: work in progress, or not yet collected"


class Checked(NamedTuple):
    """A partition, and what was found.

    Attributes:
        place: The partition.
        report: What was found.
        is_empty: The bucket has nothing of it, nor ever had.
    """

    place: Place
    report: Report
    is_empty: bool

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        report = self.report
        return {
            "stream": self.place.label.rpartition("/")[0],
            "uuid": self.place.path.uuid,
            "partition": self.place.path.partition,
            "version": report.version,
            "start": report.start,
            "end": report.end,
            "objects": report.objects,
            "records": report.records,
            "bytes": report.size,
            "orphans": report.orphans,
            "problems": [problem._asdict() for problem in report.problems],
        }


def check(bucket: OpenBucket, places: list[Place], *, reads_all: bool) -> Iterator[Checked]:
    """Verify partitions, one after the other.

    Args:
        bucket: Bucket that has them.
        places: Partitions to check.
        reads_all: Read every byte of them, too.

    Raises:
        TierError: the bucket could not be asked.
    """
    store = bucket.store
    for place in places:
        what = "scrubbing" if reads_all else "verifying"
        with show_progress(f"{what} {place.label}", in_bytes=reads_all) as move:
            if reads_all:
                report = scrub(store, place.path, lambda done, total, _text: move(done, total))
            else:
                report = verify(
                    store,
                    place.path,
                    progress=lambda done, total, _text: move(done, total),
                )
        yield judged(store, place, report)


def judged(store: ObjectStore, place: Place, report: Report) -> Checked:
    """What a report means: a partition without a root of which nothing was ever there has no problem.

    Raises:
        StoreError: the bucket could not be asked.
    """
    if [each.kind for each in report.problems] != ["missing"] or report.problems[0].key != place.path.root:
        return Checked(place, report, is_empty=False)
    try:
        is_empty = trace_of(store, place.path, parts_of(store, place.path)) is None
    except (ManifestCorruptError, BucketVersionError) as error:
        is_empty, text = False, f"{error}. Whether it names records of this partition cannot be told until then"
        report.problems = [Problem("manifest", getattr(error, "key", _SETS), None, text)]
    if is_empty:
        report.problems.clear()
    return Checked(place, report, is_empty)


def parts_of(store: ObjectStore, path: PartitionPath) -> Iterator[SetPart]:
    """What the set manifests of all nodes say of a partition; what is wrong with one is raised when it is reached.

    Raises:
        TierError: one cannot be read.
    """
    for node in _nodes(store):
        file = SetManifestFile(store, node, new_id=new_id)
        loaded = file.load_root()
        if loaded is not None:
            yield file.part(loaded.root, path)


def _nodes(store: ObjectStore) -> Iterator[str]:
    """Those that have put shared objects there; one listing for each, whatever it has there."""
    behind = _SETS
    while (entry := next(store.list(_SETS, behind), None)) is not None and entry.key > behind:
        node = entry.key.removeprefix(_SETS).partition("/")[0]
        yield node
        behind = f"{_SETS}{node}{_BEHIND_SLASH}"


def tell_checked(checked: Checked) -> None:
    """A line for the partition, and one for each problem."""
    report, label = checked.report, escape(checked.place.label)
    if checked.is_empty:
        stdout.print(f"{label}: {_NOTHING}")
        return
    size = f", {show_bytes(report.size)}" if report.size else ""
    held = (
        f"offsets {report.start} to {report.end}, {count_of(report.records, 'record')} in "
        f"{count_of(report.objects, 'object')}{size}"
    )
    state = f"[bold red]{count_of(len(report.problems), 'problem')}[/]" if report.problems else "[green]all is well[/]"
    stdout.print(f"{label}: {held}: {state}")
    for problem in report.problems:
        at = "" if problem.offset is None else f" offset {problem.offset}:"
        stdout.print(f"  [red]{problem.kind}[/] {escape(problem.key)}:{at} {escape(problem.text)}")
    if report.orphans:
        stdout.print(f"  [dim]{count_of(len(report.orphans), 'object')} {_EXTRA_SHOWN}[/]")


class Exported(NamedTuple):
    """A partition, and the objects of one version of it."""

    place: Place
    export: Export

    def to_plain(self, prefix: str) -> dict[str, Any]:
        """For JSON; `prefix` is what the address of every object begins with."""
        return {
            "stream": self.place.label.rpartition("/")[0],
            "uuid": self.place.path.uuid,
            "partition": self.place.path.partition,
            "version": self.export.version,
            "start": self.export.start,
            "end": self.export.end,
            "epochs": self.export.epochs,
            "objects": [{"url": prefix + each.key} | each._asdict() for each in self.export.objects],
        }


def export(bucket: OpenBucket, place: Place) -> Exported | None:
    """The objects of the newest version of a partition; None where the bucket has nothing of it.

    Raises:
        RootMissingError: there is no root, and there was one.
        TierError: the bucket could not be asked.
    """
    found = export_list(bucket.store, place.path)
    if found is None:
        check_root_never_was(bucket.store, place.path, parts_of(bucket.store, place.path))
        return None
    return Exported(place, found)


def tell_exported(exported: Exported, prefix: str) -> None:
    """A line for each object; `prefix` is what the address of every object begins with."""
    for each in exported.export.objects:
        stdout.print(prefix + each.key + _shown(each), markup=False)


def tell_urls(exported: Sequence[Exported], prefix: str) -> None:
    """The address of every object, and nothing else.

    Args:
        exported: The partitions.
        prefix: What the address of every object begins with.

    Raises:
        UsageError: rows of one do not count: whoever reads it whole reads other streams, or what was purged.
    """
    objects = [each for partition in exported for each in partition.export.objects]
    parts = [prefix + each.key for each in objects if not each.is_whole]
    if parts:
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        raise UsageError(
            f"{parts[0]}{more} also hold rows that are not of this stream, or were removed from it, so a list of "
            "addresses is not enough to read it: use --sql for DuckDB, or --json, which says which rows count"
        )
    for each in objects:
        stdout.print(prefix + each.key, markup=False)


def tell_nothing(place: Place) -> None:
    """Why the list has no line of a partition; beside the list, which may be read by a program."""
    tell_warnings([f"{place.label}: {_NOTHING} yet; liftpy tier status says what waits"])


def _shown(each: ExportedObject) -> str:
    shared = ", in a shared object" if each.is_shared else ""
    return f"  offsets {each.start} to {each.end}, {show_bytes(each.size)}{shared}"
