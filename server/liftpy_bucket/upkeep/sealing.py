"""Seals: a sealed partition takes no further record, for good, so that it can be moved elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import LineageError, OvertakenError
from liftpy_bucket.manifest.root.changes import seal as seal_root
from liftpy_bucket.manifest.root.file import RootFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.file import Loaded
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["seal"]

_ATTEMPTS: Final = 16


def seal(store: ObjectStore, path: PartitionPath, *, new_id: Callable[[], str]) -> Loaded:
    """Seal a partition; no-op where it is sealed. Merging, retention and collection go on.

    Args:
        store: Where it is.
        path: Path of the partition.
        new_id: Gives a new unique id.

    Returns:
        the sealed root; what stream sets hold behind its end is still read.

    Raises:
        LineageError: the bucket has nothing of the partition.
        OvertakenError: other writers were faster, many times.
    """
    root_file = RootFile(store, path, new_id=new_id)
    for _ in range(_ATTEMPTS):
        loaded = root_file.load()
        if loaded is None:
            raise LineageError(f"the bucket has nothing of partition {path.home}, which was to be sealed")
        if loaded.root.sealed:
            return loaded
        try:
            return root_file.commit(loaded, seal_root(loaded.root))
        except OvertakenError:
            continue
    raise OvertakenError(f"{path.root} is written so often that it could not be sealed: try again")
