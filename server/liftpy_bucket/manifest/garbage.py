"""GARBAGE: what a collection is about to take away, written before the root moves on and before anything is deleted.

It says what the collector worked from, so that the next one, whatever became of the first, can tell; it is reset when
the collection is done. A collector deletes by what it has checked itself, never by what it finds here, so that two of
them at once do not act on each other's lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.errors import ManifestCorruptError
from liftpy_bucket.manifest.document import load_document, swap_document
from liftpy_bucket.objects.setsum import NO_RECORDS, Setsum

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.root.changes import Change
    from liftpy_bucket.manifest.root.format import Root
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["KEYS_MAX", "NOTHING", "Garbage", "check_balance", "load_garbage", "swap_garbage"]

KEYS_MAX: Final = 10_000
_FIELDS: Final = ("root_version", "start", "setsum", "keys")
_KEY: Final = re.compile(r"(fragments|snapshots|pins)/[A-Za-z0-9_./-]{1,300}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What one collection takes away.

    Attributes:
        root_version: Version of the root that it was computed from; 0: no collection is in progress.
        start: Where the root is to begin after it.
        setsum: Setsum of the records that the root will not name any more.
        keys: Keys of the objects to be deleted, below the directory of the partition; at most KEYS_MAX.
        etag: Witness for the next swap; "" when there was no GARBAGE.
        modified_ns: When it was written, by the clock of the store.
    """

    root_version: int = 0
    start: int = 0
    setsum: Setsum = NO_RECORDS
    keys: tuple[str, ...] = ()
    etag: str = ""
    modified_ns: int = 0


NOTHING: Final = Garbage()
"""No collection is in progress."""


def load_garbage(store: ObjectStore, path: PartitionPath) -> Garbage:
    """Read GARBAGE.

    Raises:
        ManifestCorruptError: it can not be read.
    """
    document = load_document(store, path.garbage, _FIELDS)
    if document is None:
        return NOTHING
    fields = document.fields
    return Garbage(
        root_version=fields.number("root_version"),
        start=fields.number("start"),
        setsum=fields.setsum("setsum"),
        keys=fields.texts("keys", _KEY),
        etag=document.etag,
        modified_ns=document.modified_ns,
    )


def swap_garbage(
    store: ObjectStore, path: PartitionPath, garbage: Garbage, etag: str, new_id: Callable[[], str]
) -> str:
    """Write GARBAGE over the one with `etag`, or, where that is "", where there is none.

    Returns:
        the etag of what was written.

    Raises:
        OvertakenError: another collector wrote it meanwhile.
    """
    plain: dict[str, Any] = {
        "root_version": garbage.root_version,
        "start": garbage.start,
        "setsum": garbage.setsum.hex(),
        "keys": garbage.keys,
    }
    return swap_document(store, path.garbage, plain, etag or None, new_id)


def check_balance(key: str, old: Root, change: Change) -> Setsum:
    """Check that a collection changes nothing but what it announces.

    Args:
        key: Key of the root.
        old: Content as it was read.
        change: What is to be committed over it.

    Returns:
        the sum of the records that go.

    Raises:
        ManifestCorruptError: the sums do not balance, or the offsets at which the partition goes on would change.
    """
    new, gone = change.root, Setsum.total(each.setsum for each in change.gone)
    if new.setsum + gone != old.setsum or new.setsum + new.collected != old.setsum + old.collected:
        raise ManifestCorruptError(key, "what a collection would leave and what it would take do not add up")
    goes_on = new.end == max(old.end, new.start) and new.start >= old.start and new.version == old.version + 1
    if not goes_on or (new.claims[-1:], new.epochs[-1:]) != (old.claims[-1:], old.epochs[-1:]):
        raise ManifestCorruptError(key, "a collection would change where the partition goes on")
    return gone
