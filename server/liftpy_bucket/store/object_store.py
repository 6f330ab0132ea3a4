"""What the log in the bucket needs of an object store.

A store is called from threads, several at once, and blocks. Keys are relative to its prefix, which ends where they
begin. `create` and `replace` make exactly one attempt each, so that what they say is the truth: a retry behind our
back would turn our own success into a refusal. Everything else may be repeated without harm, and is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from liftpy_bucket.errors import ManifestCorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["WHOLE_BYTES_MAX", "Entry", "Head", "ObjectStore", "Stored", "check_whole"]

WHOLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is read whole, without a length that was known before, is a manifest; no manifest is larger."""


class Head(NamedTuple):
    """What a store says of an object without its bytes.

    Attributes:
        size: Size of the object, bytes.
        etag: ETag without quotes; names these bytes, or this version of them.
        nonce: Nonce of the attempt that wrote it; "" where it was not written by us.
        modified_ns: When it was written, by the clock of the store, ns since the epoch.
    """

    size: int
    etag: str
    nonce: str
    modified_ns: int


class Stored(NamedTuple):
    """An object."""

    body: bytes
    head: Head


class Entry(NamedTuple):
    """An object in a listing."""

    key: str
    size: int
    etag: str
    modified_ns: int


class ObjectStore(Protocol):
    """An object store, as the log in the bucket needs it. Every method raises the errors of `tier.errors`.

    ObjectMissingError where there is no such object, StoreDeniedError where we may not, StoreUnavailableError where
    the store does not answer after the attempts a call may make.
    """

    def get(self, key: str) -> Stored:
        """The whole object.

        Raises:
            ManifestCorruptError: it has more than `WHOLE_BYTES_MAX` bytes, which were not read.
        """

    def get_newer(self, key: str, etag: str) -> Stored | None:
        """The whole object, or None while it is still the one with `etag`. Raises as `get` does."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends before."""

    def head(self, key: str) -> Head:
        """What is known of the object."""

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        """Write an object that must not exist; one attempt. Returns its etag.

        Raises:
            PreconditionFailedError: the store says that it exists (and it may be ours, from an attempt before).
            OutcomeUnknownError: it may or may not have been written.
        """

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        """Write an object over the one with `etag`; one attempt. Returns the new etag.

        Raises:
            PreconditionFailedError: the store says that the object is another one by now, or gone.
            OutcomeUnknownError: it may or may not have been written.
        """

    def copies_from(self, source: ObjectStore) -> bool:  # noqa: ARG002 - of those who can
        """Whether it is worth asking for copies from there: it is a place in the same store, and was not refused."""
        return False

    def copy_from(self, source: ObjectStore, key: str, etag: str, nonce: str) -> bool:  # noqa: ARG002 - of those who can
        """Copy an object that must not exist here from a place in the same store, which does it by itself.

        Args:
            source: The other place.
            key: Key of the object in both places.
            etag: The object there is another one if it does not have this etag.
            nonce: Nonce of the copy.

        Returns:
            Whether it was copied. If not, this is another store, or the credentials may not read there, or the store
            does not copy, or does not answer, or there is an object here: then read it there, and write it here.
        """
        return False

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Objects whose keys begin with `prefix`, in the order of their keys, behind `start_after`.

        What was written before it was asked for is there: whoever deletes must see all pins.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist count as deleted."""


def check_whole(key: str, size: int) -> None:
    """See that an object is not too large to be read whole.

    Raises:
        ManifestCorruptError: it is.
    """
    if size > WHOLE_BYTES_MAX:
        raise ManifestCorruptError(key, f"its {size} bytes are more than the {WHOLE_BYTES_MAX} of a manifest")
