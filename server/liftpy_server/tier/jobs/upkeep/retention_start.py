"""Where the history of a partition in the bucket is to begin, by what its objects hold; changes nothing.

Objects go as a whole. Shared objects hold a quiet partition for weeks, so of them it is the records that go, a share at
a time: each time costs a write of the root, and a look at the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.reading.cache import ReadingCache
from liftpy_bucket.reading.version import TierVersion
from liftpy_server.tier.jobs.parts.members import size_of
from liftpy_server.tier.jobs.parts.roots import newest, path_of, resolved
from liftpy_server.tier.requests import WantedStartResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftpy_bucket.objects.pointers import SnapshotPointer, StreamObjectPointer
    from liftpy_bucket.reading.resolving import ResolvedMember
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import WantedStartJob

__all__ = ["first_wanted", "wanted_start"]

_SHARE: Final = 8  # of the limit, by which what shared objects hold may exceed it before some of it goes


def first_wanted(
    fragments: Iterable[StreamObjectPointer],
    *,
    start: int,
    surplus_bytes: int,
    before_ns: int,
    below: int,
) -> tuple[int, int]:
    """The first offset that is to stay, and the timestamp of the last record of the object that it is in (0: of none).

    Args:
        fragments: Oldest first; looked at no further than needed.
        start: Where the history begins.
        surplus_bytes: Bytes of objects that may go because there is too much.
        before_ns: An object may go when all of it is older; 0 is no limit.
        below: Objects that reach beyond this offset are no surplus.
    """
    for fragment in fragments:
        is_surplus = fragment.size <= surplus_bytes and fragment.end <= below
        is_old = fragment.last_timestamp < before_ns
        if not (is_surplus or is_old):
            return start, fragment.last_timestamp
        surplus_bytes -= fragment.size
        start = max(start, fragment.end)
    return start, 0


def wanted_start(context: Context, request: WantedStartJob) -> WantedStartResult:
    """The job: see `retention.stored_limits` for its request, next to `uuid` and `partition`.

    Raises:
        ObjectMissingError: the bucket has nothing of the partition.
    """
    path = path_of(request)
    root = newest(context, path).root
    held = resolved(context, root)
    below, stored_max = request.below, request.stored_bytes_max
    children: tuple[SnapshotPointer | StreamObjectPointer, ...] = (*root.snapshots, *root.fragments)
    own = sum(each.size for each in children if each.base < below)
    shared = sum(size_of(each) for each in held.members if each.start < below)
    surplus = 0 if stored_max < 0 else own + shared - stored_max
    start, oldest_ns = first_wanted(
        RootFile(context.store, path, new_id=context.new_id).fragments(root, root.start),
        start=root.start,
        surplus_bytes=surplus,
        before_ns=request.before_ns,
        below=below,
    )
    if oldest_ns or not held.members:
        return WantedStartResult(start=start, oldest_ns=oldest_ns)
    if surplus - own > stored_max // _SHARE:
        start = max(start, _start_by_bytes(held.members, surplus - own, below))
    slack_ns = max(0, context.now_ns() - request.before_ns) // _SHARE if request.before_ns else 0
    first_ns = _time_at(held.members, start)
    if first_ns + slack_ns < request.before_ns:
        version = TierVersion(context.store, path, root, held, ReadingCache(context.store))
        found = version.offset_at_time(request.before_ns)
        start, first_ns = max(start, held.end if found is None else found), request.before_ns
    return WantedStartResult(start=start, oldest_ns=first_ns + slack_ns)


def _time_at(members: Sequence[ResolvedMember], offset: int) -> int:
    """About when the first record from an offset on was stored, ns, as if they came evenly; 0 where there is none."""
    for each in members:
        member = each.member
        if each.end > offset:
            passed = max(0, max(each.start, offset) - member.base)
            lasted_ns = member.last_timestamp - member.first_timestamp
            return member.first_timestamp + lasted_ns * passed // (member.end - member.base)
    return 0


def _start_by_bytes(members: Sequence[ResolvedMember], surplus_bytes: int, below: int) -> int:
    """The first offset that is to stay of what shared objects hold, as if its records were of one size."""
    start = members[0].start
    for each in members:
        size = size_of(each)
        if surplus_bytes < size:
            return min(below, start + (each.end - each.start) * surplus_bytes // size)
        surplus_bytes -= size
        start = each.end
    return min(below, start)
