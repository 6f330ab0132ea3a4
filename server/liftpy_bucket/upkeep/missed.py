"""Roots and set manifests that were there and are not: what they named tells, and nothing must be begun anew over it.

Nobody here ever deletes one. A rule of the bucket or a hand may have; then a partition looks as if it had never been.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import RootMissingError
from liftpy_bucket.layout import set_object_key, set_root_key
from liftpy_bucket.manifest.root.reach import is_ours
from liftpy_bucket.manifest.stream_sets.format import SEQUENCE_FIRST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.stream_sets.format import SetPart
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["check_root_never_was", "check_set_never_was", "trace_of"]

_BEFORE_FIRST: Final = f"{SEQUENCE_FIRST - 1:020d}-"


def trace_of(store: ObjectStore, path: PartitionPath, parts: Iterable[SetPart]) -> str | None:
    """Key of an object that only a root of the partition can have named; None where there is no such object.

    Args:
        store: Where the partition would be.
        path: Path of the partition.
        parts: What the set manifests of all nodes say of it; looked at only where it has no objects of its own.

    Raises:
        StoreError: the store could not be asked.
    """
    for entry in store.list(path.directory):
        if is_ours(path, entry.key):
            return entry.key
    for part in parts:
        for pointer in part.objects:
            if any((member.uuid, member.partition) == path for member in pointer.members):
                return set_object_key(part.node, pointer.name)
    return None


def check_root_never_was(store: ObjectStore, path: PartitionPath, parts: Iterable[SetPart]) -> None:
    """Check, where there is no root, that there was none. Arguments and errors are those of `trace_of`.

    Raises:
        RootMissingError: there was one.
    """
    found = trace_of(store, path, parts)
    if found is not None:
        raise RootMissingError(path.root, found)


def check_set_never_was(store: ObjectStore, node: str) -> None:
    """Check, where a node has no set manifest, that it had none.

    A manifest that names nothing is written before the first object. Only where older programs began one may be there
    without: that of sequence 0, which is given out no more.

    Raises:
        RootMissingError: it had one.
        StoreError: the store could not be asked.
    """
    directory = set_object_key(node, "")
    for entry in store.list(directory):
        name = entry.key.removeprefix(directory)
        if name[:20].isdecimal() and name.endswith(".parquet") and not name.startswith(_BEFORE_FIRST):
            raise RootMissingError(set_root_key(node), entry.key)
