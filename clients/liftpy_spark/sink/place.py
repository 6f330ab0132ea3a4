"""Where tasks stage rows, and leaders or the driver read them: the bucket, or a directory that all of them see.

What is staged has the same keys in both, `spark/staging/<stream uuid>/<application>/<batch>/<task>-<nonce>.arrows`.
None is ever written twice, and none is read before a decision names it. Decisions are in the bucket, wherever rows are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from liftpy_bucket.staging.source import BucketSource, SectionSource
from liftpy_bucket.store.conditional import create_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from liftpy_bucket.staging.section import Section
    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["BucketPlace", "StagingPlace"]

_ROOM_BYTES_MIN: Final = 64 * 1024


class StagingPlace(SectionSource, Protocol):
    """Storage for staged rows.

    Attributes:
        directory: What a decision names; None for the bucket.
    """

    directory: str | None

    def create(self, key: str, parts: Iterable[pa.Buffer | bytes], nonce: str) -> None:
        """Write all parts, one after the other, under a new key; they are durable when it returns.

        None of them is held for longer than until the next one.

        Raises:
            StoreError: they could not be written.
        """

    def check(self, sections: Sequence[Section]) -> None:
        """See that what tasks say they have staged is here, as far as that is not certain anyway.

        Raises:
            StoreError: it is not.
        """

    def entries(self, prefix: str) -> Iterator[Entry]:
        """What was staged under keys that begin with `prefix`, in their order; nothing else is ever among it.

        Raises:
            StoreError: it can not be listed.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete what was staged; what does not exist counts as deleted.

        Raises:
            StoreError: it can not be deleted.
        """


class BucketPlace(BucketSource, StagingPlace):
    """The bucket that also has the decisions.

    Args:
        store: Object store of it.
    """

    directory = None

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._room = bytearray(_ROOM_BYTES_MIN)  # kept: to get and clear memory costs more than to copy the parts

    def create(self, key: str, parts: Iterable[pa.Buffer | bytes], nonce: str) -> None:
        """See `StagingPlace.create`; one object at a time."""
        size = 0
        for part in parts:
            end = size + len(part)
            if end > len(self._room):
                room = bytearray(max(end, 2 * len(self._room)))
                room[:size] = memoryview(self._room)[:size]
                self._room = room
            self._room[size:end] = memoryview(part).cast("B")
            size = end
        create_once(self._store, key, memoryview(self._room)[:size], nonce)

    def check(self, sections: Sequence[Section]) -> None:
        """A store shows an object to everybody as soon as it was written."""

    def entries(self, prefix: str) -> Iterator[Entry]:
        """See `StagingPlace.entries`."""
        return self._store.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """See `StagingPlace.delete`."""
        self._store.delete(keys)
