"""What an S3 store says when it refuses, in our errors and in words for people. Pure: no network, no boto3.

Nothing of what is signed or secret is repeated: a message has the code that the store gave, and what to do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from liftpy_bucket.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreBusyError,
    StoreDeniedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnfitError,
)

__all__ = ["CREDENTIALS", "StoreRefusal", "error_of"]

CREDENTIALS: Final = (
    "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile (AWS_PROFILE) or the role of the "
    "machine"
)
_DENIED: Final = {
    "InvalidAccessKeyId": f"does not know the access key; {CREDENTIALS}",
    "SignatureDoesNotMatch": f"says that the secret key does not fit the access key; {CREDENTIALS}",
    "RequestTimeTooSkewed": "says that the clock of this machine is wrong by more than 15 minutes; set it (NTP), or "
    "that of the store",
    "ExpiredToken": "says that the session token has expired; renew the credentials",
    "InvalidToken": f"does not take the session token (AWS_SESSION_TOKEN); {CREDENTIALS}",
    "NoSuchBucket": "has no such bucket; create it, or correct the url",
    "AuthorizationHeaderMalformed": "is in another region than was asked; set region to that of the bucket",
    "PermanentRedirect": "has the bucket in another region or at another endpoint; set region, or endpoint",
    "IllegalLocationConstraintException": "has the bucket in another region; set region to that of the bucket",
    "InvalidRegion": "does not know the region; set region to that of the bucket",
    "AccessDenied": "does not allow it to these credentials; liftpy needs s3:GetObject, s3:PutObject, s3:DeleteObject "
    "and s3:ListBucket, without which a missing object looks like a refusal",
}
_DENIED_STATUS: Final = (301, 307, 401, 403)
_FULL: Final = frozenset({"InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull"})
_BUSY: Final = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"})
_UNAVAILABLE: Final = frozenset({"RequestTimeout", "ServiceUnavailable", "InternalError"})
_TEXT_CHARS_MAX: Final = 200


class StoreRefusal(NamedTuple):
    """An answer of a store that is not the one that was hoped for.

    Attributes:
        code: S3's name of the error, or the status where it gave none.
        status: HTTP status.
        text: What else it said.
        region: Where it says that the bucket is; "" where it does not.
    """

    code: str
    status: int
    text: str = ""
    region: str = ""


def error_of(refusal: StoreRefusal, key: str, shown: str, *, is_conditional: bool) -> StoreError:
    """The error for a refusal.

    Args:
        refusal: What the store answered.
        key: What was asked for; "" for a listing.
        shown: The bucket, for messages.
        is_conditional: Whether it was a write with a condition, after which a failure of the store may mean either.
    """
    code, status = refusal.code, refusal.status
    if code != "NoSuchBucket" and (code == "NoSuchKey" or (status == 404 and key)):
        # A store that has no object to compare with says so; for whoever replaces it, it is not the one that it was.
        return PreconditionFailedError(f"object {key} is gone") if is_conditional else ObjectMissingError(key)
    if code == "PreconditionFailed" or status == 412:
        return PreconditionFailedError(f"{shown}: object {key} is not as the writer thought (412)")
    if code in _FULL or status == 507:
        return StoreFullError(f"{shown}: the store has no room, or a quota is used up [{code}]")
    if code in _DENIED or status in _DENIED_STATUS:
        region = f" (it says: {refusal.region})" if refusal.region else ""
        why = _DENIED.get(code, _DENIED["AccessDenied"])
        return StoreDeniedError(f"{shown}: the store {why}{region} [{code}]")
    if status == 501 or code == "NotImplemented":
        return StoreUnfitError(
            f"{shown}: the store does not know {'conditional writes' if is_conditional else 'this request'} [{code}]"
        )
    if code in _BUSY or status == 429:
        return StoreBusyError(f"{shown}: the store asks for fewer requests [{code}]")
    if status >= 500 or status == 409 or code in _UNAVAILABLE:
        unknown = OutcomeUnknownError(f"{shown}: whether object {key} was written is not known [{code}]")
        away = StoreUnavailableError(f"{shown}: the store can not now [{code}]; look at its health and its log")
        return unknown if is_conditional else away
    return StoreError(f"{shown}: the store refused [{code}, status {status}]: {refusal.text[:_TEXT_CHARS_MAX]}")
