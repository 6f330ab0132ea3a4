"""The roots that jobs change: looked at only when they must be, and changed by whoever may.

A commit builds on the root as this process saw it last. Where the store says that it is another one by now, or where
what is to be committed does not fit it, it is looked at again, and the change is made anew on what is there: then
either it fits, or the error says for good why it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from liftpy_bucket.errors import LineageError, ObjectMissingError, OvertakenError, RootMissingError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.boundary import check
from liftpy_bucket.manifest.root.file import Loaded, RootFile
from liftpy_bucket.reading.resolving import Resolved, resolve
from liftpy_bucket.upkeep.missed import check_set_never_was

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.manifest.root.changes import Change
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.manifest.stream_sets.file import LoadedSet
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_server.tier.jobs.parts.context import Context

__all__ = [
    "Created",
    "check_in_force",
    "check_never_was",
    "check_sets_are_there",
    "commit",
    "file_of",
    "find",
    "known",
    "newest",
    "newest_set",
    "path_of",
    "resolved",
]

_ATTEMPTS: Final = 4  # others that write a root are few: a collector, an operator


class Created(NamedTuple):
    """An object that was written to be named by a root.

    Attributes:
        key: Key of the object.
        born: Version of the root as it was known when the object was begun, see `boundary`.
    """

    key: str
    born: int


class _OfPartition(Protocol):
    @property
    def uuid(self) -> str: ...
    @property
    def partition(self) -> int: ...


def path_of(request: _OfPartition) -> PartitionPath:
    """The partition that a job is about."""
    return PartitionPath(request.uuid, request.partition)


def file_of(context: Context, path: PartitionPath) -> RootFile:
    """What reads and writes the root; kept, because it remembers the snapshots that the next commits fold."""
    return context.files.get(path) or context.files.keep(path, RootFile(context.store, path, new_id=context.new_id))


def find(context: Context, path: PartitionPath) -> Loaded | None:
    """The root as it is now, if there is one."""
    file, cached = file_of(context, path), context.roots.get(path)
    try:
        loaded = file.load() if cached is None else file.load_newer(cached) or cached
    except ObjectMissingError:
        context.roots.drop(path)  # or every attempt of an upload would write its object before it finds that out
        return None
    return None if loaded is None else context.roots.keep(path, loaded)


def newest(context: Context, path: PartitionPath) -> Loaded:
    """The root as it is now.

    Raises:
        ObjectMissingError: there is none.
    """
    loaded = find(context, path)
    if loaded is None:
        raise ObjectMissingError(path.root)
    return loaded


def check_never_was(context: Context, path: PartitionPath, log_start: int) -> None:
    """Check, where there is no root, that somebody has not deleted it: a new one would forget what it named.

    A log that begins with its first record has all there ever was, and needs no look.

    Args:
        context: Context of the worker.
        path: Path of the partition.
        log_start: Where the local log begins.

    Raises:
        RootMissingError: there are objects that it must have named.
    """
    found = next(iter(context.store.list(path.fragment(""))), None) if log_start else None
    if found is not None:
        raise RootMissingError(path.root, found.key)


def check_sets_are_there(context: Context, root: Root, end: int, log_start: int) -> None:
    """Check, where neither bucket nor log has some offsets, that nobody has deleted a set manifest that has them.

    Args:
        context: Context of the worker.
        root: Root of the partition.
        end: Where the history in the bucket ends.
        log_start: Where the local log begins.

    Raises:
        RootMissingError: a node that has claimed the partition has shared objects, and no manifest of them.
    """
    if end < log_start:
        for node in dict.fromkeys(claim.node for claim in root.claims):
            if newest_set(context, node) is None:
                check_set_never_was(context.store, node)


def known(context: Context, path: PartitionPath) -> Loaded:
    """The root as it was seen last, or as it is now."""
    return context.roots.get(path) or newest(context, path)


def commit(
    context: Context, path: PartitionPath, change_of: Callable[[Root], Change | None], created: Created | None = None
) -> Loaded:
    """Change a root.

    Args:
        context: Context of the worker.
        path: Path of the partition.
        change_of: The change, made of the root as it is; None where there is nothing to change. What it raises counts
            only when the root was looked at just before.
        created: An object that the change names.

    Raises:
        OvertakenError: others were faster each time, or so slow were we that what was created may be collected.
    """
    loaded, is_fresh = context.roots.get(path), False
    for _ in range(_ATTEMPTS):
        if loaded is None:
            loaded, is_fresh = newest(context, path), True
        if created is not None and loaded.root.version != created.born:
            check(context.store, path.directory, created.key, created.born)
        try:
            change = change_of(loaded.root)
            if change is None:
                return loaded
            return context.roots.keep(path, file_of(context, path).commit(loaded, change))
        except OvertakenError:
            loaded = None
        except LineageError:
            if is_fresh:
                raise
            loaded = None
        except BaseException:
            context.roots.drop(path)  # it may have been written
            raise
    raise OvertakenError(f"the root of {path.directory} was changed by others {_ATTEMPTS} times while we tried to")


def check_in_force(root: Root, epoch: int) -> None:
    """Check that a leader's claim is the one in force.

    Raises:
        LineageError: it is not.
    """
    if not root.claims or root.claims[-1].epoch != epoch:
        there = f"the claim in force is of leader epoch {root.claims[-1].epoch}" if root.claims else "there is none"
        raise LineageError(f"leader epoch {epoch} has no claim to streams/{root.uuid}/{root.partition}: {there}")


def resolved(context: Context, root: Root, own: str = "") -> Resolved:
    """What the bucket holds of a partition, set members included.

    Args:
        context: Context of the worker.
        root: Root of the partition.
        own: The node whose set manifest nobody but this process writes; "" if none. All others are looked at.
    """
    path = PartitionPath(root.uuid, root.partition)
    parts: dict[str, SetPart] = {}
    for node in dict.fromkeys(claim.node for claim in root.claims):  # in the same order in every process
        part = _part(context, node, path, may_be_known=node == own)
        if part is not None:
            parts[node] = part
    return resolve(root, parts)


def _part(context: Context, node: str, path: PartitionPath, *, may_be_known: bool) -> SetPart | None:
    loaded = context.sets.get(node) if may_be_known else None
    for _ in range(_ATTEMPTS):
        if loaded is None:
            loaded = newest_set(context, node)
        if loaded is None:
            return None
        try:
            return context.set_file(node).part(loaded.manifest, path)
        except OvertakenError:
            loaded = None
    raise OvertakenError(f"the set manifest of node {node} was written {_ATTEMPTS} times while it was read")


def newest_set(context: Context, node: str) -> LoadedSet | None:
    """The set manifest of a node as it is now, if there is one; little is read where it is still the one we know.

    Raises:
        RootMissingError: the one we know was deleted, and it was not the first.
        ObjectMissingError: it was the first.
    """
    file, cached = context.set_file(node), context.sets.get(node)
    try:
        loaded = file.load() if cached is None else file.load_newer(cached) or cached
    except ObjectMissingError:
        context.sets.drop(node)
        check_set_never_was(context.store, node)
        raise
    return None if loaded is None else context.sets.keep(node, loaded)
