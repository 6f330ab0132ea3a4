"""Creating an object once, whatever becomes of the answers.

A refusal may be our own success that came back twice, and no answer may be either (SlateDB's put-id). So the writer
looks who is there before it decides. It never goes on to another name while an attempt may still arrive: where there is
nothing it sends the same name and nonce again, and of the two at most one can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreBusyError,
    StoreUnavailableError,
    TakenError,
)

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["create_once"]

_ATTEMPTS_MAX: Final = 4


def create_once(store: ObjectStore, key: str, body: bytes | memoryview, nonce: str) -> None:
    """Write an object that must not exist, and be sure of it. A few attempts, without pauses.

    Args:
        store: Object store.
        key: A name that is never written twice; after an error it stays taken for this body and nonce.
        body: Bytes of the object.
        nonce: Nonce of this write; the same one means the same bytes.

    Raises:
        TakenError: another writer has the name.
        OutcomeUnknownError: the object may be there, or may yet appear; the same call again is harmless.
        StoreUnavailableError: it was surely not written.
    """
    assert nonce, "a write without a nonce can not be told from another's"
    is_sent = False  # an attempt is or was on its way whose outcome we have not seen
    failure: Exception | None = None
    for _ in range(_ATTEMPTS_MAX):
        try:
            store.create(key, body, nonce)
        except StoreBusyError:  # nothing was done, and to send it again at once would make it worse
            if not is_sent:
                raise
            break
        except StoreUnavailableError as error:
            failure = error
            continue
        except (OutcomeUnknownError, PreconditionFailedError) as error:
            is_sent = True
            failure = error
        else:
            return
        try:
            there = store.head(key).nonce
        except (ObjectMissingError, StoreUnavailableError) as error:
            failure = error
            continue
        if there != nonce:
            raise TakenError(key, there)
        return
    if not is_sent and isinstance(failure, StoreUnavailableError):
        raise failure
    raise OutcomeUnknownError(
        f"whether object {key} was written is not known after {_ATTEMPTS_MAX} attempts ({failure})"
    ) from failure
