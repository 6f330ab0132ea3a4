"""Mistakes that can be made where several write to one bucket, each as a change of the code under test.

Histories that do not find them show nothing by finding nothing.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from liftpy_bucket.manifest.root import file as root_file
from liftpy_bucket.manifest.stream_sets import file as set_file
from liftpy_bucket.store.swapping import swap
from liftpy_bucket.upkeep import collecting
from liftpy_bucket.upkeep import collecting_stream_sets as set_collecting
from liftpy_server.tier.jobs.parts import roots
from liftpy_server.tier.jobs.upkeep import collect as collect_job
from liftpy_server.tier.jobs.upkeep import compact as compact_job
from liftpy_server.tier.jobs.upkeep import merge as merge_job
from liftpy_server.tier.jobs.uploads import claim as claim_job
from liftpy_server.tier.jobs.uploads import upload as upload_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["BUGS", "planted"]

_COUNTS, _RESOLVED = set_collecting.counts, claim_job.resolved
_NO_BOUNDARY = SimpleNamespace(move=lambda *_: None)


def _forgets_its_commit(*arguments: Any, is_ours: Callable[[Any], bool], **named: Any) -> Any:
    """Whoever gets no answer takes what stands there for somebody else's."""
    return swap(*arguments, is_ours=lambda _: False, **named)


def _without_sets(context: Any, root: Any, own: str = "") -> Any:
    """A claim does not look at what the leaders before put into sets."""
    held = _RESOLVED(context, root, own)
    return type(held)(end=root.end, members=(), ignored=(), epochs=root.epochs)


Patch = tuple[Any, str, Any]
_JOBS = (upload_job, merge_job, compact_job, collect_job)
_PATCHES: dict[str, list[Patch]] = {
    "boundary_not_checked": [(roots, "check", lambda *_: None)],
    "boundary_of_a_partition_not_moved": [(collecting, "boundary", _NO_BOUNDARY)],
    "boundary_of_sets_not_moved": [(set_collecting, "boundary", _NO_BOUNDARY)],
    "claim_in_force_not_checked": [(job, "check_in_force", lambda *_: None) for job in _JOBS],
    "pins_and_root_not_read_again_before_deleting": [
        (collecting, "load_pins", lambda *_: ()),
        (collecting.Collector, "_live", lambda _, loaded: (loaded, set())),
    ],
    "grace_ignored_for_objects_of_a_partition": [(collecting, "is_older", lambda *_: True)],
    "grace_ignored_for_sets": [(set_collecting, "is_older", lambda *_: True)],
    "commit_not_recognised": [(root_file, "swap", _forgets_its_commit)],
    "commit_of_sets_not_recognised": [(set_file, "swap", _forgets_its_commit)],
    "sets_of_leaders_before_ignored": [(claim_job, "resolved", _without_sets)],
    "pins_ignored": [(collecting, "settled_pins", lambda *_, **__: ()), (collecting, "load_pins", lambda *_: ())],
    "pins_ignored_where_sets_are_collected": [(set_collecting, "load_pins", lambda *_: ())],
}
BUGS = tuple(sorted(_PATCHES))


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this is open the code has that bug."""
    with ExitStack() as stack:
        for owner, attribute, replacement in _PATCHES[name]:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
