"""Where the history of a partition in the bucket is to begin, by what its objects hold; changes nothing.

Objects go as a whole. What shared objects hold stays until it has moved into objects of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.manifest.root.file import RootFile
from liftpy_server.tier.jobs.parts.roots import newest, path_of
from liftpy_server.tier.requests import WantedStartResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_bucket.objects.pointers import FragmentPointer
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import WantedStartJob

__all__ = ["first_wanted", "wanted_start"]


def first_wanted(
    fragments: Iterable[FragmentPointer],
    *,
    start: int,
    surplus_bytes: int,
    before_ns: int,
    below: int,
) -> tuple[int, int]:
    """The first offset that is to stay, and the timestamp of the last record of the object that it is in (0: of none).

    Args:
        fragments: oldest first; looked at no further than needed.
        start: where the history begins.
        surplus_bytes: of objects that may go because there is too much.
        before_ns: an object may go when all of it is older; 0 is no limit.
        below: objects that reach beyond this offset are no surplus.
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
    stored_max = request.stored_bytes_max
    below = request.below
    stored = sum(each.size for each in root.snapshots if each.base < below)
    stored += sum(each.size for each in root.fragments if each.base < below)
    start, oldest_ns = first_wanted(
        RootFile(context.store, path, new_id=context.new_id).fragments(root, root.start),
        start=root.start,
        surplus_bytes=0 if stored_max < 0 else stored - stored_max,
        before_ns=request.before_ns,
        below=below,
    )
    return WantedStartResult(start=start, oldest_ns=oldest_ns)
