"""One conditional write of a manifest, with the doubt about its outcome settled by looking.

After a refusal, a time-out or a failure of the store nobody knows whether the write happened: an answer may have been
lost, the request delivered twice, or our own success taken for somebody else's. What stands then says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    OvertakenError,
    PreconditionFailedError,
    StoreBusyError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_bucket.store.object_store import ObjectStore, Stored

__all__ = ["swap"]

_ATTEMPTS: Final = 4


def swap(
    store: ObjectStore, key: str, body: bytes, *, etag: str | None, nonce: str, is_ours: Callable[[Stored], bool]
) -> tuple[str, bytes]:
    """Write an object over the one that was read.

    Args:
        store: Object store.
        key: Key of the object.
        body: What to write; never written before under this key.
        etag: ETag of the object that was read; None where there was none.
        nonce: Nonce of the attempt.
        is_ours: Whether what stands there is `body`, or was written by somebody who had seen it.

    Returns:
        (etag, bytes) of what stands now: `body`, or what somebody wrote on top of it.

    Raises:
        OvertakenError: another writer was first.
        OutcomeUnknownError: the store does not say, however often it is asked; `body` may be written still.
        StoreUnavailableError: it was surely not written.
    """
    is_sent = False  # an attempt is or was on its way whose outcome we have not seen
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            if etag is None:
                return store.create(key, body, nonce), body
            return store.replace(key, body, etag, nonce), body
        except StoreBusyError:  # nothing was done, and to ask again at once would make it worse
            if not is_sent:
                raise
            break
        except (PreconditionFailedError, OutcomeUnknownError, StoreUnavailableError) as error:
            is_sent = is_sent or not isinstance(error, StoreUnavailableError)
            failure = error
        try:
            found = _look(store, key)
        except StoreUnavailableError as error:
            failure = error
            continue
        if found is not None and is_ours(found):
            return found.head.etag, found.body
        if (None if found is None else found.head.etag) != etag:
            raise OvertakenError(f"{key} was written by somebody else meanwhile" if found else f"{key} is gone")
    if not is_sent and isinstance(failure, StoreUnavailableError):
        raise failure
    raise OutcomeUnknownError(
        f"{key} could not be written in {_ATTEMPTS} attempts, and one of them may be under way ({failure})"
    ) from failure


def _look(store: ObjectStore, key: str) -> Stored | None:
    try:
        return store.get(key)
    except ObjectMissingError:
        return None
