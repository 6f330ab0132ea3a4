"""Which nodes have shared objects in the bucket: those of this cluster, and those that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["nodes_with_sets"]

_PREFIX: Final = "sets/"


def nodes_with_sets(store: ObjectStore) -> list[str]:
    """Their ids, sorted: all of the listing is read, as not every store sorts by whole keys."""
    return sorted({entry.key.removeprefix(_PREFIX).partition("/")[0] for entry in store.list(_PREFIX)})
