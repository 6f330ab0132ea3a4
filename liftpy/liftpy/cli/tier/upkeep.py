"""What `liftpy tier gc`, `merge`, `seal` and `cursor` do to the bucket, each within the rules of who may do what.

Collecting, sealing and pins are for everybody: a commit of theirs is refused when somebody else was faster, and refuses
in its turn whoever decided before it. Merging is the leader's: two that merge the same objects would be in each other's
way, and a leader that finds its objects replaced stops. So it is done here only where no leader can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy.cli.tier.bucket import new_id, now_ns
from liftpy.cli.tier.progress import show_progress
from liftpy_bucket.manifest.pins.cursors import Cursor
from liftpy_bucket.manifest.pins.held import load_pins
from liftpy_bucket.manifest.pins.pin import PinRefusedError, is_in_force
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.collecting import Collector
from liftpy_bucket.upkeep.sealing import seal
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.upkeep.merge import merge
from liftpy_server.tier.requests import MergeJob

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy.cli.tier.bucket import OpenBucket, Place
    from liftpy_bucket.manifest.pins.pin import Pin

__all__ = [
    "Collected",
    "check_readable",
    "collect_place",
    "cursor_place",
    "drop_cursor",
    "merge_place",
    "pins_of",
    "seal_place",
    "set_cursor",
]

_ROUNDS_MAX: Final = 1_000
_MEMORY_BYTES: Final = 256 << 20


class Collected(NamedTuple):
    """What was deleted of a partition: objects, and their bytes."""

    deleted: int
    freed: int


def collect_place(bucket: OpenBucket, place: Place, grace_s: float) -> Collected:
    """Delete what no root and no pin names, and what has lain around unnamed for the grace period.

    Raises:
        TierError: it could not be done; nothing that is named is ever deleted.
    """
    deleted = freed = 0
    with show_progress(f"collecting {place.label}") as move:
        collector = Collector(
            bucket.store,
            place.path,
            new_id=new_id,
            now_ns=now_ns,
            grace_ns=int(grace_s * 1e9),
            progress=lambda done, total, _text: move(done, total),
        )
        for _ in range(_ROUNDS_MAX):
            collected = collector.run()
            deleted, freed = deleted + collected.deleted, freed + collected.freed
            if not collected.more:
                break
    return Collected(deleted, freed)


def merge_place(bucket: OpenBucket, place: Place, object_bytes: int, *, alone: bool) -> int:
    """Merge the small objects of a partition; gives how many became others.

    Args:
        bucket: Bucket that has it.
        place: Partition to merge.
        object_bytes: How large objects become, bytes.
        alone: No node writes to this bucket.

    Raises:
        LiftError: a leader may be at work.
        TierError: it could not be done; what was there stays as it is.
    """
    loaded = RootFile(bucket.store, place.path, new_id=new_id).load()
    if loaded is None:
        return 0
    claim = loaded.root.claims[-1]
    if not alone and not loaded.root.sealed:
        raise LiftError(
            f"{place.label} is tiered by node {claim.node} (leader epoch {claim.epoch}), which merges by itself and "
            "must be the only one that does: see tier.merge_bytes and tier.object_bytes. When no node writes to this "
            "bucket any more, say --alone; a sealed partition needs no flag"
        )
    context = Context(
        bucket.store, new_id=new_id, now_ns=now_ns, memory_bytes_max=_MEMORY_BYTES, object_bytes=object_bytes
    )
    path = place.path
    merged = 0
    with show_progress(f"merging {place.label}"):
        more = True
        while more:  # a job of a leader does some of it, and comes again
            done = merge(context, MergeJob(uuid=path.uuid, partition=path.partition, epoch=claim.epoch))
            merged, more = merged + done.merged, done.more
    return merged


def check_readable(bucket: OpenBucket, places: Iterable[Place]) -> None:
    """See that the bucket can say where partitions end, before something is done that cannot be undone.

    Raises:
        TierError: it cannot.
    """
    for place in places:
        open_version(bucket.store, place.path)


def seal_place(bucket: OpenBucket, place: Place) -> int:
    """Seal a partition for good; gives the end of what the bucket holds of it.

    Raises:
        TierError: it could not be done, or there is nothing of it.
    """
    end = seal(bucket.store, place.path, new_id=new_id).root.end
    version = open_version(bucket.store, place.path)
    return end if version is None else version.end


def pins_of(bucket: OpenBucket, place: Place) -> list[Pin]:
    """What holds records or objects of a partition now: cursors, ranges, and versions such as those of forks.

    Raises:
        TierError: it could not be read.
    """
    now = now_ns()
    return [pin for pin in load_pins(bucket.store, place.path) if is_in_force(pin, now)]


def cursor_place(bucket: OpenBucket, stream: str, partition: int | None) -> Place:
    """The one partition that a cursor is about.

    Raises:
        UsageError: there are several.
    """
    places = bucket.places(stream, partition)
    if len(places) > 1:
        raise UsageError(f"stream {stream} has {len(places)} partitions: say --partition")
    return places[0]


def set_cursor(bucket: OpenBucket, place: Place, name: str, position: int) -> Pin:
    """Make a cursor, or move it.

    Raises:
        PinRefusedError: the bucket does not have this offset any more, or not yet; or it cannot have this name.
        OvertakenError: somebody else moved it at this moment.
    """
    cursor = Cursor(bucket.store, place.path, name, new_id=new_id)
    version = open_version(bucket.store, place.path)
    if version is not None and position > version.end:
        raise PinRefusedError(
            f"the bucket has {place.label} up to offset {version.end}: a cursor at {position} would hold nothing of it"
        )
    return cursor.advance(position, cursor.load())


def drop_cursor(bucket: OpenBucket, place: Place, name: str) -> None:
    """Let go of what a cursor holds.

    Raises:
        LiftError: there is none of this name.
        OvertakenError: somebody else moved it at this moment.
    """
    cursor = Cursor(bucket.store, place.path, name, new_id=new_id)
    found = cursor.load()
    if found is None:
        raise LiftError(f"{place.label} has no cursor {name}: liftpy tier cursor list shows those that there are")
    cursor.drop(found)
