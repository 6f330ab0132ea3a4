"""What a leader has put into shared objects comes to count for good, whoever leads next.

A set manifest is written without a look at the root: a leader that was deposed writes it just as well, and what it
holds then counts for nothing. To read the root afterwards would prove nothing either: a claimer that has read the set
manifests already may be about to commit. So the root is written again, as it is, with If-Match. Where that goes well
the claim was in force after the manifest was written, and whoever was about to claim has to begin anew, and reads the
manifest as it is now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_bucket.manifest.root.changes import claim
from liftpy_server.tier.jobs.parts.roots import check_in_force, commit, path_of
from liftpy_server.tier.requests import NothingResult

if TYPE_CHECKING:
    from liftpy_bucket.manifest.root.changes import Change
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_server.tier.jobs.parts.context import Context
    from liftpy_server.tier.requests import ConfirmJob

__all__ = ["confirm"]


def confirm(context: Context, request: ConfirmJob) -> NothingResult:
    """Confirm that a claim is in force, so that earlier uploads under it count for good. Usually one write.

    Args:
        context: What the jobs of the worker share.
        request: What is wanted.

    Raises:
        LineageError: this leader has no claim in force.
        OvertakenError: others write this root; try again.
    """
    path = path_of(request)
    with context.roots.alone(path, context.progress):
        commit(context, path, lambda root: _renewed(root, request))
    return NothingResult()


def _renewed(root: Root, request: ConfirmJob) -> Change | None:
    epoch = request.epoch
    check_in_force(root, epoch)
    if root.sealed:  # nobody claims it any more
        return None
    return claim(root, epoch=epoch, node=request.node, start=root.end)
