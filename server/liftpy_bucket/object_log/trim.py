"""Where an object log begins: one small object that only ever moves up.

{"format": 1, "number": of the first object, "first": sequence of its first record, "sequence": the first that counts}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import (
    BucketVersionError,
    ManifestCorruptError,
    ObjectMissingError,
    OutcomeUnknownError,
    PreconditionFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.store.object_store import ObjectStore, Stored

__all__ = ["Trim", "TrimFile"]

_FORMAT: Final = 1
_ATTEMPTS_MAX: Final = 10


class Trim(NamedTuple):
    """The beginning of a log.

    Attributes:
        number: Number of the first object.
        first: Sequence of its first record.
        sequence: Sequence of the first record that was not trimmed; it may lie inside the object, or behind it.
    """

    number: int
    first: int
    sequence: int


class TrimFile:
    """The object that says where a log begins.

    Args:
        store: Object store.
        key: Key of the object.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._seen = (Trim(0, 0, 0), "")  # with the etag; replaced as a whole, so that threads see both or neither

    @property
    def known(self) -> Trim:
        """The beginning of the log, as it was loaded last."""
        return self._seen[0]

    def load(self) -> Trim:
        """Load the beginning of the log from the store.

        Raises:
            ManifestCorruptError: it can not be read.
            BucketVersionError: a newer liftpy wrote it.
        """
        return self._load()[0]

    def _load(self) -> tuple[Trim, str]:
        seen = self._seen
        etag = seen[1]
        try:
            stored = self._store.get_newer(self._key, etag) if etag else self._store.get(self._key)
        except ObjectMissingError:
            return seen
        if stored is None:
            return seen
        found = self._decode(stored)
        if found.sequence >= self.known.sequence:
            self._seen = (found, stored.head.etag)
        return found, stored.head.etag

    def advance(self, number: int, first: int, sequence: int, new_id: Callable[[], str]) -> None:
        """Move it up; nothing happens where it is further already.

        Raises:
            OutcomeUnknownError: after several attempts; the same call again is harmless.
        """
        wanted = Trim(number, first, sequence)
        body = json.dumps({"format": _FORMAT} | wanted._asdict(), separators=(",", ":")).encode()
        for _ in range(_ATTEMPTS_MAX):
            there, etag = self._load()
            if there.sequence >= sequence:
                return
            try:
                if etag:
                    self._store.replace(self._key, body, etag, new_id())
                else:
                    self._store.create(self._key, body, new_id())
            except (PreconditionFailedError, OutcomeUnknownError):
                continue  # whatever became of it, what is there says
        raise OutcomeUnknownError(f"{self._key} could not be moved to {sequence} in {_ATTEMPTS_MAX} attempts")

    def _decode(self, stored: Stored) -> Trim:
        try:
            plain = json.loads(stored.body)
            version = int(plain["format"])
            if version > _FORMAT:
                raise BucketVersionError(
                    f"object {self._key} has format {version}, and this liftpy knows {_FORMAT}: update it"
                )
            return Trim(int(plain["number"]), int(plain["first"]), int(plain["sequence"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ManifestCorruptError(self._key, f"it is not where a log begins ({error})") from None
