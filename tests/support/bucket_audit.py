"""What a test has left in a bucket: once garbage is collected, every object is named by something.

The nodes are gone by then. So their jobs run here, without a grace period, and by a clock that is so far ahead that no
pin holds any more; what the audit still finds is a leak.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_bucket.store.probe import PROBES
from liftpy_bucket.upkeep.auditing import audit
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.upkeep.collect import collect, collect_sets, drop_stream
from liftpy_server.tier.requests import CollectJob, CollectSetsJob, DropStreamJob

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["leaks_in"]

_AHEAD_NS: Final = 7 * 86_400 * 10**9
_MEMORY_BYTES: Final = 256 << 20
_OBJECT_BYTES: Final = 64 << 20
_PASSES: Final = 3  # a fork lets go of its source in one, and its source of the objects in the next
_PASSES_MAX: Final = 6
_TICK_S: Final = 1.1  # S3 tells times by the second, and what a pass itself has left must be older than its commit
_PARTITION: Final = re.compile(r"streams/([0-9a-f]{32})/([0-9]{1,9})/")
_SET: Final = re.compile(r"sets/([^/]+)/")


def leaks_in(store: ObjectStore) -> list[str]:
    """Objects that nothing names and no job takes: keys, and what they are.

    Raises:
        TierError: Something in the bucket makes no sense.
    """
    context = Context(
        store,
        new_id=_new_id,
        now_ns=_later_ns,
        memory_bytes_max=_MEMORY_BYTES,
        object_bytes=_OBJECT_BYTES,
        grace_ns=0,
    )
    catalog = CatalogFile(store, new_id=_new_id).load()
    streams = {} if catalog is None else catalog.catalog.streams
    for turn in range(_PASSES_MAX):
        if turn >= _PASSES:
            if not _garbage(store):
                return []
            time.sleep(_TICK_S)
        keys = [entry.key for entry in store.list("")]
        for uuid, number in sorted({found.groups() for key in keys if (found := _PARTITION.match(key))}):
            if uuid not in streams:
                drop_stream(context, DropStreamJob(uuid=uuid, partitions=int(number) + 1))
            while collect(context, CollectJob(uuid=uuid, partition=int(number), grace_ns=0)).more:
                pass
        for node in sorted({found[1] for key in keys if (found := _SET.match(key))}):
            loaded = SetManifestFile(store, node, new_id=_new_id).load()
            if loaded is not None:
                collect_sets(context, CollectSetsJob(node=node, incarnation=loaded.manifest.incarnation))
    return _garbage(store)


def _garbage(store: ObjectStore) -> list[str]:
    """What an audit lists, but for probes of nodes that were killed: these are deleted a day later."""
    found = audit(store, now_ns=_later_ns()).garbage
    return [f"{extra.key}: {extra.text}" for extra in found if not extra.key.startswith(PROBES)]


def _later_ns() -> int:
    return time.time_ns() + _AHEAD_NS


def _new_id() -> str:
    return uuid4().hex
