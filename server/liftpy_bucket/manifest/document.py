"""Small documents beside a root that several may write: pins, the collection in progress, the boundary.

A document moves by compare-and-swap. Every write carries an id of its own, so that no two have the same bytes (an etag
names bytes, not writes), and so that a writer whose answer was lost can see that the document is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_bucket.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    PreconditionFailedError,
)
from liftpy_bucket.manifest.json import ID, Fields, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["Document", "load_document", "swap_document"]

_ATTEMPTS: Final = 5


class Document(NamedTuple):
    """A document as it was read or written.

    Attributes:
        fields: What it says, still to be checked field by field.
        id: Id of the write.
        etag: Witness for the next swap.
        modified_ns: When it was written, by the clock of the store, ns since the epoch.
    """

    fields: Fields
    id: str
    etag: str
    modified_ns: int


def load_document(store: ObjectStore, key: str, names: Collection[str]) -> Document | None:
    """Read a document; None when there is none.

    Args:
        store: Where it is.
        key: Key of the object.
        names: The fields that it must have, without `format` and `id`.

    Raises:
        ManifestCorruptError: it is not such a document.
        BucketVersionError: a newer liftpy wrote it.
    """
    try:
        stored = store.get(key)
    except ObjectMissingError:
        return None
    fields = Fields.of_body(key, stored.body, ("id", *names))
    return Document(fields, fields.text("id", ID), stored.head.etag, stored.head.modified_ns)


def swap_document(
    store: ObjectStore, key: str, plain: Mapping[str, Any], etag: str | None, new_id: Callable[[], str]
) -> str:
    """Write a document over the one with `etag`, or, where that is None, where there is none.

    Returns:
        the etag of what was written.

    Raises:
        OvertakenError: somebody else wrote it meanwhile.
        OutcomeUnknownError: the store did not say, several times, whether it was written.
    """
    written = new_id()
    body = encode(key, {**plain, "id": written})
    for _ in range(_ATTEMPTS):
        try:
            return store.create(key, body, written) if etag is None else store.replace(key, body, etag, written)
        except (PreconditionFailedError, ObjectMissingError, OutcomeUnknownError) as error:
            failure = error  # it may be ours all the same: see who is there
        found = load_document(store, key, plain)
        if found is not None and found.id == written:
            return found.etag
        if (found.etag if found else None) != etag:
            raise OvertakenError(f"{key} was written by somebody else meanwhile: read it again, and decide anew")
    raise OutcomeUnknownError(f"whether {key} was written is not known after {_ATTEMPTS} attempts: {failure}")
