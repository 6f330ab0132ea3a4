"""A bucket, through boto3; the only module that imports it, and only when there is a bucket.

Conditional writes are made by clients that make one attempt: a client that repeats a write whose answer it did not get
is told 412 for its own object. All other requests are repeated, here when a body breaks off, else by botocore. The
nonce of a writer stands in the metadata of its object.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from zlib import crc32

import boto3
from botocore import exceptions as boto
from botocore.config import Config
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from liftpy_bucket.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
    StoreUnfitError,
)
from liftpy_bucket.store.memory_reader import MemoryPieces, MemoryReader
from liftpy_bucket.store.object_store import WHOLE_BYTES_MAX, Entry, Head, ObjectStore, Stored, check_whole
from liftpy_bucket.store.s3_errors import CREDENTIALS, StoreRefusal, error_of
from liftpy_envelope.errors import ConfigError
from liftpy_log.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_log.clock import Clock

__all__ = ["S3Store"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NONCE: Final = "liftpy-nonce"
_DELETE_MAX: Final = 1_000  # keys that S3 takes at a time
_LARGE_BYTES: Final = 8 << 20
_LARGE_READ_TIMEOUT_S: Final = 120.0  # a store may answer only when it has written 256 MiB to its disks
_NOT_KNOWN: Final = (405, 501)  # a store that deletes one by one only
_WANTS_MD5: Final = ("MissingContentMD5", "MissingDigest")  # which botocore does not send any more
_REASON_CHARS_MAX: Final = 200
_BUSY_ATTEMPTS: Final = 4  # to write a manifest, when the store asks for fewer requests; of objects there is one
_BUSY_PAUSE_S: Final = 0.25  # before the second one; it doubles
_SMALL_BYTES: Final = 1 << 20
_RENEW_S: Final = 1.0  # other credentials are not looked for more often
_REFUSED_KEYS: Final = frozenset({"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"})
_REFUSES_COPIES: Final = frozenset({400, 401, 403, 405, 501})  # and would for every object
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_REACHED: Final = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_BROKEN_OFF: Final = (boto.IncompleteReadError, boto.ResponseStreamingError, boto.ReadTimeoutError, HTTPError)
_ERRORS: Final = (boto.ClientError, boto.BotoCoreError, ResponseParserError, HTTPError)
_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)


class _Clients(NamedTuple):
    """Clients with the same credentials.

    Attributes:
        signer: A digest of these credentials, which are kept nowhere; "" where there are none.
        usual: Repeats requests.
        once: Makes one attempt.
        once_large: Makes one attempt, and waits longer.
    """

    signer: str
    usual: Any
    once: Any
    once_large: Any


class S3Store(ObjectStore):
    """An object store in an S3 bucket; any number of threads may use it.

    Args:
        settings: Bucket, and how it is reached.
        clock: Clock that says how often other credentials are looked for.

    Raises:
        ConfigError: the file with the certificates is not there.
        StoreDeniedError: what the environment says of credentials can not be used.
    """

    def __init__(self, settings: S3Settings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        if settings.ca_file is not None and not Path(settings.ca_file).is_file():
            raise ConfigError("ca_file", f"there is no file {settings.ca_file}")
        self._settings = settings
        self._bucket = settings.bucket
        self._prefix = settings.prefix
        self._pause: Callable[[float], object] = threading.Event().wait
        self._not_copied: set[str] = set()  # buckets from which the store, or its owner, does not let us copy
        self._renewing = threading.Lock()
        self._renewed_s = self._clock.monotonic() - _RENEW_S
        try:
            self._clients = self._open(boto3.session.Session(profile_name=settings.profile))
        except (boto.BotoCoreError, ValueError) as error:
            raise self._failure(error, "", is_conditional=False) from None

    def _open(self, session: Any) -> _Clients:
        settings = self._settings
        return _Clients(
            _signer_of(session),
            self._connect(session, settings.attempts_max, settings.read_timeout_s),
            self._connect(session, 1, settings.read_timeout_s),
            self._connect(session, 1, max(settings.read_timeout_s, _LARGE_READ_TIMEOUT_S)),
        )

    def _ask(self, ask: Callable[[_Clients], T]) -> T:
        """Ask the store; once more where it refuses our credentials and there are others by now.

        A session reads its file once, so credentials that are rotated in it need another session.
        """
        clients = self._clients
        try:
            return ask(clients)
        except (boto.ClientError, *_NO_CREDENTIALS) as error:
            if isinstance(error, boto.ClientError) and not _is_denial(_refusal_of(error)):
                raise
            if self._renew(clients) is clients:
                raise
        return ask(self._clients)

    def _renew(self, refused: _Clients) -> _Clients:
        """Look for other credentials than those that were refused, but not all the time: a role's cost a request."""
        with self._renewing:
            if self._clients is not refused or self._clock.monotonic() - self._renewed_s < _RENEW_S:
                return self._clients
            self._renewed_s = self._clock.monotonic()
            try:
                session = boto3.session.Session(profile_name=self._settings.profile)
                if _signer_of(session) not in {"", refused.signer}:
                    self._clients = self._open(session)
            except (boto.BotoCoreError, ValueError):
                return refused  # the file is being written, perhaps
            return self._clients

    def _connect(self, session: Any, attempts_max: int, read_timeout_s: float) -> Any:
        settings = self._settings
        about: dict[str, Any] = {"addressing_style": settings.effective_addressing_style.value}
        if settings.effective_sign_payload is not None:
            about["payload_signing_enabled"] = settings.effective_sign_payload
        config = Config(
            retries={"mode": "standard", "total_max_attempts": attempts_max},
            connect_timeout=settings.connect_timeout_s,
            read_timeout=read_timeout_s,
            max_pool_connections=settings.connections_max,
            tcp_keepalive=True,
            s3=about,
            request_checksum_calculation=settings.effective_checksums.value,
            response_checksum_validation=settings.effective_checksums.value,
        )
        # A store that is not AWS mostly takes any region; to sign, one has to be named.
        region = settings.region or session.region_name or ("us-east-1" if settings.endpoint else None)
        client = session.client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=region,
            verify=settings.ca_file or (None if settings.verify else False),  # None: also what AWS_CA_BUNDLE says
            config=config,
        )
        client.meta.events.register("before-send.s3.PutObject", _in_pieces)
        return client

    def get(self, key: str) -> Stored:
        """The whole object."""
        stored = self._read(key, lambda answer: _stored_of(answer, key))
        assert stored is not None, "nothing was said that it could be None for"
        return stored

    def get_newer(self, key: str, etag: str) -> Stored | None:
        """The whole object, or None while it is still the one with `etag`."""
        return self._read(key, lambda answer: _stored_of(answer, key), none_on=304, IfNoneMatch=f'"{etag}"')

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends before."""
        assert start >= 0, "bytes are counted from the beginning"
        assert length >= 0, "a range has a length"
        if not length:
            self.head(key)  # S3 has no empty ranges
            return b""
        # 416: the object ends before `start`.
        asked = f"bytes={start}-{start + length - 1}"
        found = self._read(key, lambda answer: _bytes_of(answer, length), none_on=416, Range=asked) or b""
        if len(found) > length:
            raise StoreUnfitError(
                f"{self._settings.shown}: of object {key}, {length} bytes were asked for, and more came"
            )
        return found

    def head(self, key: str) -> Head:
        """What is known of the object."""
        try:
            answer = self._ask(lambda clients: clients.usual.head_object(Bucket=self._bucket, Key=self._prefix + key))
        except boto.ClientError as error:
            if _refusal_of(error).status == 404:
                raise ObjectMissingError(key) from None
            raise self._explained(error, key) from None
        except _ERRORS as error:
            raise self._failure(error, key, is_conditional=False) from None
        return _head_of(answer)

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        """Write an object that must not exist; one attempt. Returns its etag.

        Raises:
            PreconditionFailedError: the store says that it exists (and it may be ours, from an attempt before).
            OutcomeUnknownError: it may or may not have been written.
        """
        return self._put(key, body, nonce, IfNoneMatch="*")

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        """Write an object over the one with `etag`; one attempt. Returns the new etag.

        Raises:
            PreconditionFailedError: the store says that the object is another one by now, or gone.
            OutcomeUnknownError: it may or may not have been written.
        """
        return self._put(key, body, nonce, IfMatch=f'"{etag}"' if self._settings.quoted_etags else etag)

    def copies_from(self, source: ObjectStore) -> bool:
        """Whether the other place is at this endpoint, and copies from its bucket were not refused so far."""
        if not isinstance(source, S3Store) or source._address != self._address:  # noqa: SLF001 - one class
            return False
        return source._bucket not in self._not_copied  # noqa: SLF001 - one class

    def copy_from(self, source: ObjectStore, key: str, etag: str, nonce: str) -> bool:
        """Have S3 copy an object from another prefix or bucket at this endpoint; see `ObjectStore.copy_from`."""
        if not isinstance(source, S3Store) or not self.copies_from(source):
            return False
        of = {"Bucket": source._bucket, "Key": source._prefix + key}  # noqa: SLF001 - one class
        asked = {"CopySource": of, "CopySourceIfMatch": f'"{etag}"', "IfNoneMatch": "*"}
        asked |= {"MetadataDirective": "REPLACE", "Metadata": {_NONCE: nonce}}
        try:
            self._ask(
                lambda clients: clients.once_large.copy_object(Bucket=self._bucket, Key=self._prefix + key, **asked)
            )
        except _ERRORS as error:
            logger.info("%s: object %s is not copied by the store itself: %s", self._settings.shown, key, error)
            if isinstance(error, boto.ClientError) and _refusal_of(error).status in _REFUSES_COPIES:
                self._not_copied.add(source._bucket)  # noqa: SLF001 - one class
            return False
        return True

    @property
    def _address(self) -> str:
        return (self._settings.endpoint or "").rstrip("/")

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """Objects whose keys begin with `prefix`, in the order of their keys, behind `start_after`.

        The order is the store's: SeaweedFS sorts by directory, so `a-b/x` comes behind `a/x`.
        """
        asked = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        if start_after:
            asked["StartAfter"] = self._prefix + start_after
        is_more = True
        while is_more:
            try:
                page = self._ask(lambda clients: clients.usual.list_objects_v2(**asked))
            except _ERRORS as error:
                raise self._failure(error, "", is_conditional=False) from None
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(self._prefix)
                if key > start_after:
                    yield Entry(key, item["Size"], item["ETag"].strip('"'), _ns_of(item["LastModified"]))
            asked["ContinuationToken"] = page.get("NextContinuationToken", "")
            is_more = bool(page.get("IsTruncated") and asked["ContinuationToken"])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist count as deleted."""
        for at in range(0, len(keys), _DELETE_MAX):
            names = [self._prefix + key for key in keys[at : at + _DELETE_MAX]]
            try:
                self._delete(names)
            except _ERRORS as error:
                raise self._failure(error, "", is_conditional=False) from None

    def _delete(self, names: Sequence[str]) -> None:
        if len(names) == 1:
            self._delete_one(names[0])
            return
        listed = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        try:
            answer = self._ask(lambda clients: clients.usual.delete_objects(Bucket=self._bucket, Delete=listed))
        except boto.ClientError as error:
            refusal = _refusal_of(error)
            if refusal.status not in _NOT_KNOWN and refusal.code not in _WANTS_MD5:
                raise
            for name in names:
                self._delete_one(name)
            return
        for failed in answer.get("Errors", ()):
            if failed.get("Code") != "NoSuchKey":
                refusal = StoreRefusal(failed.get("Code", ""), 500, failed.get("Message", ""))
                raise error_of(refusal, failed.get("Key", ""), self._settings.shown, is_conditional=False)

    def _delete_one(self, name: str) -> None:
        try:
            self._ask(lambda clients: clients.usual.delete_object(Bucket=self._bucket, Key=name))
        except boto.ClientError as error:
            refusal = _refusal_of(error)
            if refusal.status != 404 or refusal.code == "NoSuchBucket":
                raise

    def _put(self, key: str, body: bytes | memoryview, nonce: str, **condition: str) -> str:

        def put(clients: _Clients) -> Any:
            client = clients.once if len(body) < _LARGE_BYTES else clients.once_large
            sent = body if isinstance(body, bytes) else MemoryReader(body)
            about = {"Bucket": self._bucket, "Key": self._prefix + key, "Metadata": {_NONCE: nonce}}
            return client.put_object(Body=sent, **about, **condition)

        attempts = _BUSY_ATTEMPTS if len(body) <= _SMALL_BYTES else 1
        for attempt in range(attempts):
            try:
                return str(self._ask(put)["ETag"]).strip('"')
            except _ERRORS as error:
                failure = self._failure(error, key, is_conditional=True)
                if not isinstance(failure, StoreBusyError) or attempt == attempts - 1:
                    raise failure from None
            share = 0.5 + crc32(f"{nonce}-{attempt}".encode()) / 2**32  # so that not all come at once
            self._pause(_BUSY_PAUSE_S * 2**attempt * share)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, key: str, take: Callable[[Any], T], none_on: int = 0, **asked: str) -> T | None:
        """Read an object; once more when its body breaks off, which botocore leaves to us."""
        for left in reversed(range(self._settings.attempts_max)):
            try:
                return take(self._answer(key, asked))
            except _BROKEN_OFF as error:
                if not left:
                    raise self._failure(error, key, is_conditional=False) from None
            except _ERRORS as error:
                if none_on and isinstance(error, boto.ClientError) and _refusal_of(error).status == none_on:
                    return None
                raise self._failure(error, key, is_conditional=False) from None
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, key: str, asked: Mapping[str, str]) -> Any:
        try:
            about = {"Bucket": self._bucket, "Key": self._prefix + key}
            return self._ask(lambda clients: clients.usual.get_object(**about, **asked))
        except boto.ReadTimeoutError as error:  # botocore has repeated it: only bodies that break off are left to us
            raise self._failure(error, key, is_conditional=False) from None

    def _explained(self, error: Exception, key: str) -> StoreError:
        """The answer to a HEAD has no words: a listing that is refused as well says why."""
        try:
            self._clients.usual.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + key, MaxKeys=1)
        except _ERRORS as explained:
            return self._failure(explained, "", is_conditional=False)
        return self._failure(error, key, is_conditional=False)

    def _failure(self, error: Exception, key: str, *, is_conditional: bool) -> StoreError:
        """What an exception of boto3 means to us."""
        shown = self._settings.shown
        if isinstance(error, boto.ClientError):
            return error_of(_refusal_of(error), key, shown, is_conditional=is_conditional)
        if isinstance(error, _NO_CREDENTIALS):
            return StoreDeniedError(f"{shown}: no credentials that can be used ({error}); {CREDENTIALS}")
        if isinstance(error, _NOT_REACHED):
            return StoreUnavailableError(
                f"{shown}: can not be reached ({_reason_of(error)}); check endpoint and network"
            )
        reason = _reason_of(error)
        if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in reason:
            return StoreDeniedError(
                f"{shown}: the certificate of the store is not trusted ({reason}); set ca_file to the certificates of "
                "who signed it"
            )
        if isinstance(error, boto.SSLError) and "WRONG_VERSION_NUMBER" in reason:
            return StoreDeniedError(f"{shown}: the store speaks no TLS there; begin endpoint with http://")
        if not isinstance(error, (boto.HTTPClientError, boto.SSLError, ResponseParserError, HTTPError, *_BROKEN_OFF)):
            return StoreError(f"{shown}: {error}")  # nothing was sent: parameters, regions
        if is_conditional:
            return OutcomeUnknownError(f"{shown}: whether object {key} was written is not known ({reason})")
        return StoreUnavailableError(f"{shown}: no answer that can be read ({reason})")


def _signer_of(session: Any) -> str:
    credentials = session.get_credentials()
    return "" if credentials is None else sha256(repr(tuple(credentials.get_frozen_credentials())).encode()).hexdigest()


def _is_denial(refusal: StoreRefusal) -> bool:
    return refusal.code in _REFUSED_KEYS or refusal.status in {401, 403}


def _in_pieces(request: Any, **_: Any) -> None:
    """Memory is handed to the socket as it is: as a file it would be read, and copied, by 16 KiB."""
    if isinstance(request.body, MemoryReader):
        request.body = MemoryPieces(request.body)


def _refusal_of(error: Any) -> StoreRefusal:
    said = error.response.get("Error", {})
    about = error.response.get("ResponseMetadata", {})
    region = said.get("Region") or about.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
    code = str(said.get("Code", ""))
    status = int(about.get("HTTPStatusCode", 0))
    return StoreRefusal(code or str(status), status, str(said.get("Message", "")), str(region))


def _reason_of(error: Exception) -> str:
    """The innermost thing that went wrong, without addresses of objects and requests."""
    inner = getattr(error, "kwargs", {}).get("error", error)
    text = str(inner).rsplit("connection: ", maxsplit=1)[-1]
    return text.rsplit("): ", maxsplit=1)[-1].replace("\n", " ")[:_REASON_CHARS_MAX]


def _head_of(answer: Any) -> Head:
    nonce = answer.get("Metadata", {}).get(_NONCE, "")
    return Head(answer["ContentLength"], answer["ETag"].strip('"'), nonce, _ns_of(answer["LastModified"]))


def _bytes_of(answer: Any, bytes_max: int) -> bytes:
    """The body; a few bytes more than `bytes_max` where it has more."""
    content = answer["Body"]
    if answer.get("ContentLength", bytes_max + 1) <= bytes_max:
        body: bytes = content.read()  # it sees to it that all of it comes
    else:
        body = content.read(bytes_max + 1)
        content.close()
    return body


def _stored_of(answer: Any, key: str) -> Stored:
    if answer["ContentLength"] > WHOLE_BYTES_MAX:
        answer["Body"].close()
    check_whole(key, answer["ContentLength"])
    return Stored(_bytes_of(answer, WHOLE_BYTES_MAX), _head_of(answer))


def _ns_of(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(microseconds=1) * 1_000
