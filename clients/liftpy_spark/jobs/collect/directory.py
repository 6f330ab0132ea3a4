"""Collecting what the sink staged in a directory in place of the bucket: by the driver alone, which sees all of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from liftpy_spark.jobs.collect.driver import CollectResult
from liftpy_spark.sink.decision import COMMITS
from liftpy_spark.sink.directory import DirectoryPlace
from liftpy_spark.sink.staging import directory_leftovers

if TYPE_CHECKING:
    from collections.abc import Collection

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["collect_directory"]


def collect_directory(
    store: ObjectStore,
    directory: str,
    uuids: Collection[str],
    *,
    only: str | None = None,
    older_than_s: float,
    deletes: bool,
    now_ns: int | None = None,
) -> CollectResult:
    """Find staged files that nobody needs any more, by the rule of `sink.staging.directory_leftovers`.

    Args:
        store: Store of the bucket that has the decisions.
        directory: An absolute path.
        uuids: UUIDs of the streams that the bucket has; files of others stay, unless the bucket has decisions on them.
        only: The uuid of the only stream to look at; None: of all.
        older_than_s: Younger files stay, seconds: more than a batch ever takes.
        deletes: Whether they are deleted; otherwise they are counted.
        now_ns: Time by the clock of the directory, ns since the epoch; by default that of this machine.

    Raises:
        StoreError: the bucket or the directory does not answer.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns

    def is_ours(uuid: str) -> bool:
        if only is not None:
            return uuid == only
        return uuid in uuids or next(iter(store.list(f"{COMMITS}{uuid}/")), None) is not None

    found = list(directory_leftovers(store, directory, is_ours, older_than_s, now_ns))
    if deletes:
        DirectoryPlace(directory).delete([entry.key for entry in found])
    return CollectResult(len(found), sum(entry.size for entry in found))
