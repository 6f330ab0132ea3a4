"""Naming what key compaction has written: one compare-and-swap of the root, or nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.manifest.boundary import check
from liftpy_bucket.manifest.pins.pin import held_ranges
from liftpy_bucket.manifest.root.changes import replace
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum
from liftpy_bucket.upkeep.live import settled_pins, walking
from liftpy_spark.jobs.access import store_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.changes import Change
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.compact.plan import Rewrite
    from liftpy_spark.jobs.compact.task import Made

__all__ = ["commit", "held", "root_file"]

_ATTEMPTS: Final = 8


def root_file(settings: S3Settings, path: PartitionPath) -> RootFile:
    """What reads and writes the root of a partition."""
    return RootFile(store_of(settings), path, new_id=_new_id)


def held(settings: S3Settings, path: PartitionPath, now_ns: int) -> tuple[tuple[int, int | None], ...]:
    """(first offset, offset after the last one or None for all that follow) of what cursors and pins hold."""
    pins = settled_pins(store_of(settings), root_file(settings, path), new_id=_new_id, now_ns=now_ns)
    return held_ranges(pins, now_ns)


def commit(
    settings: S3Settings,
    path: PartitionPath,
    made: Sequence[tuple[Rewrite, Made]],
    born: int,
    compacted_end: int | None,
) -> None:
    """Name new objects instead of old ones, all at once. Others may append, and change what lies beside.

    Args:
        settings: Settings of the bucket.
        path: Path of the partition.
        made: What takes the place of what, oldest first.
        born: Version of the root as it was before the first of the objects was begun.
        compacted_end: Key compaction has looked at everything below this offset; None: there is more to come.

    Raises:
        OvertakenError: others changed what was compacted, or hold it; or they were faster each time.
        ManifestCorruptError: the sums do not balance.
    """
    store, file = store_of(settings), root_file(settings, path)
    failure: OvertakenError | None = None
    for _ in range(_ATTEMPTS):
        loaded = file.load()
        if loaded is None:
            break
        root = loaded.root
        if not made and root.compacted_end >= (compacted_end or 0):
            return
        new = next((each.pointer for _, each in made if each.pointer is not None), None)
        if new is not None and root.version != born:
            check(store, path.directory, path.fragment(new.name), born)
        if made:
            _check_free(settings, path, made)  # after the root was read: whoever pins since makes it move on
        try:
            with walking(file, loaded):
                change = _change(file, root, made, compacted_end)
            file.commit(loaded, change)
        except OvertakenError as error:
            failure = error
            continue
        return
    raise failure or OvertakenError(f"{path.root} is gone")


def _change(file: RootFile, root: Root, made: Sequence[tuple[Rewrite, Made]], compacted_end: int | None) -> Change:
    if not made:
        return replace(root, (), (), collected=NO_RECORDS, snapshots={}, compacted_end=compacted_end)
    start, end = made[0][0].pointers[0].base, made[-1][0].pointers[-1].end
    goes = {pointer for given, _ in made for pointer in given.pointers}
    there = [each for each in file.fragments(root, start, end) if each.base < end and each.end > start]
    if not goes <= {*there}:
        raise OvertakenError(f"{file.path.root} names other objects by now than those that were compacted")
    new = [each for each in there if each not in goes] + [each.pointer for _, each in made if each.pointer is not None]
    return replace(
        root,
        there,
        sorted(new, key=lambda each: each.base),
        collected=Setsum.total(each.collected for _, each in made),
        snapshots=file.snapshots(root, start, end),
        delete_horizon=max(each.delete_horizon for _, each in made),
        compacted_end=compacted_end,
    )


def _check_free(settings: S3Settings, path: PartitionPath, made: Sequence[tuple[Rewrite, Made]]) -> None:
    for start, end in held(settings, path, time.time_ns()):
        for given, _ in made:
            pointers = given.pointers
            if start < pointers[-1].end and (end is None or end > pointers[0].base):
                offset = max(start, pointers[0].base)
                raise OvertakenError(f"offset {offset} of {path.directory} was pinned while it was compacted")


def _new_id() -> str:
    return uuid4().hex
