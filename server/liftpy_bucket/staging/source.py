"""Reading staged sections, from the bucket or from whatever is in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import google_crc32c

from liftpy_bucket.errors import ObjectMissingError, StagingDamagedError
from liftpy_bucket.staging.section import STAGING
from liftpy_bucket.staging.section_format import decode_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_bucket.staging.section import RowChunk, Section
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["BucketSource", "SectionSource", "load_section"]


class SectionSource(Protocol):
    """What staged rows are read from. Several threads use it at once; calls block.

    Attributes:
        loss: What to ask oneself when something that was staged there is gone.
    """

    loss: str

    def read(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` on; fewer only where there are no more.

        Raises:
            ObjectMissingError: there is nothing under this key.
            StoreError: it can not be read.
        """

    def name(self, key: str) -> str:
        """How people call what is staged under a key."""


class BucketSource(SectionSource):
    """The bucket that also has the decisions.

    Args:
        store: Object store of it.
    """

    loss = f"who deletes below {STAGING} of the bucket?"

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read(self, key: str, start: int, length: int) -> bytes:
        """See `SectionSource.read`."""
        return self._store.get_range(key, start, length)

    def name(self, key: str) -> str:
        """See `SectionSource.name`."""
        return f"staged object {key}"


def load_section(source: SectionSource, section: Section) -> Iterator[RowChunk]:
    """Read the chunks of a section, one after the other.

    Raises:
        StagingDamagedError: it is gone, or not as it was written.
        StoreError: it can not be read now.
    """
    where = f"{source.name(section.key)}, {section.length} bytes from {section.start} on"
    try:
        body = source.read(section.key, section.start, section.length)
    except ObjectMissingError:
        raise StagingDamagedError(f"{where}: it is gone; {source.loss}") from None
    if len(body) != section.length or google_crc32c.value(body) != section.crc:
        raise StagingDamagedError(f"{where}: its checksum does not match")
    count = 0
    try:
        for chunk in decode_section(body, section.partition):
            count += 1
            yield chunk
    except StagingDamagedError as error:
        raise StagingDamagedError(f"{where}: {error}") from None
    if count != section.chunks:  # they are published under their numbers
        raise StagingDamagedError(f"{where}: it has {count} chunks, and {section.chunks} were decided")
