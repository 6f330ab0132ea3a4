"""Connections to NATS and to the bucket, one of each per process and settings.

Spark uses a Python worker for many tasks, and a connection takes longer than a small task; so connections stay open
until the process ends, or others are wanted more. A process that was forked has none. NATS closes a connection for good
when its credentials expire, which need not be so of those that are in the file by then: whoever asks next gets another.

A worker that did not finish its task, since a query wanted some rows only, ends with it. So what a client of NATS or of
a bucket needs is imported when there is one: that takes longer than reading the first rows.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from liftpy_envelope.errors import ConfigError, LiftError
from liftpy_spark.errors import BucketError, BucketUnreachableError, NatsError, NatsSilentError, this_place
from liftpy_spark.options.values import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from liftpy_bucket.reading.cache import ReadingCache
    from liftpy_bucket.store.counting import CountingStore
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_client.sync.client import SyncLift
    from liftpy_spark.options.connection import ConnectionOptions

__all__ = ["BucketAddress", "OpenBucket", "bucket", "bucket_address", "lift", "nats_failure", "open_bucket"]

_KEPT_MAX: Final = 8
_NAME: Final = "liftpy spark"
_OPTION_OF: Final = {"url": "servers", "creds": "credentialsFile", "context": "context"}
_OPTION_OF_BUCKET: Final = {"url": "bucket", "endpoint": "s3.endpoint", "region": "s3.region"}

_READING_WITHOUT: Final = "with the option 'cold' set to false everything is read through the nodes"
_WRITING_WITHOUT: Final = "with the option 'delivery' set to at-least-once rows are published without it"

_Value = TypeVar("_Value")


class OpenBucket(NamedTuple):
    """A bucket of this process.

    Attributes:
        store: Object store, whose requests and bytes are counted.
        cache: What was read of it.
        shown: Name of the bucket, for messages.
    """

    store: CountingStore
    cache: ReadingCache
    shown: str


class BucketAddress(NamedTuple):
    """Where a bucket is.

    Attributes:
        url: `s3://bucket/prefix`.
        endpoint: Endpoint of a store that is not AWS.
        region: Region of the bucket, where anybody says.
    """

    url: str
    endpoint: str | None
    region: str | None


class _Kept(Generic[_Value]):
    """A bounded number of connections; what was used longest ago is given up, and what is over when it is wanted."""

    def __init__(self, give_up: Callable[[_Value], None], is_over: Callable[[_Value], bool]) -> None:
        self._give_up = give_up
        self._is_over = is_over
        self.forget()

    def forget(self) -> None:
        """After a fork: what is here belongs to the parent, whose threads are not here."""
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, settings: Hashable, make: Callable[[], _Value]) -> _Value:
        """The one with these settings."""
        gone = []
        try:
            with self._lock:
                if settings in self._values and self._is_over(self._values[settings]):
                    gone.append(self._values.pop(settings))
                if settings not in self._values:
                    self._values[settings] = make()
                self._values.move_to_end(settings)
                value = self._values[settings]
                if len(self._values) > _KEPT_MAX:
                    gone.append(self._values.popitem(last=False)[1])
        finally:
            for each in gone:
                self._give_up(each)
        return value


def _close(gone: SyncLift) -> None:
    gone.close()


def _is_closed(kept: SyncLift) -> bool:
    return kept.is_closed


def _leave(_: OpenBucket | None) -> None:
    """A bucket has nothing to close."""


def _stays(_: OpenBucket | None) -> bool:
    """A bucket is never closed."""
    return False


_lifts: _Kept[SyncLift] = _Kept(_close, _is_closed)
_buckets: _Kept[OpenBucket | None] = _Kept(_leave, _stays)
os.register_at_fork(after_in_child=_lifts.forget)
os.register_at_fork(after_in_child=_buckets.forget)


def lift(connection: ConnectionOptions) -> SyncLift:
    """The connection to NATS; nobody closes it.

    Raises:
        NatsError: it can not be reached from here.
        OptionError: an option can not be used here: a file that is not there, for instance.
    """
    return _lifts.get(connection, lambda: _connect(connection))


def _connect(connection: ConnectionOptions) -> SyncLift:
    from liftpy_client.errors import UnreachableError  # noqa: PLC0415 (see the module)
    from liftpy_client.sync.client import connect_sync  # noqa: PLC0415

    given: dict[str, Any] = {"creds": connection.credentials_file}
    try:
        return connect_sync(connection.servers, name=_NAME, context=connection.context, **given)
    except UnreachableError as error:
        raise nats_failure(error) from None
    except ConfigError as error:
        option = _OPTION_OF.get(error.field, error.field)
        raise OptionError(option, f"{_after_field(error)} (on {this_place()})") from None


def nats_failure(error: LiftError) -> NatsError:
    """What to tell of NATS or its nodes when they do not answer."""
    from liftpy_client.errors import DisconnectedError, NodeUnavailableError  # noqa: PLC0415 (see the module)

    text = str(error)
    if isinstance(error, NodeUnavailableError):
        return NatsSilentError(f"{text} (asked by {this_place()})")
    if isinstance(error, DisconnectedError):
        return NatsSilentError(f"the connection of {this_place()} to NATS was closed: {text}")
    return NatsError(f"{text} (tried from {this_place()}; the option 'servers' says where NATS is)")


def bucket(connection: ConnectionOptions) -> ObjectStore | None:
    """The bucket for writing; None where neither the options nor the nodes name one. Errors as of `open_bucket`."""
    found = open_bucket(connection, instead=_WRITING_WITHOUT)
    return None if found is None else found.store


def open_bucket(
    connection: ConnectionOptions, told: BucketAddress | None = None, *, instead: str = _READING_WITHOUT
) -> OpenBucket | None:
    """The bucket, and what was read of it; None where neither the options nor the nodes name one.

    Args:
        connection: How NATS and the bucket are reached.
        told: What `bucket_address` said to someone else, who passes it on; so that the nodes need not be asked again.
        instead: What can be done without a bucket, for messages.

    Raises:
        BucketError: it can not be read from here, or is not one of liftpy.
        OptionError: an option does not name a bucket.
        NatsError: the nodes can not be asked which one they use.
    """
    return _buckets.get((connection, told), lambda: _find_bucket(connection, told, instead))


def bucket_address(connection: ConnectionOptions) -> BucketAddress | None:
    """The bucket that the options name, or else that of the nodes; None where neither name one.

    Store and region of the nodes go with their bucket alone; the options have the last word on each.

    Raises:
        NatsError: the nodes can not be asked which one they use.
    """
    if connection.bucket is not None:
        return BucketAddress(connection.bucket, connection.s3_endpoint, connection.s3_region)
    from liftpy_client.errors import DisconnectedError, NodeUnavailableError  # noqa: PLC0415 (see the module)

    try:
        told = lift(connection).tier_status(limit=1)
    except (NodeUnavailableError, DisconnectedError) as error:
        raise nats_failure(error) from None
    if told.url is None:
        return None
    return BucketAddress(told.url, connection.s3_endpoint or told.endpoint, connection.s3_region or told.region)


def _find_bucket(connection: ConnectionOptions, told: BucketAddress | None, instead: str) -> OpenBucket | None:
    address = told or bucket_address(connection)
    if address is None:
        return None
    try:
        return _open(connection, address, instead)
    except ImportError as error:
        if (error.name or "").startswith("liftpy"):
            raise  # it is not a package that is missing
        raise BucketError(
            f"{this_place()} can not use the bucket {address.url} without package {error.name}: pip install "
            f"'liftpy[s3]'; {instead}"
        ) from None


def _open(connection: ConnectionOptions, address: BucketAddress, instead: str) -> OpenBucket:
    from liftpy_bucket.errors import TierError  # noqa: PLC0415
    from liftpy_bucket.manifest.catalog import CatalogFile  # noqa: PLC0415 (see the module)
    from liftpy_bucket.reading.cache import ReadingCache  # noqa: PLC0415
    from liftpy_bucket.store.counting import CountingStore  # noqa: PLC0415
    from liftpy_bucket.store.s3 import S3Store  # noqa: PLC0415
    from liftpy_bucket.store.s3_settings import S3Settings  # noqa: PLC0415

    try:
        settings = S3Settings(**address._asdict())
    except ConfigError as error:
        raise OptionError(_OPTION_OF_BUCKET.get(error.field, error.field), _after_field(error)) from None
    try:
        store = CountingStore(S3Store(settings))
        has_catalog = CatalogFile(store, new_id=_commits_nothing).load() is not None
    except TierError as error:
        whose = "the bucket" if connection.bucket else "the bucket that the nodes use"
        kind = BucketUnreachableError if error.retriable else BucketError
        raise kind(
            f"{whose} can not be read from {this_place()}: {error}; the options 'bucket', 's3.endpoint' and "
            f"'s3.region' say where it is, variables such as AWS_ACCESS_KEY_ID have the credentials, and {instead}"
        ) from None
    if connection.bucket and not has_catalog:
        raise BucketError(
            f"{settings.shown} has no catalog of liftpy: is the prefix right? Leave the option 'bucket' out to take "
            "the one that the nodes use"
        )
    return OpenBucket(store, ReadingCache(store), settings.shown)


def _commits_nothing() -> str:
    raise AssertionError("readers do not commit")


def _after_field(error: ConfigError) -> str:
    return str(error).removeprefix(f"{error.field}: ")
